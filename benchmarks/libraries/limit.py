# SPDX-License-Identifier: Apache-2.0
"""The limit, which is no library: a copy of the bytes that a call must move."""

from __future__ import annotations

import functools

import numpy as np

from ..kernels import moved_bytes
from ..work import Row
from .base import Library, Work, writing


class Limit(Library):
    """Moves the bytes that a call must move: copies half as many, each read and written."""

    name, modules = "limit", ("numpy",)
    operators = None
    modes = ("avg", "max")

    def prepare(self, item: Row) -> Work:
        moved = moved_bytes(item)
        source, target = (np.ones(max(moved.values()) // 2, np.int8) for _ in range(2))
        work: Work = {"bytes": moved}
        for way, count in moved.items():
            arrays = target[: count // 2], source[: count // 2]
            copy = functools.partial(np.copyto, *arrays)
            work[way] = (writing(arrays[1]), copy) if "network" in way else copy
        return work
