# SPDX-License-Identifier: Apache-2.0
"""Existing models, switched: the same results, names and files, however they are run."""

import copy
import json
import warnings

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon

import gluon_roi

SCALE = 0.25
#: Rows that MXNet's operators and ours agree on, over two images of 80 x 96 pixels.
ROWS = [[0, 4, 4, 60, 40], [1, 10, 20, 90, 70], [0, 0, 0, 95, 79], [1, 33, 7, 50, 30]]
# name -> channels of the map, our operator, a call with MXNet's functions
FORMS: dict = {
    "pool": (6, "ROIPool", lambda F, x, r: F.ROIPooling(x, r, (3, 3), SCALE)),
    "align": (6, "ROIAlign", lambda F, x, r: F.contrib.ROIAlign(x, r, (3, 3), SCALE)),
    "align_half": (
        6,
        "ROIAlign",
        lambda F, x, r: F.contrib.ROIAlign(
            x, rois=r, pooled_size=(2, 3), spatial_scale=SCALE, sample_ratio=2, aligned=True
        ),
    ),
    "ps_align": (
        18,
        "PSROIAlign",
        lambda F, x, r: F.contrib.ROIAlign(
            x, r, (3, 3), SCALE, sample_ratio=2, position_sensitive=True
        ),
    ),
    "ps_pool": (
        18,
        "PSROIPool",
        lambda F, x, r: F.contrib.PSROIPooling(x, r, SCALE, 2, 3),
    ),
    "deformable": (
        18,
        "DeformablePSROIPool",
        lambda F, x, r: F.contrib.DeformablePSROIPooling(
            x,
            r,
            # One offset for all: MXNet's results repeat then.
            F.slice_axis(F.tile(F.ones_like(r), (1, 4)), axis=1, begin=0, end=18).reshape(
                (-1, 2, 3, 3)
            ),
            spatial_scale=SCALE,
            output_dim=2,
            group_size=3,
            pooled_size=3,
            part_size=3,
            sample_per_part=2,
            trans_std=0.1,
        ),
    ),
    "deformable_no_trans": (
        18,
        "DeformablePSROIPool",
        lambda F, x, r: F.contrib.DeformablePSROIPooling(
            x, r, spatial_scale=SCALE, output_dim=2, group_size=3, pooled_size=3, no_trans=True
        ),
    ),
    "ps_pool_groups": (
        8,
        "PSROIPool",
        lambda F, x, r: F.contrib.PSROIPooling(
            data=x, rois=r, spatial_scale=SCALE, output_dim=2, pooled_size=4, group_size=2
        ),
    ),
}
forms = pytest.mark.parametrize("form", FORMS)


class Head(gluon.HybridBlock):
    """A call with MXNet's functions, `users` times on one map."""

    def __init__(self, form, users=1, **kwargs):
        super().__init__(**kwargs)
        self.form, self.users = form, users

    def hybrid_forward(self, F, x, rois):
        # The names are what tells that this block is to be switched.
        assert F.ROIPooling and F.contrib.ROIAlign and F.contrib.PSROIPooling
        call = FORMS[self.form][2]
        return F.add_n(*[call(F, x * 1 if self.users == 1 else x, rois) for _ in range(self.users)])


class Detector(gluon.HybridBlock):
    """A head between layers whose shapes are inferred at the first call."""

    def __init__(self, form="align", **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.body = gluon.nn.Conv2D(FORMS[form][0], 3, padding=1)
            self.head = Head(form)
            self.top = gluon.nn.Dense(5)

    def hybrid_forward(self, F, x, rois):
        return self.top(self.head(self.body(x), rois))


def inputs(form="align", rows=ROWS):
    channels = FORMS[form][0]
    data = np.random.RandomState(0).randn(2, channels, 20, 24).astype("float32")
    return mx.nd.array(data), mx.nd.array(rows)


def symbol_of(form, users=1):
    return Head(form, users)(mx.sym.var("x"), mx.sym.var("rois"))


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
    """What MXNet's operators give on rows that they handle, by every way to switch."""
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


def parts(net):
    return {name: count for name, count in gluon_roi.count(net).items() if count}


SWITCHED = {"_gluon_roi_ROIAlign": 1}


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


def test_lambda():
    x, rois = inputs()
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.HybridLambda(lambda F, x: F.contrib.ROIAlign(x, rois_of(F), (3, 3), SCALE)))

    def rois_of(F):
        return F.zeros((4, 5))

    gluon_roi.optimize(net, x)
    assert parts(net) == SWITCHED


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


@pytest.mark.slow
def test_deep_symbols():
    """Nothing is quadratic, and nothing calls itself as deep as the graph."""
    x, rois, other = map(mx.sym.var, ("x", "rois", "other"))
    symbol = mx.sym.add_n(
        *(mx.sym.contrib.ROIAlign(x * k, rois * k, (3, 3), SCALE) for k in range(2))
    )
    for _ in range(100_000):
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


class Direct(gluon.HybridBlock):
    """Calls another operator through F, and one past it."""

    def hybrid_forward(self, F, x, rois):
        past = mx.sym if isinstance(x, mx.sym.Symbol) else mx.nd
        first = F.contrib.ROIAlign(x, rois, (3, 3), SCALE)
        return first + past.contrib.ROIAlign(x, rois, (3, 3), SCALE)


class Broken(gluon.HybridBlock):
    def hybrid_forward(self, F, x, rois):
        return F.contrib.ROIAlign(x, rois, (3, 3), SCALE, wrong=1)


NETWORKS: dict = {
    "no operator": (Nothing, ValueError, "the network has no RoI operator"),
    "past F": (Direct, ValueError, r"still calls _contrib_ROIAlign \(1\), other than"),
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
