#!/bin/bash
# Builds the C interface alone, with CUDA and without MXNet, for checks on a machine that has a GPU.
#
#   tests/gpu/build.sh [architecture, such as 90; default: that of the GPU here]
#
# writes build/gpu/libgluon_roi.so. Needs g++ and nvcc (on PATH, or NVCC=...). Built elsewhere, the
# file can be copied to a machine without nvcc.
set -euo pipefail
cd "$(dirname "$0")/../.."
arch=${1:-native}
[ "$arch" = native ] || arch=sm_$arch
nvcc=${NVCC:-nvcc}
mkdir -p build/gpu
defines=(-DGLUON_ROI_WITH_CUDA -DGLUON_ROI_CUDA_VERSION='"checks"' -DGLUON_ROI_CUDA_ARCHS='""')
for file in src/core/*.cc src/ops/*.cc; do
  "${CXX:-g++}" -std=c++17 -O3 -fPIC -fopenmp -ffp-contract=off "${defines[@]}" -c "$file" \
    -o "build/gpu/$(basename "$file").o" &
done
for file in src/core/*.cu src/ops/*.cu; do
  "$nvcc" -std=c++17 -O3 -fmad=false -lineinfo -arch="$arch" -Xcompiler -fPIC,-ffp-contract=off \
    "${defines[@]}" -c "$file" -o "build/gpu/$(basename "$file").o" &
done
for job in $(jobs -p); do wait "$job"; done
"$nvcc" --cudart static -shared -Xcompiler -fopenmp -Xlinker -z -Xlinker defs build/gpu/*.o \
  -o build/gpu/libgluon_roi.so
echo "build/gpu/libgluon_roi.so"
