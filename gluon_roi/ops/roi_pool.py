# SPDX-License-Identifier: Apache-2.0
"""ROIPool: max pooling in the bins of a RoI, the operator of Fast R-CNN."""

from __future__ import annotations

from typing import Any

from ..bridge import OperatorBlock, Tensor, call_operator, public_name


@public_name("ROIPool")
def roi_pool(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    rois_num: Tensor | None = None,
    bad_index: str = "error",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """RoI max pooling: the maximum of the cells of each bin.

    The box is scaled to the map and rounded, with halves away from zero. It includes its last cell
    and is at least one cell in size. It is split into P x Q bins, which may share cells. A bin
    without cells is 0, and NaN cells are ignored. The gradient of a bin goes to its first maximum
    in row-major order. The gradient of rois is 0.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Feature maps.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Boxes in image coordinates (pixels): rows [batch_index, x1, y1, x2, y2], where a negative
        batch index marks a padding row; or R boxes per image, K = N * R; or boxes without an index,
        together with rois_num. float16 is converted.
    pooled_size : int or (int, int)
        Bins P x Q of the output (height, width).
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    rois_num : (N,), int32, int64, float32 or float64, optional
        Number of boxes of each image, for rois without an index.
    bad_index : {'error', 'padding'}
        Treatment of a batch index >= N: 'error' raises an error, 'padding' treats the row as
        padding, as MXNet's ``ROIPooling`` does.
    out : array, optional
        Array to write the result to, with its shape and dtype (arrays only). It must not share
        memory with an input; with BoxNMS, the first output may.
    name : str, optional
        Name of the node (ignored for arrays).
    attr : dict, optional
        Additional attributes of the node (symbols only).

    Returns
    -------
    out : (K, C, P, Q), dtype of data
        0 for a padding row, NaN for a row with a NaN or infinite coordinate.

    Raises
    ------
    mxnet.base.MXNetError
        An invalid argument, shape or dtype, or an `out` that shares memory with an input; on the
        CPU, also a batch index that is NaN, fractional or >= N. (On a GPU such a row is NaN.)
    TypeError
        An unknown or missing argument, or inputs that are not all arrays or symbols of the same
        kind.

    References
    ----------
    Girshick 2015, Fast R-CNN, arXiv:1504.08083, section 2.1. The rounding is Caffe's, as in MXNet's
    ``ROIPooling``, torchvision's ``roi_pool`` and Paddle's ``roi_pool``.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(48).reshape((1, 1, 8, 6))
    >>> rois = mx.nd.array([[0, 0, 0, 4, 4]])
    >>> gluon_roi.nd.ROIPool(ramp, rois, (2, 2), spatial_scale=0.7).asnumpy().ravel().tolist()
    [7.0, 9.0, 19.0, 21.0]
    """
    return call_operator(
        "ROIPool",
        inputs={"data": data, "rois": rois, "rois_num": rois_num},
        parameters={
            "pooled_size": pooled_size,
            "spatial_scale": spatial_scale,
            "bad_index": bad_index,
        },
        out=out,
        name=name,
        attr=attr,
    )


class ROIPool(OperatorBlock):
    """See :func:`gluon_roi.nd.ROIPool`, which this block calls with its parameters.

    The inputs are data, rois and, for rois without an index, rois_num.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> pool = gluon_roi.ROIPool(pooled_size=7, spatial_scale=1 / 16)
    >>> pool(mx.nd.ones((1, 8, 4, 4)), mx.nd.array([[0, 0, 0, 3, 3]])).shape
    (1, 8, 7, 7)
    """

    operator_name = "ROIPool"

    @public_name("ROIPool")
    def __init__(
        self,
        pooled_size: int | tuple[int, int],
        spatial_scale: float,
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
            bad_index=bad_index,
        )

    def hybrid_forward(self, F: Any, data: Any, rois: Any, rois_num: Any = None) -> Any:
        return roi_pool(
            data=data,
            rois=rois,
            rois_num=rois_num,
            **self._parameters,
        )
