# SPDX-License-Identifier: Apache-2.0
"""Instruction sets that GLUON_ROI_SIMD selects."""

import platform

import gluon_roi

_OF_ARCHITECTURE = ("neon",) if platform.machine() == "aarch64" else ("sse2", "avx2", "avx512")
#: Those that this process may use, lowest first: all of the processor, unless GLUON_ROI_SIMD names
#: a lower one.
LEVELS = _OF_ARCHITECTURE[: _OF_ARCHITECTURE.index(gluon_roi.build_info()["simd"]) + 1]
