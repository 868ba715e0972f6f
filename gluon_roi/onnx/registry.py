# SPDX-License-Identifier: Apache-2.0
"""The registry of rules, which translate the operators of MXNet's graphs.

A module of rules registers them when it is imported: rules/__init__.py and roi/__init__.py import
all of them. An operator has one rule.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from .graph import Graph, Node

#: Adds the ONNX nodes for a node of MXNet, and returns its output, or a list of them.
#: A rule reads every attribute that it covers; a node with any other is rejected.
Rule = Callable[[Graph, Node], Any]

#: Rules by the name of the operator in MXNet's graphs.
RULES: dict[str, Rule] = {}


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Decorator: registers a function as the rule for these operators."""

    def register(function: Rule) -> Rule:
        for operator in operators:
            _add(operator, function)
        return function

    return register


def rules(kinds: dict[str, Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: registers a function as the rule for these operators, with what it gets of each.

    Often that is the name of the operator of ONNX.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for operator, kind in kinds.items():
            _add(operator, functools.partial(function, kind=kind))
        return function

    return register


def _add(operator: str, function: Rule) -> None:
    if operator in RULES:
        raise ValueError(f"two rules for {operator}")
    RULES[operator] = function
