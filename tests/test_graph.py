"""Every operator inside graphs: the guard, hybridization, shape inference, export."""

import json
import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest
from cases import OPERATORS, all_rois, feature_map, row_id
from mxnet import autograd, gluon

import gluon_roi

POOLED, SCALE = (2, 3), 0.3
HYBRIDIZE = {
    "imperative": None,
    "hybridized": {},
    "static_alloc": {"static_alloc": True},
    "static_shape": {"static_alloc": True, "static_shape": True},
}
operators = pytest.mark.parametrize("op", OPERATORS, ids=row_id)


def channels_of(op):
    return op.channels(3, POOLED, {})


class FanOut(gluon.HybridBlock):
    """One map, many operators: the sum of their outputs."""

    def __init__(self, op, users, own_names):
        super().__init__()
        self.users, self.own_names, self.name_of = users, own_names, op.name
        with self.name_scope():
            self.pool = getattr(gluon_roi, op.name)(POOLED, SCALE)

    def hybrid_forward(self, F, x, rois):
        x = x * 2
        if self.own_names:
            outputs = [self.pool(x, rois) for _ in range(self.users)]
        else:
            # The same explicit name for each: the guards must stay apart all the same.
            function = getattr(F.gluon_roi, self.name_of)
            outputs = [function(x, rois, POOLED, SCALE, name="same") for _ in range(self.users)]
        return F.add_n(*outputs)


@pytest.mark.parametrize("mode", HYBRIDIZE)
@operators
def test_fan_out_and_grad_req(op, mode, ctx):
    """The gradient of a map is the sum over all its users, added where 'add' is asked for."""
    data = feature_map(channels_of(op))
    rois = mx.nd.array(all_rois(SCALE), ctx=ctx)
    x = mx.nd.array(data, ctx=ctx)
    x.attach_grad()
    with autograd.record():
        out = getattr(gluon_roi.nd, op.name)(x, rois, POOLED, SCALE)
    slope = mx.nd.array(np.random.RandomState(1).randn(*out.shape), ctx=ctx)
    out.backward(slope)
    single = 2 * x.grad.asnumpy()
    for users in (1, 2, 9, 13):
        for own_names in (True, False):
            net = FanOut(op, users, own_names)
            if HYBRIDIZE[mode] is not None:
                net.hybridize(**HYBRIDIZE[mode])
            for grad_req in ("write", "add"):
                x = mx.nd.array(data, ctx=ctx)
                x.attach_grad(grad_req)
                for _ in range(2):
                    with autograd.record():
                        out = net(x, rois)
                    out.backward(slope)
                expected = single * users * (2 if grad_req == "add" else 1)
                np.testing.assert_allclose(x.grad.asnumpy(), expected, rtol=1e-4, atol=1e-4)


@operators
def test_arrays_with_gradients_of_their_own(op, ctx):
    """Outside of graphs only these have guards: MXNet adds into them, users or not."""
    data = feature_map(channels_of(op))
    gradients = {}
    for grad_req, users in (("write", 1), ("write", 9), ("add", 1), ("add", 9)):
        x, rois = mx.nd.array(data, ctx=ctx), mx.nd.array(all_rois(SCALE), ctx=ctx)
        x.attach_grad(grad_req)
        rois.attach_grad(grad_req)
        rois.grad[:] = 5
        for _ in range(2):
            with autograd.record():
                function = getattr(gluon_roi.nd, op.name)
                total = mx.nd.add_n(*[function(x, rois, POOLED, SCALE) for _ in range(users)])
            total.backward()
        gradients[grad_req, users] = x.grad.asnumpy()
        assert (rois.grad.asnumpy() == (5 if grad_req == "add" else 0)).all()
    single = gradients.pop(("write", 1))
    for (grad_req, users), gradient in gradients.items():
        expected = single * users * (2 if grad_req == "add" else 1)
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)


@operators
def test_guard_only_where_gradients_are_added(op, ctx):
    """However an array got its gradient buffer; the latest mark counts."""
    data = feature_map(channels_of(op))
    rois = mx.nd.array(all_rois(SCALE), ctx=ctx)

    def gradient(x):
        """After two passes, and whether there was a guard."""
        for _ in range(2):
            with autograd.record():
                out = getattr(gluon_roi.nd, op.name)(x, rois, POOLED, SCALE)
            guarded = "eshape" in autograd.get_symbol(out).tojson()
            out.backward()
        return x.grad.asnumpy(), guarded

    def arrays(count):
        return [mx.nd.array(data, ctx=ctx) for _ in range(count)]

    written, added, sparse, again, marked, *several = arrays(7)
    written.attach_grad()
    expected, guarded = gradient(written)
    assert not guarded
    added.attach_grad("add")
    sparse.attach_grad(stype="row_sparse")
    again.attach_grad("write")
    again.attach_grad("add")
    autograd.mark_variables(marked, marked.zeros_like(), "add")
    autograd.mark_variables(several, [x.zeros_like() for x in several], ["write", "add"])
    parameter = mx.gluon.Parameter("x", shape=data.shape)
    parameter.initialize(mx.init.Constant(mx.nd.array(data)), ctx=ctx)
    cases = [(sparse, 1, True), (several[0], 1, False), (parameter.data(), 1, False)]
    cases += [(x, 2, True) for x in (added, again, marked, several[1])]
    for x, times, guarded in cases:
        result = gradient(x)
        np.testing.assert_allclose(result[0], times * expected, rtol=1e-6)
        assert result[1] == guarded
    parameter.grad_req = "add"
    result, guarded = gradient(parameter.data())
    np.testing.assert_allclose(result, 2 * expected, rtol=1e-6)
    assert guarded


@pytest.mark.parametrize("mode", HYBRIDIZE)
@operators
def test_rois_gradient_is_added_too(op, mode, ctx):
    """The operator's share of a rois gradient does not erase that of other users."""

    class Net(gluon.HybridBlock):
        def hybrid_forward(self, F, x, rois):
            pooled = getattr(F.gluon_roi, op.name)(x, rois, POOLED, SCALE)
            return F.sum(pooled) + F.sum(rois * 3)

    net = Net()
    if HYBRIDIZE[mode] is not None:
        net.hybridize(**HYBRIDIZE[mode])
    x = mx.nd.array(feature_map(channels_of(op)), ctx=ctx)
    rois = mx.nd.array(all_rois(SCALE), ctx=ctx)
    rois.attach_grad("add")
    for _ in range(2):
        with autograd.record():
            out = net(x, rois)
        out.backward()
    assert (rois.grad.asnumpy() == 6).all()


@operators
def test_two_passes_of_one_symbol_have_equal_json(op):
    """Exported symbols do not change from run to run."""

    def build():
        with mx.name.NameManager():
            x, rois = mx.sym.var("data"), mx.sym.var("rois")
            function = getattr(gluon_roi.sym, op.name)
            return mx.sym.Group([function(x, rois, POOLED, SCALE) for _ in range(3)]).tojson()

    assert build() == build()
    nodes = json.loads(build())["nodes"]
    guards = [n["attrs"]["__gluon_roi_guard__"] for n in nodes if n["op"] == "_copy"]
    assert len(set(guards)) == len(guards) == 6
    assert sum(n["op"] == f"_gluon_roi_{op.name}" for n in nodes) == 3


@operators
def test_infer_shape(op):
    x, rois, counts = mx.sym.var("data"), mx.sym.var("rois"), mx.sym.var("counts")
    symbol = getattr(gluon_roi.sym, op.name)(x, rois, POOLED, SCALE)
    shape = (2, channels_of(op), 5, 5)
    assert symbol.infer_shape(data=shape, rois=(4, 5))[1] == [(4, 3, *POOLED)]
    assert symbol.infer_shape(data=shape, rois=(2, 7, 4))[1] == [(14, 3, *POOLED)]
    counted = getattr(gluon_roi.sym, op.name)(x, rois, POOLED, SCALE, rois_num=counts)
    shapes = {"data": shape, "rois": (4, 4), "counts": (2,)}
    assert counted.infer_shape(**shapes)[1] == [(4, 3, *POOLED)]


@operators
def test_infer_shape_partial_never_fails(op):
    """Whatever is missing, the rest is inferred; without a rank MXNet 1.9.1 itself would crash."""
    x, rois, counts = mx.sym.var("data"), mx.sym.var("rois"), mx.sym.var("counts")
    shape = (2, channels_of(op), 5, 5)
    plain = getattr(gluon_roi.sym, op.name)(x, rois, POOLED, SCALE)
    counted = getattr(gluon_roi.sym, op.name)(x, rois, POOLED, SCALE, rois_num=counts)
    for known, expected in (
        ({}, (-1, -1)),
        ({"data": shape}, (-1, 3)),
        ({"rois": (4, 5)}, (4, -1)),
        ({"data": shape, "rois": (0, 5)}, (-1, 3)),
    ):
        assert plain.infer_shape_partial(**known)[1] == [(*expected, *POOLED)]
    for known, expected in (
        ({}, (-1, -1)),
        ({"rois": (4, 4)}, (4, -1)),
        ({"counts": (2,)}, (-1, -1)),
        ({"data": shape}, (-1, 3)),
    ):
        assert counted.infer_shape_partial(**known)[1] == [(*expected, *POOLED)]
    # A consumer sees a rank as well.
    after = mx.sym.Convolution(plain, kernel=(1, 1), num_filter=8, name="after")
    assert after.infer_shape_partial(data=shape)[0][2] == (8, 3, 1, 1)


@operators
def test_infer_type(op):
    symbol = getattr(gluon_roi.sym, op.name)(mx.sym.var("data"), mx.sym.var("rois"), POOLED, SCALE)
    for dtype, rois in (("float16", "float32"), ("float32", "float32"), ("float64", "float64")):
        types = symbol.infer_type(data=dtype)
        assert [np.dtype(t).name for t in types[0]] == [dtype, rois]
        assert np.dtype(types[1][0]).name == dtype


@operators
def test_no_rois_under_np_shape(op, ctx):
    """K = 0 gives (0, C, P, Q) and a gradient of zeros."""
    with mx.util.np_shape():
        x = mx.nd.array(feature_map(channels_of(op)), ctx=ctx)
        x.attach_grad()
        x.grad[:] = 99
        with autograd.record():
            out = getattr(gluon_roi.nd, op.name)(x, mx.nd.zeros((0, 5), ctx=ctx), POOLED, SCALE)
        assert out.shape == (0, 3, *POOLED)
        out.backward()
        assert (x.grad.asnumpy() == 0).all()


class Deferred(gluon.HybridBlock):
    """A convolution of unknown input channels in front, a dense layer behind."""

    def __init__(self, op):
        super().__init__(prefix="deferred_")
        with self.name_scope():
            self.conv = gluon.nn.Conv2D(channels_of(op), 1, prefix="conv_")
            self.pool = getattr(gluon_roi, op.name)(POOLED, SCALE, prefix="pool_")
            self.dense = gluon.nn.Dense(4, prefix="dense_")

    def hybrid_forward(self, F, x, rois):
        return self.dense(self.pool(self.conv(x), rois))


IMPORT = """
import sys
import mxnet as mx, numpy as np, gluon_roi
arrays = np.load(sys.argv[1])
net = mx.gluon.SymbolBlock.imports(sys.argv[2], ["data0", "data1"], sys.argv[3])
out = net(mx.nd.array(arrays["x"]), mx.nd.array(arrays["rois"]))
np.testing.assert_array_equal(out.asnumpy(), arrays["out"])
"""


@operators
def test_export_to_a_new_process(op, tmp_path):
    """Deferred initialisation, export, and SymbolBlock.imports where only gluon_roi is imported."""
    net = Deferred(op)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    x = np.random.RandomState(0).randn(2, 5, 13, 18).astype("float32")
    rois = all_rois(SCALE)
    out = net(mx.nd.array(x), mx.nd.array(rois)).asnumpy()
    net.export(str(tmp_path / "net"))
    np.savez(tmp_path / "arrays.npz", x=x, rois=rois, out=out)
    names = [str(tmp_path / n) for n in ("arrays.npz", "net-symbol.json", "net-0000.params")]
    subprocess.run([sys.executable, "-c", IMPORT, *names], check=True)


@operators
def test_two_users_of_an_imported_net(op, ctx):
    """Importing and composing graphs keeps their guards."""
    x, rois = mx.sym.var("data", dtype="float32"), mx.sym.var("rois", dtype="float32")
    function = getattr(gluon_roi.sym, op.name)
    total = mx.sym.add_n(*[function(x, rois, POOLED, SCALE) for _ in range(9)])
    net = gluon.SymbolBlock(mx.sym.load_json(total.tojson()), [x, rois])
    net.hybridize(static_alloc=True)
    data = mx.nd.array(feature_map(channels_of(op)), ctx=ctx)
    boxes = mx.nd.array(all_rois(SCALE), ctx=ctx)
    gradient = []
    for call in (net, lambda a, b: 9 * getattr(gluon_roi.nd, op.name)(a, b, POOLED, SCALE)):
        data.attach_grad("add")
        for _ in range(2):
            with autograd.record():
                out = call(data, boxes)
            out.backward()
        gradient.append(data.grad.asnumpy())
    # Padding, NaN and all: equal up to the order of the sum.
    np.testing.assert_allclose(gradient[0], gradient[1], rtol=1e-4, atol=1e-4)
