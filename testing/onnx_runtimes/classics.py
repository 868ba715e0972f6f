# SPDX-License-Identifier: Apache-2.0
"""The classic detectors as ONNX, from their authors' own symbols with random weights.

    .venv/bin/pip install onnxruntime openvino==2026.4.1
    .venv/bin/python -m testing.onnx_runtimes.classics SOURCES

SOURCES has clones of Deformable-ConvNets (msracver) and mx-rcnn (ijkguo), of which nothing is kept
here. Prints the table of docs/results/onnx.md. Each model is exported with dynamic sizes, before
and after gluon_roi.optimize, and run on images of two sizes. A row is found again if its RoI, its
scores and its boxes are. Times are CPU times on one thread, medians of rounds in which MXNet and
the runtimes take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Iterator

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SIZES = ((320, 448), (416, 352))  # of images, pixels
CLASSES, ROIS = 21, 300
ROUNDS = 5
#: Within these a row is the same one.
SCORES, PIXELS = 1e-3, 0.05
ANCHORS: dict[str, Any] = {"scales": (8, 16, 32), "ratios": (0.5, 1, 2)}


# ---- The symbols ---------------------------------------------------------------------------------


@contextlib.contextmanager
def importing(*folders: Path) -> Iterator[None]:
    """Modules of these folders, which are Python 2's, and none of them afterwards."""
    before, path = set(sys.modules), list(sys.path)
    sys.path[:0] = map(str, folders)
    sys.modules["cPickle"] = importlib.import_module("pickle")
    for name in ("proposal", "proposal_target", "box_annotator_ohem"):
        sys.modules[f"operator_py.{name}"] = ModuleType(name)
    sys.modules["operator_py"] = ModuleType("operator_py")
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - before:
            del sys.modules[name]


def deformable_convnets(sources: Path, family: str, name: str, cxx: bool) -> Any:
    """A test symbol of Deformable-ConvNets, whose proposals are MXNet's or a Custom operator's."""
    root = sources / "Deformable-ConvNets"
    test = SimpleNamespace(
        CXX_PROPOSAL=cxx, RPN_PRE_NMS_TOP_N=6000, RPN_POST_NMS_TOP_N=ROIS, RPN_NMS_THRESH=0.7,
        RPN_MIN_SIZE=0, BATCH_IMAGES=1,
    )  # fmt: skip
    network = SimpleNamespace(
        NUM_ANCHORS=9, RPN_FEAT_STRIDE=16, ANCHOR_SCALES=ANCHORS["scales"],
        ANCHOR_RATIOS=ANCHORS["ratios"],
    )  # fmt: skip
    config = SimpleNamespace(
        network=network, TEST=test, CLASS_AGNOSTIC=True,
        dataset=SimpleNamespace(NUM_CLASSES=CLASSES),
    )  # fmt: skip
    with importing(root / family / "symbols", root / "lib"):
        module = importlib.import_module(name)
        return getattr(module, name)().get_symbol(config, is_train=False)


def mx_rcnn(sources: Path, network: str) -> Any:
    """A test symbol of mx-rcnn."""
    arguments: dict[str, Any] = {
        "anchor_scales": ANCHORS["scales"],
        "anchor_ratios": ANCHORS["ratios"],
        "rpn_feature_stride": 16,
        "rpn_pre_topk": 6000,
        "rpn_post_topk": ROIS,
        "rpn_nms_thresh": 0.7,
        "rpn_min_size": 16,
        "num_classes": CLASSES,
        "rcnn_feature_stride": 16,
        "rcnn_pooled_size": (7, 7) if network == "vgg" else (14, 14),
        "rcnn_batch_size": 1,
    }
    if network == "resnet":
        arguments.update(units=(3, 4, 6, 3), filter_list=(256, 512, 1024, 2048))
    with importing(sources / "mx-rcnn"):
        module = importlib.import_module(f"symnet.symbol_{network}")
        return getattr(module, f"get_{network}_test")(**arguments)


def _dcn(family: str, name: str) -> Callable[[Path], Any]:
    return lambda sources: deformable_convnets(sources, family, name, cxx=True)


MODELS: dict[str, Callable[[Path], Any]] = {
    "R-FCN, ResNet-101": _dcn("rfcn", "resnet_v1_101_rfcn"),
    "R-FCN, ResNet-101, DCN": _dcn("rfcn", "resnet_v1_101_rfcn_dcn"),
    "Faster R-CNN, ResNet-101, DCN": _dcn("faster_rcnn", "resnet_v1_101_rcnn_dcn"),
    "mx-rcnn, VGG16": lambda sources: mx_rcnn(sources, "vgg"),
    "mx-rcnn, ResNet-50": lambda sources: mx_rcnn(sources, "resnet"),
}
#: The same with proposals in Python, cut there.
CUTS = {
    "Faster R-CNN, ResNet-101, DCN": lambda sources: deformable_convnets(
        sources, "faster_rcnn", "resnet_v1_101_rcnn_dcn", cxx=False
    )
}


# ---- Weights and results of MXNet ----------------------------------------------------------------


def image(size: tuple[int, int], seed: int) -> dict[str, np.ndarray]:
    random = np.random.RandomState(seed)
    return {
        "data": random.randn(1, 3, *size).astype("float32") * 50,
        "im_info": np.array([[*size, 1.0]], "float32"),
    }


#: Beginnings of the names of layers, and the standard deviation of what they give: scores that
#: differ, boxes and offsets of a few pixels.
SPREADS = {
    "rpn_cls_score": 3, "rpn_bbox_pred": 0.2, "rfcn_cls": 30, "rfcn_bbox": 2, "cls_score": 3,
    "bbox_pred": 0.2, "offset": 1, "res5": 1, "conv_new_1": 1, "fc_new_": 1,
}  # fmt: skip


def weights(symbol: Any, shapes: dict[str, tuple]) -> tuple[dict, dict]:
    """Random parameters and states; layers of SPREADS are scaled one after the other."""
    import mxnet as mx

    random = np.random.RandomState(0)
    arguments, _, states = symbol.infer_shape(**shapes)
    params = {}
    for name, shape in zip(symbol.list_arguments(), arguments):
        if name in shapes:
            continue
        if name.endswith(("_gamma", "_beta", "_bias")):
            value = np.full(shape, float(name.endswith("_gamma")))
        else:
            value = random.randn(*shape) * np.sqrt(2 / np.prod(shape[1:]))
        if name.endswith(("branch2c_gamma", "_bn3_gamma")):
            value *= 0.3  # sums of residual branches stay in bounds
        params[name] = mx.nd.array(value)
    aux = {
        name: mx.nd.array(np.full(shape, float(name.endswith("_var"))))
        for name, shape in zip(symbol.list_auxiliary_states(), states)
    }
    internals = symbol.get_internals()
    inputs = {name: mx.nd.array(value) for name, value in image(shapes["data"][2:], 0).items()}
    for name in internals.list_outputs():
        layer = name[: -len("_output")]
        spread = next((s for start, s in SPREADS.items() if layer.startswith(start)), None)
        if "offset" in layer:
            spread = 1
        if spread is None or f"{layer}_weight" not in params:
            continue
        values = run(internals[name], {**params, **inputs}, aux)()[0]
        params[f"{layer}_weight"] *= spread / max(float(values.std()), 1e-12)
    return params, aux


def run(symbol: Any, arguments: dict, states: dict) -> Callable[[], list]:
    """A call of a symbol by MXNet."""
    import mxnet as mx

    bound = symbol.bind(
        mx.cpu(), {name: arguments[name] for name in symbol.list_arguments()},
        aux_states={name: states[name] for name in symbol.list_auxiliary_states()},
        grad_req="null",
    )  # fmt: skip
    return lambda: [out.asnumpy() for out in bound.forward(is_train=False)]


# ---- Rows that are found again -------------------------------------------------------------------


def corners(rois: np.ndarray, deltas: np.ndarray) -> np.ndarray:
    """The boxes (K, 4 * n) that deltas (K, 4 * n) make of RoIs, in pixels."""
    sides = rois[:, 3:5] - rois[:, 1:3] + 1
    centres = rois[:, 1:3] + (sides - 1) / 2
    deltas = deltas.reshape(len(rois), -1, 4)
    middle = centres[:, None] + deltas[..., :2] * sides[:, None]
    reach = (sides[:, None] * np.exp(deltas[..., 2:]) - 1) / 2
    return np.concatenate([middle - reach, middle + reach], axis=2).reshape(len(rois), -1)


def rows(outputs: list) -> tuple[np.ndarray, np.ndarray]:
    """Scores and (RoIs and boxes) of each row, float64."""
    rois, scores, deltas = (np.asarray(out, np.float64) for out in outputs)
    deltas = deltas.reshape(len(rois), -1)
    return scores.reshape(len(rois), -1), np.hstack([rois[:, 1:], corners(rois, deltas)])


def compare(found: list, expected: list) -> tuple[int, float, float]:
    """How many expected rows were found, and the greatest differences of scores and of pixels."""
    scores, boxes = rows(found)
    left = np.ones(len(scores), bool)
    count, score, pixel = 0, 0.0, 0.0
    for one_scores, one_boxes in zip(*rows(expected)):
        off = np.abs(scores - one_scores).max(axis=1), np.abs(boxes - one_boxes).max(axis=1)
        same = left & (off[0] <= SCORES) & (off[1] <= PIXELS)
        if not same.any():
            continue
        best = np.flatnonzero(same)[off[1][same].argmin()]
        left[best] = False
        count, score, pixel = count + 1, max(score, off[0][best]), max(pixel, off[1][best])
    return count, score, pixel


# ---- The table -----------------------------------------------------------------------------------


def times(
    calls: dict[Any, Callable[[], list]],
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.process_time,
) -> dict[Any, float]:
    """The median time of each call, in seconds; all take turns."""
    spent: dict[Any, list] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = clock()
            call()
            spent[name].append(clock() - start)
    return {name: statistics.median(seconds) for name, seconds in spent.items()}


def study(title: str, symbol: Any, values: tuple[dict, dict], images: list, runtimes: dict) -> list:
    """Print the line of a model; gives what MXNet gives for each image.

    Parameters
    ----------
    values : (dict, dict)
        Parameters and states.
    images : list of dict
        Inputs of the symbol, by name.
    runtimes : dict
        Name -> the exported model as a function.
    """
    import mxnet as mx

    import gluon_roi

    expected, seconds = [], []
    off: dict[str, list] = {name: [] for name in runtimes}
    for inputs in images:
        arrays = {**values[0], **{key: mx.nd.array(value) for key, value in inputs.items()}}
        calls = {
            "MXNet": run(symbol, arrays, values[1]),
            "MXNet optimized": run(gluon_roi.optimize(symbol), arrays, values[1]),
        }
        for name, call in runtimes.items():
            calls[name] = functools.partial(call, *inputs.values())
        expected.append(calls["MXNet"]())
        for name in runtimes:
            off[name].append(compare(calls[name](), expected[-1]))
        seconds.append(times(calls))
    cells = [title]
    for name in seconds[0]:
        if name in runtimes:
            counts, scores, pixels = zip(*off[name])
            found = f"{sum(counts)} of {ROIS * len(images)}"
            off_by = f"{max(scores):.0e}, {max(pixels):.0e} px".replace("e-0", "e-")
            cells.append(f"{found}; {off_by}")
        cells.append(", ".join(f"{of_size[name]:.2f}" for of_size in seconds))
    print(f"| {' | '.join(cells)} |", flush=True)
    return expected


def exported(folder: str, symbol: Any, shapes: list, values: tuple[dict, dict], **cut: Any) -> dict:
    """A model as functions of the runtimes; optimize makes no difference to the file."""
    import gluon_roi
    import gluon_roi.onnx

    from .check import RUNTIMES

    dynamic: list = [(2, 3), (0,) if cut else ()]
    files = []
    for number, made in enumerate((symbol, gluon_roi.optimize(symbol))):
        files.append(Path(folder) / f"{number}.onnx")
        params = {**values[0], **values[1]}
        gluon_roi.onnx.export(made, shapes, files[-1], params, dynamic=dynamic, **cut)
    assert files[0].read_bytes() == files[1].read_bytes()
    return {name: load(str(files[0]), threads=1) for name, load in RUNTIMES.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path, help="folder of the clones")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    arguments = parser.parse_args()
    # One thread for all; MXNet reads it when it is loaded.
    os.environ.update(OMP_NUM_THREADS="1", MXNET_SUBGRAPH_VERBOSE="0")
    import mxnet as mx

    from gluon_roi.onnx.cut import cut

    @mx.operator.register("proposal")
    class Proposal(mx.operator.CustomOpProp):
        def __init__(self, **_: str) -> None:
            super().__init__(need_top_grad=False)

        def list_arguments(self) -> list[str]:
            return ["cls_prob", "bbox_pred", "im_info"]

        def infer_shape(self, shapes: list) -> tuple:
            return shapes, [(ROIS, 5)], []

    print("| model | MXNet | MXNet optimized | onnxruntime: rows | time | OpenVINO: rows | time |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for title in arguments.models:
        symbol = MODELS[title](arguments.sources)
        small = {key: value.shape for key, value in image((160, 224), 0).items()}
        values = weights(symbol, small)
        images = [image(size, number) for number, size in enumerate(SIZES)]
        shapes = [value.shape for value in images[0].values()]
        with tempfile.TemporaryDirectory() as folder:
            expected = study(
                title, symbol, values, images, exported(folder, symbol, shapes, values)
            )
            if title not in CUTS:
                continue
            symbol = CUTS[title](arguments.sources)
            runtimes = exported(folder, symbol, shapes[:1], values, inputs={"rois": (ROIS, 5)})
            images = [
                {"data": inputs["data"], "rois": outputs[0]}
                for inputs, outputs in zip(images, expected)
            ]
            symbol = mx.sym.load_json(cut(symbol, ["rois"], None))
            study("the same, cut", symbol, values, images, runtimes)


if __name__ == "__main__":
    main()
