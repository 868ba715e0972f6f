"""Calls on symbols."""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx

from ..library import Declared
from .arguments import attributes
from .guard import guarded_symbol

# The dimensions of an input, by its role; those of rois depend on their form.
_RANKS = {"maps": 4, "offsets": 4, "counts": 1}


def _name_manager() -> mx.name.NameManager:
    """The one of this thread; MXNet makes it at first use."""
    local = mx.name.NameManager._current
    if not hasattr(local, "value"):
        local.value = mx.name.NameManager()
    return local.value


def call_symbols(
    operator: Declared,
    present: tuple,
    inputs: dict[str, Any],
    values: Sequence[Any],
    name: Any,
    attr: Any,
) -> mx.sym.Symbol:
    """Call on symbols of mx.sym; `inputs` are those that are there, `present` says which."""
    # The unbound method gives the name without the prefix, which each call below adds itself.
    node = mx.name.NameManager.get(_name_manager(), name, operator.name.lower())
    roles = {declared.name: declared.role for declared in operator.inputs}
    guarded = []
    for key, symbol in inputs.items():
        role = roles.get(key, "maps")  # of several maps, each has a name of its own
        # MXNet 1.9.1 crashes on its way to a custom operator's shape inference when too few ranks
        # are known; -1 is a dimension still to be inferred.
        rank = _RANKS.get(role)
        if rank and symbol.get_children() is None and symbol.attr("__shape__") is None:
            symbol._set_attr(__shape__=str((-1,) * rank))
        guarded.append(guarded_symbol(role, symbol, f"{node}_{key}"))
    function = getattr(mx.sym._internal, f"_gluon_roi_{operator.name}")
    return function(*guarded, name=node, attr=attr, **attributes(operator, present, values))
