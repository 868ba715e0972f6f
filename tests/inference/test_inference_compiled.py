# SPDX-License-Identifier: Apache-2.0
"""Converted networks keep memory and weights from call to call, and no call can tell."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from inference_networks import CountCalls
from mxnet import gluon
from test_inference import arrays, assert_near, batch, made

import gluon_roi
from gluon_roi.bridge.symbol_json import symbol_content
from gluon_roi.inference import compiled, network

NEAR: Any = {"rtol": 1e-4, "atol": 1e-4}
SIZES = [(1, 24, 36), (3, 24, 36), (1, 7, 5), (2, 65, 33)]


def graph_of(net):
    (graph,) = net._call_cached_op._converted.values()
    return graph.compiled


def flags_of(net):
    return graph_of(net)._static_alloc, graph_of(net)._static_shape


class Body(gluon.HybridBlock):
    """A network of one function of F, its inputs and a 1 x 1 layer."""

    def __init__(self, function, channels=4):
        super().__init__()
        self.function = function
        with self.name_scope():
            self.layer = gluon.nn.Conv2D(channels, 1, in_channels=channels)

    def hybrid_forward(self, F, *inputs):
        return self.function(F, self.layer, *inputs)


def image(*shape, seed=0):
    return mx.nd.array(np.random.RandomState(seed).uniform(-1, 1, shape or (1, 4, 5, 6)))


@pytest.mark.parametrize(
    "flags, expected",
    [
        ({}, (True, True)),
        ({"static_alloc": True}, (True, True)),
        ({"static_shape": False}, (True, False)),
        ({"static_alloc": True, "static_shape": False}, (True, False)),
        ({"static_alloc": False}, (False, False)),
    ],
    ids=str,
)
def test_flags(flags, expected):
    """Both, unless optimize is told otherwise; hybridize() leaves them as they are."""
    net, x = made(), batch()
    wanted = arrays(net(*x))
    gluon_roi.optimize(net, *x, inference=True, **flags)
    for _ in range(2):
        assert_near(net(*x), [mx.nd.array(one) for one in wanted])
        assert flags_of(net) == expected
        net.hybridize()


def test_each_set_of_shapes_is_compiled_once():
    net, plain = made(), made()
    gluon_roi.optimize(net, *batch(), inference=True)
    calls = None
    for round_ in range(3):
        for images, height, width in SIZES:
            x = batch(images, height, width, seed=round_)
            assert_near(net(*x), plain(*x))
        found = {one.shapes: one.call for one in graph_of(net)._idle}
        assert len(found) == len(SIZES) and calls in (None, found)
        calls = found


def test_outputs_are_not_overwritten():
    net = made()
    gluon_roi.optimize(net, *batch(), inference=True)
    kept = [(net(*batch(*size, seed=n)), size, n) for n in range(3) for size in SIZES]
    plain = made()
    for outputs, size, n in kept:
        assert_near(outputs, plain(*batch(*size, seed=n)))


@pytest.mark.parametrize(
    "function",
    [
        lambda F, layer, x: (F.reshape(layer(x), (0, -1)), x),
        lambda F, layer, x: [layer(x)] * 2,
        lambda F, layer, x: [F.slice_axis(layer(x), axis=1, begin=0, end=2), F.BlockGrad(x)],
        lambda F, layer, x: F.split(layer(x), 2, axis=1),
    ],
    ids=["view and input", "twice", "slice and copy of an input", "split"],
)
def test_outputs_that_share_memory(function):
    """Outputs of a call are not those of another one, and writing to them changes no result."""
    net, xs = Body(function), [image(seed=n) for n in range(3)]
    net.initialize(mx.init.Normal(0.1))
    expected = [arrays(net(x)) for x in xs]
    gluon_roi.optimize(net, xs[0], inference=True)
    found = [net(x.copy()) for x in xs]
    for outputs, wanted in zip(found, expected):
        assert_near(outputs, [mx.nd.array(one) for one in wanted])
    for outputs in found:
        for output in outputs:
            output[:] = 99
    assert_near(net(xs[0]), [mx.nd.array(one) for one in expected[0]])


def test_a_call_before_the_last_one_has_ended():
    net, plain = made(), made()
    gluon_roi.optimize(net, *batch(), inference=True)
    calls = [batch(*size, seed=n) for n, size in enumerate(SIZES * 4)]
    found = [net(*x) for x in calls]  # MXNet computes them later
    for outputs, x in zip(found, calls):
        assert_near(outputs, plain(*x))


def test_threads():
    """Each call has a compiled graph of its own while it runs."""
    net, plain = made(), made()
    calls = [batch(*size, seed=n) for n, size in enumerate(SIZES * 6)]
    expected = [arrays(plain(*x)) for x in calls]
    gluon_roi.optimize(net, *batch(), inference=True)
    net(*batch())
    with ThreadPoolExecutor(4) as pool:
        for found, wanted in zip(pool.map(lambda x: arrays(net(*x)), calls), expected):
            for one, other in zip(found, wanted):
                np.testing.assert_allclose(one, other, **NEAR)
    kept = graph_of(net)._idle
    assert len({id(one.call) for one in kept}) == len(kept) <= 4 * len(SIZES)


def test_memory_is_bounded(monkeypatch):
    net, x = made(), batch()
    gluon_roi.optimize(net, *x, inference=True)
    net(*x)
    (first,) = graph_of(net)._idle
    maps = 24 * 36 * 128 * 4  # of the first layer, in bytes
    assert 2 * maps <= first.bytes <= 5 * maps + 4 * 128 * 1000
    larger = batch(1, 48, 36)
    net(*larger)
    assert 1.5 * first.bytes < graph_of(net)._idle[1].bytes < 2.5 * first.bytes
    monkeypatch.setattr(compiled, "MAX_BYTES", 5 * first.bytes)
    for width in range(36, 48):
        net(*batch(1, 24, width))
        kept = graph_of(net)._idle
        assert sum(one.bytes for one in kept) <= compiled.MAX_BYTES
        assert kept[-1].shapes[0] == (1, 3, 24, width)
    assert len(kept) == 3
    monkeypatch.setattr(compiled, "MAX_BYTES", 0)
    for _ in range(2):
        net(*batch(1, 24, 50))
        assert [one.shapes[0] for one in graph_of(net)._idle] == [(1, 3, 24, 50)]


def test_a_call_that_fails():
    """Neither a refusal nor an error of a kernel harms later calls."""
    net, plain = made(), made()
    x, rois = batch()
    gluon_roi.optimize(net, x, rois, inference=True)
    bad = rois.copy()
    bad[0, 0] = 7
    for _ in range(2):
        with pytest.raises(mx.MXNetError, match="GemmConvolution: weight has shape"):
            net(image(1, 5, 24, 36), rois)
        with pytest.raises(mx.MXNetError, match="batch index 7"):
            arrays(net(x, bad))
        assert_near(net(x, rois), plain(x, rois))


def _loop():
    x = mx.sym.var("x")
    first = mx.sym.zeros_like(mx.sym.slice_axis(x, axis=0, begin=0, end=1))

    def body(row, total):
        total = mx.sym.expand_dims(row, axis=0) + total
        return mx.sym.reshape(total, shape=(-3, -2)), total

    return mx.sym.contrib.foreach(body, x, first)[0]


@pytest.mark.parametrize(
    "make",
    [
        _loop,
        lambda: mx.sym.Custom(mx.sym.var("x"), op_type="count_calls", key="compiled"),
        lambda: mx.sym.contrib.boolean_mask(mx.sym.var("x"), mx.sym.var("x")[0] > 0),
    ],
    ids=["loop", "operator in Python", "dynamic"],
)
def test_graphs_for_which_mxnet_is_wrong(make):
    content = compiled.symbol_content(make())
    assert not compiled._can_be_static(content)


def counted() -> gluon.SymbolBlock:
    """A layer whose outputs are multiplied by the number of the call."""
    x = mx.sym.var("x")
    layer = mx.sym.Convolution(x, kernel=(1, 1), num_filter=16, name="layer")
    block = gluon.SymbolBlock(mx.sym.Custom(layer, op_type="count_calls", key="compiled"), x)
    block.initialize()
    return block


def test_an_operator_in_python_is_called_as_without_conversion():
    block, data = counted(), image()
    gluon_roi.optimize(block, data, inference=True)
    assert flags_of(block) == (False, False)
    weights = [block.collect_params()[f"layer_{name}"].data() for name in ("weight", "bias")]
    layer = mx.nd.Convolution(data, *weights, kernel=(1, 1), num_filter=16).asnumpy()
    CountCalls.calls.clear()
    for number in (1, 2, 3):
        np.testing.assert_allclose(block(data).asnumpy(), number * layer, **NEAR)


def test_optimize_calls_the_network_once():
    """The call is converted, and the graph is not converted again by the next one."""
    block, data = counted(), image()
    CountCalls.calls.clear()
    gluon_roi.optimize(block, data, inference=True)
    mx.nd.waitall()
    assert CountCalls.calls == {"compiled": 1}
    graph = graph_of(block)
    block(data)
    assert graph_of(block) is graph


class UnusedLayer(gluon.HybridBlock):
    """A network with a layer that no call reads, whose shapes stay unknown."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.layer = gluon.nn.Conv2D(16, 1, in_channels=4)
            self.unused = gluon.nn.Dense(5)

    def hybrid_forward(self, F, x):
        return self.layer(x)


@pytest.mark.parametrize("make", [counted, UnusedLayer, lambda: gluon.nn.Conv2D(16, 1)])
@pytest.mark.parametrize("backend", [{}, {"backend": "MKLDNN"}], ids=str)
@pytest.mark.filterwarnings("ignore:Parameter .* is not used:UserWarning")
def test_export_of_a_network_that_only_optimize_has_called(make, backend, tmp_path):
    """Its file has all its parameters, whose shapes the example gave."""
    net = make()
    net.initialize()
    gluon_roi.optimize(net, image(), inference=True, **backend)
    net.export(str(tmp_path / "net"))
    names = {name.split("_")[-1] for name in mx.nd.load(str(tmp_path / "net-0000.params"))}
    assert names == {"weight", "bias"}
    operators = {node["op"] for node in symbol_content(net._cached_graph[1])["nodes"]}
    assert ("_sg_mkldnn_conv" in operators) == bool(backend)


def test_a_wrong_example_gets_mxnets_error_for_the_network_itself(recwarn):
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(32, 3, in_channels=3), gluon.nn.Conv2D(16, 3, in_channels=32))
    net.initialize()
    with pytest.raises(mx.MXNetError, match="conv.*Shape inconsistent"):
        gluon_roi.optimize(net, image(1, 4, 9, 9), inference=True)
    assert not [one for one in recwarn if "cannot infer" in str(one.message)]
    gluon_roi.optimize(net, image(1, 3, 9, 9), inference=True)


def test_optimize_while_autograd_records():
    net, data = Body(lambda F, layer, x: layer(x)), image()
    net.initialize()
    expected = net(data)
    with mx.autograd.record():
        gluon_roi.optimize(net, data, inference=True)
    assert_near([net(data)], [expected])


@pytest.mark.parametrize("mode", ["lstm", "gru", "rnn_tanh"])
def test_recurrent_layers(mode):
    """MXNet's keep a state in oneDNN: of the weights, not of the sequence."""
    layer = {"lstm": gluon.rnn.LSTM, "gru": gluon.rnn.GRU, "rnn_tanh": gluon.rnn.RNN}[mode]
    net = gluon.nn.HybridSequential()
    net.add(layer(8, input_size=5), gluon.nn.Dense(3, flatten=False, in_units=8))
    net.initialize(mx.init.Normal(0.3))
    xs = [image(*shape, seed=n) for n, shape in enumerate([(4, 2, 5), (4, 2, 5), (6, 3, 5)] * 2)]
    expected = [net(x).asnumpy() for x in xs]
    gluon_roi.optimize(net, xs[0], inference=True)
    for x, wanted in zip(xs, expected):
        np.testing.assert_allclose(net(x).asnumpy(), wanted, **NEAR)
    net[0].collect_params(".*i2h_weight").initialize(mx.init.Constant(0.1), force_reinit=True)
    changed = net(xs[0]).asnumpy()
    net.hybridize(active=False)
    np.testing.assert_allclose(changed, net(xs[0]).asnumpy(), **NEAR)


def test_no_rois():
    """An empty array is a shape like another one, with and without rows in turn."""
    net = Body(lambda F, layer, x, rois: F.contrib.ROIAlign(layer(x), rois, (2, 2), 1.0))
    net.initialize(mx.init.Normal(0.1))
    x, rois = image(), mx.nd.array([[0, 1, 1, 3, 4], [0, 0, 0, 2, 2]])
    expected = net(x, rois).asnumpy()
    gluon_roi.optimize(net, x, rois, inference=True)
    with mx.util.np_shape():
        for rows in (2, 0, 1, 0, 2):
            np.testing.assert_allclose(net(x, rois[:rows]).asnumpy(), expected[:rows], **NEAR)


def test_weights_may_change_between_calls_of_each_shape():
    net = made()
    gluon_roi.optimize(net, *batch(), inference=True)
    for seed, size in itertools.product((1, 2), SIZES[:2]):
        other = made(seed)
        for (_, one), (_, value) in zip(
            sorted(net.collect_params().items()), sorted(other.collect_params().items())
        ):
            one.set_data(value.data())
        assert_near(net(*batch(*size)), other(*batch(*size)))


def test_weights_that_change_during_a_conversion(monkeypatch):
    """A thread converts old weights while another one sets new ones and calls: these are used."""
    net, other, inputs = made(), made(1), batch()
    gluon_roi.optimize(net, *inputs, inference=True)
    weights = dict(zip(*(sorted(one.collect_params()) for one in (net, other))))
    original, rest = network.convert, [1]

    def set_weights(factor):
        for one, name in weights.items():
            value = other.collect_params()[name].data()
            net.collect_params()[one].set_data(value * factor)

    def convert(*args):
        converted = original(*args)
        if rest:
            set_weights(rest.pop())
            with ThreadPoolExecutor(1) as pool:
                pool.submit(net, *inputs).result()
        return converted

    monkeypatch.setattr(network, "convert", convert)
    set_weights(2)
    net(*inputs)
    assert_near(net(*inputs), other(*inputs))
