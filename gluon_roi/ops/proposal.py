# SPDX-License-Identifier: Apache-2.0
"""Proposal: the best boxes of a region proposal network that do not overlap."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from ..bridge import OperatorBlock, Tensor, call_operator, public_name
from ..bridge.arguments import NumpySymbol, Symbol, is_true
from ..bridge.symbols import node_name


@public_name("Proposal")
def proposal(
    cls_prob: Tensor,
    bbox_pred: Tensor,
    im_info: Tensor,
    rpn_pre_nms_top_n: int = 6000,
    rpn_post_nms_top_n: int = 300,
    threshold: float = 0.7,
    rpn_min_size: int = 16,
    scales: tuple[float, ...] = (4.0, 8.0, 16.0, 32.0),
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0),
    feature_stride: int = 16,
    output_score: bool = False,
    iou_loss: bool = False,
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Any:
    """Proposals of a region proposal network, as MXNet's ``contrib.Proposal`` for any batch.

    The network predicts an offset and a score for each anchor of each cell. The boxes of each image
    are visited by descending score; a box is kept unless it overlaps a kept box by more than
    `threshold`. The arguments and their order are the same as in MXNet's ``contrib.Proposal`` and
    ``MultiProposal``.

    Parameters
    ----------
    cls_prob : (N, 2 * A, H, W), float16, float32 or float64
        Probabilities; the last A channels are the scores of A = len(ratios) * len(scales) anchors.
    bbox_pred : (N, 4 * A, H, W), dtype of cls_prob
        For each anchor (dx, dy, dw, dh): the offset of the center relative to the anchor's width
        and height, and the logarithms of the factors of its width and height.
    im_info : (N, 3), dtype of cls_prob
        Rows [height, width, scale] of the images, in pixels. Cells beyond an image have the score
        -1.
    rpn_pre_nms_top_n, rpn_post_nms_top_n : int
        Boxes of an image that enter the suppression, all if not positive; rows of the output for
        each image. If fewer boxes are kept, they are repeated in order.
    threshold : float
        Intersection over union above which the better of two boxes suppresses the other.
    rpn_min_size : int
        Smallest side of a box in pixels, times the scale of im_info. Smaller boxes are enlarged by
        half of it on each side, and have the score -1.
    scales, ratios : tuple of float
        Up to 8 anchor sizes, in cells, and up to 8 ratios of height to width.
    feature_stride : int
        Pixels per cell.
    output_score : bool
        Whether to return scores as well.
    iou_loss : bool
        Whether bbox_pred holds offsets of the anchors' corners, in pixels.
    out, name, attr
        As in :func:`gluon_roi.nd.ROIPool`.

    Returns
    -------
    out : (N * rpn_post_nms_top_n, 5), dtype of cls_prob
        Rows [image, x1, y1, x2, y2], as RoI operators take them; x2 is the last pixel of the box.
    score : (N * rpn_post_nms_top_n, 1), dtype of cls_prob
        With output_score only.

    Raises
    ------
    mxnet.base.MXNetError
        An invalid argument, shape or dtype; on the CPU, also a row of im_info that is not finite,
        negative or beyond the map.
    TypeError
        As :func:`gluon_roi.nd.ROIPool` does.

    Notes
    -----
    Boxes with equal scores stay in the order of cells, then anchors. A score of NaN counts as
    -infinity. A box whose row of bbox_pred contains NaN is NaN, has the score -1, and overlaps
    nothing. float16 input is computed in float32. All gradients are 0.

    References
    ----------
    Ren et al. 2015, Faster R-CNN, arXiv:1506.01497, section 3.1; MXNet's ``contrib.Proposal`` and
    ``contrib.MultiProposal``.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> scores = mx.nd.array([0, 0, 0.5, 0.75]).reshape((1, 2, 1, 2))
    >>> moves = mx.nd.zeros((1, 4, 1, 2))
    >>> image = mx.nd.array([[16, 32, 1]])
    >>> given = {"scales": (1.0,), "ratios": (1.0,), "rpn_post_nms_top_n": 2}
    >>> gluon_roi.nd.Proposal(scores, moves, image, **given).asnumpy().tolist()
    [[0.0, 16.0, 0.0, 31.0, 15.0], [0.0, 0.0, 0.0, 15.0, 15.0]]
    """
    inputs = {"cls_prob": cls_prob, "bbox_pred": bbox_pred, "im_info": im_info}
    parameters = {
        "rpn_pre_nms_top_n": rpn_pre_nms_top_n,
        "rpn_post_nms_top_n": rpn_post_nms_top_n,
        "threshold": threshold,
        "rpn_min_size": rpn_min_size,
        "scales": scales,
        "ratios": ratios,
        "feature_stride": feature_stride,
        "output_score": output_score,
        "iou_loss": iou_loss,
    }
    num_outputs = 2 if is_true(output_score) else 1
    if not isinstance(cls_prob, (Symbol, NumpySymbol)):
        return call_operator("Proposal", inputs, parameters, out, name, attr, num_outputs)
    # MXNet would name the outputs of a node with two outputs rois_output0 and rois_output1. A
    # BlockGrad node with one output keeps the name that MXNet's operators give it, rois_output.
    # Like MXNet's operators, BlockGrad reads no head gradient, so a loss in the same graph can be
    # trained.
    node = node_name(name, "Proposal")
    both = call_operator("Proposal", inputs, parameters, out, f"{node}_boxes", attr, num_outputs=2)
    is_numpy = isinstance(both, NumpySymbol)
    outputs = list(both.as_nd_ndarray() if is_numpy else both)
    names = (node, f"{node}_score")[:num_outputs]
    results = [mx.sym.BlockGrad(outputs[i], name=each, attr=attr) for i, each in enumerate(names)]
    result = results[0] if num_outputs == 1 else mx.sym.Group(results)
    return result.as_np_ndarray() if is_numpy else result


class Proposal(OperatorBlock):
    """See :func:`gluon_roi.nd.Proposal`, which this block calls with its parameters.

    The inputs are cls_prob, bbox_pred and im_info.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> propose = gluon_roi.Proposal(scales=(1.0,), ratios=(1.0,), rpn_post_nms_top_n=2)
    >>> scores, moves = mx.nd.ones((1, 2, 1, 2)), mx.nd.zeros((1, 4, 1, 2))
    >>> propose(scores, moves, mx.nd.array([[16, 32, 1]])).shape
    (2, 5)
    """

    operator_name = "Proposal"

    @public_name("Proposal")
    def __init__(
        self,
        rpn_pre_nms_top_n: int = 6000,
        rpn_post_nms_top_n: int = 300,
        threshold: float = 0.7,
        rpn_min_size: int = 16,
        scales: tuple[float, ...] = (4.0, 8.0, 16.0, 32.0),
        ratios: tuple[float, ...] = (0.5, 1.0, 2.0),
        feature_stride: int = 16,
        output_score: bool = False,
        iou_loss: bool = False,
        *,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        super().__init__(
            prefix,
            params,
            rpn_pre_nms_top_n=rpn_pre_nms_top_n,
            rpn_post_nms_top_n=rpn_post_nms_top_n,
            threshold=threshold,
            rpn_min_size=rpn_min_size,
            scales=scales,
            ratios=ratios,
            feature_stride=feature_stride,
            output_score=output_score,
            iou_loss=iou_loss,
        )

    def hybrid_forward(self, F: Any, cls_prob: Any, bbox_pred: Any, im_info: Any) -> Any:
        return proposal(
            cls_prob=cls_prob,
            bbox_pred=bbox_pred,
            im_info=im_info,
            **self._parameters,
        )
