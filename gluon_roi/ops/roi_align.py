# SPDX-License-Identifier: Apache-2.0
"""ROIAlign: bilinear samples in the bins of a RoI, the operator of Mask R-CNN."""

from __future__ import annotations

from typing import Any

from ..bridge import OperatorBlock, Tensor, call_operator, public_name


@public_name("ROIAlign")
def roi_align(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int = -1,
    aligned: bool = False,
    rois_grad: bool = False,
    rois_num: Tensor | None = None,
    bad_index: str = "error",
    mode: str = "avg",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """RoI pooling by bilinear samples, without rounding the box.

    The box is scaled to the map and split into P x Q bins. A bin is the mean of a regular grid of
    bilinear samples. Samples more than one cell outside the map are 0. Geometry is computed in
    float32 for float16 and float32 data, in float64 for float64 data.

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
    sampling_ratio : int
        Samples per bin and axis; if not positive, as many as the bin has cells, rounded up.
    aligned : bool
        True (detectron2): shift the box by half a cell, so that pixel centres of image and map
        agree. False (the original): do not shift it, but use a minimum size of one cell.
    rois_grad : bool
        Whether to compute the gradient with respect to rois (per image pixel) instead of zeros.
    rois_num, bad_index
        As in :func:`gluon_roi.nd.ROIPool`.
    mode : 'avg' or 'max'
        Whether a bin is the mean of its samples, or the largest one (mmcv's ``pool_mode``).
    out, name, attr
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
    He et al. 2017, Mask R-CNN, arXiv:1703.06870, section 3. The arithmetic is that of MXNet's
    ``contrib.ROIAlign``, torchvision's and Paddle's ``roi_align``.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(16).reshape((1, 1, 4, 4))
    >>> rois = mx.nd.array([[0, 0, 0, 3, 3]])
    >>> gluon_roi.nd.ROIAlign(ramp, rois, 2, spatial_scale=1.0).asnumpy().ravel().tolist()
    [3.75, 5.25, 9.75, 11.25]
    """
    return call_operator(
        "ROIAlign",
        inputs={"data": data, "rois": rois, "rois_num": rois_num},
        parameters={
            "pooled_size": pooled_size,
            "spatial_scale": spatial_scale,
            "sampling_ratio": sampling_ratio,
            "aligned": aligned,
            "rois_grad": rois_grad,
            "bad_index": bad_index,
            "mode": mode,
        },
        out=out,
        name=name,
        attr=attr,
    )


class ROIAlign(OperatorBlock):
    """See :func:`gluon_roi.nd.ROIAlign`, which this block calls with its parameters.

    The inputs are data, rois and, for rois without an index, rois_num.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> align = gluon_roi.ROIAlign(pooled_size=7, spatial_scale=1 / 16)
    >>> align(mx.nd.ones((1, 8, 4, 4)), mx.nd.array([[0, 0, 0, 3, 3]])).shape
    (1, 8, 7, 7)
    """

    operator_name = "ROIAlign"

    @public_name("ROIAlign")
    def __init__(
        self,
        pooled_size: int | tuple[int, int],
        spatial_scale: float,
        sampling_ratio: int = -1,
        aligned: bool = False,
        rois_grad: bool = False,
        bad_index: str = "error",
        mode: str = "avg",
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
            mode=mode,
        )

    def hybrid_forward(self, F: Any, data: Any, rois: Any, rois_num: Any = None) -> Any:
        return roi_align(
            data=data,
            rois=rois,
            rois_num=rois_num,
            **self._parameters,
        )
