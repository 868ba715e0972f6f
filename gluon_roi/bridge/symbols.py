# SPDX-License-Identifier: Apache-2.0
"""Calls of operators on symbols."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from ..library import Declared
from .arguments import attributes, is_true
from .guard import RANK_INPUT, guarded_symbol, rank_input
from .symbol_json import is_dynamic, symbol_content


def _name_manager() -> mx.name.NameManager:
    """This thread's name manager, which MXNet creates at first use."""
    local = mx.name.NameManager._current
    if not hasattr(local, "value"):
        local.value = mx.name.NameManager()
    return local.value


def node_name(name: Any, operator: str) -> str:
    """The name of an operator's node, without the prefix that MXNet's functions add."""
    return mx.name.NameManager.get(_name_manager(), name, operator.lower())


def inside_a_block() -> bool:
    """Whether the call builds part of a Gluon block's graph."""
    return getattr(mx.gluon.block._BlockScope._current, "value", None) is not None


def call_symbols(
    operator: Declared,
    inputs: dict[str, Any],
    parameters: dict[str, Any],
    name: str | None,
    attr: dict[str, str] | None,
) -> mx.sym.Symbol:
    """Call an operator on symbols of mx.sym; `inputs` holds the given inputs only."""
    node = node_name(name, operator.name)
    roles = {operator.input_of(key).role for key in inputs}
    # MXNet 1.9.1 crashes before a custom operator's shape inference if too few ranks are known.
    # With two inputs, one known rank is enough. In a Gluon network the shapes of all inputs are
    # known before others are inferred.
    in_network = inside_a_block()
    needs_ranks = len(inputs) > 2 and not in_network
    if needs_ranks:
        needs_ranks = not is_dynamic(symbol_content(mx.sym.Group(list(inputs.values()))))
    without_gradient = _without_gradient(operator, parameters)
    guarded = []
    has_rank = False
    for key, symbol in inputs.items():
        declared = operator.input_of(key)
        rank = 2 if declared.role == "rois" and "counts" in roles else declared.rank
        is_variable = symbol.get_children() is None
        if rank and is_variable and symbol.attr("__shape__") is None:
            symbol._set_attr(__shape__=str((-1,) * rank))  # -1 is a dimension still to be inferred
        has_rank |= bool(rank and (is_variable or needs_ranks))
        guarded.append(
            guarded_symbol(
                declared.role,
                symbol,
                f"{node}_{key}",
                rank if needs_ranks and not is_variable and declared.role != "counts" else 0,
                declared.name not in without_gradient,
                in_network,
            )
        )
    if not has_rank and not in_network:
        source = rank_input(f"{node}_ranks")
        if source is not None:
            guarded.append(source)
            attr = {**(attr or {}), RANK_INPUT: "True"}
    function = getattr(mx.sym._internal, f"_gluon_roi_{operator.name}")
    return function(*guarded, name=node, attr=attr, **attributes(operator, inputs, parameters))


def _without_gradient(operator: Declared, parameters: dict[str, Any]) -> set[str]:
    """The inputs whose gradient is always 0."""
    names = {declared.name for declared in operator.inputs if not declared.has_gradient}
    if operator.rois_name and not is_true(parameters.get("rois_grad", True)):
        names.add(operator.rois_name)
    return names
