# SPDX-License-Identifier: Apache-2.0
"""PSROIAlign: position-sensitive bilinear pooling, the operator of Light-Head R-CNN."""

from __future__ import annotations

from typing import Any

from ..bridge import OperatorBlock, Tensor, call_operator, public_name


@public_name("PSROIAlign")
def ps_roi_align(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    output_dim: int | None = None,
    sampling_ratio: int = -1,
    aligned: bool = True,
    rois_grad: bool = False,
    rois_num: Tensor | None = None,
    bad_index: str = "error",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """Position-sensitive RoI pooling by bilinear samples: each bin reads its own score map.

    Bin (p, q) of output channel c equals bin (p, q) of :func:`gluon_roi.nd.ROIAlign` on input
    channel ``(c * P + p) * Q + q``.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Score maps, C = output_dim * P * Q.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Rows [batch_index, x1, y1, x2, y2] in pixels; or as in :func:`gluon_roi.nd.ROIPool`.
    pooled_size : int or (int, int)
        Bins P x Q of the output (height, width).
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    output_dim : int, optional
        Channels of the output; C / (P * Q) if not given.
    sampling_ratio, aligned, rois_grad
        As in :func:`gluon_roi.nd.ROIAlign`, but aligned=True matches torchvision's
        ``ps_roi_align``, and False MXNet's ``contrib.ROIAlign`` with position_sensitive.
    rois_num, bad_index, out, name, attr
        As in :func:`gluon_roi.nd.ROIPool`.

    Returns
    -------
    out : (K, output_dim, P, Q), dtype of data
        0 for a padding row, NaN for a row with a NaN or infinite coordinate.

    Raises
    ------
    mxnet.base.MXNetError, TypeError
        As :func:`gluon_roi.nd.ROIPool` does.

    References
    ----------
    Li et al. 2017, Light-Head R-CNN, arXiv:1711.07264, section 3.2.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(16).reshape((1, 1, 4, 4)).tile((1, 4, 1, 1))
    >>> rois = mx.nd.array([[0, 0, 0, 3, 3]])
    >>> gluon_roi.nd.PSROIAlign(ramp, rois, 2, spatial_scale=1.0).asnumpy().ravel().tolist()
    [1.5625, 3.0, 7.3125, 8.75]
    """
    return call_operator(
        "PSROIAlign",
        inputs={"data": data, "rois": rois, "rois_num": rois_num},
        parameters={
            "pooled_size": pooled_size,
            "spatial_scale": spatial_scale,
            "output_dim": output_dim,
            "sampling_ratio": sampling_ratio,
            "aligned": aligned,
            "rois_grad": rois_grad,
            "bad_index": bad_index,
        },
        out=out,
        name=name,
        attr=attr,
    )


class PSROIAlign(OperatorBlock):
    """See :func:`gluon_roi.nd.PSROIAlign`, which this block calls with its parameters.

    The inputs are data, rois and, for rois without an index, rois_num.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> align = gluon_roi.PSROIAlign(pooled_size=7, spatial_scale=1 / 16)
    >>> align(mx.nd.ones((1, 98, 4, 4)), mx.nd.array([[0, 0, 0, 3, 3]])).shape
    (1, 2, 7, 7)
    """

    operator_name = "PSROIAlign"

    @public_name("PSROIAlign")
    def __init__(
        self,
        pooled_size: int | tuple[int, int],
        spatial_scale: float,
        output_dim: int | None = None,
        sampling_ratio: int = -1,
        aligned: bool = True,
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
            output_dim=output_dim,
            sampling_ratio=sampling_ratio,
            aligned=aligned,
            rois_grad=rois_grad,
            bad_index=bad_index,
        )

    def hybrid_forward(self, F: Any, data: Any, rois: Any, rois_num: Any = None) -> Any:
        return ps_roi_align(
            data=data,
            rois=rois,
            rois_num=rois_num,
            **self._parameters,
        )
