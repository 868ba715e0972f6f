# SPDX-License-Identifier: Apache-2.0
"""DeformablePSROIPool: position-sensitive pooling with bin offsets, from Deformable ConvNets."""

from __future__ import annotations

from typing import Any, overload

from ..bridge import OperatorBlock, Tensor, call_operator, optional_input, public_name


# For editors: trans may be omitted among positional arguments.
@overload
def deformable_ps_roi_pool(
    data: Tensor,
    rois: Tensor,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    *more: Any,
    trans: Tensor | None = None,
    **named: Any,
) -> Tensor: ...
@overload
def deformable_ps_roi_pool(
    data: Tensor,
    rois: Tensor,
    trans: Tensor | None,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    output_dim: int | None = None,
    group_size: int | tuple[int, int] | None = None,
    part_size: int | tuple[int, int] | None = None,
    sample_per_part: int = 4,
    trans_std: float = 0.0,
    rois_num: Tensor | None = None,
    bad_index: str = "error",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor: ...
@optional_input("trans")
@public_name("DeformablePSROIPool")
def deformable_ps_roi_pool(
    data: Tensor,
    rois: Tensor,
    trans: Tensor | None,
    pooled_size: int | tuple[int, int],
    spatial_scale: float,
    output_dim: int | None = None,
    group_size: int | tuple[int, int] | None = None,
    part_size: int | tuple[int, int] | None = None,
    sample_per_part: int = 4,
    trans_std: float = 0.0,
    rois_num: Tensor | None = None,
    bad_index: str = "error",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """Position-sensitive pooling of bilinear samples, with an offset for each bin.

    Each RoI is split into P x Q bins. Bin (p, q) of output channel c is the mean of a regular grid
    of bilinear samples of input channel ``(c * G + gh) * G + gw``, where (gh, gw) is the group of
    the bin. The bin is shifted by ``trans * trans_std`` times the width and height of the box.
    Samples outside the map are excluded from the mean; a bin without samples is 0. Positions are
    computed in float32 for float16 and float32 data, in float64 for float64 data. The gradient of
    rois is 0.

    `trans` may be None or omitted: ``DeformablePSROIPool(data, rois, pooled_size, ...)``.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Score maps, C = output_dim * G * G.
    rois : (K, 5), (N, R, 4) or (K, 4), float32 or float64
        Rows [batch_index, x1, y1, x2, y2] in pixels; or as in :func:`gluon_roi.nd.ROIPool`.
    trans : (K, 2 * classes, T, T), dtype of data, optional
        Offsets x and y of each class; output channel c belongs to class ``c // (output_dim /
        classes)``. Without it bins are not shifted (MXNet's ``no_trans``).
    pooled_size : int or (int, int)
        Bins P x Q of the output (height, width).
    spatial_scale : float
        Map cells per image pixel, such as 1 / 16.
    output_dim, group_size
        As in :func:`gluon_roi.nd.PSROIPool`.
    part_size : int or (int, int), optional
        Number T of parts per axis that have separate offsets: bin p belongs to part floor(p * T /
        P). The default is the pooled size.
    sample_per_part : int
        Samples per bin and axis.
    trans_std : float
        Factor of trans; 0.1 in the paper. With 0, which is also MXNet's default, bins are not
        shifted.
    rois_num, bad_index, out, name, attr
        As in :func:`gluon_roi.nd.ROIPool`.

    Returns
    -------
    out : (K, output_dim, P, Q), dtype of data
        0 for a padding row; NaN for a row with a NaN or infinite coordinate, and for a bin with a
        NaN or infinite offset.

    Raises
    ------
    mxnet.base.MXNetError, TypeError
        As :func:`gluon_roi.nd.ROIPool` does.

    References
    ----------
    Dai et al. 2017, Deformable Convolutional Networks, arXiv:1703.06211, section 2.2. The
    arithmetic is that of MXNet's ``contrib.DeformablePSROIPooling``.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(16).reshape((1, 1, 4, 4)).tile((1, 4, 1, 1))
    >>> rois, given = mx.nd.array([[0, 0, 0, 3, 3]]), {"sample_per_part": 2, "trans_std": 0.25}
    >>> right = mx.nd.array([1, 0]).reshape((1, 2, 1, 1)).tile((1, 1, 2, 2))
    >>> gluon_roi.nd.DeformablePSROIPool(ramp, rois, 2, 1.0, **given).asnumpy().ravel().tolist()
    [1.25, 3.0, 8.25, 10.0]
    >>> moved = gluon_roi.nd.DeformablePSROIPool(ramp, rois, right, 2, 1.0, **given)
    >>> moved.asnumpy().ravel().tolist()
    [2.0, 3.75, 9.0, 10.75]
    """
    return call_operator(
        "DeformablePSROIPool",
        inputs={"data": data, "rois": rois, "trans": trans, "rois_num": rois_num},
        parameters={
            "pooled_size": pooled_size,
            "spatial_scale": spatial_scale,
            "output_dim": output_dim,
            "group_size": group_size,
            "part_size": part_size,
            "sample_per_part": sample_per_part,
            "trans_std": trans_std,
            "bad_index": bad_index,
        },
        out=out,
        name=name,
        attr=attr,
    )


class DeformablePSROIPool(OperatorBlock):
    """See :func:`gluon_roi.nd.DeformablePSROIPool`, which this block calls with its parameters.

    The inputs are data, rois, optionally trans and, for rois without an index, rois_num.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> pool = gluon_roi.DeformablePSROIPool(pooled_size=7, spatial_scale=1 / 16, trans_std=0.1)
    >>> rois, trans = mx.nd.array([[0, 0, 0, 3, 3]]), mx.nd.ones((1, 2, 7, 7))
    >>> pool(mx.nd.ones((1, 98, 4, 4)), rois, trans).shape
    (1, 2, 7, 7)
    """

    operator_name = "DeformablePSROIPool"

    @public_name("DeformablePSROIPool")
    def __init__(
        self,
        pooled_size: int | tuple[int, int],
        spatial_scale: float,
        output_dim: int | None = None,
        group_size: int | tuple[int, int] | None = None,
        part_size: int | tuple[int, int] | None = None,
        sample_per_part: int = 4,
        trans_std: float = 0.0,
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
            part_size=part_size,
            sample_per_part=sample_per_part,
            trans_std=trans_std,
            bad_index=bad_index,
        )

    def hybrid_forward(
        self, F: Any, data: Any, rois: Any, trans: Any = None, rois_num: Any = None
    ) -> Any:
        return deformable_ps_roi_pool(
            data=data,
            rois=rois,
            trans=trans,
            rois_num=rois_num,
            **self._parameters,
        )
