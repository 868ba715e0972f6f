"""The classic detectors as ONNX, from their authors' own symbols with random weights.

    .venv/bin/python tests/onnx_runtimes/classics.py FOLDER --sources SOURCES --python PYTHON

SOURCES has clones of Deformable-ConvNets (msracver) and mx-rcnn (ijkguo), of which nothing is kept
here; PYTHON is that of an environment without MXNet as check.py describes it. Both exporting and
MXNet's own results take MXNet's environment; what onnxruntime and OpenVINO make of the files is
printed by

    PYTHON tests/onnx_runtimes/classics.py FOLDER

which the first command runs in the end. Each model is exported as it is and after
gluon_roi.optimize, with free sizes, and run on images of two sizes, on one thread. A row is found
again if its RoI, its scores and its boxes are.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Iterator

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
SIZES = ((320, 448), (416, 352))  # of images, pixels
CLASSES, ROIS = 21, 300
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
    "rfcn": _dcn("rfcn", "resnet_v1_101_rfcn"),
    "rfcn_dcn": _dcn("rfcn", "resnet_v1_101_rfcn_dcn"),
    "faster_rcnn_dcn": _dcn("faster_rcnn", "resnet_v1_101_rcnn_dcn"),
    "mx_rcnn_vgg16": lambda sources: mx_rcnn(sources, "vgg"),
    "mx_rcnn_resnet50": lambda sources: mx_rcnn(sources, "resnet"),
}
#: The same with proposals in Python, cut there.
CUTS = {
    "faster_rcnn_dcn": lambda sources: deformable_convnets(
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


def timed(call: Callable[[], list], runs: int = 3) -> tuple[list, float]:
    """What a call gives, and the best of some times, in seconds."""
    found, times = call(), []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return found, min(times)


def export(folder: Path, sources: Path, names: list[str]) -> None:
    import mxnet as mx

    import gluon_roi
    import gluon_roi.onnx

    @mx.operator.register("proposal")
    class Proposal(mx.operator.CustomOpProp):
        def __init__(self, **_: str) -> None:
            super().__init__(need_top_grad=False)

        def list_arguments(self) -> list[str]:
            return ["cls_prob", "bbox_pred", "im_info"]

        def infer_shape(self, shapes: list) -> tuple:
            return shapes, [(ROIS, 5)], []

    for name in names:
        symbol = MODELS[name](sources)
        small = {key: value.shape for key, value in image((160, 224), 0).items()}
        params, aux = weights(symbol, small)
        arrays: dict[str, Any] = {}
        seconds: dict[str, list] = {"MXNet": [], "MXNet optimized": []}
        for number, size in enumerate(SIZES):
            inputs = image(size, number)
            for kind, made in (("MXNet", symbol), ("MXNet optimized", gluon_roi.optimize(symbol))):
                given = {key: mx.nd.array(value) for key, value in inputs.items()}
                found, best = timed(run(made, {**params, **given}, aux))
                seconds[kind].append(best)
            arrays.update({f"{key}{number}": value for key, value in inputs.items()})
            arrays.update({f"out{n}_{number}": value for n, value in enumerate(found)})
        shapes = [(1, 3, *SIZES[0]), (1, 3)]
        values = {**params, **aux}
        free: list = [(2, 3), ()]
        gluon_roi.onnx.export(symbol, shapes, folder / f"{name}.onnx", values, dynamic=free)
        switched = gluon_roi.optimize(symbol)
        gluon_roi.onnx.export(
            switched, shapes, folder / f"{name}-optimized.onnx", values, dynamic=free
        )
        if name in CUTS:
            gluon_roi.onnx.export(
                CUTS[name](sources), shapes[:1], folder / f"{name}-cut.onnx", values,
                dynamic=[(2, 3), (0,)], inputs={"rois": (ROIS, 5)},
            )  # fmt: skip
        np.savez(folder / f"{name}.npz", **arrays)
        (folder / f"{name}.json").write_text(json.dumps(seconds))
        print(f"{name}: exported", flush=True)


# ---- Results of the runtimes ---------------------------------------------------------------------


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


def study(path: Path) -> None:
    """Print the line of a model."""
    from check import RUNTIMES

    name = path.stem.split("-")[0]
    arrays = np.load(path.with_name(f"{name}.npz"))
    times = json.loads(path.with_name(f"{name}.json").read_text())
    cells = [f"{'/'.join(f'{t:.2f}' for t in times[kind])}" for kind in times]
    for runtime in RUNTIMES:
        call = RUNTIMES[runtime](str(path), threads=1)
        total, counts, worst, seconds = 0, 0, [0.0, 0.0], []
        for number in range(len(SIZES)):
            expected = [arrays[f"out{n}_{number}"] for n in range(3)]
            second = expected[0] if path.stem.endswith("-cut") else arrays[f"im_info{number}"]
            given = arrays[f"data{number}"], second
            found, best = timed(functools.partial(call, *given))
            seconds.append(best)
            count, *off = compare(found, expected)
            total, counts = total + len(expected[0]), counts + count
            worst = [max(pair) for pair in zip(worst, off)]
        cells.append(f"{counts} of {total}; {worst[0]:.0e}, {worst[1]:.0e} px")
        cells.append("/".join(f"{t:.2f}" for t in seconds))
    print(f"| {path.stem} |", " | ".join(cells), "|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sources", type=Path, help="folder of the clones; exports the models")
    parser.add_argument("--python", help="runs the files afterwards with this one")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    arguments = parser.parse_args()
    if arguments.sources:
        # One thread for all; MXNet reads it when it is loaded.
        os.environ.update(OMP_NUM_THREADS="1", MXNET_SUBGRAPH_VERBOSE="0")
        sys.path.insert(0, str(ROOT))
        arguments.folder.mkdir(parents=True, exist_ok=True)
        export(arguments.folder, arguments.sources, arguments.models)
        if arguments.python:
            command = [arguments.python, __file__, str(arguments.folder)]
            subprocess.run([*command, "--models", *arguments.models], check=True)
        return
    print("| model | MXNet, s | optimized, s | onnxruntime | s | OpenVINO | s |")
    print("|---|---|---|---|---|---|---|")
    for path in sorted(arguments.folder.glob("*.onnx")):
        if path.stem.split("-")[0] in arguments.models:
            study(path)


if __name__ == "__main__":
    main()
