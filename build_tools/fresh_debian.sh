#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs `make demo` and `make test` on a fresh Debian, in a clone of the last commit.
#
#     build_tools/fresh_debian.sh [--arch arm64] trixie|forky FOLDER [command ...]
#
# For root, with debootstrap. FOLDER gets the Debian, with only the packages that README.md names.
# It is kept: another call reuses it and clones again. It gets this machine's mirror, certificates
# and pip settings.
#
# --arch arm64 runs under qemu-user-static, some 20 times slower: the wheel comes from this machine
# (`make wheel` of the same commit), and only some of the tests run.
set -euo pipefail
arch=$(dpkg --print-architecture)
if [ "$1" = --arch ]; then
    arch=$2
    shift 2
fi
suite=$1
folder=$(realpath -m "$2")
shift 2
root=$(cd "$(dirname "$0")/.." && pwd)
packages=python3,python3-venv,make,g++,git
emulated=$([ "$arch" = "$(dpkg --print-architecture)" ] || echo yes)
binfmt=/proc/sys/fs/binfmt_misc

if [ "$emulated" ]; then
    [ -e $binfmt/register ] || mount -t binfmt_misc none $binfmt
    [ -e $binfmt/qemu-aarch64 ] || update-binfmts --enable qemu-aarch64 || {
        echo "fresh_debian: run 'apt-get install qemu-user-static binfmt-support'" >&2
        exit 1
    }
    # Compiling takes a minute on this machine and half an hour there.
    wheel=$(ls -t "$root"/dist/*_aarch64.whl | head -n 1) || {
        echo "fresh_debian: no wheel for 64-bit Arm in dist; run 'make wheel'" >&2
        exit 1
    }
fi

if [ ! -e "$folder/usr/bin/python3" ]; then
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 debian)
    script=/usr/share/debootstrap/scripts/$suite
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
    debootstrap --variant=minbase --arch="$arch" --include=$packages,ca-certificates \
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
        GLUON_ROI_CUDA="${GLUON_ROI_CUDA:-0}" OMP_WAIT_POLICY=passive \
        bash -c "cd /root/gluon_roi && $*"
}

# Installs the wheel, which the clone uses because its own library is not built.
install_emulated() {
    cp "$wheel" "$folder/root/gluon_roi/"
    # Downloads by an emulated pip are so slow that connections break.
    local python platforms=
    python=$(chroot "$folder" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    for glibc in 17 24 26 27 28 31 34; do platforms+=" --platform manylinux_2_${glibc}_aarch64"; done
    local download="$root/.venv/bin/pip download -q -d $folder/root/wheels --only-binary :all: \
        $platforms --python-version $python"
    # (pip reads the conditions of requirements as this machine meets them.)
    $download "$wheel[demo,onnx,test]" setuptools scipy-openblas32
    $download --no-deps --platform manylinux2014_aarch64 mxnet==1.9.1 gluoncv==0.10.5
    rm "$folder"/root/wheels/gluon_roi*
    local install=".venv/bin/pip install -q --no-index --find-links ../wheels"
    inside "test -d ../venv || python3 -m venv ../venv; ln -s ../venv .venv"
    inside "$install --force-reinstall --no-deps ./*.whl"
    inside "$install \"\$(echo ./*.whl)[demo,onnx,test]\" setuptools"
    inside "$install --no-deps mxnet==1.9.1 gluoncv==0.10.5"
    inside "cd / && /root/venv/bin/python -m gluon_roi"
}

# Checks for the same bytes as on this machine, then runs brief tests and a short training.
check_emulated() {
    local script=tests/scripts/instruction_sets.py pytest=".venv/bin/python -m pytest"
    local digests='import json, sys; print(json.loads(sys.stdin.readlines()[-1])["operators"])'
    inside ".venv/bin/python $script" | "$root/.venv/bin/python" -c "$digests" > "$folder/tmp/there"
    "$root/.venv/bin/python" "$root/$script" | "$root/.venv/bin/python" -c "$digests" > "$folder/tmp/here"
    cmp "$folder/tmp/here" "$folder/tmp/there"
    echo "the same digests as on this machine"
    inside "$pytest tests/demo/test_demo_train.py::test_overfits_four_images"
    inside "$pytest -m 'not slow' tests/ops/test_golden.py tests/src/test_c_abi.py tests/test_compat*.py"
    # The digests have compared the other types; a test takes half a minute.
    inside "$pytest -m 'not slow' -k float32 tests/ops/test_operators.py tests/ops/test_edges.py"
}

inside "cat /etc/debian_version && python3 --version && g++ --version | head -n 1"
[ ! "$emulated" ] || install_emulated
if [ $# -gt 0 ]; then
    inside "$*"
elif [ "$emulated" ]; then
    check_emulated
else
    inside make demo
    inside make test
fi
