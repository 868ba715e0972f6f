# SPDX-License-Identifier: Apache-2.0
"""The nodes of a symbol as in its JSON file, for changes that MXNet has no function for."""

from __future__ import annotations

import json
import re
from typing import Iterable, Mapping, NamedTuple, Sequence

import mxnet as mx


class NodeEntry(NamedTuple):
    """An output of a node, as the index of the node and of its output."""

    node: int
    output: int


def parse_symbol(text: str) -> dict:
    """Parse the text of a symbol file, in which MXNet does not escape control characters."""
    return json.loads(text, strict=False)


def symbol_content(symbol: mx.sym.Symbol) -> dict:
    """The parsed content of the file of a symbol."""
    return parse_symbol(symbol.tojson(remove_amp_cast=False))


#: Operators whose output shapes depend on values, so MXNet infers them while it runs a graph.
_DYNAMIC_OPERATORS = {
    "_cond",
    "_while_loop",
    "_contrib_boolean_mask",
    "_npi_unique",
    "_npx_nonzero",
}


def is_dynamic(content: dict) -> bool:
    """Whether MXNet infers the shapes of a graph while it runs."""
    return any(node["op"] in _DYNAMIC_OPERATORS for node in content["nodes"])


class Nodes:
    """The nodes of a symbol, or of the body of a loop, and its outputs, as in a symbol file."""

    def __init__(self, content: dict) -> None:
        self.nodes: list[dict] = content["nodes"]
        for node in self.nodes:
            node["inputs"] = [NodeEntry(*entry[:2]) for entry in node["inputs"]]
        self.heads = [NodeEntry(*head[:2]) for head in content["heads"]]
        self.attributes = content.get("attrs", {})  # newer files: version of MXNet

    def add(self, op: str, name: str, inputs: Sequence[NodeEntry] = ()) -> NodeEntry:
        """Add a node at the end, and return its output."""
        self.nodes.append({"op": op, "name": name, "inputs": list(inputs)})
        return NodeEntry(len(self.nodes) - 1, 0)

    def redirect(self, replacements: Mapping[NodeEntry, NodeEntry]) -> None:
        """Replace outputs, as inputs of all nodes."""
        for node in self.nodes:
            node["inputs"] = [replacements.get(entry, entry) for entry in node["inputs"]]

    def used(self) -> set[NodeEntry]:
        """The outputs that a node reads, or that are outputs of the symbol."""
        read = (self.nodes[index]["inputs"] for index in self.needed())
        return {*self.heads, *(entry for inputs in read for entry in inputs)}

    def needed(self) -> list[int]:
        """Indices of the nodes that the outputs depend on, in the order of MXNet's files.

        A node comes after its inputs.
        """
        order: list[int] = []
        seen: set[int] = set()
        pending = [entry.node for entry in reversed(self.heads)]
        while pending:
            index = pending.pop()
            if index < 0:  # ~ of a node whose inputs are in order
                order.append(~index)
            elif index not in seen:
                seen.add(index)
                node = self.nodes[index]
                read = [*(entry.node for entry in node["inputs"]), *node.get("control_deps", ())]
                pending.append(~index)
                pending += [one for one in reversed(read) if one not in seen]
        return order

    def content(self) -> dict:
        """The content of a file with all nodes that the outputs depend on."""
        needed = self.needed()
        new_index = {old: new for new, old in enumerate(needed)}

        def as_lists(entries: Iterable[NodeEntry]) -> list:
            return [[new_index[entry.node], entry.output, 0] for entry in entries]

        nodes = []
        for old in needed:
            node = {**self.nodes[old], "inputs": as_lists(self.nodes[old]["inputs"])}
            if "control_deps" in node:
                node["control_deps"] = [new_index[index] for index in node["control_deps"]]
            nodes.append(node)
        variables = [new for new, node in enumerate(nodes) if node["op"] == "null"]
        content = {"nodes": nodes, "arg_nodes": variables, "heads": as_lists(self.heads)}
        return {**content, "attrs": self.attributes} if self.attributes else content

    def first_outputs(self) -> tuple[mx.sym.Symbol, list[NodeEntry]]:
        """A symbol whose outputs are the first outputs of all needed nodes, and their entries."""
        needed, content = self.needed(), self.content()
        content["heads"] = [[number, 0, 0] for number in range(len(needed))]
        return mx.sym.load_json(symbol_text(content)), [NodeEntry(old, 0) for old in needed]


def symbol_text(content: dict) -> str:
    """The text of a symbol file. MXNet supports no escapes except \\, \", \\n, \\r and \\t."""
    return re.sub(
        r"\\(u....|.)",
        lambda found: found[0] if found[1] in r"\"nrt" else json.loads(f'"{found[0]}"'),
        json.dumps(content, ensure_ascii=False),
    )


def without_longs(attribute: str) -> str:
    """An attribute without Python 2's suffix of long integers: (7L, 7L) becomes (7, 7)."""
    return re.sub(r"(?<=\d)[lL]\b", "", attribute)
