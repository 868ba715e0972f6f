#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# keep_log.sh LOG COMMAND...   Stores what a compiler prints, and shows faults and warnings.
#
# `make lint` looks for warnings in the logs, and tests/src/test_cuda_build.py reads ptxas's lists.
log=$1
shift
"$@" > "$log" 2>&1
status=$?
if [ $status -ne 0 ] || grep -q warning "$log"; then cat "$log" >&2; fi
exit $status
