# SPDX-License-Identifier: Apache-2.0
"""Switches MXNet's operators in a symbol to gluon_roi's.

The symbol is changed in the form of its JSON file. A node of MXNet's operator is replaced with the
nodes that gluon_roi's function creates: guards, the operator, and auxiliary nodes. Names of nodes,
arguments and outputs are kept, as well as attributes such as __this__.
"""

from __future__ import annotations

import contextlib
import functools
from ast import literal_eval
from typing import Any, Iterator

import mxnet as mx
from mxnet import gluon

from ..bridge.arguments import NumpySymbol, is_true
from ..bridge.guard import ATTRIBUTE, RANK_INPUT
from ..bridge.symbol_json import (
    NodeEntry,
    Nodes,
    is_dynamic,
    parse_symbol,
    symbol_text,
    without_longs,
)
from .mapping import BY_OPERATOR, Options, Switch

_STANDS_FOR = "__gluon_roi_stands_for__"
_MULTIPLE = -1


class SymbolGraph(Nodes):
    """Nodes of a symbol, some of which are replaced with nodes that functions create."""

    def attributes_of(self, index: int) -> dict[str, str]:
        return self.nodes[index].get("attrs", {})

    @functools.cached_property
    def _variable(self) -> list[int | None]:
        """For each node the variable that it depends on, None without any, or _MULTIPLE."""
        found: list[int | None] = []
        for index, node in enumerate(self.nodes):
            read = {found[entry.node] for entry in node["inputs"]} - {None}
            variable = index if node["op"] == "null" else read.pop() if read else None
            found.append(_MULTIPLE if read else variable)
        return found

    def stand_in(self, entry: NodeEntry) -> mx.sym.Symbol:
        """A symbol for an output of a node, as the input of a function.

        It has the properties that guards read: the attributes, and whether it depends on one
        variable only.
        """
        has_multiple = self._variable[entry.node] in (None, _MULTIPLE)
        hidden = {k: v for k, v in self.attributes_of(entry.node).items() if k.startswith("__")}
        hidden[_STANDS_FOR] = f"{entry.node} {entry.output}"
        return mx.sym.add_n(*map(mx.sym.var, "ab" if has_multiple else "a"), attr=hidden)

    def replace(self, index: int, replacement: mx.sym.Symbol) -> dict[NodeEntry, NodeEntry]:
        """Replace a node with the nodes of a symbol whose inputs are stand-ins.

        Returns the replacements of the node's outputs, except for the first, which keeps its index.
        """
        content = parse_symbol(replacement.tojson())  # without the casts that AMP inserts
        heads = [head[0] for head in content["heads"]]
        entries: dict[int, NodeEntry] = {}
        for i, node in enumerate(content["nodes"]):
            stands_for = node.get("attrs", {}).get(_STANDS_FOR)
            if stands_for:
                entries[i] = NodeEntry(*map(int, stands_for.split()))
            elif node["op"] != "null":
                read = [(entries[source], output) for source, output, *_ in node["inputs"]]
                node["inputs"] = [NodeEntry(entry.node, entry.output + k) for entry, k in read]
                is_first = i == heads[0]
                entries[i] = NodeEntry(index if is_first else len(self.nodes), 0)
                if is_first:
                    self.nodes[index] = node
                else:
                    self.nodes.append(node)
        return {NodeEntry(index, k): entries[heads[k]] for k in range(1, len(heads))}


@contextlib.contextmanager
def own_scope(in_network: bool, **attributes: str) -> Iterator[None]:
    """Context manager: nodes get no names or attributes from the scopes of the caller."""
    with contextlib.ExitStack() as scopes:
        if in_network:
            scopes.enter_context(gluon.Block(prefix="network_").name_scope())
        scopes.enter_context(mx.name.NameManager())
        scopes.enter_context(mx.AttrScope())._attr = attributes
        yield


def switch_nodes(content: dict, options: Options, in_network: bool, is_body: bool = False) -> dict:
    """Switch the nodes of a symbol file, or of a loop body in it; raises ValueError.

    The graph of a Gluon network (`in_network`), or a graph whose shapes MXNet infers while it runs,
    gets the guards of a network.
    """
    in_network |= is_dynamic(content)
    graph = SymbolGraph(content)
    if in_network:
        replace_zero_guards(graph)
    used = graph.used()
    replacements: dict[NodeEntry, NodeEntry] = {}
    for index, node in enumerate(list(graph.nodes)):
        if "subgraphs" in node:
            bodies = node["subgraphs"]
            node["subgraphs"] = [switch_nodes(body, options, in_network, True) for body in bodies]
        switch = BY_OPERATOR.get(node["op"])
        if switch is not None and options.includes(switch):
            # Nodes of a loop's body have the loop's name.
            loop = graph.attributes_of(index).get("__subgraph_name__", node["name"])
            with own_scope(in_network, **({"__subgraph_name__": loop} if is_body else {})):
                if in_network:
                    _set_weight_shape(graph, node, switch)
                replacement = _make_node(graph, index, switch, options, used)
            replacements.update(graph.replace(index, replacement))
    if replacements:
        graph.redirect(replacements)
        graph.heads = [replacements.get(head, head) for head in graph.heads]
    return graph.content()


def replace_zero_guards(graph: SymbolGraph) -> None:
    """Replace guards with zeros, including those of version 1.0.0, with the guards of a network.

    Inputs that only provide a rank, which a network does not need, are removed.
    """
    for index, node in enumerate(graph.nodes):
        if node.get("attrs", {}).pop(RANK_INPUT, None):
            node["inputs"].pop()
        if node["op"] not in ("_npi_subtract", "elemwise_sub", "_identity_with_attr_like_rhs"):
            continue
        zeros = node["inputs"][1].node
        if graph.nodes[zeros]["op"] == "_identity_with_attr_like_rhs":
            zeros = graph.nodes[zeros]["inputs"][0].node
        if graph.nodes[zeros]["op"] != "_zeros_without_dtype":
            continue
        if graph.nodes[zeros]["name"] not in (f"{node['name']}_zero", f"{node['name']}_shape"):
            continue
        # A single zero is for any shape; other zeros give MXNet a shape with unknown sizes.
        shape = literal_eval(graph.attributes_of(zeros).get("shape", "(1,)"))
        hidden = {k: v for k, v in graph.attributes_of(index).items() if k.startswith("__")}
        variable = graph.nodes[node["inputs"][0].node]
        if variable["op"] == "null" and -1 in shape:
            sizes = tuple(max(size, 0) for size in shape)
            variable.setdefault("attrs", {}).setdefault("__shape__", str(sizes))
        axes = str(tuple(range(len(shape))))
        node.update(op="Dropout", attrs={**hidden, "p": "0", "axes": axes})
        node["inputs"] = node["inputs"][:1]


def _set_weight_shape(graph: SymbolGraph, node: dict, switch: Switch) -> None:
    """Give the weights of a convolution a shape with unknown channels, as a Gluon network does."""
    if "weight" not in switch.inputs:
        return
    given = node.get("attrs", {})
    entry = node["inputs"][switch.inputs_of(given).index("weight")]
    variable = graph.nodes[entry.node]
    if variable["op"] == "null":
        kernel = ", ".join(map(str, literal_eval(without_longs(given["kernel"]))))
        shape = f"({given['num_filter']}, 0, {kernel})"
        variable.setdefault("attrs", {}).setdefault("__shape__", shape)


def _make_node(
    graph: SymbolGraph, index: int, switch: Switch, options: Options, used: set[NodeEntry]
) -> mx.sym.Symbol:
    """The symbol that replaces a node of MXNet's operator."""
    node, given = graph.nodes[index], dict(graph.attributes_of(index))
    name = f"node {node['name']} ({node['op']})"
    known = {argument.mxnet_name for argument in switch.arguments}
    for key, value in given.items():
        if key not in known and not key.startswith("__"):
            raise ValueError(
                f"optimize: {name} has an attribute {key} = {value!r} that gluon_roi does not know"
            )
    inputs = switch.inputs_of(given)
    if len(node["inputs"]) != len(inputs):
        raise ValueError(
            f"optimize: {name} has {len(node['inputs'])} inputs, expected {len(inputs)}"
        )
    # MXNet's operators have hidden outputs, such as the positions of maxima; gluon_roi's have none,
    # or one of another dtype.
    if any(entry.node == index and entry.output > 0 for entry in used):
        if switch.name != "Proposal":
            raise ValueError(
                f"optimize: an output of {name} other than the first is used, which gluon_roi does "
                "not have"
            )
        if not is_true(given.get("output_score")):
            given["output_score"] = "True"
    arrays: dict[str, Any] = {
        key: graph.stand_in(entry) for key, entry in zip(inputs, node["inputs"])
    }
    try:
        return switch.node(node["name"], arrays, given, options.bad_index)
    except (TypeError, ValueError, mx.MXNetError) as error:
        raise ValueError(f"optimize: {name}: {error}") from None


def load_content(content: dict, like: mx.sym.Symbol) -> mx.sym.Symbol:
    """The symbol of a file's content, of the same class as `like`, with numbered guards."""
    _number_guards(content["nodes"])
    result = mx.sym.load_json(symbol_text(content))
    return result.as_np_ndarray() if isinstance(like, NumpySymbol) else result


def _number_guards(nodes: list[dict]) -> None:
    """Number the guards of computed maps uniquely in their graph."""
    guards = 0
    for node in nodes:
        if node["op"] == "_copy" and ATTRIBUTE in node.get("attrs", {}):
            node["attrs"][ATTRIBUTE] = f"{node['name']}.optimized.{guards}"
            guards += 1
        for body in node.get("subgraphs", ()):
            _number_guards(body["nodes"])
