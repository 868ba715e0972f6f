# SPDX-License-Identifier: Apache-2.0
"""Extracts a part of a model: outputs of nodes become its inputs and outputs."""

from __future__ import annotations

import difflib
import itertools
from typing import Any, Iterable, Sequence

import mxnet as mx

from ..bridge.symbol_json import NodeEntry, Nodes, parse_symbol, symbol_content, symbol_text
from ..files import check_outputs
from .rules.layers import LOSSES

#: MXNet's operators that run Python code.
_PYTHON = ("Custom", "_NDArray", "_Native")


class _Nodes(Nodes):
    """The nodes of a model, found by the names of nodes and of outputs."""

    def __init__(self, content: dict) -> None:
        super().__init__(content)
        self.entries: dict[str, list[NodeEntry]] = {}

    @classmethod
    def of_symbol(cls, symbol: Any) -> _Nodes:
        internals = symbol.get_internals()
        nodes = cls(symbol_content(mx.sym.Group([internals, symbol])))
        names = internals.list_outputs()
        for name, head in zip(names, nodes.heads):
            nodes._name(name, head)
        nodes.heads = nodes.heads[len(names) :]
        return nodes

    @classmethod
    def of_text(cls, content: str) -> _Nodes:
        """From a symbol file that MXNet cannot load because an operator is not registered."""
        nodes = cls(parse_symbol(content))
        used: dict[int, list[NodeEntry]] = {}
        for entry in sorted(nodes.used()):
            used.setdefault(entry.node, []).append(entry)
        for number, node in enumerate(nodes.nodes):
            entries = used.get(number, [NodeEntry(number, 0)])
            for entry in entries:
                index = str(entry.output) if len(entries) > 1 else ""
                is_variable = node["op"] == "null"
                nodes._name(node["name"] if is_variable else f"{node['name']}_output{index}", entry)
        return nodes

    def _name(self, name: str, entry: NodeEntry) -> None:
        """Record both names of an output: its own name, and the name of its node."""
        for key in {name, self.nodes[entry.node]["name"]}:
            self.entries.setdefault(key, []).append(entry)

    def find(self, argument: str, name: str) -> list[NodeEntry]:
        entries = self.entries.get(name, [])
        if not entries:
            near = difflib.get_close_matches(name, self.entries, n=3, cutoff=0.5)
            hint = f"; it has {', '.join(near)}" if near else ""
            raise ValueError(f"onnx.export: {argument}: the model has no node {name!r}{hint}")
        if len({entry.node for entry in entries}) > 1:
            raise ValueError(f"onnx.export: {argument}: the model has several nodes {name!r}")
        return entries


def cut(model: Any, inputs: Sequence[str], outputs: Sequence[str] | None) -> Any:
    """A part of a model, as the content of a symbol file; the model itself if nothing is cut.

    Parameters
    ----------
    model : mxnet.sym.Symbol or str
        A str is the content of a symbol file.
    inputs : sequence of str
        Names of nodes or of their outputs, which become variables; names of variables have no
        effect.
    outputs : sequence of str, optional
        Names of nodes or of their outputs.
    """
    nodes = _nodes(model)
    if outputs is not None:
        if not (
            outputs
            and isinstance(outputs, (list, tuple))
            and all(isinstance(name, str) for name in outputs)
        ):
            raise ValueError(f"onnx.export: outputs: expected a list of names, got {outputs!r}")
        nodes.heads = [entry for name in outputs for entry in nodes.find("outputs", name)]
    has_new_labels = _replace_labels(nodes)
    for name in inputs:
        _make_input(nodes, name)
    _refuse_python(nodes)
    if outputs is None and not inputs and not has_new_labels:
        return model
    return symbol_text(nodes.content())


def _nodes(model: Any) -> _Nodes:
    if not isinstance(model, str):
        return _Nodes.of_symbol(model)
    try:
        symbol = mx.sym.load_json(model)
    except mx.MXNetError:
        return _Nodes.of_text(model)
    check_outputs("onnx.export", symbol)
    return _Nodes.of_symbol(symbol)


def _replace_labels(nodes: _Nodes) -> bool:
    """Replace the labels of losses with new variables if other nodes compute or read them.

    Nodes that only labels depend on are then unused. Returns whether a label was replaced.
    """
    names = {node["name"] for node in nodes.nodes}
    needed = nodes.needed()
    labels = label_variables(nodes, needed)
    replaced = False
    for number in needed:
        node = nodes.nodes[number]
        if node["op"] not in LOSSES or len(node["inputs"]) < 2 or node["inputs"][1].node in labels:
            continue
        name = next(
            name
            for name in (f"{node['name']}_label{n or ''}" for n in itertools.count())
            if name not in names
        )
        names.add(name)
        node["inputs"][1] = nodes.add("null", name)
        replaced = True
    return replaced


def label_variables(nodes: Nodes, needed: Iterable[int]) -> set[int]:
    """The variables that are only read by losses as labels, and therefore only in training."""
    labels: set[int] = set()
    others = {head.node for head in nodes.heads}
    for number in needed:
        node = nodes.nodes[number]
        for argument, entry in enumerate(node["inputs"]):
            is_label = node["op"] in LOSSES and argument == 1
            (labels if is_label else others).add(entry.node)
    return {number for number in labels - others if nodes.nodes[number]["op"] == "null"}


def _make_input(nodes: _Nodes, name: str) -> None:
    """Replace an output of a node with a variable that has its name."""
    entries = nodes.find("inputs", name)
    if nodes.nodes[entries[0].node]["op"] == "null":
        return
    used = [entry for entry in entries if entry in nodes.used()]
    if not used:
        raise ValueError(f"onnx.export: inputs: the outputs of the model do not depend on {name!r}")
    if len(used) > 1:
        names = [
            key for key, value in nodes.entries.items() if len(value) == 1 and value[0] in used
        ]
        raise ValueError(
            f"onnx.export: inputs: {name!r} has several outputs that are used; name each: "
            f"{', '.join(sorted(names))}"
        )
    if any(node["op"] == "null" and node["name"] == name for node in nodes.nodes):
        raise ValueError(f"onnx.export: inputs: the model has another input {name!r}")
    (entry,) = used
    variable = nodes.add("null", name)
    nodes.redirect({entry: variable})
    if entry in nodes.heads:  # an output of the model keeps its name
        node_name = name[: -len("_output")] if name.endswith("_output") else name
        same = nodes.add("_copy", node_name, [variable])
        nodes.heads = [same if head == entry else head for head in nodes.heads]


def _refuse_python(nodes: _Nodes) -> None:
    for number in nodes.needed():
        node = nodes.nodes[number]
        if node["op"] in _PYTHON:
            attributes = node.get("attrs") or node.get("attr") or node.get("param") or {}
            raise NotImplementedError(
                f"onnx.export: node {node['name']} ({node['op']}, op_type "
                f"{attributes.get('op_type')}): Python code has no translation; make its output "
                f"an input of the model, inputs={{{node['name']!r}: shape}}, or end the model "
                "before it, outputs=[names]"
            )
