# SPDX-License-Identifier: Apache-2.0
"""The table of switches against MXNet's operators, ours and docs/switch_reference.md."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import mxnet as mx
import pytest

import gluon_roi
from gluon_roi.bridge.guard import RANK_INPUT
from gluon_roi.switch.mapping import SWITCHES

PAGE = Path(__file__).parents[2] / "docs/switch_reference.md"
OURS = gluon_roi.library.operators()
INPUTS = ("data", "offset", "mask", "weight", "bias")
every_switch = pytest.mark.parametrize("switch", SWITCHES, ids=lambda switch: switch.mxnet_name)


def operators_of(switch):
    """gluon_roi's operators that may replace MXNet's."""
    chosen = [a.selects_operator for a in switch.arguments if a.selects_operator]
    return [OURS.get(name) or declared_by(name) for name in (switch.name, *chosen)]


def declared_by(name):
    """What the function of a convolution, which is several operators, declares."""
    parameters = inspect.signature(getattr(gluon_roi.nd, name)).parameters.values()
    inputs = tuple(
        gluon_roi.library.Input(one.name, "like", 0, False, True, False)
        for one in parameters
        if one.name in INPUTS
    )
    others: dict[str, str | None] = {
        one.name: str(one.default) for one in parameters if one.name not in INPUTS
    }
    return gluon_roi.library.Declared(name, name, inputs, ("output",), 0, others)


def as_ours(value):
    """MXNet's text of a default as our library writes it."""
    value = value.strip("'")
    if value == "None":
        return value
    return str(float(value)) if re.fullmatch(r"-?\d*\.\d+", value) else value


def numbers_of(text):
    """The numbers of a text: of one number, or of a list."""
    return [float(part) for part in text.strip("[]()").split(",")]


@every_switch
def test_arguments(switch):
    """Each argument of MXNet's is in the table, and a default that is not written is the same."""
    declared = mx.operator.get_operator_arguments(switch.mxnet_name)
    known = [argument.mxnet_name for argument in switch.arguments if argument.mxnet_name]
    assert sorted(declared.names) == sorted([*switch.inputs, *known])
    types = dict(zip(declared.names, declared.types))
    if switch.pools_boxes:
        assert {ours.parameters["bad_index"] for ours in operators_of(switch)} == {"error"}
    for argument in switch.arguments:
        found = re.search("default=(.*)", types.get(argument.mxnet_name, ""))
        theirs = as_ours(found[1]) if found else None
        for ours in operators_of(switch):
            if argument.selects_operator or argument.drops_input:
                assert theirs == "0"
            if not argument.name:
                continue
            default = ours.parameters[argument.name]
            if argument.zero_is_default:
                assert (theirs, default) == ("0", None if default is None else "None")
            elif argument.default is not None and argument.mxnet_name:
                assert theirs in (argument.default, str(int(argument.default == "True")))
            elif argument.default is None and theirs is not None:
                same = {"[]": {"stride": "1", "dilate": "1", "pad": "0"}.get(argument.name)}
                as_numbers = {"False": "0", "None": "nan", None: "nan"}
                wanted, got = same.get(theirs, theirs), as_numbers.get(default, default)
                if wanted != default:  # MXNet's 0.7 is a float32
                    assert numbers_of(wanted) == pytest.approx(numbers_of(got), 1e-7)


@every_switch
def test_inputs(switch):
    for ours in operators_of(switch):
        declared = [given.name for given in ours.inputs]
        assert [name for name in declared if name in switch.inputs] == list(switch.inputs)
        left_out = {a.drops_input for a in switch.arguments if a.drops_input and not a.name}
        optional = {given.name for given in ours.inputs if given.optional}
        assert left_out == set(switch.inputs) & optional


@every_switch
def test_functions(switch):
    """They exist, for arrays and for symbols, and make MXNet's node."""
    for name in switch.functions:
        holders = (mx.sym, mx.sym.contrib, mx.sym.numpy_extension)
        assert any(hasattr(holder, name) for holder in holders)
    assert switch.mxnet_name in (switch.functions[0], f"_contrib_{switch.functions[0]}")


VALUES = {
    "pooled_size": ("3", "(3, 2)"),
    "spatial_scale": ("0.0625", "1"),
    "output_dim": ("2",),
    "group_size": ("0", "3"),
    "part_size": ("0", "5"),
    "sample_ratio": ("2", "-1"),
    "sampling_ratio": ("2", "-1"),
    "sample_per_part": ("1", "4"),
    "trans_std": ("0", "0.1"),
    "aligned": ("True", "False", "1"),
    "position_sensitive": ("True", "0"),
    "no_trans": ("True", "False"),
    "kernel": ("(3, 2)",),
    "stride": ("(2, 1)", "()"),
    "dilate": ("(1, 2)", "()"),
    "pad": ("(1, 0)", "()"),
    "num_filter": ("4",),
    "num_group": ("1", "2"),
    "num_deformable_group": ("1", "2"),
    "workspace": ("1024", "64"),
    "no_bias": ("True", "False", "1"),
    "im2col_step": ("64", "1"),
    "layout": ("NCHW", "None"),
    "overlap_thresh": ("0.3", "1"),
    "valid_thresh": ("0.25",),
    "topk": ("400", "0", "-1"),
    "coord_start": ("0",),
    "score_index": ("4",),
    "id_index": ("0", "-1"),
    "background_id": ("0",),
    "force_suppress": ("True", "False", "1"),
    "in_format": ("center", "corner"),
    "out_format": ("center",),
    "format": ("center", "corner"),
    "rpn_pre_nms_top_n": ("12000", "-1"),
    "rpn_post_nms_top_n": ("2000",),
    "threshold": ("0.5",),
    "rpn_min_size": ("0",),
    "scales": ("(8, 16, 32)", "(8.0,)"),
    "ratios": ("(0.5, 1, 2)",),
    "feature_stride": ("4",),
    "output_score": ("True", "False", "1"),
    "iou_loss": ("True", "0"),
}


def calls(switch):
    """Arguments of MXNet's function: required ones, then each of the others in all its values."""
    declared = mx.operator.get_operator_arguments(switch.mxnet_name)
    required, others = {}, []
    for name, kind in zip(declared.names, declared.types):
        if "required" in kind:
            # Where MXNet takes an int, there is no (height, width).
            required[name] = VALUES[name][-1 if kind.startswith("Shape") else 0]
            if name == "group_size":
                required[name] = "3"
        elif name not in switch.inputs:
            others += [(name, value) for value in VALUES[name]]
    return [required, *({**required, name: value} for name, value in others)]


def node_of(symbol):
    """Operator and attributes of our node, defaults among them, and its inputs.

    Without the attribute for shape inference: functions give a variable its rank instead.
    """
    nodes = json.loads(symbol.tojson())["nodes"]
    (node,) = (node for node in nodes if node["op"].startswith("_gluon_roi_"))
    defaults = OURS[node["op"][len("_gluon_roi_") :]].parameters
    attributes = {**defaults, **node.get("attrs", {})}
    if attributes.get("aligned") == "1":
        attributes["aligned"] = "True"
    attributes.pop(RANK_INPUT, None)
    return node["op"], node["name"], attributes, symbol.list_arguments()


def make(switch, arguments):
    """A node of MXNet's function."""
    inputs = {name: mx.sym.var(name) for name in switch.inputs}
    if arguments.get("no_trans") == "True":
        inputs.pop("trans")
    if arguments.get("no_bias") in ("True", "1"):
        inputs.pop("bias")
    name = switch.functions[0]
    function = getattr(mx.sym, name, None) or getattr(mx.sym.contrib, name)
    return function(name="pool", **inputs, **arguments)


@every_switch
@pytest.mark.parametrize("bad_index", ["error", "padding"])
def test_optimize_and_functions_agree(switch, bad_index):
    with gluon_roi.replace_builtins(bad_index):
        by_functions = [make(switch, arguments) for arguments in calls(switch)]
    for arguments, by_function in zip(calls(switch), by_functions):
        optimized = gluon_roi.optimize(make(switch, arguments), bad_index=bad_index)
        assert node_of(optimized) == node_of(by_function), arguments


def test_page():
    """The page has a row for each switch, which names every argument that changes."""
    table = PAGE.read_text().partition("## Operators and arguments")[2].partition("\n\n##")[0]
    rows = re.findall(r"^\| (`.*?) \| `(\w+)` \| (.*) \|$", table, re.MULTILINE)
    named = {}
    for theirs, ours, changes in rows:
        for function in re.findall(r"`(?:contrib\.|npx\.)?(\w+)(?:\((\w+)=True\))?`", theirs):
            named[function] = ours, changes
    expected = {
        (name, flag): ours.name
        for switch in SWITCHES
        for name in switch.functions
        for flag, ours in zip(
            ["", *(a.mxnet_name for a in switch.arguments if a.selects_operator)],
            operators_of(switch),
        )
    }
    assert {function: ours for function, (ours, _) in named.items()} == expected
    for switch in SWITCHES:
        for name in switch.functions:
            changes = "".join(
                text for (function, _), (_, text) in named.items() if function == name
            )
            for argument in switch.arguments:
                if argument.selects_operator:
                    continue
                keeps_value = argument.default is None and not argument.zero_is_default
                if argument.mxnet_name == argument.name and keeps_value:
                    continue
                for changed in {argument.mxnet_name, argument.name} - {""}:
                    assert re.search(rf"`{changed}\b.*?`", changes), (name, changed)
