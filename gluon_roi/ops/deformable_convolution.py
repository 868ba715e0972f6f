# SPDX-License-Identifier: Apache-2.0
"""DeformableConvolution: samples at offset positions, and MXNet's convolution of them.

Weights, bias, groups of weights, their shape inference and their gradients are MXNet's own.
"""

from __future__ import annotations

from ast import literal_eval
from numbers import Integral
from typing import Any

import mxnet as mx

from ..bridge import Tensor, arguments, public_name
from ..bridge.guard import with_rank
from ..bridge.outputs import check_like, check_own_memory, shared_with
from ..bridge.symbols import inside_a_block, node_name
from .deformable_sampling import deformable_sampling


def _convolve(
    operator: str,
    inputs: dict[str, Any],
    sampling: dict[str, Any],
    num_filter: Any,  # a string if it comes from a symbol file
    num_group: Any,
    workspace: int,
    no_bias: bool,
    layout: str | None,
    out: Any,
    name: str | None,
    attr: dict | None,
) -> Any:
    """Compute the samples, and multiply them by the weights in a convolution with a kernel of 1.

    `inputs` are data, offset, mask for the modulated operator, weight and bias; `sampling` are the
    parameters of DeformableSampling.
    """
    input_type = arguments.tensor_type(operator, "data", inputs["data"])
    arrays = input_type in (arguments.NDArray, arguments.NumpyArray)
    sampled = [each for each in ("data", "offset", "mask") if each in inputs]
    weights = [each for each in ("weight", "bias") if inputs[each] is not None]
    # For symbols, MXNet makes variables for weights that are not given.
    if arguments.is_true(no_bias) and "bias" in weights:
        given = type(inputs["bias"])
        raise TypeError(f"{operator}: argument bias: expected None with no_bias=True, got {given}")
    no_bias = arguments.is_true(no_bias) or (arrays and "bias" not in weights)
    if arrays and "weight" not in weights:
        raise TypeError(f"{operator}: argument weight: expected an array, got None")
    arguments.check_types(operator, {each: inputs[each] for each in sampled + weights}, input_type)
    arguments.check_extras(operator, not arrays, out, attr)
    plain = {each: inputs[each].as_nd_ndarray() for each in sampled + weights}
    if layout not in (None, "None", "NCHW"):
        raise ValueError(f"{operator}: argument layout: expected None or 'NCHW', got {layout!r}")
    if num_filter is None and arrays:
        num_filter = plain["weight"].shape[0]
    _check_groups(operator, num_filter, num_group, plain["data"].shape[1] if arrays else None)

    node = None if arrays else node_name(name, operator)
    samples = deformable_sampling(
        plain["data"],
        plain["offset"],
        plain.get("mask"),
        **sampling,
        layout="columns",
        name=node and f"{node}_sampling",
    )
    kernel = _pair(sampling["kernel"])
    weight = plain.get("weight")
    if weight is None:  # as MXNet creates variables, with the attributes of the node
        weight = mx.sym.var(f"{node}_weight", attr=attr)
    if arrays:
        expected = (int(num_filter), plain["data"].shape[1] // int(num_group), *kernel)
        if weight.shape != expected:
            raise ValueError(f"{operator}: weight has shape {weight.shape}, expected {expected}")
        matrix = weight.reshape((0, -1, 1, 1))
    else:
        weight = _of_known_rank(weight, node, (int(num_filter), -1, *kernel))
        matrix = mx.sym.reshape(weight, shape=(0, -1, 1, 1), name=f"{node}_weight_matrix")
    product = {
        "kernel": (1, 1),
        "num_filter": num_filter,
        "num_group": num_group,
        "workspace": workspace,
        "no_bias": no_bias,
        **{each: plain[each] for each in weights},
        "weight": matrix,
    }
    if out is not None:
        (out,) = arguments.check_out(operator, out, 1, input_type)
        target = out.as_nd_ndarray()
        shape = (samples.shape[0], int(num_filter), *samples.shape[2:])
        check_like(operator, shape, samples.dtype, target)
        check_own_memory(operator, shared_with(plain, [target]))
        mx.nd.Convolution(samples, out=target, **product)
        return out
    if arrays:
        result = convolution_of_arrays(samples, **product)
    else:
        result = mx.sym.Convolution(samples, **product, name=node, attr=attr)
    is_numpy = input_type in (arguments.NumpyArray, arguments.NumpySymbol)
    return result.as_np_ndarray() if is_numpy else result


@public_name("DeformableConvolution")
def deformable_convolution(
    data: Tensor,
    offset: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    kernel: int | tuple[int, int] | None = None,
    stride: int | tuple[int, int] = 1,
    dilate: int | tuple[int, int] = 1,
    pad: int | tuple[int, int] = 0,
    num_filter: int | None = None,
    num_group: int = 1,
    num_deformable_group: int = 1,
    workspace: int = 1024,
    no_bias: bool = False,
    layout: str | None = None,
    convention: str = "mxnet",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """Convolution of samples at offset positions, like MXNet's ``contrib.DeformableConvolution``.

    Arguments and results are those of MXNet's operator. :class:`gluon_roi.DeformableSampling`
    computes the samples as columns, and MXNet multiplies them by the weights.

    Parameters
    ----------
    data : (N, C, H, W), float16, float32 or float64
        Array or symbol of mx.nd, mx.sym or mx.np, as all inputs. MXNet multiplies float16 on a GPU
        only.
    offset : (N, 2 * num_deformable_group * kh * kw, Ho, Wo), dtype of data
        As in :func:`gluon_roi.nd.DeformableSampling`.
    weight : (num_filter, C / num_group, kh, kw), dtype of data
        For symbols, weight and bias may be omitted: MXNet creates variables.
    bias : (num_filter,), dtype of data, optional
    kernel, stride, dilate, pad : int or (int, int)
        As in :func:`gluon_roi.nd.DeformableSampling`.
    num_filter : int
        Channels of the output; those of weight if not given.
    num_group, num_deformable_group : int
        Numbers of channel groups with separate weights and with separate offsets.
    workspace : int
        MB for MXNet's convolution.
    no_bias : bool
        Whether there is no bias (not needed for arrays).
    layout : {None, 'NCHW'}
    convention : {'mxnet', 'torchvision'}
        Treatment of the border: samples outside the map are 0, or the map is padded with zeros, so
        that samples decrease to 0 within one cell.
    out, name, attr
        As in :func:`gluon_roi.nd.ROIPool`.

    Returns
    -------
    out : (N, num_filter, Ho, Wo), dtype of data
        Ho = floor((H + 2 * pad - dilate * (kh - 1) - 1) / stride) + 1, and Wo alike.

    Raises
    ------
    mxnet.base.MXNetError
        Shapes or types that do not fit together.
    TypeError, ValueError
        An argument of the wrong type, a layout other than NCHW, or groups that do not divide the
        channels.

    References
    ----------
    Dai et al. 2017, Deformable Convolutional Networks, arXiv:1703.06211, section 2.1.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> x, offset = mx.nd.ones((1, 8, 16, 16)), mx.nd.zeros((1, 18, 16, 16))
    >>> weight = mx.nd.ones((4, 8, 3, 3))
    >>> gluon_roi.nd.DeformableConvolution(x, offset, weight, kernel=3, pad=1, num_filter=4).shape
    (1, 4, 16, 16)
    """
    return _convolve(
        "DeformableConvolution",
        inputs={"data": data, "offset": offset, "weight": weight, "bias": bias},
        sampling={
            "kernel": kernel,
            "stride": stride,
            "dilate": dilate,
            "pad": pad,
            "num_deformable_group": num_deformable_group,
            "convention": convention,
        },
        num_filter=num_filter,
        num_group=num_group,
        workspace=workspace,
        no_bias=no_bias,
        layout=layout,
        out=out,
        name=name,
        attr=attr,
    )


@public_name("ModulatedDeformableConvolution")
def modulated_deformable_convolution(
    data: Tensor,
    offset: Tensor,
    mask: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    kernel: int | tuple[int, int] | None = None,
    stride: int | tuple[int, int] = 1,
    dilate: int | tuple[int, int] = 1,
    pad: int | tuple[int, int] = 0,
    num_filter: int | None = None,
    num_group: int = 1,
    num_deformable_group: int = 1,
    workspace: int = 1024,
    no_bias: bool = False,
    im2col_step: int = 64,
    layout: str | None = None,
    convention: str = "torchvision",
    *,
    out: Tensor | None = None,
    name: str | None = None,
    attr: dict | None = None,
) -> Tensor:
    """:func:`DeformableConvolution` with a factor for each sample.

    Arguments and results are those of MXNet's operator, which runs on a GPU only.

    Parameters
    ----------
    mask : (N, num_deformable_group * kh * kw, Ho, Wo), dtype of data
        Factor of each sample.
    im2col_step : int
        Accepted for compatibility with MXNet; it has no effect.
    convention : {'mxnet', 'torchvision'}
        As in :func:`DeformableConvolution`. The default is that of MXNet's modulated operator,
        which pads the map with zeros, unlike its plain one.
    data, offset, weight, bias, kernel, stride, dilate, pad, num_filter, num_group
    num_deformable_group, workspace, no_bias, layout, out, name, attr
        As of :func:`DeformableConvolution`.

    Returns
    -------
    out : (N, num_filter, Ho, Wo), dtype of data

    Raises
    ------
    mxnet.base.MXNetError, TypeError, ValueError
        As :func:`DeformableConvolution` does.

    References
    ----------
    Zhu et al. 2018, Deformable ConvNets v2, arXiv:1811.11168.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> x, offset = mx.nd.ones((1, 8, 16, 16)), mx.nd.zeros((1, 18, 16, 16))
    >>> mask, weight = mx.nd.ones((1, 9, 16, 16)), mx.nd.ones((4, 8, 3, 3))
    >>> gluon_roi.nd.ModulatedDeformableConvolution(
    ...     x, offset, mask, weight, kernel=3, pad=1, num_filter=4).shape
    (1, 4, 16, 16)
    """
    return _convolve(
        "ModulatedDeformableConvolution",
        inputs={"data": data, "offset": offset, "mask": mask, "weight": weight, "bias": bias},
        sampling={
            "kernel": kernel,
            "stride": stride,
            "dilate": dilate,
            "pad": pad,
            "num_deformable_group": num_deformable_group,
            "convention": convention,
        },
        num_filter=num_filter,
        num_group=num_group,
        workspace=workspace,
        no_bias=no_bias,
        layout=layout,
        out=out,
        name=name,
        attr=attr,
    )


def _of_known_rank(weight: Any, node: str | None, shape: tuple) -> Any:
    """The weights, with a guard that gives MXNet their rank for shape inference.

    MXNet infers one unknown size of the input of a reshape. Weights in a Gluon network or in the
    body of a loop already have a shape, that of their parameter or input.
    """
    if weight.attr("__shape__") is not None or inside_a_block():
        return weight
    guard = with_rank(weight, shape, f"{node}_weight_guard")
    return weight if guard is None else guard


def convolution_of_arrays(data: mx.nd.NDArray, *weights: Any, **arguments: Any) -> mx.nd.NDArray:
    """MXNet's convolution, which also works for an empty batch.

    For an empty batch MXNet's backward pass fails, or does not write the gradient of the weights.
    So a batch of one zero image is convolved, whose output is not used, which gives gradients of
    zeros.
    """
    if data.shape[0] > 0:
        return mx.nd.Convolution(data, *weights, **arguments)
    one = mx.nd.zeros((1, *data.shape[1:]), ctx=data.context, dtype=data.dtype)
    result = mx.nd.Convolution(mx.nd.concat(data, one, dim=0), *weights, **arguments)
    empty, _ = mx.nd.split_v2(result, (0,), axis=0)
    return empty


def _pair(size: Any) -> Any:
    if isinstance(size, str):  # from a symbol
        size = literal_eval(size)
    return (size, size) if isinstance(size, Integral) else size


def _check_groups(op: str, filters: Any, groups: Any, channels: int | None) -> None:
    for name, value in (("num_filter", filters), ("num_group", groups)):
        if not str(value).isdigit() or int(value) < 1:
            raise ValueError(f"{op}: argument {name}: expected a positive int, got {value!r}")
    if int(filters) % int(groups):
        raise ValueError(
            f"{op}: argument num_filter: expected a multiple of num_group = {groups}, got {filters}"
        )
    if channels is not None and channels % int(groups):
        raise ValueError(
            f"{op}: data has {channels} channels, expected a multiple of num_group = {groups}"
        )
