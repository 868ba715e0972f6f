# SPDX-License-Identifier: Apache-2.0
"""gluon_roi.onnx.to_torch: exported models as modules of PyTorch.

Runs where torch is installed, which is the environment of `nox -s torch` (make test-all).
test_to_torch_recorded.py compares MXNet with what was recorded there; test_onnx_zoo.py has the
families of GluonCV.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import onnx_graphs
import onnx_models
import pytest
from golden.record_torch import digest
from support import small_network
from support.damages import files_up_to
from support.graphs import MAKERS
from support.onnx_evaluator import run_in_torch

import gluon_roi
from gluon_roi.__main__ import main
from testing.onnx_runtimes import check

onnx = pytest.importorskip("onnx")
torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")
from gluon_roi_torch import to_program  # noqa: E402
from gluon_roi_torch.operators import OPERATORS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
MODELS = onnx_models.models()
S = mx.sym


@pytest.mark.parametrize("name", MODELS)
def test_roi_operators(name, tmp_path):
    path = tmp_path / "model.onnx"
    MODELS[name].export(path)
    with np.load(check.ARRAYS) as arrays:
        assert check.differences(check.torch(str(path)), arrays, name) <= check.tolerance(name)


@pytest.mark.night
def test_random_graphs(tmp_path):
    """Each operator that can be exported, with others that are drawn."""
    path = tmp_path / "model.onnx"
    for seed in range(len(MAKERS)):
        assert not onnx_graphs.check(seed, path, run_in_torch), seed


# ---- Weights and gradients -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return small_network.exported(tmp_path_factory.mktemp("small") / "model.onnx")


def test_names_are_gluons(small):
    net, _, path = small
    module = gluon_roi.onnx.to_torch(path)
    parameters = net.collect_params()
    weights = {name for name, p in parameters.items() if p.grad_req != "null"}
    assert dict(module.named_parameters()).keys() == weights
    state = module.state_dict()
    assert state.keys() == {name for name in parameters if name != "small_anchors"}
    for name, value in state.items():
        np.testing.assert_array_equal(value.numpy(), parameters[name].data().asnumpy())
    assert not module.training and not module.small_anchors.requires_grad


def test_gradients_are_mxnets(small):
    net, inputs, path = small
    found = small_network.in_torch(gluon_roi.onnx.to_torch(path), inputs)
    small_network.assert_same(found, small_network.in_mxnet(net, inputs))


def test_recorded_results_are_todays(small):
    _, inputs, path = small
    with np.load(ROOT / "tests/golden/torch.npz") as recorded:
        assert recorded["digest"] == digest(path)
        expected = {name: recorded[name] for name in recorded.files if name != "digest"}
    small_network.assert_same(
        small_network.in_torch(gluon_roi.onnx.to_torch(path), inputs), expected
    )


@pytest.mark.parametrize("name", ["resnet18_v1b", "mobilenetv2_0.25", "se_resnet18_v1"])
def test_gradients_of_backbones(name, tmp_path):
    pytest.importorskip("gluoncv")
    from testing.onnx_runtimes import zoo

    mx.random.seed(0)
    image = mx.nd.random.normal(shape=(1, 3, 64, 64))
    net = zoo.built(zoo.Model(name, (image.shape,)), [image])
    for block in _blocks(net):
        if isinstance(block, mx.gluon.nn.BatchNorm):
            block._kwargs["use_global_stats"] = True  # see small_network
            block.beta.set_data(mx.nd.random.normal(shape=block.beta.shape))  # no kink is hit
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(net, [image.shape], path, fold=False)
    inputs = [image.asnumpy()]
    found = small_network.in_torch(gluon_roi.onnx.to_torch(path), inputs)
    small_network.assert_same(found, small_network.in_mxnet(net, inputs))


def _blocks(block):
    yield block
    for child in block._children.values():
        yield from _blocks(child)


def test_a_folded_file_has_no_batch_normalization(small, tmp_path):
    net, inputs, path = small
    folded = tmp_path / "folded.onnx"
    small_network.export(net, folded)
    module = gluon_roi.onnx.to_torch(folded)
    assert not any("batchnorm" in name for name in module.state_dict())
    image, rois = map(torch.tensor, inputs)
    np.testing.assert_allclose(
        module(image, rois).detach(), gluon_roi.onnx.to_torch(path)(image, rois).detach(), atol=1e-5
    )


def test_training_updates_statistics(small):
    _, inputs, path = small
    module = gluon_roi.onnx.to_torch(path).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module(*map(torch.tensor, inputs))
    changed = [n for n, value in module.state_dict().items() if not value.equal(before[n])]
    assert sorted(changed) == [
        f"small_batchnorm{n}_running_{kind}" for n in (0, 1) for kind in ("mean", "var")
    ]


# ---- Sizes, saving -------------------------------------------------------------------------------


def test_sizes_are_the_files_free_axes(small):
    net, _, path = small
    module = gluon_roi.onnx.to_torch(path)
    random = np.random.RandomState(3)
    for batch, height, width, rois in ((1, 24, 32, 4), (3, 40, 17, 0), (2, 8, 9, 11)):
        image = random.randn(batch, 3, height, width).astype("float32")
        boxes = np.full((rois, 5), [0, 1, 2, 7, 6], "float32")
        found = module(torch.tensor(image), torch.tensor(boxes)).detach().numpy()
        expected = net(mx.nd.array(image), mx.nd.array(boxes)).asnumpy() if rois else found
        assert found.shape == (rois, 5)
        np.testing.assert_allclose(found, expected, atol=1e-5)


LOAD = """
import sys
sys.modules.update(dict.fromkeys(("mxnet", "gluon_roi", "gluon_roi_torch", "onnx")))  # not found
import numpy as np, torch, torchvision
module = torch.export.load(sys.argv[1]).module()
arrays = np.load(sys.argv[2])
found = module(torch.tensor(arrays["image"]), torch.tensor(arrays["rois"]))
np.testing.assert_allclose(found.detach().numpy(), arrays["output"], atol=1e-5)
names = sorted(name for name, _ in module.named_parameters())
assert names == arrays["names"].tolist(), names
"""


def test_a_saved_module_needs_neither_package(small, tmp_path):
    """Neither gluon_roi nor MXNet; with other sizes than those of the example."""
    net, inputs, path = small
    module = gluon_roi.onnx.to_torch(path)
    auto = torch.export.Dim.AUTO
    free = {0: auto, 2: auto, 3: auto}, {0: auto}
    arrays = tuple(map(torch.tensor, inputs))
    program = torch.export.export(module, arrays, dynamic_shapes=free)
    torch.export.save(program, tmp_path / "model.pt2")
    image = np.random.RandomState(4).randn(3, 3, 40, 50).astype("float32")
    rois = np.array([[2, 1, 1, 30, 20], [0, 4, 4, 9, 39]], "float32")
    names = sorted(name for name, _ in module.named_parameters())
    output = net(mx.nd.array(image), mx.nd.array(rois)).asnumpy()
    np.savez(tmp_path / "arrays.npz", image=image, rois=rois, output=output, names=names)
    command = [sys.executable, "-c", LOAD, "model.pt2", "arrays.npz"]
    subprocess.run(command, cwd=tmp_path, check=True)


COMMAND = """
import sys
sys.modules.update(dict.fromkeys(("mxnet", "gluon_roi", "gluon_roi_torch")))
import torch, torchvision
extra = {"metadata.json": ""}
module = torch.export.load(sys.argv[1], extra_files=extra).module()
pooled = module(torch.ones(3, 2, 9, 5), torch.tensor([[2.0, 0, 0, 4, 4]]))
print(extra["metadata.json"], *pooled.shape)
"""


def _symbol_files(folder):
    maps = S.relu(S.Convolution(S.var("data"), name="conv", kernel=(3, 3), num_filter=4))
    pool = S.contrib.ROIAlign(maps, S.var("rois"), (2, 2), 1.0, sample_ratio=2)
    pool.save(str(folder / "net-symbol.json"))
    params = {"arg:conv_weight": mx.nd.ones((4, 2, 3, 3)), "arg:conv_bias": mx.nd.ones((4,))}
    mx.nd.save(str(folder / "net-0000.params"), params)
    (folder / "about.json").write_text('{"classes": ["dog"]}')


LINE = ["export", "net-symbol.json", "net-0000.params", "--shape", "data=2,2,8,8"]
LINE += ["--shape", "rois=3,5", "--metadata", "about.json"]


def test_command(tmp_path, monkeypatch, capsys):
    _symbol_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    line = [*LINE, "-o", "net.pt2", "--dynamic", "data=0,2,3", "--dynamic", "rois=0"]
    assert main(line) == 0 and capsys.readouterr().out == "net.pt2\n"
    command = [sys.executable, "-c", COMMAND, "net.pt2"]
    expected = '{"classes": ["dog"]} 1 4 2 2'
    assert subprocess.check_output(command, text=True).strip() == expected


def test_a_full_disk(tmp_path, monkeypatch, capsys):
    """PyTorch would end the process; the old program stays, and nothing else."""
    _symbol_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main([*LINE, "-o", "net.pt2"]) == 0
    size = (tmp_path / "net.pt2").stat().st_size
    (tmp_path / "net.pt2").write_text("old")
    capsys.readouterr()
    with files_up_to(size - 40):
        assert main([*LINE, "-o", "net.pt2"]) == 2
    message = "gluon_roi: export: -o: the program cannot be written to net.pt2: File too large\n"
    assert capsys.readouterr().err == message and (tmp_path / "net.pt2").read_text() == "old"
    assert len([*tmp_path.iterdir()]) == 4


def test_an_axis_that_cannot_stay_free(tmp_path, monkeypatch, capsys):
    """An operator that only takes the size of the example; nothing is written."""
    _symbol_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(OPERATORS, "Relu", _of_one_size)
    assert main([*LINE, "-o", "net.pt2", "--dynamic", "data=2"]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "has no program of torch.export for any size" in printed.err
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".json", ".params"]


def _of_one_size(data: Any) -> Any:
    return data.reshape(-1, 4, 6, 6)


@pytest.mark.parametrize(
    "shapes, reason",
    [
        (None, r"input data0: expected \(any, 3, any, any\), got None"),
        ([(2, 3, 24, 32)], "expected a shape for each of 2 inputs, got 1"),
        ([(2, 4, 24, 32), (6, 5)], r"input data0: .*, got \(2, 4, 24, 32\)"),
    ],
)
def test_shapes_of_a_program(small, shapes, reason):
    with pytest.raises(ValueError, match=f"^gluon_roi_torch.to_program: shapes: {reason}"):
        to_program(small[2], shapes)


CONVERT = """
import sys
sys.modules.update(dict.fromkeys(("mxnet", "gluon_roi")))  # not found
sys.path.insert(0, sys.argv[1])
from gluon_roi_torch import to_torch
print(sorted(to_torch(sys.argv[2]).state_dict())[0])
"""


def test_converting_needs_no_mxnet(small):
    command = [sys.executable, "-c", CONVERT, str(ROOT), str(small[2])]
    assert subprocess.check_output(command, text=True).strip() == "small_batchnorm0_beta"


def test_a_module_is_copied_and_pickled(small, tmp_path):
    import copy

    _, inputs, path = small
    module = gluon_roi.onnx.to_torch(path)
    torch.save(module, tmp_path / "module.pt")
    arrays = tuple(map(torch.tensor, inputs))
    for other in (copy.deepcopy(module), torch.load(tmp_path / "module.pt", weights_only=False)):
        assert other(*arrays).equal(module(*arrays))


def test_metadata(tmp_path):
    path = tmp_path / "model.onnx"
    gluon_roi.onnx.export(S.abs(S.var("x")), [(2, 3)], path, metadata={"classes": ["a"], "n": 2})
    assert gluon_roi.onnx.to_torch(path).meta == {"classes": ["a"], "n": 2}


def test_outputs_keep_their_order(tmp_path):
    """A weight, an input, and one tensor twice as outputs."""
    x, w = S.var("x"), S.var("w")
    y = S.exp(x)
    path = tmp_path / "model.onnx"
    params = {"w": mx.nd.array([5.0])}
    names = ["a", "x", "b", "c"]
    symbol = S.Group([w, x, y, S.identity(y)])
    gluon_roi.onnx.export(symbol, [(2,)], path, params, output_names=names)
    found = gluon_roi.onnx.to_torch(path)(torch.tensor([0.0, 1.0]))
    expected: list[Any] = [[5.0], [0.0, 1.0], np.exp([0, 1]), np.exp([0, 1])]
    for mine, theirs in zip(found, expected):
        np.testing.assert_allclose(mine.detach(), theirs, rtol=1e-6)


# ---- Refusals ------------------------------------------------------------------------------------


def _model(path, *nodes, opset=16, inputs=("x",)):
    value = lambda name: onnx.helper.make_tensor_value_info(name, 1, [2, 3])  # noqa: E731
    graph = onnx.helper.make_graph(list(nodes), "g", [*map(value, inputs)], [value("y")])
    opsets = [onnx.helper.make_opsetid("", opset)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets), str(path))
    return path


def _node(op, *inputs, **attributes):
    return onnx.helper.make_node(op, list(inputs), ["y"], name="node7", **attributes)


def test_loops_are_refused_by_name(tmp_path):
    body = onnx.helper.make_graph([], "body", [], [])
    path = _model(tmp_path / "m.onnx", _node("Loop", "", "", "x", body=body))
    with pytest.raises(NotImplementedError, match=r"onnx.to_torch: node node7 \(Loop\): this op"):
        gluon_roi.onnx.to_torch(path)


@pytest.mark.parametrize(
    "node, reason",
    [
        (_node("CumSum", "x", "x", exclusive=1), r"\(CumSum\): exclusive=1 has no translation"),
        (_node("Gelu", "x"), r"\(Gelu\): this operator has no translation"),
        (_node("Softmax", "x", colour=1), r"\(Softmax\): attribute colour has no translation"),
        (_node("Abs", "x", domain="other"), r"\(Abs\): operators of other have no translation"),
    ],
)
def test_what_has_no_translation_is_refused_by_name(node, reason, tmp_path):
    path = _model(tmp_path / "m.onnx", node)
    with pytest.raises(NotImplementedError, match=f"^onnx.to_torch: node node7 {reason}$"):
        gluon_roi.onnx.to_torch(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="onnx.to_torch: path: there is no file .*none.onnx"
    ):
        gluon_roi.onnx.to_torch(tmp_path / "none.onnx")
    text = tmp_path / "text.onnx"
    text.write_text(json.dumps({"nodes": []}))
    with pytest.raises(ValueError, match="text.onnx is not an ONNX model"):
        gluon_roi.onnx.to_torch(text)
    path = _model(tmp_path / "old.onnx", _node("Abs", "x"), opset=11)
    with pytest.raises(ValueError, match="expected opset 16, .*, got 11"):
        gluon_roi.onnx.to_torch(path)


def test_the_first_import_is_either(tmp_path):
    """MXNet and torch work in one process, whichever comes first."""
    for first, second in (("gluon_roi", "torch"), ("torch", "gluon_roi")):
        code = (
            f"import {first}, {second}, mxnet; print(torch.ones(1) + mxnet.nd.ones(1).asscalar())"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", code]
        assert "tensor([2.])" in subprocess.check_output(command, env=environment, text=True)
