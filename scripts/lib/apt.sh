# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0-or-later
#
# Uses apt with a state folder of our own, so that the machine's package lists
# stay as they are.  Mirror, proxy and keys are those of the machine's own apt.

# apt_mirror: print the address of the Debian mirror that this machine uses.
apt_mirror() {
    local code uris
    code=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    uris=$(apt-get update --print-uris 2>/dev/null |
           sed -nE "s|^'(.*/)dists/([^/']+)/InRelease'.*|\1 \2|p" |
           grep -v security)
    grep -E " $code\$" <<<"$uris" | head -n 1 | cut -d' ' -f1 | grep . ||
        grep -E '/debian/ ' <<<"$uris" | head -n 1 | cut -d' ' -f1 | grep .
}

# apt_keyring: print the file of Debian's archive keys.
apt_keyring() {
    local file
    for file in /usr/share/keyrings/debian-archive-keyring.{gpg,pgp}; do
        [[ -f $file ]] && { echo "$file"; return 0; }
    done
    return 1
}

# apt_state DIR: prepare DIR; APT then holds the command line options to use.
# The package sources are those in DIR/sources.d.
apt_state() {
    mkdir -p "$1"/{lists,cache/archives}/partial "$1/sources.d"
    # shellcheck disable=SC2034  # for the scripts that read this file
    APT=(-q -o "Dir::State::lists=$1/lists" -o "Dir::Cache=$1/cache"
         -o "Dir::Etc::sourcelist=/dev/null"
         -o "Dir::Etc::sourceparts=$1/sources.d"
         -o "APT::Sandbox::User=root" -o "Acquire::Retries=2"
         -o "Acquire::Languages=none" -o "DPkg::Lock::Timeout=600"
         -o "Dpkg::Use-Pty=0")
}
