# SPDX-License-Identifier: Apache-2.0
"""Layouts of regions of interest (RoIs): lists of boxes, counts, batches and pyramid levels.

Every operator takes rows ``[batch_index, x1, y1, x2, y2]``, boxes per image of shape (N, R, 4), and
boxes with counts (`rois_num`). The functions here convert each common layout to rows, for code that
keeps one layout throughout. Coordinates are image coordinates (pixels) and are not changed. Results
are float32, or float64 if boxes are float64; in float16, coordinates above 1024 would be rounded to
integers. Arrays of ``mx.np`` give arrays of ``mx.np``, others those of ``mx.nd``. Gradients flow
back to every box given as an array of MXNet.
"""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx
import numpy as np

__all__ = ["assign_levels", "check", "from_batch", "from_counts", "from_list", "from_xywh"]


def _real(boxes: Any) -> Any:
    """Convert boxes to an NDArray or NumPy array of float32, or float64 if they are float64."""
    if isinstance(boxes, mx.nd.NDArray):
        boxes = boxes.as_nd_ndarray()
    elif not isinstance(boxes, np.ndarray):
        boxes = np.asarray(boxes, np.float32)
    if boxes.size == 0:  # outside of np_shape, MXNet cannot copy empty arrays
        boxes = np.zeros(boxes.shape, boxes.dtype)
    return boxes if boxes.dtype == np.float64 else boxes.astype(np.float32)


def _boxes(
    where: str, boxes: Any, expected: str, dimensions: int, columns: Sequence[int] = (4,)
) -> Any:
    boxes = _real(boxes)
    if boxes.ndim != dimensions or boxes.shape[-1] not in columns:
        raise ValueError(f"{where} has shape {boxes.shape}, expected {expected}")
    return boxes


def _empty(shape: tuple, context: mx.Context, dtype: Any) -> mx.nd.NDArray:
    with mx.util.np_shape():
        return mx.nd.zeros(shape, context, dtype)


def _in_the_form_of(given: Sequence[Any], result: mx.nd.NDArray) -> mx.nd.NDArray:
    """The result, as an array of mx.np if one of the caller's arrays is."""
    return result.as_np_ndarray() if any(isinstance(a, mx.np.ndarray) for a in given) else result


def _rows(
    function: str, images: np.ndarray, given: Sequence[Any], boxes: Sequence[Any]
) -> mx.nd.NDArray:
    """Concatenate boxes with their image indices in the first column. Arrays may be empty.

    `given` are the caller's arrays, which determine context and form; `boxes` are the converted
    ones.
    """
    context = next((a.context for a in given if isinstance(a, mx.nd.NDArray)), mx.current_context())
    without_rows, boxes = boxes, [box for box in boxes if box.shape[0] > 0]
    if not boxes:
        if mx.util.is_np_shape():
            dtype = np.result_type(np.float32, *(box.dtype for box in without_rows))
            empty = _empty((0, 1 + without_rows[0].shape[-1]), context, dtype)
            return _in_the_form_of(given, empty)
        raise ValueError(
            f"{function}: got no boxes, expected at least one: MXNet supports empty arrays "
            "only under mx.util.np_shape()"
        )
    dtype = np.result_type(*(b.dtype for b in boxes))
    arrays = [
        b.as_in_context(context).astype(dtype, copy=False)
        if isinstance(b, mx.nd.NDArray)
        else mx.nd.array(b, context, dtype)
        for b in boxes
    ]
    column = mx.nd.array(images.reshape(-1, 1), context, dtype)
    rows = mx.nd.concat(column, mx.nd.concat(*arrays, dim=0), dim=1)
    return _in_the_form_of(given, rows)


def from_list(boxes: Sequence[Any]) -> mx.nd.NDArray:
    """Convert a list of the boxes of each image, torchvision's layout, to rows.

    Parameters
    ----------
    boxes : sequence of arrays, shape (L_i, 4), or (L_i, 5) if rotated
        ``x1, y1, x2, y2`` of image i, in image coordinates, or ``cx, cy, w, h, theta``; NDArrays,
        NumPy arrays or lists. An image may have no boxes: an empty array or ``[]``.

    Returns
    -------
    mxnet.nd.NDArray, shape (K, 5), or (K, 6) if rotated
        ``[i, *box]``, where K is the sum of all L_i, on the context of the first NDArray.

    Raises
    ------
    ValueError
        An array has a wrong shape, or another number of columns than the others, or there is no
        box outside ``mx.util.np_shape()``.

    Examples
    --------
    >>> from_list([[[0, 0, 9, 9]], [[1, 1, 5, 5]]]).asnumpy().tolist()
    [[0.0, 0.0, 0.0, 9.0, 9.0], [1.0, 1.0, 1.0, 5.0, 5.0]]
    """
    given, checked = list(boxes), []
    real = [_real(image) for image in given]
    columns = next((a.shape[1] for a in real if a.ndim == 2 and a.shape[1] in (4, 5)), 4)
    for i, image in enumerate(real):
        # An image without boxes may be given as [].
        image = image.reshape(0, columns) if image.shape == (0,) else image
        expected = "(L, 4), or (L, 5) if all boxes are rotated"
        checked.append(_boxes(f"from_list: boxes[{i}]", image, expected, 2, (columns,)))
    counts = [image.shape[0] for image in checked]
    return _rows("from_list", np.repeat(np.arange(len(counts)), counts), given, checked)


def from_counts(rois: Any, rois_num: Any) -> mx.nd.NDArray:
    """Convert boxes and the number of boxes of each image, Paddle's layout, to rows.

    Parameters
    ----------
    rois : array, shape (K, 4)
        ``x1, y1, x2, y2`` in image coordinates. (Pass rotated boxes to RotatedROIAlign with their
        counts.)
    rois_num : array of int, shape (N,)
        Number of boxes of each image; the sum is K.

    Returns
    -------
    mxnet.nd.NDArray, shape (K, 5)
        ``[image, x1, y1, x2, y2]``, on the context of `rois`.

    Raises
    ------
    ValueError
        An array has a wrong shape, the counts are not integers that sum to K, or there is no
        box outside ``mx.util.np_shape()``.

    Examples
    --------
    >>> from_counts([[1, 1, 5, 5], [2, 2, 8, 8]], [0, 2]).asnumpy().tolist()
    [[1.0, 1.0, 1.0, 5.0, 5.0], [1.0, 2.0, 2.0, 8.0, 8.0]]
    """
    given, rois = rois, _boxes("from_counts: rois", rois, "(K, 4)", 2)
    counts = rois_num.asnumpy() if isinstance(rois_num, mx.nd.NDArray) else np.asarray(rois_num)
    if counts.ndim != 1:
        raise ValueError(f"from_counts: rois_num has shape {counts.shape}, expected (N,)")
    if (counts < 0).any() or (counts != np.floor(counts)).any() or counts.sum() != rois.shape[0]:
        raise ValueError(
            f"from_counts: rois_num is {counts.tolist()}, expected integers that sum to "
            f"{rois.shape[0]} (the rows of rois)"
        )
    images = np.repeat(np.arange(len(counts)), counts.astype(np.int64))
    return _rows("from_counts", images, [given], [rois])


def from_batch(boxes: Any, valid: Any = None) -> mx.nd.NDArray:
    """Convert an array of R boxes for each image, GluonCV's layout, to rows.

    Parameters
    ----------
    boxes : array, shape (N, R, 4), or (N, R, 5) if rotated
        ``x1, y1, x2, y2`` of the R boxes of each image, in image coordinates, or ``cx, cy, w, h,
        theta``.
    valid : array, shape (N, R), optional
        0 or False for boxes that become padding rows, such as those that BoxNMS suppressed.

    Returns
    -------
    mxnet.nd.NDArray, shape (N * R, 5), or (N * R, 6) if rotated
        ``[image, *box]``, on the context of `boxes`; a padding row is ``[-1, *box]``.

    Raises
    ------
    ValueError
        An array has a wrong shape, or there is no box outside ``mx.util.np_shape()``.

    Examples
    --------
    >>> from_batch([[[0, 0, 9, 9]], [[1, 1, 5, 5]]]).asnumpy().tolist()
    [[0.0, 0.0, 0.0, 9.0, 9.0], [1.0, 1.0, 1.0, 5.0, 5.0]]
    >>> from_batch([[[7, 7, 9, 4, 30], [0, 0, 0, 0, 0]]], valid=[[1, 0]]).asnumpy().tolist()
    [[0.0, 7.0, 7.0, 9.0, 4.0, 30.0], [-1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]
    """
    expected = "(N, R, 4), or (N, R, 5) if rotated"
    given, boxes = boxes, _boxes("from_batch: boxes", boxes, expected, 3, (4, 5))
    images = np.repeat(np.arange(boxes.shape[0]), boxes.shape[1])
    if valid is not None:
        valid = valid.asnumpy() if isinstance(valid, mx.nd.NDArray) else np.asarray(valid)
        if valid.shape != boxes.shape[:2]:
            raise ValueError(
                f"from_batch: valid has shape {valid.shape}, expected {boxes.shape[:2]}, a number "
                "for each box"
            )
        images = np.where(valid.ravel() != 0, images, -1)
    return _rows("from_batch", images, [given], [boxes.reshape((len(images), boxes.shape[2]))])


def from_xywh(boxes: Any) -> Any:
    """Convert boxes ``[x, y, width, height]``, COCO's format, to corners ``[x1, y1, x2, y2]``.

    Parameters
    ----------
    boxes : array, shape (..., 4) or (K, 5)
        Left, top, width and height in image coordinates; columns 1 to 4 of rows with a batch index.

    Returns
    -------
    array of MXNet or numpy.ndarray, shape of `boxes`
        With ``x2 = x + width`` and ``y2 = y + height``; of the form of `boxes`.

    Raises
    ------
    ValueError
        `boxes` has neither 4 nor 5 columns.

    Examples
    --------
    >>> from_xywh([[10, 20, 30, 40]])
    array([[10., 20., 40., 60.]], dtype=float32)
    """
    given, boxes = boxes, _real(boxes)
    _check_columns("from_xywh: boxes", boxes)
    if isinstance(given, mx.nd.NDArray) and boxes.size == 0:
        return _in_the_form_of([given], _empty(boxes.shape, given.context, boxes.dtype))
    corners, sizes = boxes[..., :-2], boxes[..., -2:]
    ends = corners, corners[..., -2:] + sizes
    if isinstance(boxes, mx.nd.NDArray):
        return _in_the_form_of([given], mx.nd.concat(*ends, dim=boxes.ndim - 1))
    return np.concatenate(ends, axis=-1)


def _check_columns(where: str, boxes: Any, others: str = "") -> None:
    columns = boxes.shape[-1] if boxes.ndim else 0
    if not (columns == 4 or (boxes.ndim == 2 and columns == 5)):
        raise ValueError(f"{where} has shape {boxes.shape}, expected (..., 4) or (K, 5){others}")


def check(rois: Any, image_shape: Sequence[int], spatial_scale: float | None = None) -> None:
    """Raise ValueError if boxes look as if they were in a format that operators do not accept.

    Boxes in a wrong format silently produce wrong features, so call this once on a typical batch.
    It detects ``(x, y, width, height)``, normalised coordinates, pixels of an image of a different
    size, cells of the map, a missing batch index, and a scale above 1. Padding rows (a negative
    batch index) are ignored.

    Parameters
    ----------
    rois : array, shape (..., 4) or (K, 5)
        ``x1, y1, x2, y2``, or rows ``[batch_index, x1, y1, x2, y2]``.
    image_shape : sequence of int
        Shape of the network's input: (height, width), (height, width, channels), or
        (N, channels, height, width).
    spatial_scale : float, optional
        Map cells per image pixel, as passed to the operator.

    Raises
    ------
    ValueError
        The boxes have a wrong format; the message describes it and how to convert them. Or an
        argument has a wrong shape.

    Examples
    --------
    >>> check([[0, 10, 20, 300, 200]], (480, 640), spatial_scale=1 / 16)
    >>> check([[0, 0.1, 0.1, 0.5, 0.9]], (480, 640))
    Traceback (most recent call last):
    ValueError: rois.check: no coordinate is above 1: the boxes look normalised; multiply x by 640 \
and y by 480
    """
    rois = rois.asnumpy() if isinstance(rois, mx.nd.NDArray) else np.asarray(rois, np.float64)
    _check_columns("rois.check: rois", rois)
    sides = {2: (0, 1), 3: (0, 1), 4: (2, 3)}.get(len(image_shape))
    if sides is None:
        raise ValueError(
            f"rois.check: image_shape is {tuple(image_shape)}, expected (height, width), "
            "(height, width, channels) or (N, channels, height, width)"
        )
    height, width = (int(image_shape[side]) for side in sides)
    if spatial_scale is not None and not 0 < spatial_scale <= 1:
        raise ValueError(
            f"rois.check: spatial_scale is {spatial_scale}, expected map cells per image pixel: "
            "1 / stride, such as 1 / 16"
        )
    if rois.shape[-1] == 5:
        index = rois[:, 0]
        if (index != np.floor(index)).any():
            raise ValueError(
                f"rois.check: the first column holds {index[index != np.floor(index)][0]:g}, "
                "expected a batch index: rows are [batch_index, x1, y1, x2, y2]"
            )
        rois = rois[index >= 0]
    problem = _find_problem(rois[..., -4:].reshape(-1, 4), height, width, spatial_scale)
    if problem:
        raise ValueError(f"rois.check: {problem}")


def _find_problem(boxes: np.ndarray, height: int, width: int, scale: float | None) -> str | None:
    """A description of a suspicious box format, or None."""
    if not np.isfinite(boxes).all():
        return f"box {boxes[~np.isfinite(boxes).all(axis=1)][0].tolist()} is not finite"
    if len(boxes) == 0:
        return None
    low, high = boxes[:, :2], boxes[:, 2:]
    image = np.array([width, height])
    if boxes.max() <= 1 and min(height, width) > 4:
        return (
            "no coordinate is above 1: the boxes look normalised; "
            f"multiply x by {width} and y by {height}"
        )
    inverted = (high < low).any(axis=1)
    if inverted.any():
        first = boxes[inverted][0].tolist()
        if (low + high <= image + 1).all():
            return (
                f"box {first} ends before it begins: it looks like (x, y, width, height); call "
                "gluon_roi.rois.from_xywh"
            )
        return f"box {first} ends before it begins, expected x1 <= x2 and y1 <= y2"
    reach = high.max(axis=0)
    if (reach > 1.1 * image).any():
        return (
            f"boxes reach to x = {reach[0]:g}, y = {reach[1]:g}, but the image has {width} x "
            f"{height} pixels: scale them as the image was scaled"
        )
    # Few boxes may all be in the corner by chance.
    if scale is not None and scale < 0.5 and len(boxes) > 4 and (reach <= scale * image + 1).all():
        return (
            f"all boxes end before x = {reach[0]:g}, y = {reach[1]:g}: they look like cells of the "
            "map; the operator multiplies by spatial_scale itself"
        )
    return None


def assign_levels(
    rois: Any, k_min: int = 2, k_max: int = 5, k0: int = 4, canonical_size: float = 224.0
) -> np.ndarray:
    """Assign each box to a level of a feature pyramid (Lin 2017, equation 1).

    The level is ``k = floor(k0 + log2(sqrt(w * h) / canonical_size + 1e-6))``, clipped to [`k_min`,
    `k_max`], with ``w = x2 - x1``: the same as in :func:`gluon_roi.nd.PyramidROIAlign`. Boxes
    without area or with a NaN are assigned to `k_min`.

    Parameters
    ----------
    rois : array, shape (..., 4), (K, 5) or (K, 6)
        Boxes, rows of rois, or rows of rotated rois ``[batch_index, cx, cy, w, h, theta]``, in
        image coordinates.
    k_min, k_max : int
        Finest and coarsest level; level k has stride ``2 ** k``.
    k0, canonical_size : int, float
        Level of a box of `canonical_size` by `canonical_size` image pixels.

    Returns
    -------
    numpy.ndarray of int, shape (...) or (K,)

    Raises
    ------
    ValueError
        `rois` has another shape.

    Examples
    --------
    >>> assign_levels([[0, 0, 0, 224, 224], [0, 0, 0, 223, 223], [1, 5, 5, 5, 5]])
    array([4, 3, 2])
    >>> assign_levels([[0, 300, 300, 448, 112, 45]])
    array([4])
    """
    rois = rois.asnumpy() if isinstance(rois, mx.nd.NDArray) else np.asarray(rois)
    if rois.ndim == 2 and rois.shape[1] == 6:
        width, height = np.moveaxis(rois[:, 3:5].astype(np.float64), -1, 0)
    else:
        _check_columns("assign_levels: rois", rois, " or (K, 6)")
        x1, y1, x2, y2 = np.moveaxis(rois[..., -4:].astype(np.float64), -1, 0)
        with np.errstate(invalid="ignore"):
            width, height = x2 - x1, y2 - y1
    with np.errstate(invalid="ignore"):
        area = np.where(width > 0, width, 0) * np.where(height > 0, height, 0)
        relative = np.sqrt(area) / canonical_size + 1e-6
        # Minimum sizes are compared, as in the operator, because a logarithm would be rounded.
        min_sizes = 2.0 ** (np.arange(k_min + 1, k_max + 1) - k0)
        return k_min + (relative[..., None] >= min_sizes).sum(axis=-1)
