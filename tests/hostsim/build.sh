#!/bin/bash
# Builds a library with the C interface whose CUDA kernels run on the CPU: GLUON_ROI_CUDA is a device
# in host memory. Needs g++ alone.
#
#   tests/hostsim/build.sh FOLDER [flags, such as -fsanitize=address,undefined]
#
# writes FOLDER/libgluon_roi_hostsim.so.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$1
shift
mkdir -p "$folder"
flags=(-std=c++17 -O1 -g -fPIC -ffp-contract=off -Wall -Wextra -Werror -Wno-unknown-pragmas -Wno-unused-parameter
  -DGLUON_ROI_WITH_CUDA -DGLUON_ROI_CUDA_VERSION='"hostsim"' -DGLUON_ROI_CUDA_ARCHS='""'
  -I"$root/tests/hostsim" "$@")
find "$root/src" -name '*.cc' ! -name mxnet.cc -o -name '*.cu' |
  xargs -P "$(nproc)" -I{} sh -c 'exec "${CXX:-g++}" "$@" -x c++ -c {} -o "$0/$(echo {} | tr / _).o"' \
    "$folder" "${flags[@]}"
"${CXX:-g++}" "$@" -shared -Wl,-z,defs "$folder"/*.o -o "$folder/libgluon_roi_hostsim.so"
