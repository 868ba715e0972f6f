# SPDX-License-Identifier: Apache-2.0
"""The registry of rules, which translate the operators of MXNet's graphs.

Modules register their rules when they are imported, by rules/__init__.py and roi/__init__.py. An
operator has one rule.
"""

from __future__ import annotations

import functools
from typing import Any, Callable

from .graph import Node, OnnxGraph

#: Adds the ONNX nodes for a node of MXNet, and returns its output or a list of outputs.
#: A rule reads every attribute that it supports; a node with other attributes is rejected.
Rule = Callable[[OnnxGraph, Node], Any]

#: Rules by the name of the operator in MXNet's graphs.
RULES: dict[str, Rule] = {}


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Decorator: register a function as the rule for these operators."""

    def register(function: Rule) -> Rule:
        for operator in operators:
            _add(operator, function)
        return function

    return register


def rules(variants: dict[str, Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorator: register a function as the rule for these operators, with an argument for each.

    The argument `variant` is often the name of the ONNX operator.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for operator, variant in variants.items():
            _add(operator, functools.partial(function, variant=variant))
        return function

    return register


def _add(operator: str, function: Rule) -> None:
    if operator in RULES:
        raise ValueError(f"two rules for {operator}")
    RULES[operator] = function
