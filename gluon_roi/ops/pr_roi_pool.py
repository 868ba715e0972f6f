# SPDX-License-Identifier: Apache-2.0
"""PrROIPool: the integral of the bilinear surface over each bin, the operator of IoU-Net."""

from __future__ import annotations

from typing import Any

from ..bridge import OperatorBlock, Tensor, call_operator, public_name


@public_name("PrROIPool")
def pr_roi_pool(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    rois_grad: bool = False,
    rois_num: Tensor | None = None,
    bad_index: str = "error",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """Precise RoI pooling: the mean of the bilinear surface over each bin, without samples.

    The box is scaled to the map, without rounding or shifting, and split into P x Q bins. The
    surface has the value of cell i at coordinate i, is bilinear in between, and falls to 0 within
    one cell beyond the map. Its integral over a bin is divided by the bin's area; a bin without
    area, as in an inverted box, is 0. Weights are computed in float64 for every dtype of data. The
    gradient with respect to the box is continuous, so boxes can be refined by gradient descent.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Feature maps.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Rows [batch_index, x1, y1, x2, y2] in pixels; or as in :func:`gluon_roi.nd.ROIPool`.
    pooled_size : int or (int, int)
        Bins P x Q of the output (height, width).
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    rois_grad : bool
        Whether rois gets a gradient, in units of out per image pixel, rather than zeros.
    rois_num, bad_index, out, name, attr
        As in :func:`gluon_roi.nd.ROIPool`.

    Returns
    -------
    out : (K, C, P, Q), dtype of data
        0 for a padding row, NaN for a row with a NaN or infinite coordinate.

    Raises
    ------
    mxnet.base.MXNetError, TypeError
        As :func:`gluon_roi.nd.ROIPool` does.

    References
    ----------
    Jiang et al. 2018, Acquisition of Localization Confidence for Accurate Object Detection
    (IoU-Net), arXiv:1807.11590, section 3.3.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(16).reshape((1, 1, 4, 4))
    >>> rois = mx.nd.array([[0, 0, 0, 2, 2]])
    >>> gluon_roi.nd.PrROIPool(ramp, rois, 2, spatial_scale=1.0).asnumpy().ravel().tolist()
    [2.5, 3.5, 6.5, 7.5]
    """
    return call_operator(
        "PrROIPool",
        inputs={"data": data, "rois": rois, "rois_num": rois_num},
        parameters={
            "pooled_size": pooled_size,
            "spatial_scale": spatial_scale,
            "rois_grad": rois_grad,
            "bad_index": bad_index,
        },
        out=out,
        name=name,
        attr=attr,
    )


class PrROIPool(OperatorBlock):
    """See :func:`gluon_roi.nd.PrROIPool`, which this block calls with its parameters.

    The inputs are data, rois and, for rois without an index, rois_num.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> pool = gluon_roi.PrROIPool(pooled_size=7, spatial_scale=1 / 16)
    >>> pool(mx.nd.ones((1, 8, 4, 4)), mx.nd.array([[0, 0, 0, 3, 3]])).shape
    (1, 8, 7, 7)
    """

    operator_name = "PrROIPool"

    @public_name("PrROIPool")
    def __init__(
        self,
        pooled_size: int | tuple[int, int],
        spatial_scale: float,
        rois_grad: bool = False,
        bad_index: str = "error",
        *,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        super().__init__(
            prefix,
            params,
            pooled_size=pooled_size,
            spatial_scale=spatial_scale,
            rois_grad=rois_grad,
            bad_index=bad_index,
        )

    def hybrid_forward(self, F: Any, data: Any, rois: Any, rois_num: Any = None) -> Any:
        return pr_roi_pool(
            data=data,
            rois=rois,
            rois_num=rois_num,
            **self._parameters,
        )
