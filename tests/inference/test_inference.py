# SPDX-License-Identifier: Apache-2.0
"""optimize(..., inference=True): the same results, whatever is done with the network later."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from golden import record_inference
from inference_networks import outputs_of
from mxnet import gluon

import gluon_roi
import gluon_roi.onnx
from gluon_roi.__main__ import main
from gluon_roi.inference import convert, network, progress

NEAR: Any = {"rtol": 1e-4, "atol": 1e-4}


class Detector(gluon.HybridBlock):
    """A backbone with BatchNorm and a sum, a proposal head of few outputs, and a pooled head."""

    def __init__(self, **options):
        super().__init__(**options)
        with self.name_scope():
            self.first = gluon.nn.Conv2D(128, 3, padding=1, in_channels=3, use_bias=False)
            self.norm = gluon.nn.BatchNorm(in_channels=128)
            self.second = gluon.nn.Conv2D(128, 3, padding=1, in_channels=128)
            self.strided = gluon.nn.Conv2D(32, 1, strides=2, in_channels=128)
            self.scores = gluon.nn.Conv2D(3, 1, in_channels=32)
            self.offsets = gluon.nn.Conv2D(12, 1, in_channels=32)
            self.mask = gluon.nn.Conv2DTranspose(16, 2, strides=2, in_channels=32)

    def hybrid_forward(self, F, x, rois):
        x = F.relu(self.norm(self.first(x)))
        x = F.relu(self.second(x) + x)
        x = self.strided(x)
        pooled = F.contrib.ROIAlign(x, rois, (4, 4), 0.5, sample_ratio=2)
        return self.scores(x), self.offsets(x), self.mask(pooled)


def made(seed=0):
    mx.random.seed(seed)
    net = Detector()
    net.initialize(mx.init.Normal(0.05))
    return net


def batch(images=1, height=24, width=36, seed=0):
    random = np.random.RandomState(seed)
    x = mx.nd.array(random.uniform(-1, 1, (images, 3, height, width)))
    rois = mx.nd.array([[0, 1, 2, 20, 15], [images - 1, 3, 3, 9, 23]])
    return x, rois


def arrays(outputs):
    return [one.asnumpy() for one in outputs]


def assert_near(found, expected):
    for one, other in zip(arrays(found), arrays(expected)):
        np.testing.assert_allclose(one, other, **NEAR)


def changes(net):
    """What the passes changed in a network's graph."""
    (graph,) = net._call_cached_op._converted.values()
    return graph.changes


def test_results_and_passes():
    net, x = made(), batch()
    expected = net(*x)
    assert gluon_roi.optimize(net, *x, inference=True) is net
    assert_near(net(*x), expected)
    found = changes(net)
    for what, count in {
        "x + x as 2 * x": 0,
        "BatchNorm folded into weights": 1,
        "Deconvolutions as 1 x 1 convolutions": 1,
        "convolutions of one map joined": 2,
        "convolutions in MXNet's layout": 4,
        **({} if mx.__version__ < "1.9" else {"layers that MXNet did not fuse": 0}),
    }.items():
        assert found[what] == count
    assert gluon_roi.count(net)["_gluon_roi_ROIAlign"] == 1


def test_without_winograd():
    net, x = made(), batch()
    expected = net(*x)
    gluon_roi.optimize(net, *x, inference=True, winograd=False)
    assert_near(net(*x), expected)
    assert not any("Winograd" in what for what in changes(net))
    net.norm.running_var.set_data(mx.nd.ones(128) * 2)
    net(*x)
    assert not any("Winograd" in what for what in changes(net))
    with pytest.raises(TypeError, match="^optimize: winograd=False is for inference=True"):
        gluon_roi.optimize(net, *x, winograd=False)


@pytest.mark.parametrize("sizes", [(3, 24, 36), (1, 7, 5), (2, 65, 33)])
def test_other_sizes(sizes):
    net = made()
    gluon_roi.optimize(net, *batch(), inference=True, static_alloc=True)
    assert_near(net(*batch(*sizes)), made()(*batch(*sizes)))


def test_a_network_without_roi_operators():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(16, 3, padding=1, in_channels=3), gluon.nn.BatchNorm())
    net.initialize()
    x = batch()[0]
    expected = net(x).asnumpy()
    gluon_roi.optimize(net, x, inference=True)
    np.testing.assert_allclose(net(x).asnumpy(), expected, **NEAR)
    with pytest.raises(ValueError, match="^optimize: the network has no RoI operator"):
        gluon_roi.optimize(net, x)


def _by_set_data(net, other, folder):
    net.first.weight.set_data(other.first.weight.data())


def _in_place(net, other, folder):
    net.norm.running_var.data()[:] = 2


def _by_file(net, other, folder):
    file = str(folder / "other.params")
    other.save_parameters(file)
    net.load_parameters(file)


def _by_initialize(net, other, folder):
    mx.random.seed(1)
    net.initialize(mx.init.Normal(0.05), force_reinit=True)


def _by_cast_and_back(net, other, folder):
    weight = net.second.weight
    weight.cast("float16")
    weight.cast("float32")


@pytest.mark.parametrize(
    "change", [_by_set_data, _in_place, _by_file, _by_initialize, _by_cast_and_back]
)
def test_weights_that_change_are_folded_anew(change, tmp_path):
    net, same, x = made(), made(), batch()
    gluon_roi.optimize(net, *x, inference=True)
    net(*x)
    for one in (net, same):
        change(one, made(seed=1), tmp_path)
    assert_near(net(*x), same(*x))


def test_networks_that_share_parameters():
    net, x = made(), batch()
    twin = Detector(params=net.collect_params(), prefix=net.prefix)
    for one in (net, twin):
        gluon_roi.optimize(one, *x, inference=True)
        one(*x)
    net.first.weight.set_data(made(seed=1).first.weight.data())
    assert_near(twin(*x), net(*x))
    del net
    twin.first.weight.set_data(made(seed=2).first.weight.data())
    same = made()
    same.first.weight.set_data(made(seed=2).first.weight.data())
    assert_near(twin(*x), same(*x))


def test_types_and_contexts():
    net, x = made(), batch()
    gluon_roi.optimize(net, *x, inference=True)
    expected = net(*x)
    net.cast("float64")
    found = net(*(one.astype("float64") for one in x))
    assert all(one.dtype == np.float64 for one in found)
    assert_near(found, expected)
    # The passes are for float32.
    assert [what for what, count in changes(net).items() if count] == [
        "layers that MXNet did not fuse"
    ]
    net.cast("float32")
    net.collect_params().reset_ctx(mx.cpu(1))
    found = net(*(one.as_in_context(mx.cpu(1)) for one in x))
    assert all(one.context == mx.cpu(1) for one in found)
    assert_near(found, expected)


def test_ways_to_call():
    """Without hybridize, hybridized again, and copied."""
    net, x = made(), batch()
    expected = net(*x)
    gluon_roi.optimize(net, *x, inference=True)
    net.hybridize(active=False)
    assert_near(net(*x), expected)
    twin = copy.deepcopy(net)
    twin.hybridize()
    net.hybridize(static_alloc=True, static_shape=True)
    assert_near(net(*x), expected)
    assert_near(twin(*x), expected)
    twin.first.weight.set_data(twin.first.weight.data() * 0)
    assert_near(net(*x), expected)
    assert abs(arrays(twin(*x))[0] - arrays(expected)[0]).max() > 1e-3


def test_threads():
    net, batches = made(), [batch(images=n + 1, seed=n) for n in range(4)]
    expected = [arrays(net(*x)) for x in batches]
    nets = []
    for _ in batches:
        nets.append(made())
        gluon_roi.optimize(nets[-1], *batches[0], inference=True)
    found: list = [None] * len(batches)

    def call(number):
        found[number] = arrays(nets[number](*batches[number]))

    threads = [threading.Thread(target=call, args=(n,)) for n in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(found, expected):
        for a, b in zip(one, other):
            np.testing.assert_allclose(a, b, **NEAR)


def test_training_is_refused_until_it_is_switched_back():
    net, x = made(), batch()
    gluon_roi.optimize(net, *x, inference=True)
    with mx.autograd.record(), pytest.raises(
        ValueError, match="cannot be trained; expected a call"
    ):
        net(*x)
    with mx.autograd.train_mode(), pytest.raises(ValueError, match="cannot be trained"):
        net(*x)
    gluon_roi.optimize(net, *x)
    with mx.autograd.record():
        loss = net(*x)[0].sum()
    loss.backward()
    assert abs(net.first.weight.grad().asnumpy()).max() > 0


def test_a_child_that_was_converted_before_can_be_trained_again():
    class Outer(gluon.Block):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, *args):
            return self.inner(*args)

    net, x = made(), batch()
    gluon_roi.optimize(net, *x, inference=True)
    outer = gluon_roi.optimize(Outer(net), *x)
    with mx.autograd.record():
        outer(*x)[0].sum().backward()


def test_files_are_those_of_the_network_before(tmp_path):
    """Export, ONNX and save_parameters have the switched network and its own parameters."""
    net, same, x = made(), made(), batch()
    for one, inference in ((net, True), (same, False)):
        gluon_roi.optimize(one, *x, inference=inference)
        folder = tmp_path / str(inference)
        folder.mkdir()
        one.export(str(folder / "net"))
        one.save_parameters(str(folder / "blocks.params"))
        gluon_roi.onnx.export(one, [array.shape for array in x], folder / "net.onnx")
    for file in ("net-0000.params", "blocks.params"):
        ours, theirs = (mx.nd.load(str(tmp_path / kind / file)) for kind in ("True", "False"))
        assert [array.shape for array in ours.values()] == [a.shape for a in theirs.values()]
        for one, other in zip(ours.values(), theirs.values()):
            np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())
    sizes = [(tmp_path / kind / "net.onnx").stat().st_size for kind in ("True", "False")]
    assert abs(sizes[0] - sizes[1]) < 2000  # prefixes of names


@pytest.fixture
def files(tmp_path):
    """A symbol file and a file of parameters, as HybridBlock.export writes them."""
    net, x = made(), batch()
    net.hybridize()
    outputs = net(*x)
    net.export(str(tmp_path / "net"))
    return str(tmp_path / "net-symbol.json"), str(tmp_path / "net-0000.params"), x, outputs


@pytest.mark.parametrize("shapes", [None, {"data0": (1, 3, 600, 800), "data1": (300, 5)}])
def test_symbols(files, shapes, tmp_path):
    symbol, params, x, expected = files
    new, values = gluon_roi.optimize(symbol, params=params, inference=True, shapes=shapes)
    before = mx.sym.load(symbol)
    assert new.list_outputs() == before.list_outputs()
    assert {"data0", "data1"} <= set(new.list_arguments())
    assert {name[:4] for name in values} == {"arg:"}  # nothing is left of BatchNorm's states
    new.save(str(tmp_path / "new-symbol.json"))
    mx.nd.save(str(tmp_path / "new-0000.params"), values)
    block = gluon.SymbolBlock.imports(
        str(tmp_path / "new-symbol.json"), ["data0", "data1"], str(tmp_path / "new-0000.params")
    )
    assert_near(block(*x), expected)
    loaded, arguments, states = mx.model.load_checkpoint(str(tmp_path / "new"), 0)
    arguments.update(data0=x[0], data1=x[1])
    executor = loaded.bind(mx.cpu(), arguments, aux_states=states, grad_req="null")
    assert_near(executor.forward(), expected)


def test_a_symbol_block(files):
    symbol, params, x, expected = files
    block = gluon.SymbolBlock.imports(symbol, ["data0", "data1"], params)
    gluon_roi.optimize(block, *x, inference=True)
    assert_near(block(*x), expected)


def test_command_line(files, tmp_path, capsys):
    symbol, params, x, expected = files
    out, out_params = str(tmp_path / "out-symbol.json"), str(tmp_path / "out.params")
    line = ["switch", symbol, out, "--inference", "--params", params, "--out-params", out_params]
    assert main([*line, "--shape", "data0=1,3,24,36"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == [out, out_params]
    assert "BatchNorm folded into weights: 1" in printed
    block = gluon.SymbolBlock.imports(out, ["data0", "data1"], out_params)
    assert_near(block(*x), expected)
    small, small_params = str(tmp_path / "small-symbol.json"), str(tmp_path / "small.params")
    line = ["switch", symbol, small, "--inference", "--params", params, "--out-params"]
    assert main([*line, small_params, "--no-winograd"]) == 0
    assert "WinogradConvolution" in Path(out).read_text(encoding="utf-8")
    assert "Winograd" not in Path(small).read_text(encoding="utf-8") + capsys.readouterr().out
    block = gluon.SymbolBlock.imports(small, ["data0", "data1"], small_params)
    assert_near(block(*x), expected)


@pytest.mark.parametrize(
    "options, message",
    [
        (["--no-winograd"], "switch: --no-winograd is for --inference"),
        (["--inference"], "switch: --inference changes the parameters too: expected --params"),
        (["--params", "P"], "switch: --params is for --inference"),
        (["--inference", "--params", "P", "--out-params", "P"], "another file than --params"),
        (["--inference", "--params", "P", "--out-params", "S"], "another file than IN"),
        (["--inference", "--params", "P", "--out-params", "O"], "another file than OUT"),
        (["--inference", "--params", "P", "--out-params", "N", "--shape", "x=1,2"], "no input 'x'"),
    ],
)
def test_refused_command_lines(files, tmp_path, capsys, options, message):
    symbol, params, *_ = files
    paths = {"S": symbol, "P": params, "O": str(tmp_path / "out"), "N": str(tmp_path / "new")}
    before = sorted(tmp_path.iterdir())
    assert main(["switch", symbol, paths["O"], *(paths.get(one, one) for one in options)]) == 2
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


def test_wrong_arguments(files):
    symbol, params, x, _ = files
    net = made()
    with pytest.raises(TypeError, match="^optimize: params is for inference=True$"):
        gluon_roi.optimize(symbol, params=params)
    with pytest.raises(
        TypeError, match="params: expected the symbol's parameters, .* got NoneType"
    ):
        gluon_roi.optimize(symbol, inference=True)
    with pytest.raises(TypeError, match="params: w: expected an array on the CPU, got int"):
        gluon_roi.optimize(symbol, params={"w": 1}, inference=True)
    with pytest.raises(TypeError, match="params and shapes are for a symbol"):
        gluon_roi.optimize(net, *x, params={}, inference=True)
    with pytest.raises(TypeError, match="^optimize: inference: expected a HybridBlock"):
        gluon_roi.optimize(gluon.nn.Sequential(), *x, inference=True)


def test_gpus_are_refused():
    with pytest.raises(ValueError, match=r"expects a network on the CPU, got context gpu\(0\)$"):
        network.check_context(mx.gpu(0))


def test_progress_is_shown_on_a_terminal_after_two_seconds(monkeypatch, capsys):
    times = iter([0, 1, 3, 4])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    assert list(progress.with_progress("abc")) == ["a", "b", "c"]
    shown = capsys.readouterr().err.split("\r")
    assert [one.count("#") for one in shown] == [0, 10, 20, 30]


def test_numpy_arrays():
    with mx.util.np_shape(True), mx.util.np_array(True):
        net = gluon.nn.HybridSequential()
        net.add(gluon.nn.Conv2D(16, 3, padding=1, in_channels=3), gluon.nn.BatchNorm())
        net.initialize()
        x = mx.np.array(batch()[0].asnumpy())
        expected = net(x).asnumpy()
        gluon_roi.optimize(net, x, inference=True)
        found = net(x)
        assert type(found) is mx.np.ndarray
        np.testing.assert_allclose(found.asnumpy(), expected, **NEAR)
        assert net(mx.np.zeros((0, 3, 8, 8))).shape == (0, 16, 8, 8)


def test_a_recorded_symbol_loads_and_gives_the_recorded_bytes():
    symbol = mx.sym.load(f"{record_inference.STEM}.json")
    recorded = dict(np.load(f"{record_inference.STEM}.npz"))
    fuses = gluon_roi.build_info()["simd"] != "sse2"  # SSE2 rounds products, too
    for name, out in record_inference.outputs(symbol, recorded).items():
        np.testing.assert_allclose(out, recorded[name], rtol=0, atol=0 if fuses else 1e-4)


# ---- Graphs that a pass could take for others ----------------------------------------------------


def convert_and_compare(symbol, params, inputs):
    """The changes; outputs of the symbol and of the converted one are equal but for rounding."""
    made = convert.convert(symbol, params, inputs)
    found = outputs_of(made.symbol, made.parameters, inputs)
    for one, other in zip(found, outputs_of(symbol, params, inputs)):
        np.testing.assert_allclose(one, other, **NEAR)
    return made.changes


def test_norms_with_the_same_arrays_and_other_attributes():
    """Layers and BatchNorms share arrays, but not epsilon and fix_gamma."""
    names = ("gamma", "beta", "moving_mean", "moving_var")
    shared = {name: mx.sym.var(name) for name in names}
    weight, layers = mx.sym.var("weight"), []
    attributes: list[dict[str, Any]] = [{"eps": 1e-3}, {"eps": 0.5}, {"fix_gamma": False}]
    for n, options in enumerate(attributes):
        layer = mx.sym.Convolution(
            mx.sym.var(f"data{n}"), weight, kernel=(1, 1), num_filter=16, no_bias=True
        )
        layers.append(mx.sym.BatchNorm(layer, **shared, **options))
    params = {name: mx.nd.random.uniform(0.5, 2, (16,)) for name in names}
    params["weight"] = mx.nd.random.normal(shape=(16, 3, 1, 1))
    inputs = {f"data{n}": mx.nd.random.normal(shape=(1, 3, 4, 5)) for n in range(3)}
    changes = convert_and_compare(mx.sym.Group(layers), params, inputs)
    assert changes["BatchNorm folded into weights"] == 3


def pyramid(levels, add, channels):
    """Each level, from the coarsest on, upsampled and added to the next."""
    maps = [mx.sym.var(f"level{n}") for n in range(levels)]
    total = maps[0]
    for fine in maps[1:]:
        large = mx.sym.UpSampling(total, scale=2, sample_type="nearest")
        total = add(mx.sym.slice_like(large, fine, axes=(2, 3)), fine)
    sides = [5, 9, 18, 35][:levels]
    inputs = {
        f"level{n}": mx.nd.random.normal(shape=(1, channels[min(n, 1)], side, side))
        for n, side in enumerate(sides)
    }
    return total, {}, inputs


@pytest.mark.parametrize("add", [mx.sym.elemwise_add, mx.sym.add_n])
def test_every_level_of_a_pyramid_is_joined(add):
    changes = convert_and_compare(*pyramid(4, add, (6, 6)))
    assert changes["upsampling and addition as one operator"] == 3


def test_a_sum_that_broadcasts_channels_is_none_of_a_pyramid():
    changes = convert_and_compare(*pyramid(2, mx.sym.broadcast_add, (6, 1)))
    assert changes["upsampling and addition as one operator"] == 0


def test_a_residual_of_another_type_is_added_as_before():
    with mx.util.np_array(True):
        data, other = mx.sym.var("data").as_np_ndarray(), mx.sym.var("other").as_np_ndarray()
        weight = mx.sym.var("weight").as_np_ndarray()
        layer = mx.sym.npx.convolution(
            data, weight, kernel=(3, 3), pad=(1, 1), num_filter=128, no_bias=True
        )
        symbol = layer + other
    params = {"weight": mx.nd.random.normal(scale=0.05, shape=(128, 128, 3, 3))}
    inputs = {
        "data": mx.nd.random.normal(shape=(1, 128, 16, 20)),
        "other": mx.nd.random.normal(shape=(1, 128, 16, 20)).astype("float64"),
    }
    made = convert.convert(symbol, params, inputs)
    assert made.changes["3 x 3 convolutions by Winograd's algorithm"] == 1
    assert "residual" not in made.symbol.tojson()
