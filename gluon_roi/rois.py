# SPDX-License-Identifier: Apache-2.0
"""Layouts of regions of interest (RoIs): lists of boxes, counts, batches and pyramid levels.

Every operator takes rows ``[batch_index, x1, y1, x2, y2]``, boxes per image of shape (N, R, 4), and
boxes with counts (`rois_num`). The functions here convert each common layout to rows, for code that
keeps one layout throughout. Coordinates are image coordinates (pixels) and stay unchanged. Results
are float32, or float64 if boxes are float64; in float16, coordinates above 1024 would be whole
pixels. Gradients flow back to every box given as an ``mx.nd.NDArray``.
"""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx
import numpy as np

__all__ = ["assign_levels", "from_batch", "from_counts", "from_list"]


def _real(boxes: Any) -> Any:
    """An NDArray or NumPy array, of float64 if `boxes` is, otherwise of float32."""
    if not isinstance(boxes, (mx.nd.NDArray, np.ndarray)):
        boxes = np.asarray(boxes, np.float32)
    return boxes if boxes.dtype == np.float64 else boxes.astype(np.float32)


def _boxes(where: str, boxes: Any, expected: str, dimensions: int) -> Any:
    boxes = _real(boxes)
    if boxes.ndim != dimensions or boxes.shape[-1] != 4:
        raise ValueError(f"{where} has shape {boxes.shape}, expected {expected}")
    return boxes


def _rows(function: str, images: np.ndarray, boxes: Sequence[Any]) -> mx.nd.NDArray:
    """Put the image of each box in front of it. Some of the arrays may be empty."""
    boxes = [box for box in boxes if box.shape[0] > 0]
    if not boxes:
        if mx.util.is_np_shape():
            return mx.nd.zeros((0, 5))
        raise ValueError(
            f"{function}: got no box at all, expected at least one: MXNet has empty arrays only "
            "under mx.util.np_shape()"
        )
    context = next((b.context for b in boxes if isinstance(b, mx.nd.NDArray)), mx.current_context())
    dtype = np.result_type(*(b.dtype for b in boxes))
    arrays = [
        b.as_in_context(context).astype(dtype, copy=False)
        if isinstance(b, mx.nd.NDArray)
        else mx.nd.array(b, context, dtype)
        for b in boxes
    ]
    column = mx.nd.array(images.reshape(-1, 1), context, dtype)
    return mx.nd.concat(column, mx.nd.concat(*arrays, dim=0), dim=1)


def from_list(boxes: Sequence[Any]) -> mx.nd.NDArray:
    """Convert a list with the boxes of each image, torchvision's layout, to rows.

    Parameters
    ----------
    boxes : sequence of arrays, shape (L_i, 4)
        ``x1, y1, x2, y2`` of image i, in image coordinates; NDArrays, NumPy arrays or lists.
        NumPy arrays may be empty.

    Returns
    -------
    mxnet.nd.NDArray, shape (K, 5)
        ``[i, x1, y1, x2, y2]``, where K is the sum of all L_i, on the context of the first NDArray.

    Raises
    ------
    ValueError
        An array has another shape, or there is no box outside ``mx.util.np_shape()``.

    Examples
    --------
    >>> print(from_list([[[0, 0, 9, 9]], [[1, 1, 5, 5], [2, 2, 8, 8]]]).asnumpy())
    [[0. 0. 0. 9. 9.]
     [1. 1. 1. 5. 5.]
     [1. 2. 2. 8. 8.]]
    """
    checked = []
    for i, image in enumerate(boxes):
        image = _real(image)
        # [] is an image without boxes.
        image = image.reshape(0, 4) if image.shape == (0,) else image
        checked.append(_boxes(f"from_list: boxes[{i}]", image, "(L, 4)", 2))
    counts = [image.shape[0] for image in checked]
    return _rows("from_list", np.repeat(np.arange(len(counts)), counts), checked)


def from_counts(rois: Any, rois_num: Any) -> mx.nd.NDArray:
    """Convert boxes in the order of images, with a count for each image, Paddle's layout, to rows.

    Parameters
    ----------
    rois : array, shape (K, 4)
        ``x1, y1, x2, y2`` in image coordinates.
    rois_num : array of int, shape (N,)
        Number of boxes of each image; the sum is K.

    Returns
    -------
    mxnet.nd.NDArray, shape (K, 5)
        ``[image, x1, y1, x2, y2]``, on the context of `rois`.

    Raises
    ------
    ValueError
        An array has another shape, a count is negative or fractional, the counts do not sum to K,
        or there is no box outside ``mx.util.np_shape()``.

    Examples
    --------
    >>> print(from_counts([[0, 0, 9, 9], [1, 1, 5, 5], [2, 2, 8, 8]], [1, 2]).asnumpy())
    [[0. 0. 0. 9. 9.]
     [1. 1. 1. 5. 5.]
     [1. 2. 2. 8. 8.]]
    """
    rois = _boxes("from_counts: rois", rois, "(K, 4)", 2)
    counts = rois_num.asnumpy() if isinstance(rois_num, mx.nd.NDArray) else np.asarray(rois_num)
    if counts.ndim != 1:
        raise ValueError(f"from_counts: rois_num has shape {counts.shape}, expected (N,)")
    if (counts < 0).any() or (counts != np.floor(counts)).any() or counts.sum() != rois.shape[0]:
        raise ValueError(
            f"from_counts: rois_num is {counts.tolist()}, expected whole numbers that sum to "
            f"{rois.shape[0]} (the rows of rois)"
        )
    return _rows("from_counts", np.repeat(np.arange(len(counts)), counts.astype(np.int64)), [rois])


def from_batch(boxes: Any) -> mx.nd.NDArray:
    """Convert an array with R boxes for every image, GluonCV's layout, to rows.

    Parameters
    ----------
    boxes : array, shape (N, R, 4)
        ``x1, y1, x2, y2`` of the R boxes of each image, in image coordinates.

    Returns
    -------
    mxnet.nd.NDArray, shape (N * R, 5)
        ``[image, x1, y1, x2, y2]``, on the context of `boxes`.

    Raises
    ------
    ValueError
        The array has another shape, or there is no box outside ``mx.util.np_shape()``.

    Examples
    --------
    >>> print(from_batch(mx.nd.array([[[0, 0, 9, 9]], [[1, 1, 5, 5]]])).asnumpy())
    [[0. 0. 0. 9. 9.]
     [1. 1. 1. 5. 5.]]
    """
    boxes = _boxes("from_batch: boxes", boxes, "(N, R, 4)", 3)
    images = np.repeat(np.arange(boxes.shape[0]), boxes.shape[1])
    return _rows("from_batch", images, [boxes.reshape((len(images), 4))])


def assign_levels(
    rois: Any,
    k_min: int = 2,
    k_max: int = 5,
    k0: int = 4,
    canonical_size: float = 224.0,
) -> np.ndarray:
    """Assign each box to a level of a feature pyramid (Lin 2017, equation 1).

    The level is ``k = floor(k0 + log2(sqrt(w * h) / canonical_size))``, clipped to [`k_min`,
    `k_max`], with ``w = x2 - x1``. Boxes without area go to `k_min`.

    Parameters
    ----------
    rois : array, shape (..., 4) or (K, 5)
        Boxes, or rows of rois, in image coordinates.
    k_min, k_max : int
        Finest and coarsest level; level k has stride ``2 ** k``.
    k0 : int
        Level of a box of `canonical_size` by `canonical_size`.
    canonical_size : float
        Side of the box that belongs to level `k0`, in image pixels.

    Returns
    -------
    numpy.ndarray of int, shape (...) or (K,)

    Raises
    ------
    ValueError
        `rois` has neither 4 nor 5 columns.

    Examples
    --------
    >>> assign_levels([[0, 0, 0, 224, 224], [0, 0, 0, 223, 223], [1, 5, 5, 5, 5]])
    array([4, 3, 2])
    """
    rois = rois.asnumpy() if isinstance(rois, mx.nd.NDArray) else np.asarray(rois)
    if rois.ndim < 1 or not (rois.shape[-1] == 4 or (rois.ndim == 2 and rois.shape[1] == 5)):
        raise ValueError(f"assign_levels: rois has shape {rois.shape}, expected (..., 4) or (K, 5)")
    x1, y1, x2, y2 = np.moveaxis(rois[..., -4:].astype(np.float64), -1, 0)
    area = np.maximum(x2 - x1, 0) * np.maximum(y2 - y1, 0)
    with np.errstate(divide="ignore"):
        level = np.floor(k0 + np.log2(np.sqrt(area) / canonical_size))
    return np.clip(level, k_min, k_max).astype(np.int64)
