"""Which rule translates which operator of MXNet's graphs."""

from __future__ import annotations

from typing import Any, Callable

from .graph import Graph, Node

#: Adds the nodes that compute what a node of MXNet computes; gives the name of its output, or a
#: list of names. It looks at every attribute that it covers; a node with any other is refused.
Rule = Callable[[Graph, Node], Any]

#: By the name of the operator in MXNet's graphs.
RULES: dict[str, Rule] = {}


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of some operators."""

    def register(function: Rule) -> Rule:
        RULES.update((operator, function) for operator in operators)
        return function

    return register
