# SPDX-License-Identifier: Apache-2.0
"""Input that export rejects, in one sentence each: arguments, files, and attributes in them."""

from __future__ import annotations

import json
from typing import Any

import mxnet as mx
import numpy as np
import pytest

import gluon_roi

pytest.importorskip("onnx")

S = mx.sym
SHAPES = [(1, 3, 12, 9), (1, 3)]


def _detector() -> Any:
    data, info = S.var("data"), S.var("im_info")
    maps = S.Convolution(data, kernel=(3, 3), pad=(1, 1), num_filter=4, name="maps")
    scores = S.slice_axis(maps, axis=1, begin=0, end=2)
    rois = S.contrib.Proposal(
        scores, maps, info, scales=(8,), ratios=(1,), rpn_post_nms_top_n=5, name="rois"
    )
    pooled = S.ROIPooling(maps, rois, (2, 2), 0.5, name="pool")
    return S.FullyConnected(pooled, num_hidden=3, name="fc")


def _parameters() -> dict[str, Any]:
    shapes = {"maps_weight": (4, 3, 3, 3), "maps_bias": (4,), "fc_weight": (3, 16), "fc_bias": (3,)}
    return {name: mx.nd.ones(shape) for name, shape in shapes.items()}


def _refused(file: Any, message: str, model: Any, *arguments: Any, **options: Any) -> None:
    kinds = (ValueError, NotImplementedError, TypeError, OSError)
    with pytest.raises(kinds) as raised:
        gluon_roi.onnx.export(model, *arguments, **options)
    found = str(raised.value)
    assert message in found and found.startswith("onnx.export: ") and "\n" not in found
    assert not file.is_file()


LIST = "expected a list with an entry for each input, or a dict of their names, got"
#: Argument of export -> values, each with what the error says.
ARGUMENTS: dict[str, list[tuple[Any, str]]] = {
    "params": [
        ([1, 2], "params: expected a dict of names and arrays, got [1, 2]"),
        ("net.params", "params: expected a file of parameters, but there is no file net.params"),
        ({"fc_weight": "abc"}, "params: fc_weight: expected an array, got 'abc'"),
        ({"fc_weight": None}, "params: fc_weight: expected an array, got None"),
        (
            {"arg:fc_weight": np.ones((3, 16))},
            "params: expected one array for fc_weight, got two, fc_weight and arg:fc_weight",
        ),
        ({"fc_weight": np.ones((3, 5))}, "Error in operator fc: Shape inconsistent"),
        ({"fc_weight": np.ones((3, 16), "float64")}, "Error in operator fc: "),
    ],
    "input_shapes": [
        (None, f"input_shapes: {LIST} None"),
        (5, f"input_shapes: {LIST} 5"),
        (
            (1, 3, 128, 160),
            "input_shapes: expected a list with a shape for each input, such as "
            "[(1, 3, 128, 160)], got (1, 3, 128, 160)",
        ),
        ([(2**31, 2), (1, 3)], "input_shapes: expected sizes up to 2147483647, got (2147483648, 2"),
        ({"data": SHAPES[0]}, "input_shapes: expected a shape for input im_info, got none"),
        (
            {"data": SHAPES[0], "info": SHAPES[1]},
            "input_shapes: the model has no input 'info', expected one of data, im_info",
        ),
        (
            {"data": SHAPES[0], "im_info": 3},
            "input_shapes: im_info: expected a shape of integers, got 3",
        ),
        ([(1, 3, 12.0, 9), (1, 3)], "expected a shape of integers, got (1, 3, 12.0, 9)"),
        ([(1, 3, -12, 9), (1, 3)], "expected a shape of integers, got (1, 3, -12, 9)"),
        ([(1, 3, 12), (1, 3)], "Error in operator maps: "),
        (
            [(1, 3, 12, 9), (1, 4)],
            "Error in operator rois_boxes: Proposal: im_info has shape (1, 4)",
        ),
    ],
    "dynamic": [
        (5, f"dynamic: {LIST} 5"),
        (True, f"dynamic: {LIST} True"),
        ([None, ()], "dynamic=None for input data of shape (1, 3, 12, 9): expected a list of axes"),
        (["ab", ()], "dynamic='ab' for input data of shape (1, 3, 12, 9): expected a list of axes"),
        ([(2.0,), ()], "dynamic=(2.0,) for input data of shape (1, 3, 12, 9): expected a list"),
        ({"x": (0,)}, "dynamic: the model has no input 'x', expected one of data, im_info"),
        ({"data": {4: "w"}}, "dynamic={4: 'w'} for input data of shape (1, 3, 12, 9): expected"),
        ({"data": {2: ""}}, "dynamic: expected a name for axis 2 of input data, got ''"),
        ({"data": {2: 5}}, "dynamic: expected a name for axis 2 of input data, got 5"),
        (
            {"data": {2: "side", 3: "side"}},
            "dynamic: axes named 'side' have the sizes 12 and 9, expected one size",
        ),
    ],
    "input_types": [
        (5, f"input_types: {LIST} 5"),
        ([None, "float32"], "input_types: None is not a dtype for input data"),
        (["complex64", "float32"], "input_types: complex64 is not a dtype for input data"),
        (["int32", "float32"], "Error in operator maps: "),
        ({"im_inf": "int32"}, "input_types: the model has no input 'im_inf', expected one of data"),
        ({"data": "complex64"}, "input_types: complex64 is not a dtype for input data"),
    ],
    "inputs": [
        (["rois"], "inputs: expected a dict of names and shapes, got ['rois']"),
        ({5: (5, 5)}, "inputs: expected a dict of names and shapes, got {5: (5, 5)}"),
        ({"rois": np.ones((5, 5))}, "inputs: rois: expected a shape of integers, got ndarray"),
    ],
    "metadata": [
        ([1], "metadata: expected a dict of names and values, got [1]"),
        ({1: "x"}, "metadata: expected a dict of names and values, got {1: 'x'}"),
        ({"mean": np.ones(3)}, "metadata: expected values that JSON can hold: Object of type nd"),
        ({"mean": float("nan")}, "metadata: expected values that JSON can hold: "),
    ],
    "output_names": [
        ("scores", "output_names: expected 1 different names, got 'scores'"),
        (["ids", "scores"], "output_names: expected 1 different names, got ['ids', 'scores']"),
        ([5], "output_names: expected 1 different names, got [5]"),
        ([""], "output_names: expected 1 different names, got ['']"),
        (["data"], "output_names: another tensor has the name data"),
    ],
    "outputs": [
        (5, "outputs: expected a list of names, got 5"),
        ([5], "outputs: expected a list of names, got [5]"),
        ([S.var("x")], "outputs: expected a list of names, got [<Symbol x>]"),
    ],
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_arguments(argument, tmp_path):
    path = tmp_path / "model.onnx"
    for value, message in ARGUMENTS[argument]:
        given = {"input_shapes": SHAPES, "params": _parameters(), "path": path, argument: value}
        if argument == "params" and isinstance(value, dict):
            given["params"] = {**_parameters(), **value}
        _refused(path, message, _detector(), **given)


def test_paths(tmp_path):
    """Before the model is looked at."""
    for path, message in (
        (None, "path: expected a file, got None"),
        (tmp_path, f"path: {tmp_path} is a folder"),
        (tmp_path / "no" / "model.onnx", f"path: there is no folder {tmp_path / 'no'}"),
        (f"{tmp_path}/no/", f"path: expected a file, got the folder {tmp_path}/no/"),
        (tmp_path / ("n" * 300), "cannot be written: File name too long"),
    ):
        _refused(tmp_path / "model.onnx", message, _detector(), SHAPES, path)


#: Node -> attributes of it, each with what the error says of the node.
ATTRIBUTES: dict[str, list[tuple[dict, str]]] = {
    "fc": [
        ({"colour": "red"}, "node fc (FullyConnected): Cannot find argument 'colour'"),
        ({"num_hidden": "many"}, "node fc (FullyConnected): "),
    ],
    "pool": [({"pooled_size": "(0, 2)"}, "node pool (ROIPooling): ")],
    "rois": [
        ({"scales": "some"}, "node rois (_contrib_Proposal): "),
        ({"scales": "(8, 16)"}, "cls_prob has shape (1, 2, 12, 9), expected 4 along axis 1"),
        ({"scales": "()"}, "node rois (_contrib_Proposal): Proposal: argument scales: expected"),
        ({"ratios": "(0,)"}, "node rois (_contrib_Proposal): Proposal: argument ratios: expected"),
        (
            {"feature_stride": "0"},
            "node rois (_contrib_Proposal): Proposal: argument feature_stride: ",
        ),
        (
            {"threshold": "nan"},
            "node rois (_contrib_Proposal): Proposal: argument threshold: expected",
        ),
    ],
}


@pytest.mark.parametrize("node", ATTRIBUTES)
def test_attributes(node, tmp_path):
    """An attribute of a symbol file may have any text."""
    file, path = tmp_path / "net-symbol.json", tmp_path / "model.onnx"
    for attributes, message in ATTRIBUTES[node]:
        described = json.loads(_detector().tojson())
        (found,) = (one for one in described["nodes"] if one["name"] == node)
        found["attrs"].update(attributes)
        file.write_text(json.dumps(described))
        _refused(path, message, file, SHAPES, path, _parameters())


def test_files(tmp_path):
    file, path = tmp_path / "net-symbol.json", tmp_path / "model.onnx"
    x = {"op": "null", "name": "x", "inputs": []}
    heads = {"heads": [[0, 0, 0]], "arg_nodes": [0]}
    described: Any
    for described in (
        [1],
        {"nodes_": []},
        {"nodes": 5, **heads},
        {"nodes": [x]},
        {"nodes": ["x"], **heads},
        {"nodes": [{"op": "null", "inputs": []}], **heads},
        {"nodes": [x], "heads": [[3, 0, 0]], "arg_nodes": [0]},
        {"nodes": [x, {"op": "relu", "name": "r", "inputs": [[7, 0, 0]]}], **heads},
    ):
        file.write_text(json.dumps(described))
        _refused(path, "net-symbol.json is not a symbol file", file, [(1, 3)], path)
    for text in ("", "no json", "\0\1"):
        file.write_text(text)
        _refused(path, "net-symbol.json is not a symbol file", file, [(1, 3)], path)
    unknown = {"op": "Nonsense", "name": "n", "inputs": [[0, 0, 0]]}
    file.write_text(json.dumps({"nodes": [x, unknown], "heads": [[1, 0, 0]], "arg_nodes": [0]}))
    _refused(path, "node n (Nonsense): ", file, [(1, 3)], path)


X = S.var("x")
#: Nodes that ONNX cannot express, the shape of their input, and what the error says.
NODES: dict[str, tuple[Any, tuple, str]] = {
    "fraction added to integers": (
        S.cast(X, dtype="int32") + 0.5,
        (3,),
        "(_plus_scalar): a fractional scalar on int32 data has no translation",
    ),
    "integers compared with a fraction": (
        S.cast(X, dtype="int32") > 0.5,
        (3,),
        "(_greater_scalar): a fractional scalar on int32 data has no translation",
    ),
    "limits in the wrong order": (
        S.clip(X, a_min=2, a_max=1, name="c"),
        (3,),
        "node c (clip): a_min=2.0 above a_max=1.0 has no translation",
    ),
    "limits of another type": (
        S.clip(S.cast(X, dtype="uint8"), a_min=-3, a_max=-1, name="c"),
        (3,),
        "node c (clip): a_min=-3, a_max=-1 have no translation for uint8 data, whose numbers are",
    ),
    "number that no bool is": (
        S.cast(X, dtype="bool") == 2,
        (3,),
        "(_equal_scalar): scalar=2 has no translation for bool data, whose numbers are from 0 to 1",
    ),
    "even size": (
        S.LRN(X, nsize=2, name="l"),
        (1, 3, 2, 2),
        "node l (LRN): nsize=2 has no translation, expected an odd number",
    ),
    "rank of a response": (
        S.LRN(X, nsize=3, name="l"),
        (1, 3, 2),
        "node l (LRN): data of rank 3 have no translation, expected 2 or 4",
    ),
    "fractions in float16": (
        S.contrib.arange_like(S.cast(X, dtype="float16"), start=0.5, axis=0, name="a"),
        (3,),
        "node a (_contrib_arange_like): start=0.5, step=1.0 in float16 has no translation",
    ),
    "fractional steps of integers": (
        S.contrib.arange_like(S.cast(X, dtype="int32"), step=0.5, axis=0, name="a"),
        (3,),
        "node a (_contrib_arange_like): start=0.0, step=0.5 in int32 has no translation",
    ),
    "activation of one input": (
        S.LeakyReLU(X, act_type="rrelu", name="l"),
        (3, 4),
        "node l (LeakyReLU): act_type=rrelu has no translation",
    ),
    "target_shape of old files": (
        S.Reshape(X, target_shape=(0, 4), name="r"),
        (6, 4),
        "node r (Reshape): a shape that is not given has no translation",
    ),
    "split axis, read backwards": (
        S.reshape(X, shape=(-1, 2, -4, 0), reverse=True, name="r"),
        (6, 4),
        "node r (Reshape): shape=(-1, 2, -4, 0) with reverse=True has no translation",
    ),
}


def test_parameters_of_other_sizes(tmp_path):
    """MXNet does not compare them, and reads beyond them."""
    path, variables = tmp_path / "model.onnx", [S.var(f"p{n}") for n in range(4)]
    params = {f"p{n}": np.ones(2, "float32") for n in range(4)}
    for symbol, message in (
        (
            S.BatchNorm(X, *variables, name="n"),
            "node n (BatchNorm): axis 1 of the data has size 6, expected 2, the size of p0",
        ),
        (
            S.LeakyReLU(X, variables[0], act_type="prelu", name="n"),
            "node n (LeakyReLU): axis 1 of the data has size 6, expected 2, the size of p0",
        ),
        (
            S.GroupNorm(X, *variables[:2], num_groups=3, name="n"),
            "node n (GroupNorm): gamma or beta has shape (2,), expected (3,)",
        ),
    ):
        _refused(path, message, symbol, [(1, 6, 2)], path, params)


@pytest.mark.parametrize("name", NODES)
def test_nodes(name, tmp_path):
    model, shape, message = NODES[name]
    _refused(tmp_path / "model.onnx", message, model, [shape], tmp_path / "model.onnx")
