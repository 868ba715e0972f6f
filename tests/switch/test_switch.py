# SPDX-License-Identifier: Apache-2.0
"""Existing models, switched: the same results, names and files, however they are run."""

import copy

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from switched import FORMS, ROWS, SCALE, SWITCHED, Detector, Head, inputs, parts, symbol_of

import gluon_roi

forms = pytest.mark.parametrize("form", FORMS)


def run_symbol(symbol, x, rois, grad_req="write"):
    """Output and gradient of x, after two passes."""
    gradient = x.zeros_like()
    executor = symbol.bind(x.context, {"x": x, "rois": rois}, {"x": gradient}, {"x": grad_req})
    for _ in range(2):
        out = executor.forward(is_train=True)[0]
        executor.backward(out.ones_like())
    return out.asnumpy(), gradient.asnumpy()


def run_block(block, x, rois, grad_req="write"):
    x = x.copy()
    x.attach_grad(grad_req)
    for _ in range(2):
        with autograd.record():
            out = block(x, rois)
        out.backward()
    return out.asnumpy(), x.grad.asnumpy()


def by_symbol(form, x, rois):
    return run_symbol(gluon_roi.optimize(symbol_of(form)), x, rois)


def by_network(form, x, rois):
    return run_block(gluon_roi.optimize(Head(form), x, rois, static_alloc=True), x, rois)


def by_symbol_block(form, x, rois):
    net = gluon.SymbolBlock(symbol_of(form), [mx.sym.var("x"), mx.sym.var("rois")])
    return run_block(gluon_roi.optimize(net, x, rois), x, rois)


def by_functions(form, x, rois):
    with gluon_roi.replace_builtins():
        return run_block(lambda x, rois: FORMS[form][2](mx.nd, x, rois), x, rois)


def by_functions_of_symbols(form, x, rois):
    with gluon_roi.replace_builtins():
        symbol = symbol_of(form)
    return run_symbol(symbol, x, rois)


WAYS = {
    function.__name__: function
    for function in (
        by_symbol,
        by_network,
        by_symbol_block,
        by_functions,
        by_functions_of_symbols,
    )
}


@pytest.mark.parametrize("way", WAYS)
@forms
def test_the_same_results(form, way):
    """Every way to switch gives MXNet's results on the rows that its operators handle."""
    x, rois = inputs(form)
    expected = run_symbol(symbol_of(form), x, rois)
    for actual, right in zip(WAYS[way](form, x, rois), expected):
        np.testing.assert_allclose(actual, right, rtol=1e-5, atol=1e-5)


@forms
def test_names_and_counts(form):
    ours = f"_gluon_roi_{FORMS[form][1]}"
    before = symbol_of(form)
    after = gluon_roi.optimize(before)
    for names in ("list_arguments", "list_auxiliary_states", "list_outputs"):
        assert getattr(after, names)() == getattr(before, names)()
    used, left = gluon_roi.count(before), gluon_roi.count(after)
    assert (sum(used.values()), used[ours]) == (1, 0)
    assert (sum(left.values()), left[ours]) == (1, 1)
    assert gluon_roi.optimize(after).tojson() == after.tojson()


@pytest.mark.parametrize("static_alloc", [False, True])
@pytest.mark.parametrize("grad_req", ["write", "add"])
@forms
def test_many_users(form, grad_req, static_alloc):
    """9 users of one map, whose gradients MXNet adds in place."""
    x, rois = inputs(form)
    one = run_symbol(symbol_of(form), x, rois)[1]
    net = gluon_roi.optimize(Head(form, users=9), x, rois, static_alloc=static_alloc)
    passes = 2 if grad_req == "add" else 1
    for _, gradient in (
        run_block(net, x, rois, grad_req),
        run_symbol(gluon_roi.optimize(symbol_of(form, users=9)), x, rois, grad_req),
    ):
        np.testing.assert_allclose(gradient, passes * 9 * one, rtol=1e-4, atol=1e-4)


def test_padding_rows():
    """They corrupt row 0 of MXNet's ROIAlign on the CPU; ours gives them zeros."""
    x, rois = inputs(rows=ROWS + [[-1] * 5] * 20)
    net = Head("align")
    right = net(x, rois[: len(ROWS)]).asnumpy()
    out = gluon_roi.optimize(net, x, rois)(x, rois).asnumpy()
    np.testing.assert_allclose(out[: len(ROWS)], right, rtol=1e-5, atol=1e-5)
    assert not out[len(ROWS) :].any()


@pytest.mark.parametrize("way", ["symbol", "network", "functions"])
def test_bad_index(way):
    """Rows beyond the batch: zeros in MXNet's ROIPooling, an error or zeros in ours."""
    x, rois = inputs("pool", [*ROWS, [2, 0, 0, 9, 9]])
    right = mx.nd.ROIPooling(x * 1, rois, (3, 3), SCALE).asnumpy()

    def run(**options):
        if way == "symbol":
            return run_symbol(gluon_roi.optimize(symbol_of("pool"), **options), x, rois)[0]
        if way == "network":
            return gluon_roi.optimize(Head("pool"), x, rois, **options)(x, rois).asnumpy()
        with gluon_roi.replace_builtins(**options):
            return mx.nd.ROIPooling(x, rois, (3, 3), SCALE).asnumpy()

    np.testing.assert_array_equal(run(bad_index="padding"), right)
    with pytest.raises((mx.MXNetError, ValueError), match="row 4 has batch index 2"):
        run()


def outer_block(net):
    outer = gluon.nn.HybridLambda(lambda F, x, rois: net(x, rois))
    outer.register_child(net)
    return outer


LATER: dict = {
    "hybridize": lambda net: net.hybridize(),
    "static": lambda net: net.hybridize(static_alloc=True, static_shape=True),
    "imperative": lambda net: net.hybridize(active=False),
    "cast": lambda net: net.cast("float32"),
    "copied": copy.deepcopy,
    "outer": outer_block,
    "twice": lambda net: gluon_roi.optimize(net, *inputs()),
}


@pytest.mark.parametrize("later", LATER)
def test_stays_switched(later):
    x, rois = inputs()
    net = Detector()
    net.initialize(mx.init.Normal(0.1))
    right = net(x, rois).asnumpy()
    gluon_roi.optimize(net, x, rois)
    net.hybridize(active=False)
    net = LATER[later](net) or net
    net.hybridize()
    np.testing.assert_allclose(net(x, rois).asnumpy(), right, rtol=1e-4, atol=1e-5)
    assert parts(net) == SWITCHED


def test_flags_are_kept():
    """A network that is hybridized keeps its flags, unless others are given."""
    x, rois = inputs()
    net = Detector()
    net.initialize(mx.init.Normal(0.1))
    net.hybridize(static_alloc=True, static_shape=True)
    gluon_roi.optimize(net, x, rois, static_shape=False, inline_limit=3)
    for block in (net, *net._children.values()):
        flags = dict(block._flags)
        kept = flags["static_alloc"], flags["static_shape"], flags["inline_limit"]
        assert kept == (True, False, 3)


def test_lambda():
    x, rois = inputs()
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.HybridLambda(lambda F, x: F.contrib.ROIAlign(x, rois_of(F), (3, 3), SCALE)))

    def rois_of(F):
        return F.zeros((4, 5))

    gluon_roi.optimize(net, x)
    assert parts(net) == SWITCHED


class PastF(gluon.HybridBlock):
    """Calls one operator through F, and one past it."""

    def hybrid_forward(self, F, x, rois):
        past = mx.sym if isinstance(x, mx.sym.Symbol) else mx.nd
        first = F.contrib.ROIAlign(x, rois, (3, 3), SCALE)
        return first + past.contrib.ROIAlign(x, rois, (3, 3), SCALE)


def test_calls_past_f():
    x, rois = inputs(rows=ROWS + [[-1] * 5] * 20)
    net = gluon_roi.optimize(PastF(), x, rois)
    assert parts(net) == {"_gluon_roi_ROIAlign": 2}
    right = gluon_roi.nd.ROIAlign(x, rois, (3, 3), SCALE)
    np.testing.assert_array_equal(net(x, rois).asnumpy(), 2 * right.asnumpy())


def test_not_hybridized():
    """Rows that MXNet's operator gets wrong come out right in array code, too."""
    x, rois = inputs(rows=ROWS + [[-1] * 5] * 20)
    net = gluon_roi.optimize(Head("align"), x, rois)
    expected = net(x, rois).asnumpy()
    net.hybridize(active=False)
    np.testing.assert_array_equal(net(x, rois).asnumpy(), expected)


def test_deferred_initialization_and_training():
    """Parameters get their shapes, and the same values after some steps as without the switch."""

    def train(switch):
        mx.random.seed(1)
        net = Detector(prefix="net_")
        net.initialize(mx.init.Normal(0.1))
        if switch:
            gluon_roi.optimize(net, *inputs())
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
        for _ in range(3):
            net.hybridize(static_alloc=True)
            with autograd.record():
                loss = (net(*inputs()) ** 2).mean()
            loss.backward()
            trainer.step(1)
        return net, {name: p.data().asnumpy() for name, p in net.collect_params().items()}

    (_, right), (net, actual) = train(False), train(True)
    assert parts(net) == SWITCHED and list(actual) == list(right)
    for name, value in right.items():
        np.testing.assert_allclose(actual[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_checkpoints_and_files(tmp_path):
    """Old parameters load into a switched network; what it exports loads as any other file."""
    x, rois = inputs()
    old = Detector(prefix="net_")
    old.initialize(mx.init.Normal(0.1))
    old.hybridize()
    right = old(x, rois).asnumpy()
    old.save_parameters(str(tmp_path / "old.params"))
    old.export(str(tmp_path / "old"))

    net = Detector(prefix="net_")
    net.load_parameters(str(tmp_path / "old.params"))
    gluon_roi.optimize(net, x, rois).export(str(tmp_path / "new"))
    for name in ("old", "new"):
        path = str(tmp_path / name)
        names = ["data0", "data1"]
        block = gluon.SymbolBlock.imports(f"{path}-symbol.json", names, f"{path}-0000.params")
        gluon_roi.optimize(block, x, rois)
        assert parts(block) == SWITCHED
        np.testing.assert_allclose(block(x, rois).asnumpy(), right, rtol=1e-4, atol=1e-5)

        symbol, arguments, auxiliary = mx.model.load_checkpoint(path, 0)
        module = mx.mod.Module(gluon_roi.optimize(symbol), names, None)
        module.bind([("data0", x.shape), ("data1", (2, 5))], for_training=False)
        module.set_params(arguments, auxiliary)
        module.forward(mx.io.DataBatch([x, rois[:2]]))  # Module: as many rows as images
        out = module.get_outputs()[0].asnumpy()
        np.testing.assert_allclose(out, right[:2], rtol=1e-4, atol=1e-5)


def test_shared_parameters():
    x, rois = inputs()
    one = Detector(prefix="net_")
    one.initialize()
    two = Detector(prefix="net_", params=one.collect_params())
    gluon_roi.optimize(one, x, rois)
    gluon_roi.optimize(two, x, rois)
    assert one.body.weight is two.body.weight
    np.testing.assert_array_equal(one(x, rois).asnumpy(), two(x, rois).asnumpy())


def test_control_flow():
    """Bodies of loops are switched and counted."""

    class Loop(gluon.HybridBlock):
        def hybrid_forward(self, F, x, rois):
            def body(row, state):
                row = F.reshape(row, (1, 5))
                return F.contrib.ROIAlign(x, row, (3, 3), SCALE), state

            return F.contrib.foreach(body, rois, [F.zeros((1,))])[0]

    x, rois = inputs()
    net, symbol = Loop(), Loop()(mx.sym.var("x"), mx.sym.var("rois"))
    right = run_block(net, x, rois)
    assert gluon_roi.count(symbol)["_contrib_ROIAlign"] == 1
    switched = gluon_roi.optimize(symbol)
    gluon_roi.optimize(net, x, rois)
    assert parts(switched) == parts(net) == SWITCHED
    for actual in (run_symbol(switched, x, rois), run_block(net, x, rois)):
        for value, expected in zip(actual, right):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", ["symbol", "network", "functions"])
def test_numpy_arrays(way):
    """npx.roi_pooling, as in Dive into Deep Learning."""

    class Pool(gluon.HybridBlock):
        def hybrid_forward(self, F, x, rois):
            return F.npx.roi_pooling(x, rois, pooled_size=(3, 3), spatial_scale=SCALE)

    x, rois = (array.as_np_ndarray() for array in inputs("pool"))
    with mx.util.np_shape(True), mx.util.np_array(True):
        right = mx.npx.roi_pooling(x, rois, pooled_size=(3, 3), spatial_scale=SCALE)
        if way == "symbol":
            variables = [mx.sym.var(name).as_np_ndarray() for name in ("x", "rois")]
            symbol = gluon_roi.optimize(Pool()(*variables))
            assert type(symbol) is mx.sym.numpy._Symbol
            out = gluon.SymbolBlock(symbol, variables)(x, rois)
        elif way == "network":
            net = gluon_roi.optimize(Pool(), x, rois)
            assert parts(net) == {"_gluon_roi_ROIPool": 1}
            out = net(x, rois)
        else:
            with gluon_roi.replace_builtins():
                out = mx.npx.roi_pooling(x, rois, pooled_size=(3, 3), spatial_scale=SCALE)
        assert type(out) is mx.np.ndarray
        np.testing.assert_array_equal(out.asnumpy(), right.asnumpy())


def test_old_file():
    """Python 2 wrote (7L, 7L); hidden attributes stay."""
    text = mx.sym.ROIPooling(
        mx.sym.var("x"), mx.sym.var("rois"), (3, 3), SCALE, attr={"__note__": '"a\\b"'}
    ).tojson()
    symbol = mx.sym.load_json(text.replace("(3, 3)", "(3L, 3L)"))
    x, rois = inputs("pool")
    switched = gluon_roi.optimize(symbol)
    assert switched.attr("__note__") == '"a\\b"'
    for actual, right in zip(run_symbol(switched, x, rois), run_symbol(symbol, x, rois)):
        np.testing.assert_allclose(actual, right, rtol=1e-5, atol=1e-5)


TEXTS = {
    "backslash": "a\\",
    "quotes": '"a"\\"',
    "control characters": "a\x01\b\f\x1f\x7f",
    "lines": "a\n\r\tb",
    "escapes": "\\b\\u0041\\\\u0041",
    "other letters": "\u00e9\u6f22\U0001f600",
}


@pytest.mark.parametrize("text", TEXTS)
def test_names_and_attributes_of_any_text(text):
    text = TEXTS[text]
    note, variables = {"__note__": text}, [mx.sym.var("x"), mx.sym.var("rois")]
    pool = mx.sym.ROIPooling(*variables, (3, 3), SCALE, name=f"pool{text}", attr=note)
    symbol = mx.sym.relu(pool, name=text, attr=note)
    switched = gluon_roi.optimize(symbol)
    net = gluon_roi.optimize(gluon.SymbolBlock(symbol, variables), *inputs("pool"))
    for one in (switched, net._cached_graph[1]):
        assert one.list_outputs() == [f"{text}_output"]
        assert one.attr_dict()[f"pool{text}"]["__note__"] == text
        assert parts(one) == {"_gluon_roi_ROIPool": 1}


def test_scopes_of_the_caller_do_not_matter():
    symbol = symbol_of("deformable")
    expected = gluon_roi.optimize(symbol).tojson()
    with mx.AttrScope(ctx_group="a", __note__="b"), mx.name.Prefix("c_"):
        assert gluon_roi.optimize(symbol).tojson() == expected


@pytest.mark.parametrize(
    "depth",
    [
        pytest.param(20_000, marks=pytest.mark.slow),
        pytest.param(100_000, marks=pytest.mark.night),
    ],
)
def test_deep_symbols(depth):
    """Nothing is quadratic, and nothing calls itself as deep as the graph."""
    x, rois, other = map(mx.sym.var, ("x", "rois", "other"))
    symbol = mx.sym.add_n(
        *(mx.sym.contrib.ROIAlign(x * k, rois * k, (3, 3), SCALE) for k in range(2))
    )
    for _ in range(depth):
        symbol = symbol + other
    switched = gluon_roi.optimize(symbol)
    assert parts(switched) == {"_gluon_roi_PyramidROIAlign": 1}
    assert switched.list_arguments() == symbol.list_arguments()


def test_gluoncv():
    """An FPN detector, whose padding rows MXNet's ROIAlign gets wrong."""
    from gluoncv.model_zoo import get_model

    net = get_model("faster_rcnn_fpn_resnet50_v1b_coco", pretrained=False, pretrained_base=False)
    net.rpn._test_post_nms = net._rpn_test_post_nms = 20
    net.initialize(mx.init.Normal(0.02))
    x = mx.nd.random.uniform(-1, 1, (1, 3, 64, 64))
    gluon_roi.optimize(net, x)
    net.hybridize()
    first, second = net(x)[1].asnumpy(), net(x)[1].asnumpy()
    np.testing.assert_array_equal(first, second)
    assert parts(net) == {"_gluon_roi_PyramidROIAlign": 1, "_gluon_roi_BoxNMS": 2}


def test_a_symbol_block_is_serialised_twice(monkeypatch):
    """Once to be switched, and once to be counted."""
    x, rois = mx.sym.var("x", dtype="float32"), mx.sym.var("rois", dtype="float32")
    deep = x
    for _ in range(50):
        deep = mx.sym.sin(deep)
    symbol = mx.sym.ROIPooling(deep, rois, pooled_size=(3, 3), spatial_scale=SCALE)
    net = gluon.SymbolBlock(symbol, [x, rois])
    serialise, whole = mx.sym.Symbol.tojson, []

    def tojson(symbol, *arguments, **flags):
        text = serialise(symbol, *arguments, **flags)
        whole.extend([text] * (text.count('"sin"') == 50))
        return text

    monkeypatch.setattr(mx.sym.Symbol, "tojson", tojson)
    gluon_roi.optimize(net, *inputs())
    assert len(whole) == 2
    assert parts(net) == {"_gluon_roi_ROIPool": 1}
