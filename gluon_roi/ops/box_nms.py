# SPDX-License-Identifier: Apache-2.0
"""BoxNMS: non-maximum suppression."""

from __future__ import annotations

from typing import Any

from ..bridge import OperatorBlock, Tensor, call_operator, public_name
from ..bridge.arguments import is_true


@public_name("BoxNMS")
def box_nms(
    data: Tensor,
    overlap_thresh: float = 0.5,
    valid_thresh: float = 0.0,
    topk: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = -1,
    background_id: int = -1,
    force_suppress: bool = False,
    in_format: str = "corner",
    out_format: str = "corner",
    return_indices: bool = False,
    method: str = "hard",
    sigma: float = 0.5,
    min_score: float = 0.001,
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Any:
    """Non-maximum suppression, as MXNet's ``contrib.box_nms``.

    Visit the `topk` best valid rows of each batch by descending score, and keep a row unless a kept
    row of its class overlaps it by more than `overlap_thresh`. A soft `method` lowers its score
    instead. The first arguments and their order are those of MXNet's operator.

    Parameters
    ----------
    data : (..., n, w), float16, float32 or float64
        Batches of n rows of w columns.
    overlap_thresh : float
        Intersection over union above which the box with the higher score suppresses the other. It
        may be infinite; with NaN no box is suppressed.
    valid_thresh : float
        Rows with scores <= this are ignored. It may be infinite; with NaN all rows are ignored.
    topk : int
        Number of valid rows of a batch to consider; all if negative. With 0 the output is data.
    coord_start, score_index, id_index : int
        First column of the box, which has four columns, or five if rotated; column of the score;
        column of the class, or a negative number if there are no classes.
    background_id : int
        Class whose rows are ignored.
    force_suppress : bool
        Whether rows also suppress rows of other classes.
    in_format, out_format : {'corner', 'center', 'rotated'}
        Box formats of data and of the output: (x1, y1, x2, y2); (centre x, centre y, width,
        height); or the latter with an angle in degrees, counter-clockwise. Both or neither are
        rotated. Boxes with a negative first coordinate are not converted.
    return_indices : bool
        Whether to return the indices of the kept rows as well.
    method : {'hard', 'linear', 'gaussian'}
        Treatment of a row that a kept row overlaps: 'hard' drops it, and 'linear' multiplies its
        score by 1 - overlap, both above `overlap_thresh`; 'gaussian' multiplies the score by
        exp(-overlap**2 / sigma), whatever the overlap.
    sigma, min_score : float
        Parameter of 'gaussian'; score below which 'linear' and 'gaussian' drop a row, at least 0.
    out, name, attr
        As in :func:`gluon_roi.nd.ROIPool`.

    Returns
    -------
    out : shape and dtype of data
        The kept rows of each batch by descending score, followed by rows of -1. A soft method
        returns the lowered scores.
    indices : (..., n, 1), int32; if return_indices is true
        The indices of the kept rows in data, counted over all batches, followed by -1.

    Raises
    ------
    mxnet.base.MXNetError, TypeError
        As :func:`gluon_roi.nd.ROIPool` does.

    Notes
    -----
    Rows with equal scores keep their order. Rows with a NaN score are ignored, and infinity is the
    highest score. A box with a NaN overlaps nothing. float16 is computed in float32. data has a
    gradient: kept rows get the gradient of their output row, other rows 0. The gradient of a
    lowered score is multiplied by the same factors, and overlaps are constants. In a symbol,
    indices are a hidden second output if return_indices is false.

    References
    ----------
    Felzenszwalb et al. 2010, Object detection with discriminatively trained part-based models,
    IEEE TPAMI 32(9), section 3; Bodla et al. 2017, Soft-NMS, arXiv:1704.04503; MXNet's
    ``contrib.box_nms``.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> boxes = mx.nd.array([[0.5, 0, 0, 4, 4], [0.75, 0, 0, 4, 5], [0.25, 9, 0, 9, 4]])
    >>> gluon_roi.nd.BoxNMS(boxes, coord_start=1, score_index=0).asnumpy()[:, 0].tolist()
    [0.75, 0.25, -1.0]
    """
    return call_operator(
        "BoxNMS",
        inputs={"data": data},
        parameters={
            "overlap_thresh": overlap_thresh,
            "valid_thresh": valid_thresh,
            "topk": topk,
            "coord_start": coord_start,
            "score_index": score_index,
            "id_index": id_index,
            "background_id": background_id,
            "force_suppress": force_suppress,
            "in_format": in_format,
            "out_format": out_format,
            "return_indices": return_indices,
            "method": method,
            "sigma": sigma,
            "min_score": min_score,
        },
        out=out,
        name=name,
        attr=attr,
        num_outputs=2 if is_true(return_indices) else 1,
        in_place="data",
    )


class BoxNMS(OperatorBlock):
    """See :func:`gluon_roi.nd.BoxNMS`, which this block calls with its parameters.

    The input is data.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> boxes = mx.nd.array([[0.5, 0, 0, 4, 4], [0.75, 0, 0, 4, 5], [0.25, 9, 0, 9, 4]])
    >>> gluon_roi.BoxNMS(coord_start=1, score_index=0)(boxes).shape
    (3, 5)
    """

    operator_name = "BoxNMS"

    @public_name("BoxNMS")
    def __init__(
        self,
        overlap_thresh: float = 0.5,
        valid_thresh: float = 0.0,
        topk: int = -1,
        coord_start: int = 2,
        score_index: int = 1,
        id_index: int = -1,
        background_id: int = -1,
        force_suppress: bool = False,
        in_format: str = "corner",
        out_format: str = "corner",
        return_indices: bool = False,
        method: str = "hard",
        sigma: float = 0.5,
        min_score: float = 0.001,
        *,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        super().__init__(
            prefix,
            params,
            overlap_thresh=overlap_thresh,
            valid_thresh=valid_thresh,
            topk=topk,
            coord_start=coord_start,
            score_index=score_index,
            id_index=id_index,
            background_id=background_id,
            force_suppress=force_suppress,
            in_format=in_format,
            out_format=out_format,
            return_indices=return_indices,
            method=method,
            sigma=sigma,
            min_score=min_score,
        )

    def hybrid_forward(self, F: Any, data: Any) -> Any:
        return box_nms(
            data=data,
            **self._parameters,
        )
