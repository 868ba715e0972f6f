# SPDX-License-Identifier: Apache-2.0
"""Faults planted into the exporter, each of which the random graphs find.

A fault names operators of MXNet. Among the graphs that begin with them one has to differ, none of
which does without the fault (test_onnx_graphs.py).
"""

from __future__ import annotations

from typing import Any, Callable

import onnx_graphs
import pytest
from support.graphs import MAKERS

from gluon_roi.onnx import model, passes
from gluon_roi.onnx.graph import Node, OnnxGraph

#: Graphs that begin with each operator of a fault.
GRAPHS = 24


def find(operators: tuple, folder: Any) -> list[str]:
    """What differs in the graphs of these operators, up to the first difference."""
    names = sorted(MAKERS)
    for turn in range(GRAPHS):
        for operator in operators:
            seed = names.index(operator) + turn * len(names)
            difference = onnx_graphs.check(seed, folder / "model.onnx")
            if difference:
                return [difference]
    return []


# ---- Faults in nodes -----------------------------------------------------------------------------


def _attribute(name: str, change: Callable) -> Callable:
    def changed(inputs: list, attributes: dict) -> None:
        if name in attributes:
            attributes[name] = change(attributes[name])

    return changed


def _swap(first: int, second: int) -> Callable:
    def changed(inputs: list, attributes: dict) -> None:
        inputs[first], inputs[second] = inputs[second], inputs[first]

    return changed


def _input(place: int, change: Callable) -> Callable:
    def changed(inputs: list, attributes: dict) -> None:
        if len(inputs) > place and inputs[place] is not None:
            inputs[place] = change(inputs[place])

    return changed


def _next_axis(axis: int) -> int:
    return 0 if axis in (1, -1) else 1


def _shifted(pads: Any) -> list:
    """One cell less at the end of each axis, and one more at its beginning."""
    half = len(pads) // 2
    begin, end = list(pads[:half]), list(pads[half:])
    for axis in range(half):
        if end[axis]:
            begin[axis], end[axis] = begin[axis] + 1, end[axis] - 1
    return begin + end


#: Fault -> operator of ONNX, what changes in its nodes, operators of MXNet.
NODES: dict[str, tuple[str, Callable, tuple]] = {
    "wrong axis of Softmax": ("Softmax", _attribute("axis", _next_axis), ("softmax",)),
    "wrong axis of Concat": ("Concat", _attribute("axis", _next_axis), ("Concat", "stack")),
    "wrong axis of Gather": ("Gather", _attribute("axis", _next_axis), ("take",)),
    "wrong axis of TopK": ("TopK", _attribute("axis", _next_axis), ("sort", "topk")),
    "wrong axis of ArgMax": ("ArgMax", _attribute("axis", _next_axis), ("argmax",)),
    "wrong axes of ReduceMean": (
        "ReduceMean",
        _attribute("axes", lambda axes: [_next_axis(axes[0])]),
        ("mean", "LayerNorm"),
    ),
    "wrong pads of Conv": ("Conv", _attribute("pads", _shifted), ("Convolution",)),
    "wrong pads of pooling": ("MaxPool", _attribute("pads", _shifted), ("Pooling",)),
    "no dilation": ("Conv", _attribute("dilations", lambda d: [1] * len(d)), ("Convolution",)),
    "other strides": ("Conv", _attribute("strides", lambda s: list(s)[::-1]), ("Convolution",)),
    "swapped inputs of Sub": ("Sub", _swap(0, 1), ("elemwise_sub", "_rminus_scalar")),
    "swapped inputs of Div": ("Div", _swap(0, 1), ("elemwise_div", "_rdiv_scalar")),
    "swapped inputs of Pow": ("Pow", _swap(0, 1), ("_power_scalar", "_rpower_scalar")),
    "swapped inputs of Less": ("Less", _swap(0, 1), ("_lesser", "broadcast_lesser")),
    "swapped inputs of Where": ("Where", _swap(1, 2), ("where",)),
    "swapped limits of Clip": ("Clip", _swap(1, 2), ("clip",)),
    "swapped mean and beta": ("BatchNormalization", _swap(2, 3), ("BatchNorm",)),
    "wrong epsilon": (
        "BatchNormalization",
        _attribute("epsilon", lambda eps: eps + 0.01),
        ("BatchNorm", "_contrib_SyncBatchNorm"),
    ),
    "padding counted": (
        "AveragePool",
        _attribute("count_include_pad", lambda flag: 1 - flag),
        ("Pooling",),
    ),
    "no bias": ("Gemm", lambda inputs, attributes: inputs.__delitem__(slice(2, None)),
                ("FullyConnected",)),
    "not transposed": ("Transpose", _attribute("perm", sorted), ("transpose", "SwapAxis")),
    "the smallest first": ("TopK", _attribute("largest", lambda flag: 1 - flag), ("sort", "topk")),
    "another slope": ("LeakyRelu", _attribute("alpha", lambda a: a / 2), ("LeakyReLU",)),
    "remainder as in C": ("Mod", _attribute("fmod", lambda flag: 0), ("_mod",)),
    "wrong begin of Slice": ("Slice", _input(1, lambda begin: begin * 0), ("slice_axis", "slice")),
    "corners not aligned": (
        "Resize",
        _attribute("coordinate_transformation_mode", lambda mode: "half_pixel"),
        ("_contrib_BilinearResize2D",),
    ),
    "another beta": ("LRN", _attribute("beta", lambda beta: beta + 0.25), ("LRN",)),
}  # fmt: skip


@pytest.mark.parametrize("fault", NODES)
def test_faults_in_nodes(fault, monkeypatch, tmp_path):
    operator, change, operators = NODES[fault]
    original = OnnxGraph.__call__

    def planted(self: OnnxGraph, op: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        listed = list(inputs)
        if op == operator:
            change(listed, attributes)
        return original(self, op, *listed, outputs=outputs, **attributes)

    monkeypatch.setattr(OnnxGraph, "__call__", planted)
    assert find(operators, tmp_path)


# ---- Attributes of MXNet that are not read -------------------------------------------------------

#: Operators that the export switches first, by the names that their nodes have then.
SWITCHED = {"_gluon_roi_BoxNMS": "_contrib_box_nms"}
ATTRIBUTES = [
    *(("softmax", name) for name in ("axis", "temperature")),
    *(("topk", name) for name in ("axis", "k", "is_ascend", "ret_typ")),
    *(("mean", name) for name in ("axis", "keepdims", "exclude")),
    *(("Convolution", name) for name in ("stride", "pad", "dilate", "num_group")),
    *(("Deconvolution", name) for name in ("stride", "pad", "adj", "num_group")),
    *(("Pooling", name) for name in ("pool_type", "pooling_convention", "global_pool", "pad")),
    *(("BatchNorm", name) for name in ("fix_gamma", "axis", "eps")),
    *(("dot", name) for name in ("transpose_a", "transpose_b")),
    *(("slice", name) for name in ("begin", "end", "step")),
    *(("_arange", name) for name in ("start", "step", "repeat")),
    *(("one_hot", name) for name in ("on_value", "off_value")),
    ("pick", "mode"),
    ("take", "mode"),
    ("FullyConnected", "flatten"),
    ("repeat", "repeats"),
    ("SliceChannel", "squeeze_axis"),
    ("norm", "ord"),
    ("L2Normalization", "mode"),
    ("smooth_l1", "scalar"),
    ("Crop", "center_crop"),
    ("Pad", "mode"),
    ("_contrib_box_nms", "overlap_thresh"),
    ("_contrib_box_nms", "topk"),
    ("_contrib_MultiBoxPrior", "steps"),
    ("_contrib_MultiBoxDetection", "variances"),
    ("_contrib_box_decode", "clip"),
]


@pytest.mark.slow
@pytest.mark.parametrize("operator, attribute", ATTRIBUTES)
def test_attributes_that_are_not_read(operator, attribute, monkeypatch, tmp_path):
    original = Node.get

    def planted(self: Node, name: str, default: Any = None) -> Any:
        value = original(self, name, default)
        is_planted = (SWITCHED.get(self.op, self.op), name) == (operator, attribute)
        return default if is_planted else value

    monkeypatch.setattr(Node, "get", planted)
    assert find((operator,), tmp_path)


# ---- Faults in the whole graph -------------------------------------------------------------------


def test_a_dropped_output(monkeypatch, tmp_path):
    original = OnnxGraph.model
    monkeypatch.setattr(
        OnnxGraph, "model", lambda self, inputs, outputs: original(self, inputs, outputs[:-1])
    )
    assert find(("exp", "topk"), tmp_path)


def test_outputs_in_another_order(monkeypatch, tmp_path):
    original = OnnxGraph.__call__

    def planted(self: OnnxGraph, op: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        found = original(self, op, *inputs, outputs=outputs, **attributes)
        return found[::-1] if op == "Split" else found

    monkeypatch.setattr(OnnxGraph, "__call__", planted)
    assert find(("SliceChannel",), tmp_path)


def _merge_nodes(graph: OnnxGraph) -> dict[str, str]:
    """Merge nodes of one operator and the same inputs, whatever their attributes are."""
    seen: dict[tuple, Any] = {}
    replaced: dict[str, str] = {}
    kept = []
    for node in graph.nodes:
        node.input[:] = [replaced.get(name, name) for name in node.input]
        key = (node.op_type, *node.input)
        if key in seen:
            replaced.update(zip(node.output, seen[key].output))
        else:
            seen[key] = node
            kept.append(node)
    graph.nodes = kept
    return replaced


def test_merged_nodes(monkeypatch, tmp_path):
    original = passes.evaluate_constants

    def planted(graph: OnnxGraph, types: dict, trained: Any) -> dict[str, str]:
        replaced = original(graph, types, trained)
        merged = _merge_nodes(graph)
        return {name: merged.get(other, other) for name, other in replaced.items()} | merged

    monkeypatch.setattr(passes, "evaluate_constants", planted)
    assert find(("softmax", "transpose", "sort"), tmp_path)


def test_a_norm_folded_though_others_read_its_layer(monkeypatch, tmp_path):
    """The layer's output changes with its weights."""
    original = passes.fold_batch_norms

    def planted(graph: OnnxGraph, outputs: list) -> None:
        original(graph, [])

    monkeypatch.setattr(passes, "fold_batch_norms", planted)
    assert find(("Convolution", "FullyConnected"), tmp_path)


def test_no_simplification_is_no_fault(monkeypatch, tmp_path):
    """The plain graph gives the same results."""
    monkeypatch.setattr(model, "simplify", lambda graph, outputs, *_: outputs)
    assert not find(("BatchNorm", "Reshape", "_full", "transpose"), tmp_path)
