# SPDX-License-Identifier: Apache-2.0
"""PyramidROIAlign: ROIAlign of each box on one map of a feature pyramid."""

from __future__ import annotations

from typing import Any, NamedTuple, Sequence

import numpy as np

from .align import align
from .common import Separable, as_numpy, backward_of, batch_indices, check, operator

__all__ = ["pyramid_roi_align", "pyramid_roi_align_backward"]

NAME = "PyramidROIAlign"


def _assigned(
    rois: np.ndarray, rois_num: Any, batch: int, scales: Sequence[float], size: float, level: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows [batch_index, x1, y1, x2, y2], and the number of each row's map."""
    indices, boxes = batch_indices(NAME, rois, rois_num, batch, 4)
    boxes = boxes.astype(np.float64)
    with np.errstate(all="ignore"):
        sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
        relative = np.sqrt(sides[:, 0] * sides[:, 1]) / size
        wanted = np.floor(level + np.log2(relative + 1e-6))
        levels = np.ceil(-np.log2(scales))
    # The last map whose level is not above the wanted one; NaN compares as False.
    numbers = (wanted[:, None] >= levels[None, 1:]).sum(axis=1)
    return np.hstack([np.asarray(indices, np.float64)[:, None], boxes]), numbers


class _Pyramid(NamedTuple):
    """A ROIAlign on each map: of all boxes, or of the map's list if there are no numbers."""

    aligns: list[Separable]
    numbers: np.ndarray | None  # of each row's map
    layout: tuple  # the shape of rois

    def forward(self) -> np.ndarray:
        each = [one.forward() for one in self.aligns]
        if self.numbers is None:
            return np.sum(each, axis=0)
        return np.stack(each)[self.numbers, np.arange(len(self.numbers))]

    def backward(self, d_out: Any) -> tuple[list[np.ndarray], np.ndarray]:
        d_out, d_rois = as_numpy(d_out).astype(np.float64), np.zeros(self.layout)
        if self.numbers is None:
            d_maps, d_lists = zip(*(one.backward(d_out) for one in self.aligns))
            return list(d_maps), np.concatenate(d_lists).reshape(self.layout)
        d_maps, d_boxes = [], np.zeros((len(self.numbers), 4))
        for number, one in enumerate(self.aligns):
            is_own = self.numbers == number
            d_map, d_rows = one.backward(np.where(is_own[:, None, None, None], d_out, 0))
            d_maps.append(d_map)
            d_boxes += np.where(is_own[:, None], d_rows[:, 1:], 0)
        d_rois[..., -4:] = d_boxes.reshape(*self.layout[:-1], 4)
        return d_maps, d_rois


@operator
def pyramid_roi_align(
    data: Sequence[Any],
    rois: Any,
    pooled_size: Any,
    spatial_scale: Sequence[float],
    sampling_ratio: int = -1,
    aligned: bool = False,
    canonical_size: float = 224.0,
    canonical_level: int = 4,
    rois_num: Any = None,
    geometry: type = np.float64,
    assignment: str = "size",
) -> _Pyramid:
    """:func:`roi_align` of each box on the map for its size (Feature Pyramid Networks, Lin 2017).

    A box is pooled from the map of level ``floor(canonical_level + log2(sqrt(area) / canonical_size
    + 1e-6))``, with the area in image pixels; if there is no such map, from the finest or the
    coarsest. A map of stride 2^k has level k.

    Parameters
    ----------
    data, rois, pooled_size, spatial_scale, sampling_ratio, aligned, canonical_size, \
canonical_level, rois_num, assignment
        As in :func:`gluon_roi.nd.PyramidROIAlign`.
    geometry : type
        As in :func:`roi_align`.

    Returns
    -------
    numpy.ndarray, shape (K, C, P, Q), float64

    Raises
    ------
    ValueError
        A wrong shape, size, scale or batch index.

    Examples
    --------
    >>> fine, coarse = np.zeros((1, 1, 8, 8)), np.ones((1, 1, 4, 4))
    >>> boxes = [[0, 0, 0, 100, 100], [0, 0, 0, 250, 250]]
    >>> pyramid_roi_align([fine, coarse], boxes, 1, (1 / 32, 1 / 64), canonical_level=6).ravel()
    array([0., 1.])
    """
    maps, rows, numbers = [as_numpy(one) for one in data], as_numpy(rois), None
    if assignment == "given":
        if rois_num is not None or len(rows) % len(maps) != 0:
            raise ValueError(f"{NAME}: expected a list of boxes for each of {len(maps)} maps")
        lists = np.split(rows, len(maps))
    else:
        rows, numbers = _assigned(
            rows, rois_num, len(maps[0]), spatial_scale, canonical_size, canonical_level
        )
        lists = [rows] * len(maps)
    calls = (
        check(NAME, one, own, pooled_size, scale, None)
        for one, own, scale in zip(maps, lists, spatial_scale)
    )
    aligns = [align(call, sampling_ratio, aligned, geometry) for call in calls]
    return _Pyramid(aligns, numbers, np.shape(rois))


@backward_of(pyramid_roi_align)
def pyramid_roi_align_backward(
    d_out: Any, pyramid: _Pyramid
) -> tuple[list[np.ndarray], np.ndarray]:
    """Gradients of :func:`pyramid_roi_align` with respect to the maps and to rois.

    The choice of the map is treated as constant.

    Parameters
    ----------
    d_out : array, shape (K, C, P, Q)
        Gradient with respect to the output. The others are those of the forward function.

    Returns
    -------
    d_data : list of numpy.ndarray, each (N, C, H_i, W_i), float64
    d_rois : numpy.ndarray, the shape of `rois`, float64

    Raises
    ------
    ValueError
        As :func:`pyramid_roi_align` does.

    Examples
    --------
    >>> maps = [np.zeros((1, 1, 8, 8)), np.ones((1, 1, 4, 4))]
    >>> d_maps, _ = pyramid_roi_align_backward(
    ...     np.ones((1, 1, 1, 1)), maps, [[0, 0, 0, 250, 250]], 1, (1 / 32, 1 / 64),
    ...     canonical_level=6)
    >>> [float(one.sum()) for one in d_maps]
    [0.0, 1.0]
    """
    return pyramid.backward(d_out)
