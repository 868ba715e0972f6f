# SPDX-License-Identifier: Apache-2.0
"""Cuts a part out of a model: some outputs of nodes become its inputs, others its outputs."""

from __future__ import annotations

import difflib
import json
from typing import Any, Iterable, NamedTuple, Sequence

import mxnet as mx

from .inference import loaded

#: MXNet's operators that run Python code.
_PYTHON = ("Custom", "_NDArray", "_Native")


class _Place(NamedTuple):
    """An output of a node."""

    node: int
    output: int


class _Nodes:
    """The nodes of a symbol, as in its file, and its outputs."""

    def __init__(self, described: dict, heads: Sequence) -> None:
        self.nodes = described["nodes"]
        self.attributes = described.get("attrs", {})  # newer files: version of MXNet
        self.heads = [_Place(*head[:2]) for head in heads]
        self.places: dict[str, list[_Place]] = {}

    @classmethod
    def of_symbol(cls, symbol: Any) -> _Nodes:
        internals = symbol.get_internals()
        described = json.loads(mx.sym.Group([internals, symbol]).tojson(remove_amp_cast=False))
        names, heads = internals.list_outputs(), described["heads"]
        made = cls(described, heads[len(names) :])
        for name, head in zip(names, heads):
            made._name(name, _Place(*head[:2]))
        return made

    @classmethod
    def of_text(cls, text: str) -> _Nodes:
        """From a file that MXNet cannot load, because an operator is not registered."""
        described = json.loads(text)
        made = cls(described, described["heads"])
        for number, node in enumerate(made.nodes):
            used = sorted({place for place in made.used() if place.node == number})
            for place in used or [_Place(number, 0)]:
                several = str(place.output) if len(used) > 1 else ""
                plain = node["op"] == "null"
                made._name(node["name"] if plain else f"{node['name']}_output{several}", place)
        return made

    def _name(self, name: str, place: _Place) -> None:
        """Record both names of a place: its own, and that of its node."""
        for one in {name, self.nodes[place.node]["name"]}:
            self.places.setdefault(one, []).append(place)

    def used(self) -> set[_Place]:
        """The places that a node reads, or that are outputs of the model."""
        needed = self.needed()
        read = {_Place(*entry[:2]) for number in needed for entry in self.nodes[number]["inputs"]}
        return read | set(self.heads)

    def needed(self) -> list[int]:
        """Numbers of the nodes that the outputs depend on, in their order."""
        needed: set[int] = set()
        left = [place.node for place in self.heads]
        while left:
            number = left.pop()
            if number not in needed:
                needed.add(number)
                left += [entry[0] for entry in self.nodes[number]["inputs"]]
                left += self.nodes[number].get("control_deps", ())
        return sorted(needed)

    def find(self, argument: str, name: str) -> list[_Place]:
        places = self.places.get(name, [])
        if not places:
            near = difflib.get_close_matches(name, self.places, n=3, cutoff=0.5)
            hint = f"; it has {', '.join(near)}" if near else ""
            raise ValueError(f"onnx.export: {argument}: the model has no node {name!r}{hint}")
        if len({place.node for place in places}) > 1:
            raise ValueError(f"onnx.export: {argument}: the model has several nodes {name!r}")
        return places

    def add(self, op: str, name: str, inputs: Sequence = ()) -> _Place:
        self.nodes.append({"op": op, "name": name, "inputs": list(inputs)})
        return _Place(len(self.nodes) - 1, 0)

    def symbol(self) -> Any:
        """The symbol of all nodes that the outputs depend on."""
        # Variables go first, because new ones are at the end of the list.
        needed = sorted(self.needed(), key=lambda number: self.nodes[number]["op"] != "null")
        number = {old: new for new, old in enumerate(needed)}

        def moved(entries: Iterable) -> list:
            return [[number[entry[0]], *entry[1:]] for entry in entries]

        nodes = []
        for old in needed:
            node = {**self.nodes[old], "inputs": moved(self.nodes[old]["inputs"])}
            if "control_deps" in node:
                node["control_deps"] = [number[dependency] for dependency in node["control_deps"]]
            nodes.append(node)
        variables = [new for new, node in enumerate(nodes) if node["op"] == "null"]
        heads = [[*head, 0] for head in moved(self.heads)]
        described = {"nodes": nodes, "arg_nodes": variables, "heads": heads}
        return loaded(json.dumps({**described, "attrs": self.attributes}))


def cut(model: Any, inputs: Sequence[str], outputs: Sequence[str] | None) -> Any:
    """The symbol of a part of a model.

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
        nodes.heads = [place for name in outputs for place in nodes.find("outputs", name)]
    for name in inputs:
        _make_input(nodes, name)
    _refuse_python(nodes)
    if outputs is None and not inputs:
        return loaded(model) if isinstance(model, str) else model
    return nodes.symbol()


def _nodes(model: Any) -> _Nodes:
    if not isinstance(model, str):
        return _Nodes.of_symbol(model)
    try:
        return _Nodes.of_symbol(mx.sym.load_json(model))
    except mx.MXNetError:
        return _Nodes.of_text(model)


def _make_input(nodes: _Nodes, name: str) -> None:
    """Replace an output of a node with a variable of that name."""
    places = nodes.find("inputs", name)
    if nodes.nodes[places[0].node]["op"] == "null":
        return
    used = [place for place in places if place in nodes.used()]
    if not used:
        raise ValueError(f"onnx.export: inputs: the outputs of the model do not depend on {name!r}")
    if len(used) > 1:
        own = [key for key, value in nodes.places.items() if len(value) == 1 and value[0] in used]
        raise ValueError(
            f"onnx.export: inputs: {name!r} has several outputs that are used; name each: "
            f"{', '.join(sorted(own))}"
        )
    if any(node["op"] == "null" and node["name"] == name for node in nodes.nodes):
        raise ValueError(f"onnx.export: inputs: the model has another input {name!r}")
    (place,) = used
    variable = nodes.add("null", name)
    for node in nodes.nodes:
        node["inputs"] = [
            [*variable, 0] if tuple(entry[:2]) == place else entry for entry in node["inputs"]
        ]
    if place in nodes.heads:  # an output of the model keeps its name
        node_name = name[: -len("_output")] if name.endswith("_output") else name
        same = nodes.add("_copy", node_name, [[*variable, 0]])
        nodes.heads = [same if head == place else head for head in nodes.heads]


def _refuse_python(nodes: _Nodes) -> None:
    for number in nodes.needed():
        node = nodes.nodes[number]
        if node["op"] in _PYTHON:
            attributes = node.get("attrs") or node.get("attr") or node.get("param") or {}
            raise NotImplementedError(
                f"onnx.export: node {node['name']} ({node['op']}, op_type "
                f"{attributes.get('op_type')}): Python code has no translation; make what it gives "
                f"an input of the model, inputs={{{node['name']!r}: shape}}, or end the model "
                "before it, outputs=[names]"
            )
