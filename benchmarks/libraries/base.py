# SPDX-License-Identifier: Apache-2.0
"""The same work in each library: ``prepare(item)`` returns a function for each way of measuring.

Each function takes no argument, computes, and returns when the result is in memory. "forward"
allocates a new output, "forward, out=" reuses one, "forward+backward" is both passes, with respect
to data. A library is imported when it prepares an item, in its own process.

Each way "in a network" is a pair of functions, of which only the second is timed. The first
imitates what happens between two calls in a network: another operator of the library writes 64 MB
and then the map, into other memory than in the previous call. The timed call ends with the gradient
of that map, also in new memory. torch and Paddle return that gradient on request. MXNet only
returns gradients of leaves, and a leaf costs gluon_roi a copy that the result of an operator does
not. So the map is made by an operator that puts one cell, the leaf, into zeros, and is then
overwritten. The backward pass of that operator reads only this cell.
"""

from __future__ import annotations

import importlib
from typing import Callable

import numpy as np

from ..work import Item, Row

#: Operators that several libraries have.
COMMON = ("ROIPool", "ROIAlign", "PSROIPool", "PSROIAlign")
#: float32 elements that another operator writes between two calls in a network.
BETWEEN = 1 << 24

#: way -> function without arguments, or a pair of them; "result" -> () -> the output as a NumPy
#: array; "kept" -> whatever must outlive the calls; "bytes" -> way -> what a call must move.
Work = dict


class Unsupported(Exception):
    """The library has no such operator, or not for this type."""


class Library:
    """One library: how to call its operators, where it must be told the number of threads."""

    name = ""
    modules: tuple[str, ...] = ()  # what it needs; the first names its version
    operators: tuple[str, ...] | None = COMMON  # None: every one
    modes: tuple[str, ...] = ("avg",)  # of ROIAlign

    def __init__(self, threads: int) -> None:
        self.threads = threads

    @classmethod
    def has(cls, item: Row) -> bool:
        if isinstance(item, Item) and item.mode not in cls.modes:
            return False
        return cls.operators is None or item.operator in cls.operators

    def version(self) -> str:
        return str(importlib.import_module(self.modules[0]).__version__)

    def prepare(self, item: Row) -> Work:
        raise NotImplementedError


def writing(array: np.ndarray) -> Callable[[], None]:
    """Writes as other operators do between two calls, for libraries whose inputs NumPy writes."""
    between, values = np.zeros(BETWEEN, np.float32), array.copy()

    def others() -> None:
        np.add(between, 1, out=between)
        np.copyto(array, values)

    return others
