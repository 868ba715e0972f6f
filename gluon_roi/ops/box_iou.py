# SPDX-License-Identifier: Apache-2.0
"""BoxIoU: the overlap of every pair of boxes."""

from __future__ import annotations

from typing import Any

from ..bridge import OperatorBlock, Tensor, call_operator, public_name


@public_name("BoxIoU")
def box_iou(
    lhs: Tensor,
    rhs: Tensor,
    format: str = "corner",
    mode: str = "iou",
    aligned: bool = False,
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """Intersection over union of upright or rotated boxes, like MXNet's ``contrib.box_iou``.

    Parameters
    ----------
    lhs : (..., 4), or (..., 5) if rotated; float16, float32 or float64
        A box in each row.
    rhs : (..., 4) or (..., 5), of the same dtype
        Boxes to compare them with.
    format : {'corner', 'center', 'rotated'}
        (x1, y1, x2, y2); (centre x, centre y, width, height); or the latter with an angle in
        degrees, counter-clockwise in an image whose y points down, as in
        :class:`gluon_roi.RotatedROIAlign`.
    mode : {'iou', 'iof'}
        Divide the intersection by the area of the union, or by the area of the lhs box.
    aligned : bool
        Whether row i of lhs is compared with row i of rhs only, instead of with every row.
    out, name, attr
        As in :func:`gluon_roi.nd.ROIPool`.

    Returns
    -------
    out : lhs.shape[:-1] + rhs.shape[:-1], or if aligned lhs.shape[:-1]; dtype of lhs
        Overlaps from 0 to 1.

    Raises
    ------
    mxnet.base.MXNetError, TypeError
        As :func:`gluon_roi.nd.ROIPool` does.

    Notes
    -----
    Rotated boxes are intersected in float64 for every dtype, with an error of at most 1e-6. A box
    with a NaN, a negative side or an area of 0 has an overlap of 0 with every box. The gradients of
    lhs and rhs are 0.

    References
    ----------
    MXNet's ``contrib.box_iou``; Ma et al. 2018, Arbitrary-Oriented Scene Text Detection via
    Rotation Proposals, arXiv:1703.01086.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> lhs = mx.nd.array([[0, 0, 4, 2, 0]])
    >>> rhs = mx.nd.array([[0, 0, 4, 2, 180], [0, 0, 2, 2, 90]])
    >>> gluon_roi.nd.BoxIoU(lhs, rhs, format='rotated').asnumpy().tolist()
    [[1.0, 0.5]]
    """
    return call_operator(
        "BoxIoU",
        inputs={"lhs": lhs, "rhs": rhs},
        parameters={"format": format, "mode": mode, "aligned": aligned},
        out=out,
        name=name,
        attr=attr,
    )


class BoxIoU(OperatorBlock):
    """See :func:`gluon_roi.nd.BoxIoU`, which this block calls with its parameters.

    The inputs are lhs and rhs.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> gluon_roi.BoxIoU('rotated')(mx.nd.ones((3, 5)), mx.nd.ones((2, 4, 5))).shape
    (3, 2, 4)
    """

    operator_name = "BoxIoU"

    @public_name("BoxIoU")
    def __init__(
        self,
        format: str = "corner",
        mode: str = "iou",
        aligned: bool = False,
        *,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        super().__init__(prefix, params, format=format, mode=mode, aligned=aligned)

    def hybrid_forward(self, F: Any, lhs: Any, rhs: Any) -> Any:
        return box_iou(
            lhs=lhs,
            rhs=rhs,
            **self._parameters,
        )
