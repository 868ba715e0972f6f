# SPDX-License-Identifier: Apache-2.0
"""PSROIPool: position-sensitive average pooling, the operator of R-FCN."""

from __future__ import annotations

from typing import Any

from ..bridge import OperatorBlock, Tensor, call_operator, public_name


@public_name("PSROIPool")
def ps_roi_pool(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    output_dim: int | None = None,
    group_size: int | tuple[int, int] | None = None,
    convention: str = "rfcn",
    rois_num: Tensor | None = None,
    bad_index: str = "error",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """Position-sensitive RoI pooling: each bin averages its own score map.

    Each RoI is split into P x Q bins. Bin (p, q) of output channel c is the mean of input channel
    ``(c * G + gh) * G + gw`` over the cells of the bin, where (gh, gw) is the group of the bin. A
    bin without cells is 0. The gradient of a bin is distributed equally over its cells; rois has no
    gradient.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Score maps, C = output_dim * G * G.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Rows [batch_index, x1, y1, x2, y2] in pixels; or as in :func:`gluon_roi.nd.ROIPool`.
    pooled_size : int or (int, int)
        Bins P x Q of the output (height, width).
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    output_dim : int, optional
        Channels of the output; C / (G * G) if not given.
    group_size : int or (int, int), optional
        Groups G per axis; pooled_size if not given.
    convention : {'rfcn', 'torchvision'}
        'rfcn' (Caffe R-FCN, MXNet's ``contrib.PSROIPooling``, Paddle's ``psroi_pool``) rounds the
        box in image pixels, before scaling, and includes its last pixel. 'torchvision'
        (``ps_roi_pool``) rounds on the map, after scaling, and never reads the last row and column
        of the map.
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
    Dai et al. 2016, R-FCN: Object Detection via Region-based Fully Convolutional Networks,
    arXiv:1605.06409, section 2.2.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(16).reshape((1, 1, 4, 4)).tile((1, 4, 1, 1))
    >>> rois = mx.nd.array([[0, 0, 0, 3, 3]])
    >>> gluon_roi.nd.PSROIPool(ramp, rois, 2, spatial_scale=1.0).asnumpy().ravel().tolist()
    [2.5, 4.5, 10.5, 12.5]
    """
    return call_operator(
        "PSROIPool",
        inputs={"data": data, "rois": rois, "rois_num": rois_num},
        parameters={
            "pooled_size": pooled_size,
            "spatial_scale": spatial_scale,
            "output_dim": output_dim,
            "group_size": group_size,
            "convention": convention,
            "bad_index": bad_index,
        },
        out=out,
        name=name,
        attr=attr,
    )


class PSROIPool(OperatorBlock):
    """See :func:`gluon_roi.nd.PSROIPool`, which this block calls with its parameters.

    The inputs are data, rois and, for rois without an index, rois_num.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> pool = gluon_roi.PSROIPool(pooled_size=7, spatial_scale=1 / 16)
    >>> pool(mx.nd.ones((1, 98, 4, 4)), mx.nd.array([[0, 0, 0, 3, 3]])).shape
    (1, 2, 7, 7)
    """

    operator_name = "PSROIPool"

    @public_name("PSROIPool")
    def __init__(
        self,
        pooled_size: int | tuple[int, int],
        spatial_scale: float,
        output_dim: int | None = None,
        group_size: int | tuple[int, int] | None = None,
        convention: str = "rfcn",
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
            group_size=group_size,
            convention=convention,
            bad_index=bad_index,
        )

    def hybrid_forward(self, F: Any, data: Any, rois: Any, rois_num: Any = None) -> Any:
        return ps_roi_pool(
            data=data,
            rois=rois,
            rois_num=rois_num,
            **self._parameters,
        )
