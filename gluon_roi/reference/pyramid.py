# SPDX-License-Identifier: Apache-2.0
"""PyramidROIAlign: ROIAlign of each box on one map of a feature pyramid."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

from .align import align_of_every_channel, align_of_every_channel_backward
from .common import as_numpy, batch_indices

__all__ = ["pyramid_roi_align", "pyramid_roi_align_backward"]

NAME = "PyramidROIAlign"


def _levels(
    rois: Any,
    scales: Sequence[float],
    canonical_size: float,
    canonical_level: int,
    rois_num: Any,
    batch: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Rows [batch_index, x1, y1, x2, y2], and the number of each row's map."""
    indices, boxes = batch_indices(NAME, as_numpy(rois), rois_num, batch, 4)
    boxes = boxes.astype(np.float64)
    with np.errstate(all="ignore"):
        sides = np.maximum(boxes[:, 2:] - boxes[:, :2], 0)
        relative = np.sqrt(sides[:, 0] * sides[:, 1]) / canonical_size
        wanted = np.floor(canonical_level + np.log2(relative + 1e-6))
        levels = np.ceil(-np.log2(scales))
    # The last map whose level is not above the wanted one; NaN compares as False.
    numbers = (wanted[:, None] >= levels[None, 1:]).sum(axis=1)
    return np.hstack([np.asarray(indices, np.float64)[:, None], boxes]), numbers


def _lists(rois: Any, rois_num: Any, maps: list) -> list[np.ndarray]:
    """The boxes of each map."""
    rows = as_numpy(rois)
    if rois_num is not None or len(rows) % len(maps) != 0:
        raise ValueError(f"{NAME}: expected a list of boxes for each of {len(maps)} maps")
    return np.split(rows, len(maps))


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
) -> np.ndarray:
    """:func:`roi_align` of each box on the map for its size (Feature Pyramid Networks, Lin 2017).

    A box is pooled from the map of level ``floor(canonical_level + log2(sqrt(area) / canonical_size
    + 1e-6))``, with the area in image pixels; if there is no such map, from the finest or the
    coarsest. A map of stride 2^k has level k.

    Parameters
    ----------
    data : sequence of arrays, each (N, C, H_i, W_i)
        The maps, finest first.
    spatial_scale : sequence of float
        Cells per image pixel of each map.
    rois, pooled_size, sampling_ratio, aligned, rois_num, geometry
        As in :func:`roi_align`.
    canonical_size, canonical_level : float, int
        The side in pixels of a box that belongs to that level.
    assignment : str
        'given': rois are a list for each map, one after the other; what they pool is added.

    Returns
    -------
    numpy.ndarray, shape (K, C, P, Q), float64

    Raises
    ------
    ValueError
        Wrong shape, size, scale, or batch index.

    Examples
    --------
    >>> fine, coarse = np.zeros((1, 1, 8, 8)), np.ones((1, 1, 4, 4))
    >>> boxes = [[0, 0, 0, 100, 100], [0, 0, 0, 250, 250]]
    >>> pyramid_roi_align([fine, coarse], boxes, 1, (1 / 32, 1 / 64), canonical_level=6).ravel()
    array([0., 1.])
    """
    maps = [as_numpy(one) for one in data]
    arguments = sampling_ratio, aligned, None, geometry
    if assignment == "given":
        lists = _lists(rois, rois_num, maps)
        parts = [
            align_of_every_channel(NAME, one, own, pooled_size, scale, *arguments)
            for one, own, scale in zip(maps, lists, spatial_scale)
        ]
        return np.sum(parts, axis=0)
    rows, numbers = _levels(
        rois, spatial_scale, canonical_size, canonical_level, rois_num, len(maps[0])
    )
    each = [
        align_of_every_channel(NAME, one, rows, pooled_size, scale, *arguments)
        for one, scale in zip(maps, spatial_scale)
    ]
    return np.stack(each)[numbers, np.arange(len(rows))]


def pyramid_roi_align_backward(
    d_out: Any,
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
    maps = [as_numpy(one) for one in data]
    arguments = sampling_ratio, aligned, None, geometry
    d_out = as_numpy(d_out).astype(np.float64)
    if assignment == "given":
        lists = _lists(rois, rois_num, maps)
        each = [
            align_of_every_channel_backward(NAME, d_out, one, own, pooled_size, scale, *arguments)
            for one, own, scale in zip(maps, lists, spatial_scale)
        ]
        d_lists = np.concatenate([d_own for _, d_own in each])
        return [d_map for d_map, _ in each], d_lists.reshape(np.shape(rois))
    rows, numbers = _levels(
        rois, spatial_scale, canonical_size, canonical_level, rois_num, len(maps[0])
    )
    d_maps, d_rows = [], np.zeros_like(rows)
    for number, (one, scale) in enumerate(zip(maps, spatial_scale)):
        own = np.where((numbers == number)[:, None, None, None], d_out, 0)
        d_map, d_own = align_of_every_channel_backward(
            NAME, own, one, rows, pooled_size, scale, *arguments
        )
        d_maps.append(d_map)
        d_rows += np.where((numbers == number)[:, None], d_own, 0)
    d_rois = np.zeros(np.shape(rois))
    d_rois[..., -4:] = d_rows[:, 1:].reshape(d_rois.shape[:-1] + (4,))
    return d_maps, d_rois
