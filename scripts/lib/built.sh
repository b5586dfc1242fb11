# SPDX-License-Identifier: GPL-2.0-or-later
# shellcheck shell=bash
#
# For scripts that need both emulators: install what is missing, build what
# changed.  ensure_built TOP BUILD NAME says what it does as NAME.

ensure_built() {
    local top=$1 build=$2 name=$3 began=$SECONDS
    "$top/scripts/install-deps"
    if [[ ! -f $build/build.ninja ]]; then
        echo "$name: setting up $build"
        meson setup "$build" "$top" -Dstock=true >/dev/null
    else
        meson configure "$build" -Dstock=true
    fi
    ninja -C "$build" || {
        echo "$name: the build failed (see above)" >&2
        return 1
    }
    echo "$name: build took $((SECONDS - began)) s"
}
