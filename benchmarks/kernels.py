# SPDX-License-Identifier: Apache-2.0
"""The operators through the C interface, without MXNet, and the bytes that a call must move."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from testing import c_api

from .ways import ROOT
from .work import Item, Row

CPU = c_api.Device(c_api.CPU)


@functools.lru_cache(maxsize=None)
def library() -> c_api.Library:
    """The library of GLUON_ROI_LIBRARY, of this repository, or of an installed package."""
    named = os.environ.get("GLUON_ROI_LIBRARY")
    places = [Path(folder, "gluon_roi/libgluon_roi.so") for folder in [str(ROOT), *sys.path]]
    return c_api.Library(named or next((place for place in places if place.is_file()), places[0]))


class Kernels:
    """One operator on arrays of NumPy: `forward()` and `backward()` overwrite the same outputs."""

    def __init__(
        self, item: Item, maps: list[np.ndarray], rois: np.ndarray, d_out: np.ndarray
    ) -> None:
        self.symbol = library().symbols[item.operator]
        trans = item.trans()
        inputs = [*maps, rois, *([] if trans is None else [trans])]
        out, self.d_maps = np.zeros_like(d_out), [np.zeros_like(one) for one in maps]
        d_trans = [] if trans is None else [np.zeros_like(trans)]
        self.outputs = [out, *self.d_maps, *d_trans]
        self.kept = inputs, d_out  # the structs know addresses only
        self.params = library().params(
            self.symbol, (item.pooled,) * 2, item.scale, **item.arguments
        )
        given = ctypes.byref(self.params), c_api.tensors(*inputs), len(inputs)
        result, slope = (ctypes.byref(c_api.tensor(array)) for array in (out, d_out))
        gradients, device = c_api.tensors(*self.d_maps, None, *d_trans), ctypes.byref(CPU)
        self._forward: Any = f"{self.symbol}_forward", *given, result, device
        self._backward: Any = f"{self.symbol}_backward", *given, slope, gradients, device

    @classmethod
    def of(cls, item: Item) -> Kernels:
        """On the arrays that every library gets."""
        data, rois, d_out = item.arrays()
        return cls(item, [data, *item.coarser_maps()], rois, d_out)

    def forward(self) -> None:
        library().call(*self._forward)

    def backward(self) -> None:
        library().call(*self._backward)


def touched_cells(item: Item, rois: np.ndarray) -> int:
    """Cells of the maps that a call reads, each counted once, in all channels.

    These are the cells that a gradient of ones reaches, computed for one channel of the output; for
    a maximum of samples, the gradient of their mean. Cells with a weight of 0 are left out. For
    operators whose gradient goes only to maxima of cells, the maximum on a map of zeros is the
    first cell of each bin; with more bins than the map has rows and columns, every cell of a box is
    the first cell of some bin.
    """
    one = replace(item, channels=1, rois=len(rois), dtype="float32", mode="avg")
    if item.of.maxima:
        one = replace(one, pooled=max(one.map_shapes[0]) + 1)
    maps = [np.zeros(shape, np.float32) for shape in one.map_shapes]
    kernels = Kernels(one, maps, rois, np.ones(one.out_shape, np.float32))
    kernels.backward()
    return item.channels * sum(int(np.count_nonzero(gradient)) for gradient in kernels.d_maps)


def moved_bytes(item: Row) -> dict[str, int]:
    """The bytes that a call must move, by way; each is counted once per pass."""
    forward, backward = moved_by_pooling(item) if isinstance(item, Item) else item.moved()
    return {
        "forward": forward,
        "forward, out=": forward,
        "forward+backward": forward + backward,
        "forward in a network": forward,
        "forward+backward in a network": forward + backward,
    }


def moved_by_pooling(item: Item) -> tuple[int, int]:
    """The bytes of the passes of an operator that pools boxes.

    Forward: the touched cells of the maps, the boxes, the offsets, the output. Backward: the
    gradient of the output, the boxes, the gradients of maps and offsets as a whole, zeros included,
    and the touched cells again if the operator needs them.
    """
    size = np.dtype(item.dtype).itemsize
    rois, trans = item.boxes(), item.trans()
    shapes = [*item.map_shapes, *([] if trans is None else [trans.shape])]
    gradients = size * int(sum(np.prod(shape, dtype=np.int64) for shape in shapes))
    out = size * int(np.prod(item.out_shape, dtype=np.int64))
    read = size * touched_cells(item, rois) + rois.nbytes + (0 if trans is None else trans.nbytes)
    reads_maps = item.of.maps_in_backward or item.mode == "max"  # to find the maximum again
    read_again = read if reads_maps else rois.nbytes
    return read + out, read_again + out + gradients
