# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# For suites that are shell scripts: where things are, and how to report.
set -euo pipefail
suite=$(basename "$0")
top=$(cd "$(dirname "$0")/../.." && pwd)
: "${TIDEMARK_BUILD:=$top/build}" "${TIDEMARK_LOGS:=$TIDEMARK_BUILD/logs}"
logs=$TIDEMARK_LOGS
failed=0
mkdir -p "$logs"

ok() { echo "ok $suite/$1"; }
skip() { echo "skip $suite/$1: $2"; }
bad() { # bad NAME WHY LOG
    echo "not ok $suite/$1: $2 (log $3)"
    failed=1
}

# silent NAME COMMAND...: the command must exit 0; what it prints is the log.
silent() {
    local name=$1 log="$logs/$suite-$1.log" code=0
    shift
    "$@" >"$log" 2>&1 || code=$?
    if ((code == 0)); then
        ok "$name"
    else
        bad "$name" "exit $code: $(tail -n 1 "$log" | cut -c1-120)" "$log"
    fi
}

# tap NAME PROGRAM: run a GLib test program; each of its tests counts.
tap() {
    local name=$1 log="$logs/$suite-$1.log" code=0 line bad_before=$failed
    local any=0 test
    timeout -k 10 "${TAP_TIMEOUT:-900}" "$2" --tap -k >"$log" 2>&1 || code=$?
    while read -r line; do
        test=$(sed -E 's/^(not )?ok [0-9]+ *-? *\/?//; s/ *# .*//' <<<"$line")
        case $line in
            *'# SKIP'*) skip "$name/$test" "${line##*# SKIP }" ;;
            ok*) ok "$name/$test"; any=1 ;;
            *) bad "$name/$test" 'failed' "$log" ;;
        esac
    done < <(grep -E '^(not )?ok [0-9]' "$log" || true)
    if ((code != 0 && failed == bad_before)) || ((code == 0 && !any)) &&
       ! grep -q '# SKIP' "$log"; then
        bad "$name" "exit code $code, $(grep . "$log" | tail -n 1 | cut -c1-100)" "$log"
    fi
}

# inner TARGET...: build targets of QEMU's own build; false if that fails.
inner() {
    ninja -C "$TIDEMARK_BUILD/tidemark" "$@" \
        >"$logs/$suite-build.log" 2>&1
}

# ours KIND: names of our test programs in tests/KIND, without .c.
ours() {
    find "$top/tests/$1" -maxdepth 1 -name '*test*.c' -printf '%f\n' \
        2>/dev/null | sed 's/\.c$//' | sort
}
