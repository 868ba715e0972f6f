# SPDX-License-Identifier: Apache-2.0
"""DeformableROIAlign: ROIAlign with bin offsets and factors, from Deformable ConvNets v1 and v2."""

from __future__ import annotations

from typing import Any, overload

from ..bridge import OperatorBlock, Tensor, call_operator, optional_input, public_name


# For editors: offset and mask may be omitted among positional arguments.
@overload
def deformable_roi_align(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    *more: Any,
    offset: Tensor | None = None,
    mask: Tensor | None = None,
    **named: Any,
) -> Tensor: ...
@overload
def deformable_roi_align(
    data: Tensor,
    rois: Tensor,
    offset: Tensor | None,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    *more: Any,
    mask: Tensor | None = None,
    **named: Any,
) -> Tensor: ...
@overload
def deformable_roi_align(
    data: Tensor,
    rois: Tensor,
    offset: Tensor | None,
    mask: Tensor | None,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int = 0,
    gamma: float = 0.1,
    aligned: bool = True,
    rois_grad: bool = False,
    rois_num: Tensor | None = None,
    bad_index: str = "error",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor: ...
@optional_input("offset", "mask")
@public_name("DeformableROIAlign")
def deformable_roi_align(
    data: Tensor,
    rois: Tensor,
    offset: Tensor | None,
    mask: Tensor | None,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    sampling_ratio: int = 0,
    gamma: float = 0.1,
    aligned: bool = True,
    rois_grad: bool = False,
    rois_num: Tensor | None = None,
    bad_index: str = "error",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """ROIAlign with an offset and a factor for each bin.

    The samples of bin (p, q) are those of :func:`gluon_roi.nd.ROIAlign`, shifted along x by ``gamma
    * offset[k, 0, p, q]`` times the width of the box on the map, and along y by ``gamma * offset[k,
    1, p, q]`` times its height. Their mean is multiplied by ``mask[k, 0, p, q]``. The number of
    samples is that of the box without offsets. Positions are computed in float32 for float16 and
    float32 data, in float64 for float64 data.

    `offset` and `mask` may be None or omitted: ``DeformableROIAlign(data, rois, pooled_size, ...)``
    returns the bytes of ROIAlign.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Feature maps.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Rows [batch_index, x1, y1, x2, y2] in pixels; or as in :func:`gluon_roi.nd.ROIPool`.
    offset : (K, 2, P, Q), dtype of data, optional
        Offsets x and y of each bin, in units of the box size after multiplication by `gamma`.
    mask : (K, 1, P, Q), dtype of data, optional
        Factor of each bin (the modulation of Deformable ConvNets v2).
    pooled_size : int or (int, int)
        Bins P x Q of the output (height, width).
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    sampling_ratio : int
        Samples per bin and axis; if not positive, as many as the bin has cells, rounded up.
    gamma : float
        Factor of `offset`.
    aligned : bool
        As in :func:`gluon_roi.nd.ROIAlign`, but True by default.
    rois_grad : bool
        Whether to compute the gradient with respect to rois (per image pixel) instead of zeros.
    rois_num, bad_index, out, name, attr
        As in :func:`gluon_roi.nd.ROIPool`.

    Returns
    -------
    out : (K, C, P, Q), dtype of data
        0 for a padding row; NaN for a row with a NaN or infinite coordinate, and for a bin with a
        NaN or infinite offset.

    Raises
    ------
    mxnet.base.MXNetError, TypeError
        As :func:`gluon_roi.nd.ROIPool` does.

    References
    ----------
    Dai et al. 2017, Deformable Convolutional Networks, arXiv:1703.06211, section 2.2; Zhu et al.
    2019, Deformable ConvNets v2, arXiv:1811.11168. The arithmetic is that of mmcv's
    ``DeformRoIPool``.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> data, rois = mx.nd.array([[[[1, 2], [3, 4]]]]), mx.nd.array([[0, 0, 0, 1, 1]])
    >>> given = {"sampling_ratio": 2, "gamma": 0.5}
    >>> gluon_roi.nd.DeformableROIAlign(data, rois, 2, 1.0, **given).asnumpy().ravel().tolist()
    [1.0, 1.25, 1.5, 1.75]
    >>> right = mx.nd.array([1, 0]).reshape((1, 2, 1, 1)).tile((1, 1, 2, 2))
    >>> moved = gluon_roi.nd.DeformableROIAlign(data, rois, right, 2, 1.0, **given)
    >>> moved.asnumpy().ravel().tolist()
    [1.25, 1.75, 1.75, 2.25]
    """
    return call_operator(
        "DeformableROIAlign",
        inputs={
            "data": data,
            "rois": rois,
            "offset": offset,
            "mask": mask,
            "rois_num": rois_num,
        },
        parameters={
            "pooled_size": pooled_size,
            "spatial_scale": spatial_scale,
            "sampling_ratio": sampling_ratio,
            "gamma": gamma,
            "aligned": aligned,
            "rois_grad": rois_grad,
            "bad_index": bad_index,
        },
        out=out,
        name=name,
        attr=attr,
    )


class DeformableROIAlign(OperatorBlock):
    """See :func:`gluon_roi.nd.DeformableROIAlign`, which this block calls with its parameters.

    The inputs are data, rois, optionally offset and mask and, for rois without an index, rois_num.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> align = gluon_roi.DeformableROIAlign(pooled_size=7, spatial_scale=1 / 16)
    >>> rois, offset = mx.nd.array([[0, 0, 0, 3, 3]]), mx.nd.ones((1, 2, 7, 7))
    >>> align(mx.nd.ones((1, 8, 4, 4)), rois, offset).shape
    (1, 8, 7, 7)
    """

    operator_name = "DeformableROIAlign"

    @public_name("DeformableROIAlign")
    def __init__(
        self,
        pooled_size: int | tuple[int, int],
        spatial_scale: float,
        sampling_ratio: int = 0,
        gamma: float = 0.1,
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
            sampling_ratio=sampling_ratio,
            gamma=gamma,
            aligned=aligned,
            rois_grad=rois_grad,
            bad_index=bad_index,
        )

    def hybrid_forward(
        self,
        F: Any,
        data: Any,
        rois: Any,
        offset: Any = None,
        mask: Any = None,
        rois_num: Any = None,
    ) -> Any:
        return deformable_roi_align(
            data=data,
            rois=rois,
            offset=offset,
            mask=mask,
            rois_num=rois_num,
            **self._parameters,
        )
