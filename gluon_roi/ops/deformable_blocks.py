# SPDX-License-Identifier: Apache-2.0
"""Deformable convolutions as blocks that compute their offsets from the data."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet.gluon.contrib import cnn

from ..bridge.arguments import NDArray, NumpyArray, NumpySymbol
from .deformable_convolution import convolution_of_arrays


class _DeformableBlock(mx.gluon.HybridBlock):
    """Base class of both blocks, added to MXNet's; `_operator` is the function that they call."""

    _operator: str

    def __init__(self, *args: Any, convention: str, **kwargs: Any) -> None:
        # MXNet infers shapes here, in which 0 means unknown.
        with mx.util.np_array(False), mx.util.np_shape(False):
            super().__init__(*args, **kwargs)
        self._arguments = {**self._kwargs_deformable_conv, "convention": convention}
        layout = self._arguments["layout"]
        if layout != "NCHW":
            raise ValueError(
                f"{type(self).__name__}: argument layout: expected 'NCHW', got {layout!r}"
            )

    def hybrid_forward(
        self,
        F: Any,
        x: Any,
        offset_weight: Any,
        deformable_conv_weight: Any,
        offset_bias: Any = None,
        deformable_conv_bias: Any = None,
    ) -> Any:
        inputs = [one.as_nd_ndarray() for one in (x, offset_weight, offset_bias) if one is not None]
        convolution = convolution_of_arrays if isinstance(x, NDArray) else mx.sym.Convolution
        moves = self._split(convolution(*inputs, cudnn_off=True, **self._kwargs_offset))
        if isinstance(x, (NumpyArray, NumpySymbol)):
            moves = [one.as_np_ndarray() for one in moves]
        weights = deformable_conv_weight, deformable_conv_bias
        operator = getattr(F.gluon_roi, self._operator)
        out = operator(x, *moves, *weights, name="fwd", **self._arguments)
        return self.act(out) if self.act else out

    def _split(self, moves: Any) -> list:
        """Split the result of the block's own convolution into inputs of the operator."""
        return [moves]

    __repr__ = cnn.DeformableConvolution.__repr__  # MXNet's modulated block has none


class DeformableConvolution(_DeformableBlock, cnn.DeformableConvolution):
    """:class:`mxnet.gluon.contrib.cnn.DeformableConvolution` on the operators of this package.

    A convolution with learned offsets, which a second convolution computes from the data.
    Arguments, parameters, their names and their initial values are those of MXNet's block, so
    checkpoints of either load into the other. To pass offsets as an input, use
    :func:`gluon_roi.nd.DeformableConvolution`.

    Parameters
    ----------
    channels, kernel_size, strides, padding, dilation, groups, num_deformable_group, layout, \
use_bias, in_channels, activation, initializers
        As of MXNet's block. The layout is NCHW; the offsets' convolution has the same size and
        groups, its own ``offset_use_bias``, and weights that start as zeros.
    convention : {'mxnet', 'torchvision'}
        Treatment of the border: samples outside the map are 0, or the map is padded with zeros, so
        that samples decrease to 0 within one cell.

    Inputs
    ------
    data : (N, C, H, W), float32 or float64; on a GPU also float16

    Outputs
    -------
    out : (N, channels, Ho, Wo), dtype of data

    Raises
    ------
    ValueError
        A layout other than NCHW, or groups that do not divide the channels.
    mxnet.base.MXNetError
        Shapes or types that do not fit together.

    References
    ----------
    Dai et al. 2017, Deformable Convolutional Networks, arXiv:1703.06211, section 2.1.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> net = gluon_roi.DeformableConvolution(4, kernel_size=3, padding=1)
    >>> net.initialize()
    >>> net(mx.nd.ones((1, 8, 16, 16))).shape
    (1, 4, 16, 16)
    """

    _operator = "DeformableConvolution"

    def __init__(self, *args: Any, convention: str = "mxnet", **kwargs: Any) -> None:
        super().__init__(*args, convention=convention, **kwargs)


class ModulatedDeformableConvolution(_DeformableBlock, cnn.ModulatedDeformableConvolution):
    """:class:`mxnet.gluon.contrib.cnn.ModulatedDeformableConvolution`, on the CPU as well.

    Like :class:`gluon_roi.DeformableConvolution`, but each sample is also multiplied by a learned
    factor, 2 * sigmoid(...).

    Parameters
    ----------
    channels, kernel_size, strides, padding, dilation, groups, num_deformable_group, layout, \
use_bias, in_channels, activation, initializers
        As of MXNet's block.
    convention : {'torchvision', 'mxnet'}
        Treatment of the border, as in :class:`gluon_roi.DeformableConvolution`.

    Inputs
    ------
    data : (N, C, H, W), float32 or float64; on a GPU also float16

    Outputs
    -------
    out : (N, channels, Ho, Wo), dtype of data

    Raises
    ------
    ValueError, mxnet.base.MXNetError
        As :class:`gluon_roi.DeformableConvolution` does.

    References
    ----------
    Zhu et al. 2018, Deformable ConvNets v2, arXiv:1811.11168.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> net = gluon_roi.ModulatedDeformableConvolution(4, kernel_size=3, padding=1)
    >>> net.initialize()
    >>> net(mx.nd.ones((1, 8, 16, 16))).shape
    (1, 4, 16, 16)
    """

    _operator = "ModulatedDeformableConvolution"

    def __init__(self, *args: Any, convention: str = "torchvision", **kwargs: Any) -> None:
        super().__init__(*args, convention=convention, **kwargs)

    def _split(self, moves: Any) -> list:
        begin = self.offset_split_index
        offset = moves.slice_axis(axis=1, begin=0, end=begin)
        mask = moves.slice_axis(axis=1, begin=begin, end=None).sigmoid() * 2
        return [offset, mask]
