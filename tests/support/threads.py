# SPDX-License-Identifier: Apache-2.0
"""The number of OpenMP threads of this process."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Iterator


@contextlib.contextmanager
def openmp_threads(count: int) -> Iterator[None]:
    """Context manager: kernels use this many threads."""
    openmp = ctypes.CDLL("libgomp.so.1")
    before = openmp.omp_get_max_threads()
    openmp.omp_set_num_threads(count)
    try:
        yield
    finally:
        openmp.omp_set_num_threads(before)
