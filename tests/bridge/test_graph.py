# SPDX-License-Identifier: Apache-2.0
"""Every operator inside graphs: the guard, hybridization, export."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest
from in_graphs import HYBRIDIZE, POOLED, SCALE, channels_of, operators
from mxnet import autograd, gluon
from operators import OPERATORS
from support.cases import feature_map, for_mxnet, row_id
from support.turns import in_turn

import gluon_roi


def written_again(function, F, x, rois, users):
    """Each call on an expression of its own, equal to the others."""
    return [function(F.relu(x) + x, rois * 1, POOLED, SCALE) for _ in range(users)]


def one_map(function, F, x, rois, users):
    x = F.relu(x) + x
    return [function(x, rois, POOLED, SCALE) for _ in range(users)]


def one_name(function, F, x, rois, users):
    return [function(F.relu(x) + x, rois, POOLED, SCALE, name="same") for _ in range(users)]


def composed(function, F, x, rois, users):
    one = function(mx.sym.var("map"), mx.sym.var("boxes"), POOLED, SCALE)
    return [one(map=F.relu(x) + x, boxes=rois * 1) for _ in range(users)]


def composed_with_its_map(function, F, x, rois, users):
    source = mx.sym.var("map")
    one = function(F.relu(source) + source, mx.sym.var("boxes"), POOLED, SCALE)
    return [one(map=x, boxes=rois) for _ in range(users)]


def blocks(function, F, x, rois, users):
    """A SymbolBlock copies its graph into each graph that it is called in."""
    one = function(mx.sym.var("map"), mx.sym.var("boxes"), POOLED, SCALE)
    block = gluon.SymbolBlock(one, [mx.sym.var("map"), mx.sym.var("boxes")])
    return [block(F.relu(x) + x, rois) for _ in range(users)]


#: How a map comes to have many users.
MANY_USERS = (written_again, one_map, one_name, composed, composed_with_its_map, blocks)


class Network(gluon.HybridBlock):
    """The sum of many calls, written as `calls` does."""

    def __init__(self, op, calls, users):
        super().__init__()
        self.arguments = op, calls, users

    def hybrid_forward(self, F, x, rois):
        op, calls, users = self.arguments
        return F.add_n(*calls(op.of(F.gluon_roi), F, x, rois, users))

    def symbol(self):
        return self(mx.sym.var("x", dtype="float32"), mx.sym.var("rois", dtype="float32"))


def run_gluon(net, flags):
    def run(x, rois, slope, grad_req):
        for array in (x, rois):
            array.attach_grad(grad_req)
        if flags is not None:
            net.hybridize(**flags)
        for _ in range(2):
            with autograd.record():
                out = net(x, rois)
            out.backward(slope)
        return [array.grad.asnumpy() for array in (x, rois)]

    return run


def run_imported(net, folder):
    path = str(folder / "symbol.json")
    net.symbol().save(path)
    return run_gluon(gluon.SymbolBlock.imports(path, ["x", "rois"]), {"static_alloc": True})


def run_executor(net):
    def run(x, rois, slope, grad_req):
        gradients = {"x": x.zeros_like(), "rois": rois.zeros_like()}
        executor = net.symbol().bind(x.context, {"x": x, "rois": rois}, gradients, grad_req)
        for _ in range(2):
            executor.forward(is_train=True)
            executor.backward(slope)
        return [gradients["x"].asnumpy(), gradients["rois"].asnumpy()]

    return run


def run_module(net):
    def run(x, rois, slope, grad_req):
        module = mx.mod.Module(net.symbol(), ["x", "rois"], None, context=x.context)
        shapes = [("x", x.shape), ("rois", rois.shape)]
        module.bind(shapes, inputs_need_grad=True, grad_req=grad_req)
        module.init_params()
        for _ in range(2):
            module.forward(mx.io.DataBatch([x, rois]), is_train=True)
            module.backward([slope])
        return [gradient.asnumpy() for gradient in module.get_input_grads()]

    return run


def run_hybridized(flags):
    return lambda net, folder: run_gluon(net, flags)


RUNS = {
    **{mode: run_hybridized(flags) for mode, flags in HYBRIDIZE.items()},
    "imported": run_imported,
    "executor": lambda net, folder: run_executor(net),
    "module": lambda net, folder: run_module(net),
}


@pytest.mark.slow
@pytest.mark.parametrize("op, run", in_turn(OPERATORS, list(RUNS), every=2), ids=row_id)
def test_many_users(op, run, ctx, tmp_path):
    """The gradient of a map is the sum over all its users, added where 'add' is asked for.

    MXNet adds the gradients of 8 and more users in place, and merges whatever looks equal. Every
    second number of users is enough for one operator and way to run: the others meet them as well.
    """
    turn = (OPERATORS.index(op) + list(RUNS).index(run)) // 2 % 2
    rois = op.all_rois(SCALE)
    # Module requires as many images as boxes.
    data = np.random.RandomState(0).randn(len(rois), channels_of(op), 7, 9)
    x, r = mx.nd.array(data, ctx=ctx), mx.nd.array(rois, ctx=ctx)
    rng = np.random.RandomState(1)
    slope = mx.nd.array(rng.randn(len(rois), 3, *POOLED), ctx=ctx)
    single = run_executor(Network(op, one_map, 1))(x, r, slope, "write")
    for number, calls in enumerate(MANY_USERS):
        symbolic = calls in (composed, composed_with_its_map, blocks)
        if symbolic and run == "imperative":
            continue  # there is nothing to compose
        for users in ((1, 8, 12), (2, 7, 9, 20))[turn]:
            grad_req = ("write", "add")[(users + number) % 2]
            net = Network(op, calls, users)
            gradients = RUNS[run](net, tmp_path)(x, r, slope, grad_req)
            times = users * (2 if grad_req == "add" else 1)
            for actual, expected in zip(gradients, single):
                np.testing.assert_allclose(actual, times * expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("users", [1, 7, 8, 12])
def test_composed_with_shared_weights(users, ctx):
    """optimize() numbers the guards of copies, whose maps are the same if their weights are."""
    image, weight, *rois = map(mx.sym.var, ["image", "weight", *map(str, range(users))])
    maps = mx.sym.Convolution(
        mx.sym.var("x"), weight=mx.sym.var("w"), no_bias=True, kernel=(1, 1), num_filter=3
    )
    one = gluon_roi.sym.ROIAlign(maps, mx.sym.var("boxes"), POOLED, SCALE)
    net = mx.sym.add_n(*[one(x=image, w=weight, boxes=boxes) for boxes in rois])
    net = gluon_roi.optimize(net)
    arrays = {
        "image": mx.nd.array(feature_map(2), ctx=ctx),
        "weight": mx.nd.ones((3, 2, 1, 1), ctx=ctx),
        **{str(k): mx.nd.array([[0, k, k, k + 9, k + 7]], ctx=ctx) for k in range(users)},
    }

    def gradient(symbol, arrays):
        sums = arrays["weight"].zeros_like()
        executor = symbol.bind(ctx, arrays, {"weight": sums})
        out = executor.forward(is_train=True)[0]
        executor.backward(out.ones_like())
        return sums.asnumpy()

    alone = one(x=image, w=weight, boxes=mx.sym.var("boxes"))
    expected = sum(
        gradient(alone, {"image": arrays["image"], "weight": arrays["weight"], "boxes": boxes})
        for name, boxes in arrays.items()
        if name.isdigit()
    )
    np.testing.assert_allclose(gradient(net, arrays), expected, rtol=1e-4, atol=1e-4)


@operators
def test_arrays_with_gradients_of_their_own(op, ctx):
    """Outside of graphs only these have guards: MXNet adds into them, users or not."""
    data = feature_map(channels_of(op))
    gradients = {}
    for grad_req, users in (("write", 1), ("write", 9), ("add", 1), ("add", 9)):
        x, rois = mx.nd.array(data, ctx=ctx), mx.nd.array(op.all_rois(SCALE), ctx=ctx)
        x.attach_grad(grad_req)
        rois.attach_grad(grad_req)
        rois.grad[:] = 5
        for _ in range(2):
            with autograd.record():
                function = op.function
                total = mx.nd.add_n(*[function(x, rois, POOLED, SCALE) for _ in range(users)])
            total.backward()
        gradients[grad_req, users] = x.grad.asnumpy()
        assert (rois.grad.asnumpy() == (5 if grad_req == "add" else 0)).all()
    single = gradients.pop(("write", 1))
    for (grad_req, users), gradient in gradients.items():
        expected = single * users * (2 if grad_req == "add" else 1)
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


@operators
def test_guard_only_where_there_is_a_gradient_buffer(op, ctx):
    """However an array got it; and importing gluon_roi leaves MXNet's own functions as they are."""
    data = feature_map(channels_of(op))
    rois = mx.nd.array(op.all_rois(SCALE), ctx=ctx)

    def gradient(x):
        """After two passes, and whether there was a guard."""
        for _ in range(2):
            with autograd.record():
                source = x() if callable(x) else x
                out = op.function(source, rois, POOLED, SCALE)
            guarded = "eshape" in autograd.get_symbol(out).tojson()
            out.backward()
        return (leaf if callable(x) else x).grad.asnumpy(), guarded

    leaf, written, added, sparse, again, marked, *several = (
        mx.nd.array(data, ctx=ctx) for _ in range(8)
    )
    leaf.attach_grad()
    # The map of a network is the result of another operator.
    expected, guarded = gradient(lambda: leaf + 0)
    assert not guarded
    written.attach_grad()
    added.attach_grad("add")
    sparse.attach_grad(stype="row_sparse")
    again.attach_grad("write")
    again.attach_grad("add")
    autograd.mark_variables(marked, marked.zeros_like(), "add")
    autograd.mark_variables(several, [x.zeros_like() for x in several], ["write", "add"])
    parameter = mx.gluon.Parameter("x", shape=data.shape)
    parameter.initialize(mx.init.Constant(mx.nd.array(data)), ctx=ctx)
    cases = [(x, 1) for x in (written, sparse, several[0], parameter.data())]
    cases += [(x, 2) for x in (added, again, marked, several[1])]
    for x, times in cases:
        result, guarded = gradient(x)
        np.testing.assert_allclose(result, times * expected, rtol=1e-6)
        assert guarded
    parameter.grad_req = "add"
    np.testing.assert_allclose(gradient(parameter.data())[0], 2 * expected, rtol=1e-6)
    assert mx.nd.NDArray.attach_grad.__module__ == "mxnet.ndarray.ndarray"
    assert autograd.mark_variables.__module__ == "mxnet.autograd"


@pytest.mark.parametrize("mode", HYBRIDIZE)
@operators
def test_rois_gradient_is_added_too(op, mode, ctx):
    """The operator's share of a rois gradient does not erase that of other users."""

    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x, rois):
            pooled = op.of(F.gluon_roi)(x, rois, POOLED, SCALE)
            return F.sum(pooled) + F.sum(rois * 3)

    net = Net()
    if (flags := HYBRIDIZE[mode]) is not None:
        net.hybridize(**flags)
    x = mx.nd.array(feature_map(channels_of(op)), ctx=ctx)
    rois = mx.nd.array(op.all_rois(SCALE), ctx=ctx)
    rois.attach_grad("add")
    for _ in range(2):
        with autograd.record():
            out = net(x, rois)
        out.backward()
    assert (rois.grad.asnumpy() == 6).all()


class Deferred(gluon.HybridBlock):
    """A convolution of unknown input channels in front, a dense layer behind."""

    def __init__(self, op):
        super().__init__(prefix="deferred_")
        with self.name_scope():
            self.conv = gluon.nn.Conv2D(channels_of(op), 1, prefix="conv_")
            self.pool = op.block(POOLED, SCALE, prefix="pool_")
            self.dense = gluon.nn.Dense(4, prefix="dense_")

    def hybrid_forward(self, F, x, rois):
        return self.dense(self.pool(self.conv(x), rois))


def test_export_and_import(tmp_path):
    """Deferred initialisation, export, and SymbolBlock.imports.

    test_golden.py has files of other processes.
    """
    x = np.random.RandomState(0).randn(2, 5, 13, 18).astype("float32")
    for op in OPERATORS:
        net = Deferred(op)
        net.initialize(mx.init.Xavier())
        net.hybridize()
        rois = op.all_rois(SCALE)
        out = net(mx.nd.array(x), mx.nd.array(rois)).asnumpy()
        net.export(str(tmp_path / op.name))
        files = (f"{tmp_path / op.name}{end}" for end in ("-symbol.json", "-0000.params"))
        symbol, parameters = files
        imported = gluon.SymbolBlock.imports(symbol, ["data0", "data1"], parameters)
        again = imported(mx.nd.array(x), mx.nd.array(rois)).asnumpy()
        np.testing.assert_array_equal(again, out)


def test_rotated_node_of_mxnet_is_switched(ctx):
    """It has no gradient; RotatedROIAlign has one."""
    op = next(op for op in OPERATORS if op.name == "RotatedROIAlign")
    symbol = mx.sym.contrib.RROIAlign(
        mx.sym.var("x"), mx.sym.var("rois"), POOLED, SCALE, sampling_ratio=2, name="pool"
    )
    switched = gluon_roi.optimize(symbol)
    assert switched.list_arguments() == ["x", "rois"]
    assert '"op": "_gluon_roi_RotatedROIAlign"' in switched.tojson()
    rois = mx.nd.array(for_mxnet(op.all_rois(SCALE)), ctx=ctx)
    x = mx.nd.array(feature_map(3), ctx=ctx)
    (theirs,) = symbol.bind(ctx, {"x": x, "rois": rois}).forward()
    gradient = {"x": x.zeros_like()}
    executor = switched.bind(ctx, {"x": x, "rois": rois}, gradient)
    (ours,) = executor.forward(is_train=True)
    executor.backward(mx.nd.ones_like(ours))
    np.testing.assert_allclose(ours.asnumpy(), theirs.asnumpy(), rtol=1e-5, atol=1e-5)
    x.attach_grad()
    with autograd.record():
        out = gluon_roi.nd.RotatedROIAlign(x, rois, POOLED, SCALE, sampling_ratio=2)
    out.backward()
    np.testing.assert_array_equal(gradient["x"].asnumpy(), x.grad.asnumpy())


@operators
def test_two_users_of_an_imported_net(op, ctx):
    """Importing and composing graphs keeps their guards."""
    x, rois = mx.sym.var("data", dtype="float32"), mx.sym.var("rois", dtype="float32")
    function = op.function
    total = mx.sym.add_n(*[function(x, rois, POOLED, SCALE) for _ in range(9)])
    net = gluon.SymbolBlock(mx.sym.load_json(total.tojson()), [x, rois])
    net.hybridize(static_alloc=True)
    data = mx.nd.array(feature_map(channels_of(op)), ctx=ctx)
    boxes = mx.nd.array(op.all_rois(SCALE), ctx=ctx)
    gradient = []
    for call in (net, lambda a, b: 9 * op.function(a, b, POOLED, SCALE)):
        data.attach_grad("add")
        for _ in range(2):
            with autograd.record():
                out = call(data, boxes)
            out.backward()
        gradient.append(data.grad.asnumpy())
    # Padding, NaN and all: equal up to the order of the sum.
    np.testing.assert_allclose(gradient[0], gradient[1], rtol=1e-4, atol=1e-4)


@operators
def test_loop(op):
    """In the body of a loop MXNet infers the shapes of each node from its inputs alone."""

    class Loop(gluon.HybridBlock):
        def hybrid_forward(self, F, x, rois):
            function = op.of(F.gluon_roi)

            def body(row, state):
                return function(x, F.expand_dims(row, axis=0), POOLED, SCALE), state

            return F.contrib.foreach(body, rois, [F.zeros((1,))])[0]

    x = mx.nd.array(feature_map(channels_of(op)))
    rois = mx.nd.array(op.rois([[0, 1, 2, 30, 20], [1, 5, 4, 20, 40], [-1, 0, 0, 9, 9]]))
    net, results = Loop(), []
    for hybridize in (False, True):
        net.hybridize(hybridize)
        x.attach_grad()
        with autograd.record():
            out = net(x, rois)
        out.backward()
        results.append((out.asnumpy(), x.grad.asnumpy()))
    for array, hybrid in zip(*results):
        np.testing.assert_allclose(hybrid, array, rtol=1e-5, atol=1e-6)
