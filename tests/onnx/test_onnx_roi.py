# SPDX-License-Identifier: Apache-2.0
"""RoI operators in ONNX: rows that are pooled, and boxes that are thinner than a cell."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import onnx_models
import pytest
from support.onnx_evaluator import run

import gluon_roi

onnx = pytest.importorskip("onnx")
from onnx import helper, numpy_helper  # noqa: E402

from testing.onnx_runtimes import check  # noqa: E402

#: The operators of ONNX that read cells of maps.
POOLING = ("RoiAlign", "MaxRoiPool", "GatherND", "MatMul")


# ---- Padding -------------------------------------------------------------------------------------


def _with_outputs(path: Path, operators: tuple[str, ...]) -> list[int]:
    """Make the outputs of these operators outputs of the model; return which ones they are."""
    model = onnx.load(str(path))
    names = [node.output[0] for node in model.graph.node if node.op_type in operators]
    number = len(model.graph.output)
    known = {output.name for output in model.graph.output}
    names = [name for name in names if name not in known]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    onnx.save(model, str(path))
    return list(range(number, number + len(names)))


#: Models whose rois are the second input, (K, 5) or (K, 6).
MODELS = onnx_models.models()
BEYOND = [name for name in MODELS if name.endswith("-beyond") and "ROI" in name]


@pytest.mark.parametrize("name", BEYOND)
def test_padding_rows_are_not_pooled(name, tmp_path):
    """The runtime reads as many cells as for a model of the other rows alone."""
    model, path = MODELS[name], tmp_path / "model.onnx"
    model.export(path)
    pooled = _with_outputs(path, POOLING)
    *maps, rois = model.inputs
    rois = rois.copy()
    rois[:, 0] = 1
    few = rois[:4]
    padding = rois * 1
    padding[:, 0] = -1
    many = np.vstack([padding[:9], few, padding])
    expected = model.call(*maps, many).asnumpy()
    outputs, alone = run(path, *maps, many), run(path, *maps, few)
    np.testing.assert_allclose(outputs[0], expected, atol=1e-4)
    assert not outputs[0][:9].any() and outputs[0][9:13].any()
    assert pooled
    for number in pooled:
        assert outputs[number].shape == alone[number].shape


def test_levels_of_float64_boxes(tmp_path):
    """A box of a pyramid is pooled from the map of its size before it is rounded to float32."""
    rng = np.random.RandomState(0)
    first, sides = rng.uniform(0, 60, (40, 2)), 224 * (1 - 1e-6) + np.linspace(-2e-5, 2e-5, 40)
    rois = np.hstack([np.zeros((40, 1)), first, first + sides[:, None]])
    maps = [np.full((1, 1, 300 >> level, 300 >> level), level, "float32") for level in range(2)]
    symbol = gluon_roi.sym.PyramidROIAlign(
        [mx.sym.var("map0"), mx.sym.var("map1")], mx.sym.var("rois"), 1, (1 / 8, 1 / 16)
    )
    path, inputs = tmp_path / "model.onnx", [*maps, rois]
    gluon_roi.onnx.export(
        symbol, [a.shape for a in inputs], path, input_types=[a.dtype for a in inputs]
    )
    levels = gluon_roi.rois.assign_levels(rois, k_min=3, k_max=4)
    assert set(levels) == {3, 4}
    assert run(path, *inputs)[0].ravel().tolist() == (levels - 3).tolist()


@pytest.mark.parametrize(
    "runtime", ["onnxruntime", pytest.param("openvino", marks=pytest.mark.night)]
)
@pytest.mark.parametrize("name", BEYOND)
def test_no_row_to_pool(name, runtime, tmp_path):
    pytest.importorskip(runtime)
    model, path = MODELS[name], tmp_path / "model.onnx"
    model.export(path)
    call = check.RUNTIMES[runtime](str(path), 1)
    *maps, rois = model.inputs
    padding = rois.copy()
    padding[:, 0] = -1
    shape = model.call(*maps, padding).shape
    for rows in (padding, padding[:0]):
        (found,) = call(*maps, rows)
        assert found.shape == (len(rows), *shape[1:])
        assert not found.any()


@pytest.mark.parametrize("name", BEYOND)
def test_channels_cannot_be_dynamic(name, tmp_path):
    """The output has as many channels, or a share of them."""
    model, path = MODELS[name], tmp_path / "model.onnx"
    dynamic = [(1, 2, 3)] * (model.maps or 1) + [(0,)]
    model = dataclasses.replace(model, options={"dynamic": dynamic})
    with pytest.raises(NotImplementedError, match="axis 1 of the .* is dynamic, expected a static"):
        model.export(path)
    assert not path.exists()


# ---- Large batches and maps ----------------------------------------------------------------------


def _rotated(boxes: np.ndarray) -> np.ndarray:
    return np.hstack([boxes, np.arange(len(boxes))[:, None] * 7.0])


#: Each: a block, and its rois from (K, 4) boxes.
SAMPLED: dict[str, Any] = {
    "RotatedROIAlign": (gluon_roi.RotatedROIAlign(2, 1.0, sampling_ratio=2), _rotated),
    "DeformablePSROIPool": (gluon_roi.DeformablePSROIPool(2, 1.0), lambda boxes: boxes),
    "DeformablePSROIPool, one group": (
        gluon_roi.DeformablePSROIPool(2, 1.0, group_size=1), lambda boxes: boxes,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAMPLED)
def test_the_batch_does_not_change_the_accuracy(name, tmp_path):
    """Positions are as exact in the last image of many as in a single one."""
    block, rows_of = SAMPLED[name]
    random, path, images = np.random.RandomState(0), tmp_path / "model.onnx", 64
    data = random.randn(images, 4, 400, 8).astype("float32")
    boxes = random.uniform(0, [8, 400, 8, 400], (200, 4))
    boxes[:, 2:] = boxes[:, :2] + random.uniform(1, 20, (200, 2))
    rois = np.hstack([np.arange(200)[:, None] % images, rows_of(boxes)]).astype("float32")
    gluon_roi.onnx.export(block, [(1, 4, 9, 9), rois.shape], path, dynamic=[(0, 2, 3), (0,)])
    expected = block(mx.nd.array(data), mx.nd.array(rois)).asnumpy()
    np.testing.assert_allclose(run(path, data, rois)[0], expected, atol=2e-6)


@pytest.mark.parametrize(
    "runtime", ["onnxruntime", pytest.param("openvino", marks=pytest.mark.night)]
)
@pytest.mark.parametrize("name", SAMPLED)
def test_one_image(name, runtime, tmp_path):
    """A batch of one, which is sampled with GridSample."""
    pytest.importorskip(runtime)
    block, rows_of = SAMPLED[name]
    random, path = np.random.RandomState(0), tmp_path / "model.onnx"
    data = random.randn(1, 4, 20, 23).astype("float32")
    boxes = random.uniform(-4, 26, (100, 4))
    rois = np.hstack([random.randint(-1, 1, (100, 1)), rows_of(boxes)]).astype("float32")
    gluon_roi.onnx.export(block, [(1, 4, 9, 9), rois.shape], path, dynamic=[(2, 3), (0,)])
    assert "GridSample" in {node.op_type for node in onnx.load(str(path)).graph.node}
    expected = block(mx.nd.array(data), mx.nd.array(rois)).asnumpy()
    (found,) = check.RUNTIMES[runtime](str(path), 1)(data, rois)
    np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("name", SAMPLED)
def test_cells_that_no_sample_reads_may_be_nan(name, tmp_path):
    """The border of the map, for samples that are beyond it."""
    block, rows_of = SAMPLED[name]
    path = tmp_path / "model.onnx"
    data = np.ones((1, 4, 6, 7), "float32")
    data[:, :, [0, -1]] = data[:, :, :, [0, -1]] = np.nan
    boxes = np.array([[-30, -20, -20, -10], [2, 2, 3, 3], [40, 40, 41, 41]])
    rois = np.hstack([np.zeros((3, 1)), rows_of(boxes)]).astype("float32")
    if name == "RotatedROIAlign":
        rois[1] = [0, 3, 3, 1, 1, 0]
    expected = block(mx.nd.array(data), mx.nd.array(rois)).asnumpy()
    assert np.isfinite(expected).all() and expected[1].all()
    gluon_roi.onnx.export(block, [data.shape, rois.shape], path, dynamic=[(0,), ()])
    np.testing.assert_allclose(run(path, data, rois)[0], expected, atol=1e-6)


# ---- Boxes thinner than a cell -------------------------------------------------------------------


def _in_half_pixels(path: Path) -> int:
    """Let RoiAlign subtract half a cell instead of having a smallest box; return how often."""
    model = onnx.load(str(path))
    nodes, changed = [], 0
    for node in model.graph.node:
        modes = [a for a in node.attribute if a.name == "coordinate_transformation_mode"]
        if modes and modes[0].s == b"output_half_pixel":
            (scale,) = (a.f for a in node.attribute if a.name == "spatial_scale")
            half = f"{node.name}/half"
            shift = np.array(0.5 / scale, "float32")
            model.graph.initializer.append(numpy_helper.from_array(shift, half))
            modes[0].s = b"half_pixel"
            shifted = f"{node.input[1]}/shifted{changed}"
            nodes.append(helper.make_node("Add", [node.input[1], half], [shifted]))
            node.input[1] = shifted
            changed += 1
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, str(path))
    return changed


def _thin_boxes(number: int, cells: float) -> np.ndarray:
    """Boxes of sides from -2 to 2 cells, most of them below one."""
    random = np.random.RandomState(1)
    corner = random.uniform(-3, 20, (number, 2))
    side = random.uniform(-0.2, 1.2, (number, 2)) * random.choice([1, 1, 1, 10], (number, 2))
    side[::9] = 0
    image = np.arange(number)[:, None] % 2
    return np.hstack([image, np.hstack([corner, corner + side]) / cells]).astype("float32")


THIN: dict[str, Any] = {
    "ROIAlign": lambda **given: gluon_roi.ROIAlign(spatial_scale=0.3, **given),
    "PyramidROIAlign": lambda **given: gluon_roi.PyramidROIAlign(
        spatial_scale=(0.3, 0.15), canonical_size=14.0, canonical_level=2, **given
    ),
}


@pytest.mark.parametrize("sampling_ratio", [-1, 2])
@pytest.mark.parametrize("pooled_size", [1, (2, 7)])
@pytest.mark.parametrize("name", THIN)
def test_thin_boxes_do_not_need_a_minimum_in_the_runtime(
    name, pooled_size, sampling_ratio, tmp_path
):
    """RoiAlign in the mode half_pixel, which has no smallest box, gives the same."""
    block = THIN[name](pooled_size=pooled_size, sampling_ratio=sampling_ratio)
    random, path = np.random.RandomState(0), tmp_path / "model.onnx"
    maps = [random.randn(2, 3, 17 // n, 23 // n).astype("float32") for n in (1, 2)]
    maps = maps[: 1 + (name != "ROIAlign")]
    rois = _thin_boxes(200, 0.3)
    arrays = [mx.nd.array(value) for value in maps]
    given = arrays if len(arrays) > 1 else arrays[0]
    expected = block(given, mx.nd.array(rois)).asnumpy()
    shapes = [value.shape for value in maps]
    gluon_roi.onnx.export(block, [shapes if len(shapes) > 1 else shapes[0], rois.shape], path)
    np.testing.assert_allclose(run(path, *maps, rois)[0], expected, atol=1e-5)
    assert _in_half_pixels(path) == len(maps)
    np.testing.assert_allclose(run(path, *maps, rois)[0], expected, atol=5e-5)
