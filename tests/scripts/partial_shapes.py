# SPDX-License-Identifier: Apache-2.0
"""Infers and binds every operator with some shapes and types unknown: prints "alive".

python partial_shapes.py FORM...
"""

import itertools
import re
import sys
import warnings
from typing import Any, Dict, FrozenSet, Iterator, List, Tuple

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
                # An offset has two numbers for each bin, a mask one.
                "like": (3, 1 if declared.name == "mask" else 2, 2, 2),
                "counts": (2,),
            }[declared.role]
            inputs.append(read(declared.name, form))
    function = getattr(gluon_roi.sym, operator.name)
    *inputs, counts = inputs
    scale = SCALES if operator.several_maps else SCALES[0]
    return function(*inputs, pooled_size=2, spatial_scale=scale, rois_num=counts), shapes


def of_samples(form: str, layout: str) -> Tuple[Any, Shapes]:
    """A call of DeformableSampling, and the shapes of its arguments."""
    shapes: Shapes = {"data": (3, 8, 6, 7), "offset": (3, 18, 6, 7), "mask": (3, 9, 6, 7)}
    data, offset, mask = (read(name, form) for name in shapes)
    symbol = gluon_roi.sym.DeformableSampling(
        data, offset, mask, kernel=3, pad=1, layout=layout, name="sampling"
    )
    return symbol, shapes


def of_rows(form: str) -> Tuple[Any, Shapes]:
    """A call of BoxNMS."""
    return gluon_roi.sym.BoxNMS(read("data", form), name="nms"), {"data": (3, 7, 6)}


def of_boxes(form: str) -> Tuple[Any, Shapes]:
    """A call of BoxIoU."""
    symbol = gluon_roi.sym.BoxIoU(read("lhs", form), read("rhs", form), name="iou")
    return symbol, {"lhs": (3, 7, 4), "rhs": (2, 4)}


def of_proposals(form: str) -> Tuple[Any, Shapes]:
    """A call of Proposal, for three rows of two images."""
    shapes: Shapes = {"cls": (3, 24, 5, 6), "pred": (3, 48, 5, 6), "info": (3, 3)}
    cls, pred, info = (read(name, form) for name in shapes)
    return gluon_roi.sym.Proposal(cls, pred, info, rpn_post_nms_top_n=1, name="proposal"), shapes


def behind_proposals(form: str) -> Iterator[Tuple[Any, Shapes]]:
    """Calls of other operators on the boxes of Proposal."""
    boxes, shapes = of_proposals(form)
    nms = gluon_roi.sym.BoxNMS(boxes, score_index=0, coord_start=1, name="nms")
    yield nms, shapes
    yield gluon_roi.sym.BoxNMS(nms, score_index=0, coord_start=1, name="again"), shapes
    for rois in (boxes, nms):
        align = gluon_roi.sym.ROIAlign(read("data", form), rois, 2, SCALES[0], name="align")
        yield align, {**shapes, "data": (3, 8, 16, 24)}


#: MXNet's operators whose name in MXNet is not enough: inputs with their shapes, arguments.
CONVOLUTION = {"kernel": (3, 3), "pad": (1, 1), "num_filter": 4, "no_bias": True}
PROPOSAL = {"scales": (8.0,), "ratios": (1.0,), "rpn_pre_nms_top_n": 6, "rpn_post_nms_top_n": 3}
WITHOUT_BOXES: Dict[str, Tuple[Shapes, Dict[str, Any]]] = {
    "DeformableConvolution": (
        {"data": (3, 8, 6, 7), "offset": (3, 18, 6, 7), "weight": (4, 8, 3, 3)},
        CONVOLUTION,
    ),
    "ModulatedDeformableConvolution": (
        {
            "data": (3, 8, 6, 7),
            "offset": (3, 18, 6, 7),
            "mask": (3, 9, 6, 7),
            "weight": (4, 8, 3, 3),
        },
        CONVOLUTION,
    ),
    "Proposal": ({"cls": (1, 2, 5, 6), "pred": (1, 4, 5, 6), "info": (1, 3)}, PROPOSAL),
    "MultiProposal": (
        {"cls": (3, 2, 5, 6), "pred": (3, 4, 5, 6), "info": (3, 3)},
        {**PROPOSAL, "rpn_post_nms_top_n": 1},
    ),
    "box_nms": ({"data": (3, 7, 6)}, {}),
}


def of_mxnet(name: str, form: str) -> Tuple[Any, Shapes]:
    """One of MXNet's operators, switched, and the shapes of its arguments."""
    if name in WITHOUT_BOXES:
        shapes, more = WITHOUT_BOXES[name]
        inputs = [mx.sym.var(key) if key == "weight" else read(key, form) for key in shapes]
        return gluon_roi.optimize(
            getattr(mx.sym.contrib, name)(
                *inputs, name="nms" if name == "box_nms" else "own", **more
            )
        ), shapes
    shapes = {"data": (2, 8, 16, 24), "rois": (3, 6 if name == "RROIAlign" else 5)}
    more = {}
    if name.endswith("PSROIPooling"):
        more = {"output_dim": 2, "group_size": 2}
    if name.startswith("Deformable"):
        shapes["trans"] = (3, 2, 2, 2)
        more.update(part_size=2, trans_std=0.1)
    function = getattr(mx.sym if name == "ROIPooling" else mx.sym.contrib, name)
    size = {"pooled_size": 2 if name == "PSROIPooling" or "Deform" in name else (2, 2)}
    inputs = [read(key, form) for key in shapes]
    symbol = function(*inputs, spatial_scale=SCALES[0], **size, **more)
    return gluon_roi.optimize(symbol), shapes


def of_a_pyramid(form: str) -> Tuple[Any, Shapes]:
    """A sum of ROIAligns, which becomes a PyramidROIAlign."""
    shapes: Shapes = {"rois": (3, 5)}
    rois = read("rois", form)
    aligns = []
    for i, scale in enumerate(SCALES):
        shapes[f"data{i}"] = (2, 8, 16 >> i, 24 >> i)
        # The lists of boxes are computed alike from the same rows.
        inputs = read(f"data{i}", form), rois + i
        aligns.append(mx.sym.contrib.ROIAlign(*inputs, (2, 2), scale))
    symbol = gluon_roi.optimize(mx.sym.add_n(*aligns, name="pyramid"))
    assert "PyramidROIAlign" in symbol.tojson()
    return symbol, shapes


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
    """Any subset of the inputs has its shape, and each of their sizes may be unknown."""
    weights = {name: (1,) for name in symbol.list_arguments() if name.endswith("_weight")}
    true_shape = symbol.infer_shape(**shapes, **weights)[1][0]
    assert true_shape[0] == 3
    subsets = itertools.chain.from_iterable(
        itertools.combinations(shapes, count) for count in range(len(shapes) + 1)
    )
    for known in map(frozenset, subsets):
        for inside in (False, True):
            given = {**{name: shapes[name] for name in known}, **weights}
            with mx.util.np_shape(inside):
                check_partial(symbol, given, true_shape, inside)
                check_bound(symbol, shapes, known, given)
                types = {name: "float32" for name in known - {"rois_num"}}
                attempt(symbol.infer_type, types)
                attempt(symbol.infer_type_partial, types)
    for name, shape in shapes.items():
        for axis, (inside, unknown) in itertools.product(
            range(len(shape)), ((False, 0), (False, -1), (True, -1))
        ):
            sizes = (*shape[:axis], unknown, *shape[axis + 1 :])
            given = {**shapes, **weights, name: sizes}
            with mx.util.np_shape(inside):
                check_partial(symbol, given, true_shape, inside)


def check_partial(
    symbol: mx.sym.Symbol, given: Shapes, true_shape: Tuple[int, ...], inside: bool
) -> None:
    """What is inferred is true, or unknown: 0 or -1.

    Inside of np_shape() 0 stands for an unknown number of rows alone, which MXNet would take for
    too many.
    """
    partial = attempt(symbol.infer_shape_partial, given)
    if isinstance(partial, ERRORS):
        # The output's rank is that of the inputs, and MXNet's library API has no unknown rank.
        assert inside and re.search("Box(IoU|NMS): .* has no shape", str(partial)), (partial, given)
        return
    shape = partial[1][0]
    if shape is None or (shape == () and not inside):
        return
    assert len(shape) == len(true_shape), (symbol.name, given, shape)
    for size, true_size in zip(shape, true_shape):
        assert size in (true_size, -1, 0), (symbol.name, given, shape)


def check_bound(
    symbol: mx.sym.Symbol, shapes: Shapes, known: FrozenSet[str], given: Shapes
) -> None:
    """Nothing is bound without the shape of an input, and the error of rois names it."""
    bound = attempt(symbol.simple_bind, {"ctx": mx.cpu(), **given})
    missing = shapes.keys() - known - {"weight"}
    if not missing:
        assert not isinstance(bound, ERRORS), f"{symbol.name}: {bound}"
        assert bound.outputs[0].shape[0] == 3
    else:
        assert isinstance(bound, ERRORS), f"{symbol.name} was bound with {given}"
    if missing == {"rois"}:
        assert "rois" in str(bound), bound


def attempt(call: Any, given: Dict[str, Any]) -> Any:
    try:
        return call(**given)
    except ERRORS as error:
        return error


def calls(form: str) -> Iterator[Tuple[Any, Shapes]]:
    for operator in gluon_roi.library.operators().values():
        if operator.rois_name is not None:
            for counted in (False, True):
                yield of_ours(operator, counted, form)
    for layout in ("map", "columns"):
        yield of_samples(form, layout)
    yield of_rows(form)
    yield of_boxes(form)
    yield of_proposals(form)
    yield from behind_proposals(form)
    for name in (*BUILTINS, *WITHOUT_BOXES):
        yield of_mxnet(name, form)
    yield of_a_pyramid(form)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of MXNet's, that a shape or type cannot be decided
    called = set()
    for form in sys.argv[1:]:  # variable, computed, with parameters
        for symbol, shapes in calls(form):
            check(symbol, shapes)
            called.update(re.findall('"op": "_gluon_roi_(\\w+)"', symbol.tojson()))
    assert called == set(gluon_roi.library.operators()), called
    print("alive")
