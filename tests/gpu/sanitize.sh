#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every check of the kernels under compute-sanitizer: memcheck, racecheck, initcheck.
#
#   tests/gpu/sanitize.sh [library]
#
# Allocations bypass torch's pool, so that an access behind the end of an array is one behind the end
# of an allocation.
set -euo pipefail
cd "$(dirname "$0")/../.."
library=${1:-build/gpu/libgluon_roi.so}
for tool in memcheck racecheck initcheck; do
  echo "== $tool"
  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool "$tool" --error-exitcode 1 \
    "${PYTHON:-python3}" tests/gpu/check_kernels.py --library "$library" table
done
