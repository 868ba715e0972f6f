# SPDX-License-Identifier: Apache-2.0
"""AMP, MXNet's fusion for the CPU, quantization and the switch, in every order."""

import itertools
import json
import runpy
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from mxnet.contrib import quantization
from support.processes import forked

import gluon_roi

SCRIPT = Path(__file__).parents[1] / "scripts/amp_orders.py"


def amp_orders(dtype, order):
    """Run the script in a separate process, because AMP cannot be undone; return what it prints.

    Orders that import gluon_roi first run in a child of this process, which has imported it.
    """
    arguments = [str(SCRIPT), dtype, *order.split()]

    def run():
        sys.argv = arguments
        runpy.run_path(str(SCRIPT))

    if order.startswith("import"):
        status, shown, error = forked(run)
    else:
        command = [sys.executable, "-W", "ignore", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        status, shown, error = done.returncode, done.stdout, done.stderr
    if "mkldnn_convolution.cc" in error and dtype == "bfloat16":
        pytest.skip("this processor has no bfloat16 convolutions")
    assert status == 0, error
    return json.loads(shown)


@pytest.fixture(scope="module")
def without_amp():
    return amp_orders("float32", "import switch")


def orders(*by_day, night):
    """Orders of the steps; some are for the night."""
    return [*by_day, *(pytest.param(order, marks=pytest.mark.night) for order in night)]


@pytest.mark.parametrize(
    "order", orders("import amp switch", night=["amp import switch", "import switch amp"])
)
def test_amp_in_bfloat16(order, without_amp):
    """Outputs and gradients, within the 8 bits of bfloat16, and not those of float32."""
    found = amp_orders("bfloat16", order)
    assert found.keys() == without_amp.keys() and len(found) == 15
    for way, values in found.items():
        for value, plain in zip(values, without_amp[way]):
            error = np.abs(np.subtract(value, plain)).max()
            assert 0 < error < 0.02 * np.abs(plain).max(), way


@pytest.mark.parametrize("order", orders("import switch amp", night=["amp import", "import amp"]))
def test_amp_in_float16(order):
    """MXNet has no convolution in float16 for the CPU; types are inferred without one."""
    types = amp_orders("float16", order)
    assert len(types) == (15 if "switch" in order else 12)
    # MXNet's ROIAlign takes the widest type of maps and boxes; ours pools maps of float16 as well.
    for way, dtype in types.items():
        widest = way.startswith("ROIAlign") and "ours" not in way
        assert dtype == ("float32" if widest else "float16"), way


# Fusion and quantization.

DATA = mx.nd.array(np.random.RandomState(0).randn(1, 3, 16, 16))
BOXES = mx.nd.array([[[0, 0, 0, 6, 6], [0, 1, 1, 5, 7], [0, 10, 10, 190, 180]]])


class Detector(mx.gluon.HybridBlock):
    """Convolutions that MXNet fuses, and rows of RoIs that it quantizes."""

    def __init__(self):
        super().__init__()
        mx.random.seed(0)
        self.body = mx.gluon.nn.HybridSequential()
        self.body.add(
            mx.gluon.nn.Conv2D(16, 3, padding=1, use_bias=False, in_channels=3),
            mx.gluon.nn.BatchNorm(in_channels=16),
            mx.gluon.nn.Activation("relu"),
        )
        self.head = mx.gluon.nn.Dense(5, in_units=64)
        self.initialize(mx.init.Uniform(0.5))

    def hybrid_forward(self, F, data, boxes):
        boxes = boxes.reshape((-1, 5))
        images = F.slice_axis(boxes, axis=1, begin=0, end=1)
        rois = F.concat(images, F.slice_axis(boxes, axis=1, begin=1, end=5), dim=1)
        maps = self.body(data)
        return self.head(F.contrib.ROIAlign(maps, rois, (2, 2), 1.0))


def switch(net):
    return gluon_roi.optimize(net, DATA, BOXES)


def fuse(net):
    net.optimize_for(DATA, BOXES, backend="MKLDNN")
    return net


def fuse_later(net):
    net.hybridize(backend="MKLDNN")
    return net


def load(net, folder):
    net(DATA, BOXES)
    net.export(str(folder / "net"))
    file = str(folder / "net-symbol.json")
    return mx.gluon.SymbolBlock.imports(file, ["data0", "data1"], str(folder / "net-0000.params"))


class _Batch(mx.io.DataIter):
    """One batch of both inputs."""

    def __init__(self):
        super().__init__(1)
        self.provide_data = [
            mx.io.DataDesc("data0", DATA.shape),
            mx.io.DataDesc("data1", BOXES.shape),
        ]
        self.left = 1

    def reset(self):
        self.left = 1

    def next(self):
        if not self.left:
            raise StopIteration
        self.left = 0
        return mx.io.DataBatch([DATA, BOXES], label=None)


def quantize(net):
    """As docs/switch_reference.md shows."""
    return quantization.quantize_net(
        net,
        calib_mode="naive",
        calib_data=_Batch(),
        exclude_operators=["Concat", "slice_axis", "SliceChannel"],
    )


def operators(net):
    return [node["op"] for node in json.loads(net._cached_graph[1].tojson())["nodes"]]


FUSED, SWITCHED = "_sg_mkldnn_conv", "_gluon_roi_ROIAlign"


@pytest.mark.skipif(mx.__version__ < "1.9", reason="MXNet 1.8 fails to fuse this network")
@pytest.mark.parametrize("steps", [*itertools.permutations((switch, fuse)), (fuse_later, switch)])
def test_fusion(steps):
    expected = Detector()(DATA, BOXES).asnumpy()
    net = Detector()
    net.hybridize()
    for step in steps:
        net = step(net)
    np.testing.assert_allclose(net(DATA, BOXES).asnumpy(), expected, rtol=1e-4, atol=1e-4)
    assert {FUSED, SWITCHED} <= {*operators(net)}


@pytest.mark.parametrize("steps", [(switch, quantize), (quantize, switch)])
def test_quantization(steps):
    expected = Detector()(DATA, BOXES).asnumpy()
    net = Detector()
    for step in steps:
        net = step(net)
    error = np.abs(net(DATA, BOXES).asnumpy() - expected).max()
    assert 0 < error < 0.02 * np.abs(expected).max()
    assert {FUSED, SWITCHED} <= {*operators(net)}


@pytest.mark.parametrize("first", [switch, lambda net: net])
def test_import_and_switch(tmp_path, first):
    expected = Detector()(DATA, BOXES).asnumpy()
    net = Detector()
    net.hybridize()
    net = switch(load(first(net), tmp_path))
    np.testing.assert_allclose(net(DATA, BOXES).asnumpy(), expected, rtol=1e-4, atol=1e-4)
    assert SWITCHED in operators(net)


def test_summary(capsys):
    """MXNet refuses it for networks that are hybridized; this one was not when it was switched."""
    plain = Detector()
    plain.summary(DATA, BOXES)
    expected = capsys.readouterr().out
    net = switch(Detector())
    net.summary(DATA, BOXES)
    assert capsys.readouterr().out == expected and "Conv2D-1" in expected
    assert net._active and SWITCHED in operators(net)
