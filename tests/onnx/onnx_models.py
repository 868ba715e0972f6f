# SPDX-License-Identifier: Apache-2.0
"""The models of the ONNX tests. As a script, writes them and their results.

    python tests/onnx/onnx_models.py FOLDER            a <name>.onnx for each model
    python tests/onnx/onnx_models.py FOLDER --record   and golden inputs, outputs and graphs
    python tests/onnx/onnx_models.py FOLDER --large    a <name>.onnx and <name>.npz for maps and
                                                       batches of the size that detectors have

testing/onnx_runtimes/check.py runs the files against the golden outputs, or those in the folder,
where MXNet is not installed.
"""

from __future__ import annotations

import argparse
import collections
import functools
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

import gluon_roi
from gluon_roi.onnx.model import RULES

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))
import operators  # noqa: E402
from support import cases, pyramids  # noqa: E402

GOLDEN = TESTS / "golden"
ARRAYS, GRAPHS = GOLDEN / "onnx.npz", GOLDEN / "onnx.json"
SCALE, POOLED = 0.3, (2, 7)

#: Operators with a translation, of those that take boxes.
NAMES = [op.name for op in operators.OPERATORS if f"_gluon_roi_{op.name}" in RULES]

#: Rows beyond those of cases.all_rois(), in cells: far away, and not finite.
FAR = np.array(
    [
        [0, 1e20, 2, 1e21, 9],
        [1, -1e20, -1e20, 1e20, 1e20],
        [0, -1e6, 3, 1e6, 9],
        [1, 40, -1e5, -1e4, 20],
        [0, np.nan, 1, 2, 3],
        [0, 1, 1, np.inf, 3],
        [-2, np.nan, 1, 2, 3],
    ]
)


@dataclass(frozen=True)
class Model:
    """A block, its inputs, and how it is exported."""

    block: Any
    inputs: tuple
    options: dict = field(default_factory=dict)
    maps: int = 0  # so many inputs are one list

    def call(self, *inputs: np.ndarray) -> Any:
        arrays = [mx.nd.array(value, dtype=value.dtype) for value in inputs]
        return self.block(*self._nested(arrays))

    def outputs(self) -> list[np.ndarray]:
        given = self.call(*self.inputs)
        return [o.asnumpy() for o in (given if isinstance(given, (list, tuple)) else [given])]

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Inputs and outputs, named as in a file for several models."""
        sides = (("in", self.inputs), ("out", self.outputs()))
        return {f"{name}/{side}{n}": v for side, values in sides for n, v in enumerate(values)}

    def export(self, path: Path) -> None:
        options = {"input_types": [value.dtype for value in self.inputs], **self.options}
        shapes = self._nested([value.shape for value in self.inputs])
        gluon_roi.onnx.export(self.block, shapes, path, **options)

    def _nested(self, inputs: list) -> list:
        return [inputs[: self.maps], *inputs[self.maps :]] if self.maps else inputs


def _map(channels: int, dtype: str) -> np.ndarray:
    """A map of eighths: the golden file is the smaller for it."""
    return (np.round(cases.feature_map(channels) * 8) / 8).astype(dtype)


def _rois(dtype: str) -> np.ndarray:
    """Rows of every kind, and boxes with whole cells for corners, where rounding decides most."""
    random = np.random.RandomState(5)
    corners = np.sort(random.randint(-4, 24, (60, 2, 2)), axis=1).reshape(60, 4)
    whole = np.hstack([random.randint(0, 2, (60, 1)), corners])
    rows = np.vstack([whole, FAR]) / [1, *[SCALE] * 4]
    return np.vstack([cases.all_rois(SCALE, dtype), rows]).astype(dtype)


def _has_one_map(operator: cases.Operator) -> bool:
    """Whether it has a rule, and its models are made here: those of several maps in _pyramids()."""
    return operator.name in NAMES and not operator.several_maps


def _is_refused(operator: Any, arguments: dict) -> bool:
    """RotatedROIAlign and maxima of samples whose number depends on the box have no translation."""
    return "sampling_ratio" not in arguments and (
        operator.coordinates == 5 or arguments.get("mode") == "max"
    )


def _operators() -> dict[str, Model]:
    models = {}
    for operator, arguments in operators.ROWS:
        if not _has_one_map(operator) or _is_refused(operator, arguments):
            continue
        first = next(one for one in operator.arguments if not _is_refused(operator, one))
        for dtype in ("float32", "float16", "float64"):
            if (operator.name, dtype) == ("ROIPool", "float64"):
                continue  # refused
            if dtype != "float32" and arguments != first:
                continue
            boxes = "float64" if dtype == "float64" and operator.rois_grad else "float32"
            block = operator.block(POOLED, SCALE, **arguments)
            rois = operator.rois(_rois(boxes))
            inputs = (_map(operator.channels(2, POOLED, arguments), dtype), rois)
            models[f"{operator.name}-{cases.row_id(arguments)}-{dtype}"] = Model(block, inputs)
    return models


def _forms() -> dict[str, Model]:
    """Every form of rois, with sizes that may change."""
    models = {}
    for operator in filter(_has_one_map, operators.OPERATORS):
        arguments = next(one for one in operator.arguments if not _is_refused(operator, one))
        block = operator.block(POOLED, SCALE, **arguments)
        padding = operator.block(POOLED, SCALE, bad_index="padding", **arguments)
        data = _map(operator.channels(2, POOLED, {}), "float32")
        boxes = operator.all_rois(SCALE)[1:31, 1:]
        dynamic = (0, 2, 3)
        beyond = np.hstack([np.arange(30)[:, None] % 4 - 1, boxes]).astype("float32")
        counts = np.array([11, 19], "int32")
        models[f"{operator.name}-images"] = Model(
            block, (data, boxes.reshape(2, 15, -1)), {"dynamic": [dynamic, (0, 1)]}
        )
        if "Deformable" not in operator.name:  # whose third input are offsets: _offsets()
            models[f"{operator.name}-counts"] = Model(
                block, (data, boxes, counts), {"dynamic": [dynamic, (0,), (0,)]}
            )
        models[f"{operator.name}-beyond"] = Model(
            padding, (data, beyond), {"dynamic": [dynamic, (0,)]}
        )
    return models


def _pyramids() -> dict[str, Model]:
    def block(**arguments: Any) -> Any:
        return gluon_roi.PyramidROIAlign((2, 3), pyramids.SCALES, **arguments)

    def maps(dtype: str = "float32") -> list[np.ndarray]:
        return [(np.round(one * 8) / 8).astype(dtype) for one in pyramids.pyramid(dtype, 2)]

    models = {}
    rows: tuple[tuple[dict, str], ...] = (
        ({}, "float32"),
        ({}, "float16"),
        ({}, "float64"),
        ({"sampling_ratio": 2}, "float32"),
        ({"aligned": True}, "float32"),
    )
    for arguments, dtype in rows:
        rois = np.vstack([pyramids.boxes(dtype), FAR * [1, 4, 4, 4, 4]])
        rois = rois.astype("float64" if dtype == "float64" else "float32")
        models[f"PyramidROIAlign-{cases.row_id(arguments)}-{dtype}"] = Model(
            block(**arguments), (*maps(dtype), rois), maps=4
        )
    boxes = pyramids.boxes()[-132::3, 1:]
    dynamic = [(0, 2, 3)] * 4
    beyond = np.hstack([np.arange(len(boxes))[:, None] % 4 - 1, boxes]).astype("float32")
    some = pyramids.boxes()[::5]
    lists = pyramids.lists_of(some, np.arange(len(some)) % 5)
    forms: dict[str, tuple[Any, tuple, list]] = {
        "lists": (block(assignment="given"), (lists,), [()]),
        "images": (block(), (boxes.reshape(2, -1, 4),), [(0, 1)]),
        "counts": (block(), (boxes, np.array([11, len(boxes) - 11], "int32")), [(0,), (0,)]),
        "beyond": (block(bad_index="padding"), (beyond,), [(0,)]),
    }
    for form, (of_form, inputs, axes) in forms.items():
        models[f"PyramidROIAlign-{form}"] = Model(
            of_form, (*maps(), *inputs), {"dynamic": dynamic + axes}, maps=4
        )
    return models


def _offsets() -> dict[str, Model]:
    """DeformablePSROIPool with offsets: some far, some not finite."""
    models = {}
    rows: tuple[tuple[int, dict, str], ...] = (
        (1, {}, "float32"),
        (1, {}, "float16"),
        (1, {}, "float64"),
        (2, {"part_size": (3, 4), "group_size": (1, 2), "sample_per_part": 2}, "float32"),
    )
    for classes, arguments, dtype in rows:
        group, part = arguments.get("group_size", POOLED), arguments.get("part_size", POOLED)
        block = gluon_roi.DeformablePSROIPool(POOLED, SCALE, trans_std=0.1, **arguments)
        rois = _rois("float64" if dtype == "float64" else "float32")[::2]
        trans = np.random.RandomState(7).randn(len(rois), 2 * classes, *part).round(2)
        trans[::9, 0, 0, 0] = np.resize([np.nan, np.inf, -np.inf, 6e4, -6e4], len(trans[::9]))
        inputs = (_map(2 * group[0] * group[1], dtype), rois, trans.astype(dtype))
        name = f"DeformablePSROIPool-trans,classes={classes}-{dtype}"
        models[name] = Model(block, inputs, {"dynamic": [(0, 2, 3), (0,), (0,)]})
    boxes = cases.all_rois(SCALE)[1:31, 1:]
    counts = np.array([11, 19], "int32")
    block = gluon_roi.DeformablePSROIPool(POOLED, SCALE, trans_std=0.1)
    trans = np.random.RandomState(7).randn(30, 2, *POOLED).round(2).astype("float32")
    data = _map(2 * POOLED[0] * POOLED[1], "float32")
    models["DeformablePSROIPool-trans-images"] = Model(
        block, (data, boxes.reshape(2, 15, 4), trans), {"dynamic": [(0, 2, 3), (0, 1), (0,)]}
    )
    models["DeformablePSROIPool-trans-counts"] = Model(
        block, (data, boxes, trans, counts), {"dynamic": [(0, 2, 3), (0,), (0,), (0,)]}
    )
    return models


def _bin_offsets() -> dict[str, Model]:
    """DeformableROIAlign with offsets, some far, some not finite, and masks."""
    block = gluon_roi.DeformableROIAlign(POOLED, SCALE, gamma=0.3)
    models, random = {}, np.random.RandomState(7)

    def arrays(count: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
        offset = random.randn(count, 2, *POOLED).round(2)
        return offset.astype(dtype), random.rand(count, 1, *POOLED).round(2).astype(dtype)

    for dtype in ("float32", "float16", "float64"):
        rois = _rois("float64" if dtype == "float64" else "float32")[::2]
        offset, mask = arrays(len(rois), dtype)
        offset[::9, 0, 0, 0] = np.resize([np.nan, np.inf, -np.inf, 6e4, -6e4], len(offset[::9]))
        models[f"DeformableROIAlign-offset,mask-{dtype}"] = Model(
            block, (_map(2, dtype), rois, offset, mask), {"dynamic": [(0, 2, 3), *[(0,)] * 3]}
        )
    boxes, (offset, mask) = cases.all_rois(SCALE)[1:31, 1:], arrays(30, "float32")
    fixed = gluon_roi.DeformableROIAlign(POOLED, SCALE, 2, 0.3, False)
    models["DeformableROIAlign-offset-images"] = Model(
        fixed,
        (_map(2, "float32"), boxes.reshape(2, 15, 4), offset),
        {"dynamic": [(0, 2, 3), (0, 1), (0,)]},
    )
    models["DeformableROIAlign-offset-counts"] = Model(
        fixed,
        (_map(2, "float32"), boxes, offset, mask, np.array([11, 19], "int32")),
        {"dynamic": [(0, 2, 3), *[(0,)] * 4]},
    )
    return models


class Detections(mx.gluon.HybridBlock):
    """The parts of a detector after the pooling: decoding, and suppression within each class."""

    def __init__(self, **nms: Any) -> None:
        super().__init__()
        self.nms = nms

    def hybrid_forward(self, F: Any, rows: Any, anchors: Any) -> tuple:
        boxes = F.slice_axis(rows, axis=-1, begin=2, end=6)
        boxes = F.contrib.box_decode(boxes, anchors, 0.1, 0.1, 0.2, 0.2, 4.0, "corner")
        rows = F.concat(F.slice_axis(rows, axis=-1, begin=0, end=2), boxes, dim=-1)
        return F.contrib.box_nms(rows, coord_start=2, score_index=1, id_index=0, **self.nms), rows


def _detections() -> dict[str, Model]:
    random = np.random.RandomState(3)
    corner = random.uniform(0, 60, (1, 80, 2))
    anchors = np.concatenate([corner, corner + random.uniform(10, 40, (1, 80, 2))], -1)
    # Scores with ties, some invalid; four classes, -1 among them.
    score = np.round(random.uniform(-0.1, 1, (2, 80, 1)), 2)
    rows = np.concatenate(
        [random.randint(-1, 3, (2, 80, 1)), score, random.randn(2, 80, 4)], axis=-1
    )
    inputs = (rows.astype("float32"), anchors.astype("float32"))
    options = {"dynamic": [(0, 1), (1,)]}
    return {
        "nms-per-class": Model(Detections(overlap_thresh=0.3, valid_thresh=0.01), inputs, options),
        "nms-topk": Model(
            Detections(overlap_thresh=0.5, topk=20, background_id=1), inputs, options
        ),
        "nms-all-classes": Model(
            Detections(overlap_thresh=0.4, force_suppress=True), inputs, options
        ),
    }


def _rows_of_a_grid(scores: np.ndarray, cells: int) -> np.ndarray:
    """(B, n, 6): two classes, and boxes on so many cells, which suppress those beside them."""
    batch, number = scores.shape
    cell = np.arange(number) % cells
    corner = np.stack([cell % 50, cell // 50], axis=-1) * 4
    rows = np.hstack([cell[:, None] // 4 % 2, corner, corner + 8])
    rows = np.broadcast_to(rows, (batch, *rows.shape))
    return np.insert(rows.astype("float32"), 1, scores, axis=-1)


def _ties() -> dict[str, Model]:
    """Where OpenVINO's order of equal scores would show, and its integers, float32 or int32 inside.

    Keys of a score's rank and a place are above 2**24 in "many", and above 2**31 in "beyond".
    """
    random = np.random.RandomState(4)
    scores: dict[str, tuple[np.ndarray, int, int]] = {
        "many": (random.randint(1, 8192, (1, 8000)) / 8192, 2000, 6000),
        "last": (random.randint(1, 8, (3, 600)) / 8, 600, 100),  # equal ones on both sides of topk
        "beyond": (np.arange(47000)[None] / 65536, 8, -1),
    }
    models = {}
    for name, (score, cells, topk) in scores.items():
        block = mx.gluon.nn.HybridLambda(
            lambda F, rows, topk=topk: F.contrib.box_nms(
                rows, overlap_thresh=0.3, valid_thresh=0.01, topk=topk, id_index=0
            )
        )
        rows = _rows_of_a_grid(score, cells)
        models[f"nms-ties-{name}"] = Model(block, (rows,), {"dynamic": [(0, 1)]})
    wrapped = mx.gluon.nn.HybridLambda(lambda F, data, i: F.take(data, i, axis=0, mode="wrap"))
    index = np.array([2**24 + 1, 119975238, 2**31 - 1, 20460, -1, 5 - 2**30], "int32")
    data = np.arange(20460, dtype="float32")
    models["take-wrap"] = Model(wrapped, (data, index), {"dynamic": [(0,), (0,)]})
    return models


def models() -> dict[str, Model]:
    """Every model by its name."""
    return {
        **_operators(),
        **_forms(),
        **_pyramids(),
        **_offsets(),
        **_bin_offsets(),
        **_detections(),
        **_ties(),
    }


# ---- Maps and batches of the size that detectors have --------------------------------------------

#: Strides of the maps, and sizes of the batch, for images of 800 x 1216 pixels.
LARGE = ((16, 1), (4, 1), (4, 8))
HEIGHT, WIDTH = 800, 1216


def _large_rois(random: np.random.RandomState, images: int, rows: int, rotated: bool) -> np.ndarray:
    """Boxes of 8 to 800 pixels, some of which extend beyond the image."""
    centre = random.uniform(0, 1, (rows, 2)) * [WIDTH, HEIGHT]
    side = np.exp(random.uniform(np.log(8), np.log(800), (rows, 2)))
    image = np.arange(rows)[:, None] % images
    if rotated:
        return np.hstack([image, centre, side, random.uniform(-180, 180, (rows, 1))])
    return np.hstack([image, centre - side / 2, centre + side / 2])


def large() -> dict[str, Model]:
    """Models of the rows of the table in docs/onnx_operators.md, for each of LARGE."""
    blocks: dict[str, tuple[Any, int]] = {
        "ROIPool": (gluon_roi.ROIPool, 2),
        "ROIAlign, 2 samples": (functools.partial(gluon_roi.ROIAlign, sampling_ratio=2), 2),
        "ROIAlign, 2 samples, aligned": (
            functools.partial(gluon_roi.ROIAlign, sampling_ratio=2, aligned=True), 2
        ),
        "ROIAlign, adaptive": (gluon_roi.ROIAlign, 2),
        "ROIAlign, maximum": (
            functools.partial(gluon_roi.ROIAlign, sampling_ratio=2, mode="max"), 2
        ),
        "PSROIPool": (gluon_roi.PSROIPool, 2 * 49),
        "PSROIPool, torchvision": (
            functools.partial(gluon_roi.PSROIPool, convention="torchvision"), 2 * 49
        ),
        "PSROIAlign, 2 samples": (
            functools.partial(gluon_roi.PSROIAlign, sampling_ratio=2), 2 * 49
        ),
        "PSROIAlign, adaptive": (gluon_roi.PSROIAlign, 2 * 49),
        "RotatedROIAlign": (functools.partial(gluon_roi.RotatedROIAlign, sampling_ratio=2), 2),
        "PrROIPool": (gluon_roi.PrROIPool, 2),
        "DeformablePSROIPool": (gluon_roi.DeformablePSROIPool, 2 * 49),
        "DeformablePSROIPool, trans": (
            functools.partial(gluon_roi.DeformablePSROIPool, trans_std=0.1), 2 * 49
        ),
        "DeformableROIAlign": (gluon_roi.DeformableROIAlign, 2),
        "DeformableROIAlign, offset and mask": (gluon_roi.DeformableROIAlign, 2),
    }  # fmt: skip
    models = {}
    for stride, images in LARGE:
        size = HEIGHT // stride, WIDTH // stride
        for name, (make, channels) in blocks.items():
            random = np.random.RandomState(9)
            data = random.randn(images, channels, *size).astype("float32")
            rois = _large_rois(random, images, 64 * images, name == "RotatedROIAlign")
            inputs = [data, rois.astype("float32")]
            if "trans" in name or "offset" in name:
                inputs.append(random.randn(len(rois), 2, 7, 7).astype("float32"))
            if "mask" in name:
                inputs.append(random.rand(len(rois), 1, 7, 7).astype("float32"))
            # A batch of one has a graph of its own in some rules.
            dynamic = [(0, 2, 3) if images > 1 else (2, 3), (0,), (0,), (0,)][: len(inputs)]
            models[f"{name}, {images} x {size[0]} x {size[1]}"] = Model(
                make(7, 1 / stride), tuple(inputs), {"dynamic": dynamic}
            )
    for images in (1, 8):
        random = np.random.RandomState(9)
        maps = [
            random.randn(images, 2, -(-HEIGHT // n), -(-WIDTH // n)).astype("float32")
            for n in (4, 8, 16, 32)
        ]
        rois = _large_rois(random, images, 64 * images, False).astype("float32")
        models[f"PyramidROIAlign, {images} x 200 x 304"] = Model(
            gluon_roi.PyramidROIAlign(7, pyramids.SCALES, sampling_ratio=2),
            (*maps, rois),
            {"dynamic": [(0, 2, 3)] * 4 + [(0,)]},
            maps=4,
        )
    return models


def graph(path: Path) -> dict[str, Any]:
    """The contents of a file: inputs, outputs, and number of nodes of each operator."""
    import onnx

    def described(value: Any) -> str:
        kind = value.type.tensor_type
        sizes = [d.dim_param or d.dim_value or "?" for d in kind.shape.dim]
        return f"{value.name} {onnx.TensorProto.DataType.Name(kind.elem_type)} {sizes}"

    model = onnx.load(str(path))
    return {
        "opset": {one.domain: one.version for one in model.opset_import},
        "inputs": [described(value) for value in model.graph.input],
        "outputs": [described(value) for value in model.graph.output],
        "nodes": dict(sorted(collections.Counter(n.op_type for n in model.graph.node).items())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--large", action="store_true")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.large:
        for name, model in large().items():
            model.export(arguments.folder / f"{name}.onnx")
            values: dict[str, Any] = model.arrays(name)
            np.savez(arguments.folder / f"{name}.npz", **values)
        return
    arrays: dict[str, Any] = {}
    graphs: dict[str, Any] = {}
    for name, model in models().items():
        path = arguments.folder / f"{name}.onnx"
        model.export(path)
        graphs[name] = graph(path)
        arrays.update(model.arrays(name))
    if arguments.record:
        np.savez_compressed(ARRAYS, **arrays)
        GRAPHS.write_text(json.dumps(graphs, indent=1) + "\n")


if __name__ == "__main__":
    main()
