# SPDX-License-Identifier: Apache-2.0
"""What gluon_roi.optimize cannot switch: it says so, and changes nothing."""

import json
import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from switched import ROWS, SCALE, SWITCHED, Detector, Head, inputs, parts, symbol_of

import gluon_roi


def edited(**changes):
    """A symbol of ROIPooling with another JSON node."""
    text = json.loads(symbol_of("pool").tojson())
    node = next(node for node in text["nodes"] if node["op"] == "ROIPooling")
    node.update(changes)
    return mx.sym.load_json(json.dumps(text))


def hidden_output():
    text = json.loads(mx.sym.ROIPooling(pooled_size=(3, 3), spatial_scale=1, name="a").tojson())
    text["heads"] = [[2, 1, 0]]
    return mx.sym.load_json(json.dumps(text))


SYMBOLS: dict = {
    "no operator": (
        lambda: mx.sym.var("x") + 1,
        "the symbol has no RoI operator, expected one of ROIPooling, ",
    ),
    "no input": (lambda: edited(inputs=[[0, 0, 0]]), r"\(ROIPooling\) has 1 inputs, expected 2"),
    "hidden": (hidden_output, r"an output of node a \(ROIPooling\) other than the first is used"),
}


@pytest.mark.parametrize("case", SYMBOLS)
def test_symbols_that_cannot_be_switched(case):
    make, message = SYMBOLS[case]
    symbol = make()
    before = symbol.tojson()
    with pytest.raises(ValueError, match=f"^optimize: .*{message}") as error:
        gluon_roi.optimize(symbol)
    assert "\n" not in str(error.value)
    assert symbol.tojson() == before


@mx.operator.register("pool_in_python")
class PoolInPython(mx.operator.CustomOpProp):
    """A Custom operator that calls one of MXNet's functions, as those of Deformable-ConvNets do."""

    def __init__(self, **_):  # in the body of a loop MXNet adds an argument of its own
        super().__init__()

    def list_arguments(self):
        return ["x", "rois"]

    def infer_shape(self, in_shape):
        return in_shape, [(in_shape[1][0], in_shape[0][1], 3, 3)], []

    def create_operator(self, ctx, shapes, dtypes):
        class Pool(mx.operator.CustomOp):
            def forward(self, is_train, req, in_data, out_data, aux):
                out = mx.nd.contrib.ROIAlign(*in_data, pooled_size=(3, 3), spatial_scale=SCALE)
                self.assign(out_data[0], req[0], out)

        return Pool()


class InPython(gluon.HybridBlock):
    """The Custom operator, and maybe one that can be switched."""

    def __init__(self, other):
        super().__init__()
        self.other = other

    def hybrid_forward(self, F, x, rois):
        out = F.Custom(x, rois, op_type="pool_in_python")
        return out + F.contrib.ROIAlign(x, rois, (3, 3), SCALE) if self.other else out


LEFT = r"the Custom operators pool_in_python \(1\)"


@pytest.mark.parametrize("way", ["symbol", "network"])
def test_custom_operators_are_named(way):
    """They cannot be looked into: an error if there is nothing else, a warning if there is."""

    arrays = inputs()  # outside of what looks at warnings: MXNet causes one of old SciPys

    def optimize(net):
        if way == "network":
            return gluon_roi.optimize(net, *arrays)
        return gluon_roi.optimize(net(mx.sym.var("x"), mx.sym.var("rois")))

    with pytest.raises(ValueError, match=f"has no RoI operator.*{LEFT}.*replace_builtins"):
        optimize(InPython(other=False))
    with pytest.warns(UserWarning, match=f"{LEFT} stay as they are.*replace_builtins") as warned:
        switched = optimize(InPython(other=True))
    assert [one.filename for one in warned] == [__file__]
    assert parts(switched) == {**SWITCHED, "Custom": 1, "Custom:pool_in_python": 1}
    with gluon_roi.replace_builtins(), warnings.catch_warnings():
        warnings.simplefilter("error")
        optimize(InPython(other=True))


def test_custom_operators_count_in_loops():
    class Loop(gluon.HybridBlock):
        def hybrid_forward(self, F, x, rois):
            def body(row, state):
                return F.Custom(x, F.reshape(row, (1, 5)), op_type="pool_in_python"), state

            return F.contrib.foreach(body, rois, [F.zeros((1,))])[0]

    symbol = Loop()(mx.sym.var("x"), mx.sym.var("rois"))
    assert parts(symbol) == {"Custom": 1, "Custom:pool_in_python": 1}
    assert gluon_roi.count(symbol_of("pool"))["Custom"] == 0


def test_replaced_functions_reach_custom_operators():
    x, rois = inputs(rows=ROWS + [[-1] * 5] * 20)
    with gluon_roi.replace_builtins():
        out = mx.nd.Custom(x, rois, op_type="pool_in_python").asnumpy()
    np.testing.assert_array_equal(out, gluon_roi.nd.ROIAlign(x, rois, (3, 3), SCALE).asnumpy())


class Plain(gluon.Block):
    """Array code, which no hybridize() turns into a graph."""

    def forward(self, x, rois):
        return mx.nd.contrib.ROIAlign(x, rois, (3, 3), SCALE)


def plain_around_hybrid():
    net = Plain()
    net.register_child(gluon.nn.Dense(3))
    return net


def plain_inside():
    plain = Plain()
    net = gluon.nn.Lambda(lambda x, rois: plain(x, rois))
    net.register_child(plain)
    return net


@pytest.mark.parametrize("make", [Plain, plain_around_hybrid, plain_inside])
def test_array_code_is_told_of_replace_builtins(make):
    message = r"Plain \w+ has no graph to be counted; call gluon_roi\.replace_builtins\(\)"
    with pytest.raises(ValueError, match=f"^optimize: {message}"):
        gluon_roi.optimize(make(), *inputs())
    with pytest.raises(ValueError, match=f"^count: {message}"):
        gluon_roi.count(make())
    x, rois = inputs(rows=ROWS + [[-1] * 5] * 20)
    with gluon_roi.replace_builtins():
        out = make()(x, rois).asnumpy()
    np.testing.assert_array_equal(out, gluon_roi.nd.ROIAlign(x, rois, (3, 3), SCALE).asnumpy())


def helper(x, rois):
    return mx.nd.contrib.ROIAlign(x, rois, (3, 3), SCALE)


@pytest.mark.parametrize("beside", [None, gluon.nn.HybridLambda("relu")])
def test_functions_that_array_code_calls(beside):
    """Its blocks do not mention the operators, so there is only a hint."""

    class Net(gluon.Block):
        def forward(self, x, rois):
            return helper(x if beside is None else beside(x), rois)

    net = Net()
    if beside is not None:
        net.register_child(beside)
    with pytest.raises(ValueError, match="^optimize: .*gluon_roi.replace_builtins\\(\\)"):
        gluon_roi.optimize(net, *inputs())


class Nothing(gluon.HybridBlock):
    def hybrid_forward(self, F, x, rois):
        return F.relu(x)


class Broken(gluon.HybridBlock):
    def hybrid_forward(self, F, x, rois):
        return F.contrib.ROIAlign(x, rois, (3, 3), SCALE, wrong=1)


NETWORKS: dict = {
    "no operator": (Nothing, ValueError, "the network has no RoI operator"),
    "unknown argument": (Broken, mx.MXNetError, "Cannot find argument 'wrong'"),
}


@pytest.mark.parametrize("case", NETWORKS)
def test_networks_that_cannot_be_switched(case):
    make, error, message = NETWORKS[case]
    inner = make()
    net = gluon.nn.HybridLambda(lambda F, x, rois: inner(x, rois))
    net.register_child(inner)
    switchable = Head("align")
    net.register_child(switchable)
    states = [dict(vars(block)) for block in (net, inner, switchable)]
    with pytest.raises(error, match=message):
        gluon_roi.optimize(net, *inputs(), static_alloc=True)
    assert states == [dict(vars(block)) for block in (net, inner, switchable)]


MISUSES: dict = {
    "no model": (lambda: gluon_roi.optimize(3), TypeError, "optimize: expected a symbol or a bl"),
    "no inputs": (lambda: gluon_roi.optimize(Nothing()), TypeError, "the inputs of one call"),
    "inputs": (lambda: gluon_roi.optimize(symbol_of("pool"), 1), TypeError, "takes no inputs"),
    "misspelt flag": (
        lambda: gluon_roi.optimize(Head("pool"), *inputs("pool"), static_aloc=True),
        TypeError,
        "optimize: unknown flag static_aloc, expected one of .*; did you mean static_alloc\\?$",
    ),
    "unknown flag": (
        lambda: gluon_roi.optimize(Head("pool"), *inputs("pool"), zzz=1),
        TypeError,
        "optimize: unknown flag zzz, expected one of active, .* backward_bulk_size$",
    ),
    "bad_index": (
        lambda: gluon_roi.optimize(symbol_of("pool"), bad_index="x"),
        ValueError,
        "bad_index: expected 'error' or 'padding', got 'x'",
    ),
    "bad_index of a network": (
        lambda: gluon_roi.optimize(Head("pool"), *inputs("pool"), bad_index="x"),
        ValueError,
        "bad_index: expected 'error' or 'padding', got 'x'",
    ),
    "count": (lambda: gluon_roi.count(3), TypeError, "count: expected a symbol or a block"),
    "no graph": (lambda: gluon_roi.count(Detector()), ValueError, "call hybridize"),
    "nothing run": (lambda: gluon_roi.count(gluon.nn.Dense(3)), ValueError, "call hybridize"),
}


@pytest.mark.parametrize("case", MISUSES)
def test_misuse(case):
    call, error, message = MISUSES[case]
    with pytest.raises(error, match=message):
        call()


class Pools(gluon.HybridBlock):
    """MXNet's ROIPooling, which takes a batch index beyond the batch for padding."""

    def hybrid_forward(self, F, x, rois):
        return F.ROIPooling(x, rois, (2, 2), 1.0)


class Nested(gluon.Block):
    """Array code that returns its outputs in a dict, a list and a tuple."""

    def __init__(self):
        super().__init__()
        self.pool = Pools()

    def forward(self, x, rois):
        return {"parts": [(None, self.pool(x, rois))]}


@pytest.mark.parametrize(("of", "inference"), [(Pools, False), (Pools, True), (Nested, False)])
def test_calls_that_fail(of, inference):
    """The error of a kernel is raised at once, not by the next call; the network is as before."""
    net = of()
    x, rois = mx.nd.ones((1, 1, 4, 4)), mx.nd.array([[1, 0, 0, 3, 3]])
    expected = net(x, rois)
    with pytest.raises(mx.MXNetError, match="ROIPool: rois row 0 has batch index 1, expected an"):
        gluon_roi.optimize(net, x, rois, inference=inference)
    mx.nd.waitall()
    net.hybridize()
    for out, right in zip(arrays_in(net(x, rois)), arrays_in(expected)):
        np.testing.assert_array_equal(out.asnumpy(), right.asnumpy())


def arrays_in(outputs):
    return outputs["parts"][0][1:] if isinstance(outputs, dict) else [outputs]
