#!/bin/bash
# Runs `make demo` and `make test` on a fresh Debian, in a clone of the last commit.
#
#     build_tools/fresh_debian.sh trixie|forky FOLDER [command ...]
#
# For root, with debootstrap. FOLDER gets the Debian, with nothing but the packages that README.md
# names, and is kept: another call takes it as it is and clones anew. The mirror is that of this
# machine's apt, as are its certificates and its settings for pip.
set -euo pipefail
suite=$1
folder=$(realpath -m "$2")
shift 2
root=$(cd "$(dirname "$0")/.." && pwd)
packages=python3,python3-venv,make,g++,git

if [ ! -e "$folder/usr/bin/python3" ]; then
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 debian)
    script=/usr/share/debootstrap/scripts/$suite
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
    debootstrap --variant=minbase --include=$packages,ca-certificates \
        "$suite" "$folder" "$mirror" "$script"
fi

cp /etc/resolv.conf "$folder/etc/resolv.conf"
cp /etc/ssl/certs/ca-certificates.crt "$folder/etc/ssl/certs/ca-certificates.crt"
[ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$folder/etc/pip.conf"
rm -rf "$folder/root/gluon_roi"
git clone -q "$root" "$folder/root/gluon_roi"

mountpoint -q "$folder/proc" || mount -t proc proc "$folder/proc"
mountpoint -q "$folder/dev/shm" || { mkdir -p "$folder/dev/shm"; mount -t tmpfs tmpfs "$folder/dev/shm"; }
trap 'umount "$folder/dev/shm" "$folder/proc"' EXIT
inside() {
    echo "+ $*"
    chroot "$folder" /usr/bin/env -i PATH=/usr/bin:/bin HOME=/root LANG=C.UTF-8 \
        GLUON_ROI_CUDA="${GLUON_ROI_CUDA:-0}" bash -c "cd /root/gluon_roi && $*"
}
inside "cat /etc/debian_version && python3 --version && g++ --version | head -n 1"
if [ $# -gt 0 ]; then
    inside "$*"
else
    inside make demo
    inside make test
fi
