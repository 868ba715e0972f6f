# SPDX-License-Identifier: Apache-2.0
"""Infers and binds every operator with some shapes and types unknown: prints "alive".

python partial_shapes.py
"""

import itertools
import warnings
from typing import Any, Dict, List, Tuple

import mxnet as mx

import gluon_roi

SCALES = (1 / 4, 1 / 8, 1 / 16)
BUILTINS = ("ROIPooling", "ROIAlign", "PSROIPooling", "DeformablePSROIPooling", "RROIAlign")
ERRORS = (mx.MXNetError, RuntimeError)
Shapes = Dict[str, Tuple[int, ...]]


def of_ours(operator: gluon_roi.library.Declared, counted: bool, form: str) -> Tuple[Any, Shapes]:
    """A call of our function, and the shapes of its arguments."""
    shapes: Shapes = {}
    inputs: List[Any] = []
    for declared in operator.inputs:
        if declared.role == "maps" and operator.several_maps:
            maps = {f"data{i}": (2, 8, 16 >> i, 24 >> i) for i in range(len(SCALES))}
            inputs.append([read(name, form) for name in maps])
            shapes.update(maps)
        elif declared.role == "counts" and not counted:
            inputs.append(None)
        else:
            shapes[declared.name] = {
                "maps": (2, 8, 16, 24),
                "rois": (3, operator.coordinates + (not counted)),
                "like": (3, 2, 2, 2),
                "counts": (2,),
            }[declared.role]
            inputs.append(read(declared.name, form))
    function = getattr(gluon_roi.sym, operator.name)
    *inputs, counts = inputs
    scale = SCALES if operator.several_maps else SCALES[0]
    return function(*inputs, pooled_size=2, spatial_scale=scale, rois_num=counts), shapes


def of_samples(form: str) -> Tuple[Any, Shapes]:
    """A call of DeformableSampling, and the shapes of its arguments."""
    shapes: Shapes = {"data": (3, 8, 6, 7), "offset": (3, 18, 6, 7), "mask": (3, 9, 6, 7)}
    data, offset, mask = (read(name, form) for name in shapes)
    return gluon_roi.sym.DeformableSampling(data, offset, mask, kernel=3, pad=1), shapes


def of_mxnet(name: str, form: str) -> Tuple[Any, Shapes]:
    """One of MXNet's operators, switched, and the shapes of its arguments."""
    shapes: Shapes = {"data": (2, 8, 16, 24), "rois": (3, 6 if name == "RROIAlign" else 5)}
    more: Dict[str, Any] = {}
    if name.endswith("PSROIPooling"):
        more = {"output_dim": 2, "group_size": 2}
    if name.startswith("Deformable"):
        shapes["trans"] = (3, 2, 2, 2)
        more.update(part_size=2, trans_std=0.1)
    function = getattr(mx.sym if name == "ROIPooling" else mx.sym.contrib, name)
    size = {"pooled_size": 2 if name == "PSROIPooling" or "Deform" in name else (2, 2)}
    inputs = (read(key, form) for key in shapes)
    symbol = function(*inputs, spatial_scale=SCALES[0], **size, **more)
    return gluon_roi.optimize(symbol), shapes


def read(name: str, form: str) -> mx.sym.Symbol:
    variable = mx.sym.var(name)
    if form == "variable" or name == "rois_num":
        return variable
    return (
        variable * 1
        if form == "computed"
        else mx.sym.broadcast_mul(variable, mx.sym.var(f"{name}_weight"))
    )


def check(symbol: mx.sym.Symbol, shapes: Shapes) -> None:
    weights = {name: (1,) for name in symbol.list_arguments() if name.endswith("_weight")}
    subsets = itertools.chain.from_iterable(
        itertools.combinations(shapes, count) for count in range(len(shapes) + 1)
    )
    for known in map(frozenset, subsets):
        whole = len(known) == len(shapes)
        given = {**{name: shapes[name] for name in known}, **weights}
        for inside in (False, True):
            with mx.util.np_shape(inside):
                results = [attempt(symbol.infer_shape_partial, given)]
                results.append(attempt(symbol.infer_shape, given))
                types = {name: "float32" for name in known - {"rois_num"}}
                attempt(symbol.infer_type, types)
                attempt(symbol.infer_type_partial, types)
                bound = attempt(symbol.simple_bind, {"ctx": mx.cpu(), **given})
            if whole:
                assert all(result[1][0][0] == 3 for result in results)
                assert not isinstance(bound, ERRORS), f"{symbol.name} {inside}: {bound}"
                assert bound.outputs[0].shape[0] == 3
            else:
                assert isinstance(bound, ERRORS), f"{symbol.name} was bound with {given}"
            if shapes.keys() - known == {"rois"}:
                assert "rois" in str(bound), bound


def attempt(call: Any, given: Dict[str, Any]) -> Any:
    try:
        return call(**given)
    except ERRORS as error:
        return error


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of MXNet's, that a shape or type cannot be decided
    for form in ("variable", "computed", "with parameters"):
        check(*of_samples(form))
        for operator in gluon_roi.library.operators().values():
            if operator.rois_name is None:
                continue
            for counted in (False, True):
                check(*of_ours(operator, counted, form))
        for name in BUILTINS:
            check(*of_mxnet(name, form))
    print("alive")
