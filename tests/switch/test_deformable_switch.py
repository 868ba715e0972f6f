# SPDX-License-Identifier: Apache-2.0
"""Deformable convolutions: the switch, and the samples through C."""

from __future__ import annotations

import ctypes
import json
import re
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from support.convolutions import CONVOLUTIONS, convolution_inputs, run_samples
from support.deformed import CALLS

import gluon_roi
from gluon_roi.bridge.guard import RANK_INPUT
from testing import c_api

plain: Any = gluon_roi.nd.DeformableConvolution
modulated: Any = gluon_roi.nd.ModulatedDeformableConvolution
DTYPES = ("float32", "float64", "float16")
every_call = pytest.mark.parametrize("name", CALLS)


# ---- The switch ----------------------------------------------------------------------------------


DEFAULTS: dict[str, dict] = {
    "Convolution": {"num_group": "1", "workspace": "1024", "no_bias": "False"},
    "_gluon_roi_DeformableSampling": gluon_roi.library.operators()["DeformableSampling"].parameters,
}


def nodes_of(symbol):
    """Operators, names and attributes; for these, (1, 1) is 1.

    MXNet's shape inference needs a rank, which the function sets at its variables, and optimize(),
    which leaves variables as they are, gives by one more input with an attribute.
    """
    return [
        (
            node["op"],
            node["name"],
            {
                key: re.sub(r"^\((\d+), \1\)$", r"\1", value or "")
                for key, value in {**DEFAULTS[node["op"]], **node.get("attrs", {})}.items()
                if key != RANK_INPUT
            },
        )
        for node in json.loads(symbol.tojson())["nodes"]
        if node["op"] in ("Convolution", "_gluon_roi_DeformableSampling")
    ]


@pytest.mark.parametrize("no_bias", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_optimize(name, no_bias, ctx):
    """optimize() and the function make the same nodes; arguments, outputs, numbers stay."""
    inputs, arguments = convolution_inputs(name, ctx)
    arguments["no_bias"] = no_bias

    def make():
        x = mx.sym.Activation(mx.sym.var("data"), "tanh")
        return mx.sym.contrib.DeformableConvolution(
            x, mx.sym.var("offset"), name="c", attr={"__lr_mult__": "3"}, **arguments
        )

    symbol = make()
    switched = gluon_roi.optimize(symbol)
    with gluon_roi.replace_builtins():
        replaced = make()
    assert switched.list_arguments() == symbol.list_arguments()
    assert switched.list_outputs() == symbol.list_outputs()
    for one in (symbol, switched, replaced):
        assert one.attr_dict()["c_weight"]["__lr_mult__"] == "3"
    assert nodes_of(switched) == nodes_of(replaced)
    used = gluon_roi.count(switched)
    assert used["_contrib_DeformableConvolution"] == 0
    assert used["_gluon_roi_DeformableSampling"] == 1
    given = dict(zip(("data", "offset", "c_weight", "c_bias"), inputs[: 4 - no_bias]))
    results = []
    for one in (symbol, switched, replaced):
        gradients = {key: array.zeros_like() for key, array in given.items()}
        executor = one.bind(ctx, given, gradients)
        out = executor.forward(is_train=True)[0]
        executor.backward([mx.nd.ones_like(out)])
        results.append([out.asnumpy(), *(gradients[key].asnumpy() for key in given)])
    for other in results[1:]:
        for got, wanted in zip(other, results[0]):
            np.testing.assert_allclose(got, wanted, 1e-5, 1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize("make", ["ours", "optimized"])
def test_in_a_loop(make, ctx):
    """Inside of a loop MXNet infers the shape of the weights from inputs only.

    The gradient of offset is the sum over the loop; that of MXNet's own operator is not.
    """
    (data, offset, weight, _), arguments = convolution_inputs("plain", ctx)
    arguments["no_bias"] = True
    given = {"data": data.expand_dims(1), "offset": offset[:1], "weight": weight}
    given["count"] = mx.nd.zeros(1, ctx)
    function = gluon_roi.sym.DeformableConvolution
    if make == "optimized":
        function = mx.sym.contrib.DeformableConvolution
    moved, weights = mx.sym.var("offset"), mx.sym.var("weight")
    out, _ = mx.sym.contrib.foreach(
        lambda x, count: (function(x, moved, weights, **arguments), count + 1),
        mx.sym.var("data"),
        mx.sym.var("count"),
    )
    if make == "optimized":
        out = gluon_roi.optimize(out)
    gradients = {name: given[name].zeros_like() for name in ("offset", "weight")}
    executor = out.bind(ctx, given, gradients)
    results = [executor.forward(is_train=True)[0]]
    executor.backward([mx.nd.ones_like(results[0])])

    inputs = [given["offset"], given["weight"]]
    for array in inputs:
        array.attach_grad()
    with mx.autograd.record():
        expected = mx.nd.stack(*(plain(x, *inputs, **arguments) for x in given["data"]))
    expected.backward()
    for got, wanted in zip(
        (*results, *gradients.values()), (expected, *(array.grad for array in inputs))
    ):
        wanted = wanted.asnumpy()
        np.testing.assert_allclose(got.asnumpy(), wanted, 1e-5, 1e-5 * np.abs(wanted).max())


def test_optimize_modulated():
    """MXNet cannot run it on the CPU; switched, it can."""
    shapes = {"data": (2, 4, 6, 6), "offset": (2, 18, 6, 6), "mask": (2, 9, 6, 6)}
    symbol = mx.sym.contrib.ModulatedDeformableConvolution(
        *map(mx.sym.var, shapes), kernel=(3, 3), pad=(1, 1), num_filter=5, name="c", im2col_step=2
    )
    switched = gluon_roi.optimize(symbol)
    assert switched.list_arguments() == symbol.list_arguments()
    executor = switched.simple_bind(mx.cpu(), **shapes)
    for array in executor.arg_dict.values():
        array[:] = mx.nd.random.normal(shape=array.shape)
    inputs = [executor.arg_dict[name] for name in switched.list_arguments()]
    expected = modulated(*inputs, kernel=(3, 3), pad=(1, 1), num_filter=5)
    np.testing.assert_array_equal(executor.forward()[0].asnumpy(), expected.asnumpy())


@pytest.mark.parametrize("how", ["optimize", "replace"])
def test_switched_block(how):
    """MXNet's own block, whose code is MXNet's."""
    net = gluon.nn.HybridSequential()
    net.add(gluon.contrib.cnn.DeformableConvolution(4, kernel_size=3, padding=1))
    net.initialize(mx.init.Normal(0.3))
    x = mx.nd.random.normal(shape=(1, 3, 7, 7))
    expected = net(x).asnumpy()
    if how == "optimize":
        gluon_roi.optimize(net, x)
        out = net(x)
    else:
        net.hybridize()
        with gluon_roi.replace_builtins():
            out = net(x)
    np.testing.assert_allclose(out.asnumpy(), expected, 1e-5, 1e-5)
    used = gluon_roi.count(net)
    assert used["_gluon_roi_DeformableSampling"] == 1
    assert used["_contrib_DeformableConvolution"] == 0


# ---- The C interface -----------------------------------------------------------------------------

LIBRARY = c_api.Library(gluon_roi.library.PATH)
CPU = c_api.Device(c_api.CPU)


@pytest.mark.parametrize("dtype", DTYPES)
@every_call
def test_c_interface(name, dtype):
    """The same bytes; a gradient that is not wanted may be absent."""
    call = CALLS[name]
    arrays, d_out = call.arrays(dtype), call.d_out(dtype)
    out, *gradients = run_samples(call, arrays, d_out, mx.cpu())
    p = LIBRARY.operators["deformable_sampling"].params_of(**call.parameters)
    inputs, result = c_api.tensors(*arrays), np.full_like(d_out, 99)
    LIBRARY.forward("deformable_sampling", p, inputs, result, CPU)
    assert result.tobytes() == out.tobytes()
    for wanted in range(1, 1 << len(arrays), 2):  # that of data always is
        written = [np.full_like(a, 99) if wanted >> n & 1 else None for n, a in enumerate(arrays)]
        LIBRARY.backward("deformable_sampling", p, inputs, d_out, written, CPU)
        for got, expected in zip(written, gradients):
            assert got is None or got.tobytes() == expected.tobytes()


def test_c_errors():
    call = CALLS["mask"]
    arrays, d_out = call.arrays("float32"), call.d_out("float32")
    operator = LIBRARY.operators["deformable_sampling"]

    def message(p, arrays, out):
        with pytest.raises(c_api.Error) as error:
            LIBRARY.forward("deformable_sampling", p, c_api.tensors(*arrays), out, CPU)
        assert error.value.code == c_api.INVALID
        return str(error.value)

    p = operator.params_of(**call.parameters)
    assert "output: expected float32" in message(p, arrays, d_out[:1])
    assert "mask has dtype float64" in message(p, [*arrays[:2], arrays[2].astype("d")], d_out)
    for field, value in (("stride_width", 0), ("pad_height", -1), ("num_deformable_group", 0)):
        p = operator.params_of(**call.parameters)
        setattr(p, field, value)
        assert f"argument {field.split('_')[0]}" in message(p, arrays, d_out)
    p = operator.params_of(**call.parameters)
    enormous = c_api.tensors(*arrays)
    enormous[0].shape[2], enormous[0].shape[3] = 1 << 40, 1
    with pytest.raises(c_api.Error, match="expected at most 2147483647 cells in a map"):
        more = ctypes.byref(c_api.tensor(d_out)), ctypes.byref(CPU)
        LIBRARY.call("deformable_sampling_forward", ctypes.byref(p), enormous, 3, *more)
