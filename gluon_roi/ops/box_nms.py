# SPDX-License-Identifier: Apache-2.0
"""BoxNMS: the boxes that no better one overlaps."""

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

    The best `topk` valid rows of each batch are visited by descending score. A row is kept unless a
    kept one of its class overlaps it by more than `overlap_thresh`; or, with a soft `method`, its
    score is lowered instead. The first arguments and their order are those of MXNet's operator.

    Parameters
    ----------
    data : (..., n, w), float16, float32 or float64
        Batches of n rows of w columns.
    overlap_thresh : float
        Intersection over union above which the better of two boxes suppresses the other. It may be
        infinite; NaN suppresses none.
    valid_thresh : float
        Rows with scores up to it are not valid. It may be infinite; with NaN no row is valid.
    topk : int
        Valid rows of a batch that are considered; all if negative. With 0 the output is data.
    coord_start, score_index, id_index : int
        First of the columns of the box, four or if rotated five; column of the score; column of the
        class, of which there is only one if it is negative.
    background_id, force_suppress : int, bool
        Class whose rows are not valid; whether rows suppress those of other classes, too.
    in_format, out_format : {'corner', 'center', 'rotated'}
        Boxes of data and of the output: x1, y1, x2, y2; centre x, y and width, height; or these
        four and an angle in degrees, counter-clockwise, of both or of neither. Boxes with a
        negative first coordinate are not converted.
    return_indices : bool
        Whether to return the indices of the kept rows as well.
    method : {'hard', 'linear', 'gaussian'}
        What happens to a row that a kept row overlaps: 'hard' drops it, and 'linear' multiplies its
        score by 1 - overlap, both above `overlap_thresh`; 'gaussian' multiplies the score by
        exp(-overlap**2 / sigma), whatever the overlap.
    sigma, min_score : float
        Of 'gaussian'; the score below which 'linear' and 'gaussian' drop a row, at least 0.
    out, name, attr
        As in :func:`gluon_roi.nd.ROIPool`.

    Returns
    -------
    out : shape and dtype of data
        The kept rows of each batch, best first, then rows of -1. Scores are the lowered ones.
    indices : (..., n, 1), int32; if return_indices is true
        The rows of data that these were, counted over all batches, then -1.

    Raises
    ------
    mxnet.base.MXNetError, TypeError
        As :func:`gluon_roi.nd.ROIPool` does.

    Notes
    -----
    Rows with equal scores keep their order. A score of NaN is not valid, and infinity is the best
    of all. A box with a NaN overlaps nothing. float16 is computed in float32. data has a gradient:
    kept rows get that of their copy, other rows 0; that of a lowered score is multiplied by the
    same factors, and overlaps count as constants. In a symbol, indices are a hidden second output
    if return_indices is false.

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
