# SPDX-License-Identifier: Apache-2.0
"""DeformableSampling: the samples that a deformable convolution multiplies by its weights."""

from __future__ import annotations

from typing import Any, overload

from ..bridge import OperatorBlock, Tensor, call_operator, optional_input, public_name


# For editors: mask may be omitted among positional arguments.
@overload
def deformable_sampling(
    data: Tensor,
    offset: Tensor,
    kernel: int | tuple[int, int],
    *more: Any,
    mask: Tensor | None = None,
    **named: Any,
) -> Tensor: ...
@overload
def deformable_sampling(
    data: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    kernel: int | tuple[int, int],
    stride: int | tuple[int, int] = 1,
    dilate: int | tuple[int, int] = 1,
    pad: int | tuple[int, int] = 0,
    num_deformable_group: int = 1,
    convention: str = "mxnet",
    layout: str = "map",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor: ...
@optional_input("mask")
@public_name("DeformableSampling")
def deformable_sampling(
    data: Tensor,
    offset: Tensor,
    mask: Tensor | None,
    kernel: int | tuple[int, int],
    stride: int | tuple[int, int] = 1,
    dilate: int | tuple[int, int] = 1,
    pad: int | tuple[int, int] = 0,
    num_deformable_group: int = 1,
    convention: str = "mxnet",
    layout: str = "map",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """The bilinear samples that a deformable convolution multiplies by its weights.

    The sample for output (oy, ox) and kernel cell (i, j) lies at ``oy * stride - pad + i * dilate``
    plus the offset, and is multiplied by the mask. In the layout 'map' it is cell
    ``[oy * kh + i, ox * kw + j]`` of its channel; a convolution of the result with a kernel and a
    stride of (kh, kw) is the deformable convolution. In the layout 'columns' it is cell [oy, ox] of
    channel ``(c * kh + i) * kw + j``; the convolution then has a kernel of 1 and the same weights,
    reshaped, as in :func:`gluon_roi.nd.DeformableConvolution`.

    `mask` may be None or omitted: ``DeformableSampling(data, offset, kernel, ...)``. Positions are
    computed in float32 for float16 and float32 data, and in float64 for float64 data.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Feature maps.
    offset : (N, 2 * num_deformable_group * kh * kw, Ho, Wo), dtype of data
        In map cells, pairs (y, x) for the kernel cells in order. A sample with a NaN or infinite
        offset is 0 and has no gradient.
    mask : (N, num_deformable_group * kh * kw, Ho, Wo), dtype of data, optional
        Factor of each sample.
    kernel, stride, dilate, pad : int or (int, int)
        Size kh x kw of the kernel (height, width), its step, the spacing of its cells, and the map
        cells beyond each edge over which it goes, as in a convolution.
    num_deformable_group : int
        Number of channel groups; each has its own offsets.
    convention : {'mxnet', 'torchvision'}
        How samples off the map are read. With 'mxnet' they are 0, as in MXNet's
        ``contrib.DeformableConvolution``. With 'torchvision' they fade to 0 within one cell, as in
        torchvision's ``deform_conv2d`` and MXNet's ``contrib.ModulatedDeformableConvolution``.
    layout : {'map', 'columns'}
        Layout of the output. MXNet's convolution is faster on 'columns'.
    out, name, attr
        As in :func:`gluon_roi.nd.ROIPool`.

    Returns
    -------
    out : (N, C, Ho * kh, Wo * kw) or (N, C * kh * kw, Ho, Wo), dtype of data
        As layout says; Ho = floor((H + 2 * pad - dilate * (kh - 1) - 1) / stride) + 1, Wo alike.

    Raises
    ------
    mxnet.base.MXNetError, TypeError
        As :func:`gluon_roi.nd.ROIPool` does.

    References
    ----------
    Dai et al. 2017, Deformable Convolutional Networks, arXiv:1703.06211, section 2.1; Zhu et al.
    2018, Deformable ConvNets v2, arXiv:1811.11168.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> ramp = mx.nd.arange(16).reshape((1, 1, 4, 4))
    >>> offset = mx.nd.array([0.5, 0.25]).reshape((1, 2, 1, 1)).tile((1, 1, 4, 4))
    >>> gluon_roi.nd.DeformableSampling(ramp, offset, 1)[0, 0, 0].asnumpy().tolist()
    [2.25, 3.25, 4.25, 5.0]
    """
    return call_operator(
        "DeformableSampling",
        inputs={"data": data, "offset": offset, "mask": mask},
        parameters={
            "kernel": kernel,
            "stride": stride,
            "dilate": dilate,
            "pad": pad,
            "num_deformable_group": num_deformable_group,
            "convention": convention,
            "layout": layout,
        },
        out=out,
        name=name,
        attr=attr,
    )


class DeformableSampling(OperatorBlock):
    """See :func:`gluon_roi.nd.DeformableSampling`, which this block calls with its parameters.

    The inputs are data, offset and optionally mask.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> sample = gluon_roi.DeformableSampling(kernel=3, pad=1)
    >>> sample(mx.nd.ones((1, 4, 8, 8)), mx.nd.zeros((1, 18, 8, 8))).shape
    (1, 4, 24, 24)
    """

    operator_name = "DeformableSampling"

    @public_name("DeformableSampling")
    def __init__(
        self,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        dilate: int | tuple[int, int] = 1,
        pad: int | tuple[int, int] = 0,
        num_deformable_group: int = 1,
        convention: str = "mxnet",
        layout: str = "map",
        *,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        super().__init__(
            prefix,
            params,
            kernel=kernel,
            stride=stride,
            dilate=dilate,
            pad=pad,
            num_deformable_group=num_deformable_group,
            convention=convention,
            layout=layout,
        )

    def hybrid_forward(self, F: Any, data: Any, offset: Any, mask: Any = None) -> Any:
        return deformable_sampling(
            data=data,
            offset=offset,
            mask=mask,
            **self._parameters,
        )
