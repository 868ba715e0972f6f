# SPDX-License-Identifier: Apache-2.0
"""Records a symbol of every operator, as this version of the package saves it.

    python tests/golden/record_symbols.py

writes symbol-<version>.json, which later versions have to load, and symbol-<version>.npz: arguments
of the symbol, gradients of its outputs (head0, head1, ...), and what follows from them in bytes,
outputs (out0, ...) and gradients of the arguments (d_<name>).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

import gluon_roi

FOLDER = Path(__file__).parent

#: Shapes of the arguments, besides boxes.
SHAPES = {
    "data": (2, 8, 7, 9),
    "coarse": (2, 8, 4, 5),
    "trans": (5, 2, 2, 2),
    "offset": (2, 12, 7, 9),
    "mask": (2, 6, 7, 9),
    "cls_prob": (2, 6, 7, 9),
    "bbox_pred": (2, 12, 7, 9),
}
BOXES = [
    [0, 0, 0, 14, 11],
    [1, 2.5, 1.5, 9, 13],
    [-1, 0, 0, 0, 0],
    [0, 6, 6, 6, 6],
    [1, -3, 4, 22, 9],
]
#: Image, centre, size, angle.
ROTATED = [[0, 8, 6, 12, 5, 30], [1, 5, 5, 6, 9, -75], [-1, 0, 0, 0, 0, 0], [1, 16, 12, 8, 8, 45]]


def symbol() -> mx.sym.Symbol:
    """Every operator once, few arguments at their defaults; maps have several users."""
    sym = gluon_roi.sym
    fed = {name: mx.sym.var(name) for name in (*SHAPES, "rois", "boxes", "counts", "rotated")}
    data, rois = mx.sym.relu(fed["data"]), fed["rois"]
    maps = [data, fed["coarse"]]
    scored = mx.sym.reshape(fed["bbox_pred"], (2, -1, 6))
    info = mx.sym.zeros((2, 3)) + 28
    aligned: dict[str, Any] = {"sampling_ratio": 2, "aligned": True, "rois_grad": True}
    return mx.sym.Group(
        [
            sym.ROIPool(data, rois, (2, 3), 0.5, name="pool"),
            sym.ROIPool(data, rois, (2, 3), 0.5, bad_index="padding", name="as_mxnet"),
            sym.ROIAlign(data, rois, 2, 0.5, name="align", **aligned),
            sym.ROIAlign(data, fed["boxes"], 2, 0.5, rois_num=fed["counts"], name="counted"),
            sym.PSROIPool(data, rois, (2, 4), 0.5, name="ps_pool"),
            sym.PSROIPool(
                data, rois, 2, 0.5, output_dim=2, group_size=2, convention="torchvision", name="tv"
            ),
            sym.PSROIAlign(
                data, rois, 2, 0.5, 2, 2, aligned=False, rois_grad=True, name="ps_align"
            ),
            sym.RotatedROIAlign(data, fed["rotated"], 2, 0.5, name="rotated", **aligned),
            sym.PrROIPool(data, rois, 2, 0.5, rois_grad=True, name="precise"),
            sym.DeformablePSROIPool(
                data, rois, fed["trans"], 2, 0.5, 2, 2, 2, 3, 0.25, name="deformable"
            ),
            sym.PyramidROIAlign(
                maps, rois, 2, (0.5, 0.25), canonical_size=8, canonical_level=1, name="pyramid"
            ),
            sym.PyramidROIAlign(
                maps,
                mx.sym.concat(rois, rois, dim=0),
                2,
                (0.5, 0.25),
                assignment="given",
                name="given",
                **aligned,
            ),
            sym.DeformableSampling(
                data,
                fed["offset"],
                fed["mask"],
                (3, 1),
                pad=(1, 0),
                num_deformable_group=2,
                convention="torchvision",
                name="samples",
            ),
            sym.BoxNMS(scored, 0.3, 0.1, 30, id_index=0, in_format="center", name="suppressed"),
            sym.Proposal(
                fed["cls_prob"],
                fed["bbox_pred"],
                info,
                rpn_pre_nms_top_n=100,
                rpn_post_nms_top_n=8,
                rpn_min_size=2,
                scales=(1, 2, 4),
                ratios=(1,),
                feature_stride=4,
                output_score=True,
                name="proposals",
            ),
        ]
    )


def arguments(rng: np.random.RandomState) -> dict[str, np.ndarray]:
    """Values in eighths, which are exact in every type; box coordinates as they come."""
    eighths = {name: rng.randint(-8, 9, shape) / 8 for name, shape in SHAPES.items()}
    rois = np.array(BOXES)
    return {
        **{name: array.astype("float32") for name, array in eighths.items()},
        "rois": rois.astype("float32"),
        "boxes": rois[:2, 1:].astype("float32"),
        "counts": np.array([1, 1], "int32"),
        "rotated": np.array(ROTATED, "float32"),
    }


def heads(symbol: mx.sym.Symbol, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gradients of the outputs, in eighths."""
    rng = np.random.RandomState(1)
    shapes = {name: arrays[name].shape for name in symbol.list_arguments()}
    _, outputs, _ = symbol.infer_shape(**shapes)
    return {
        f"head{i}": (rng.randint(-8, 9, shape) / 8).astype("float32")
        for i, shape in enumerate(outputs)
    }


def results(
    symbol: mx.sym.Symbol, arrays: dict[str, np.ndarray], ctx: mx.Context
) -> dict[str, np.ndarray]:
    """Outputs and gradients of a symbol, of arguments and gradients of outputs."""
    given = {
        name: mx.nd.array(arrays[name], ctx, arrays[name].dtype) for name in symbol.list_arguments()
    }
    gradients = {name: array.zeros_like() for name, array in given.items()}
    executor = symbol.bind(ctx, given, gradients)
    outputs = executor.forward(is_train=True)
    executor.backward([mx.nd.array(arrays[f"head{i}"], ctx) for i in range(len(outputs))])
    return {
        **{f"out{i}": out.asnumpy() for i, out in enumerate(outputs)},
        **{f"d_{name}": gradient.asnumpy() for name, gradient in gradients.items()},
    }


if __name__ == "__main__":
    stem = FOLDER / f"symbol-{gluon_roi.__version__}"
    saved = symbol()
    used = {node["op"] for node in json.loads(saved.tojson())["nodes"]}
    missing = {f"_gluon_roi_{name}" for name in gluon_roi.library.operators()} - used
    if missing:
        sys.exit(f"record_symbols: symbol() has no call of {', '.join(sorted(missing))}")
    saved.save(f"{stem}.json")
    arrays: dict[str, Any] = arguments(np.random.RandomState(0))
    arrays.update(heads(saved, arrays))
    arrays.update(results(saved, arrays, mx.cpu()))
    np.savez_compressed(f"{stem}.npz", **arrays)
    print(f"{stem}.json, {stem}.npz")
