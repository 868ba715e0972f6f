# SPDX-License-Identifier: Apache-2.0
"""RotatedROIAlign: ROIAlign for rotated boxes, as in text and aerial images."""

from __future__ import annotations

from typing import Any

from ..bridge import OperatorBlock, Tensor, call_operator, public_name


@public_name("RotatedROIAlign")
def rotated_roi_align(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int = -1,
    aligned: bool = False,
    rois_grad: bool = False,
    rois_num: Tensor | None = None,
    bad_index: str = "error",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """RoI pooling by bilinear samples of a rotated box.

    The samples are those of :func:`gluon_roi.nd.ROIAlign` for a box of the same size around the
    origin, rotated by theta and shifted to the box's centre. Samples more than one cell outside the
    map are 0. With theta = 0 the result is ROIAlign's.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Feature maps.
    rois : (K, 6), (N, R, 5) or (K, 5), float32 or float64
        Rows [batch_index, cx, cy, w, h, theta] in pixels, and degrees counter-clockwise in an image
        whose y points down; or as in :func:`gluon_roi.nd.ROIPool`.
    pooled_size : int or (int, int)
        Bins P x Q along the height and width of the box.
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    sampling_ratio, aligned, rois_grad
        As in :func:`gluon_roi.nd.ROIAlign`, but `aligned` shifts the centre, and the gradient of
        theta is per degree.
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
    Ma et al. 2018, Arbitrary-Oriented Scene Text Detection via Rotation Proposals,
    arXiv:1703.01086. The arithmetic is that of MXNet's ``contrib.RROIAlign``, which has no
    gradient, and with ``aligned=True`` that of detectron2's ``ROIAlignRotated``.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(16).reshape((1, 1, 4, 4))
    >>> rois = mx.nd.array([[0, 1.5, 1.5, 2, 2, 90]])
    >>> gluon_roi.nd.RotatedROIAlign(ramp, rois, 2, 1.0).asnumpy().ravel().round(4).tolist()
    [9.0, 5.0, 10.0, 6.0]
    """
    return call_operator(
        "RotatedROIAlign",
        inputs={"data": data, "rois": rois, "rois_num": rois_num},
        parameters={
            "pooled_size": pooled_size,
            "spatial_scale": spatial_scale,
            "sampling_ratio": sampling_ratio,
            "aligned": aligned,
            "rois_grad": rois_grad,
            "bad_index": bad_index,
        },
        out=out,
        name=name,
        attr=attr,
    )


class RotatedROIAlign(OperatorBlock):
    """See :func:`gluon_roi.nd.RotatedROIAlign`, which this block calls with its parameters.

    The inputs are data, rois and, for rois without an index, rois_num.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> align = gluon_roi.RotatedROIAlign(pooled_size=7, spatial_scale=1 / 16)
    >>> align(mx.nd.ones((1, 8, 4, 4)), mx.nd.array([[0, 2, 2, 3, 3, 90]])).shape
    (1, 8, 7, 7)
    """

    operator_name = "RotatedROIAlign"

    @public_name("RotatedROIAlign")
    def __init__(
        self,
        pooled_size: int | tuple[int, int],
        spatial_scale: float,
        sampling_ratio: int = -1,
        aligned: bool = False,
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
            sampling_ratio=sampling_ratio,
            aligned=aligned,
            rois_grad=rois_grad,
            bad_index=bad_index,
        )

    def hybrid_forward(self, F: Any, data: Any, rois: Any, rois_num: Any = None) -> Any:
        return rotated_roi_align(
            data=data,
            rois=rois,
            rois_num=rois_num,
            **self._parameters,
        )
