# SPDX-License-Identifier: Apache-2.0
"""Counts the RoI operators of existing models."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from types import CodeType
from typing import Any, Iterable, Iterator

import mxnet as mx
from mxnet import gluon

from .. import library
from ..bridge import OperatorBlock
from ..bridge.arguments import Symbol
from ..bridge.symbol_json import parse_symbol, symbol_content
from ..files import read_symbol
from .mapping import BY_FUNCTION, builtins

#: MXNet's operators that run arbitrary Python code.
_PYTHON = ("Custom", "_NDArray", "_Native")
#: Before the type of a Custom operator, in counts.
CUSTOM = "Custom:"
EXPECTED = "expected a symbol or a block, or the path of a symbol file"
ARRAY_CODE = "array code calls, such as that of a plain gluon.Block or a Custom operator"


def count(model: Any) -> dict[str, int]:
    """Count the RoI operators of a symbol or network.

    Parameters
    ----------
    model : mxnet.sym.Symbol, mxnet.gluon.Block, str or pathlib.Path
        A symbol, the path of a symbol file, whose operators need not be registered, or a network. A
        network has to be hybridized and run once before; the operators of its graph in the last run
        are counted, whether for training or inference.

    Returns
    -------
    dict of str to int
        Number of nodes for each operator name, MXNet's (``'ROIPooling'``) and gluon_roi's
        (``'_gluon_roi_ROIPool'``), including zeros and the bodies of control flow operators.
        ``'Custom'`` is the number of all operators written in Python, whose code is not part of a
        graph, and ``'Custom:<op_type>'`` the number of those of one type.

    Raises
    ------
    TypeError, OSError
        `model` has another type, or is a file that cannot be read.
    ValueError
        A part of the network that may use such operators has no graph yet, or the file is not a
        symbol file.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> symbol = mx.sym.ROIPooling(pooled_size=(7, 7), spatial_scale=1 / 16)
    >>> gluon_roi.count(symbol)['ROIPooling']
    1
    """
    return count_for("count", model)


def count_for(caller: str, model: Any) -> dict[str, int]:
    if isinstance(model, (str, os.PathLike)):
        graphs = [parse_symbol(read_symbol(caller, model))]
    elif isinstance(model, Symbol):
        graphs = [symbol_content(model)]
    elif isinstance(model, gluon.Block):
        graphs = [symbol_content(graph) for graph in graphs_of(caller, model)]
        if not graphs:
            hybrid = any(isinstance(block, gluon.HybridBlock) for block in blocks_of(model))
            raise ValueError(_no_graph(caller, model, hybrid))
    else:
        raise TypeError(f"{caller}: {EXPECTED}, got {type(model)}")
    return used_in(graphs)


def used_in(graphs: list[dict]) -> dict[str, int]:
    """The result of count for the contents of symbol files."""
    used: Counter = Counter()
    types: Counter = Counter()
    for graph in graphs:
        for node in _with_bodies(graph["nodes"]):
            if node["op"] in _PYTHON:
                # Old files call the attributes attr or param.
                given = node.get("attrs") or node.get("attr") or node.get("param") or {}
                types[given.get("op_type", node["op"])] += 1
            used[node["op"]] += 1
    return {
        **{name: used[name] for name in (*builtins(), *own_operators())},
        "Custom": sum(types.values()),
        **{CUSTOM + name: uses for name, uses in sorted(types.items())},
    }


def blocks_of(model: gluon.Block) -> list[gluon.Block]:
    blocks: list[gluon.Block] = []
    model.apply(blocks.append)
    return blocks


def own_operators() -> list[str]:
    return [f"_gluon_roi_{name}" for name in library.operators()]


def _with_bodies(nodes: list[dict]) -> Iterator[dict]:
    for node in nodes:
        yield node
        for body in node.get("subgraphs", ()):
            yield from _with_bodies(body["nodes"])


def graphs_of(caller: str, block: gluon.Block) -> Iterator[mx.sym.Symbol]:
    """The graphs of the outermost blocks that have a graph."""
    if getattr(block, "_cached_graph", ()):
        yield block._cached_graph[1]
        return
    if isinstance(block, OperatorBlock) or mentions(block, (*BY_FUNCTION, *library.operators())):
        raise ValueError(_no_graph(caller, block, isinstance(block, gluon.HybridBlock)))
    for child in block._children.values():
        yield from graphs_of(caller, child)


def _no_graph(caller: str, block: gluon.Block, can_have_one: bool) -> str:
    message = f"{caller}: {type(block).__name__} {block.name} has no graph to be counted; call "
    if can_have_one:
        message += "hybridize() on the network and run it once, or "
    return f"{message}gluon_roi.replace_builtins(), which switches what {ARRAY_CODE}"


def mentions(block: gluon.Block, names: Iterable[str]) -> bool:
    """Whether the code of a block contains one of the names; MXNet's blocks do only in contrib."""
    wanted = frozenset(names)
    members = list(vars(block).values())  # such as the function of a HybridLambda
    for owner in type(block).__mro__:
        of_mxnet = owner.__module__.split(".")[0] in ("mxnet", "builtins")
        if not of_mxnet or owner.__module__.startswith("mxnet.gluon.contrib."):
            members.extend(vars(owner).values())
    return any(
        _code_mentions(member.__code__, wanted) for member in members if inspect.isfunction(member)
    )


def _code_mentions(code: CodeType, wanted: frozenset) -> bool:
    if not wanted.isdisjoint(code.co_names):
        return True
    return any(
        _code_mentions(constant, wanted) if isinstance(constant, CodeType) else constant in wanted
        for constant in code.co_consts
        if isinstance(constant, (CodeType, str))
    )
