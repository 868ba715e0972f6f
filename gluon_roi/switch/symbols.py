# SPDX-License-Identifier: Apache-2.0
"""Switches MXNet's operators in a symbol to ours.

The symbol is changed as its file lists it. A node of MXNet's becomes the nodes that our function
makes: guards, our operator, and what else it needs. Names of nodes, arguments and outputs stay, and
so do attributes such as __this__.
"""

from __future__ import annotations

import contextlib
import functools
from ast import literal_eval
from typing import Any, Iterator

import mxnet as mx
from mxnet import gluon

from ..bridge.arguments import NumpySymbol, is_true
from ..bridge.guard import ATTRIBUTE
from ..bridge.symbol_json import Nodes, Place, is_dynamic, parse_symbol, text, without_longs
from .mapping import BY_OPERATOR, Options, Switch

_STANDS_FOR = "__gluon_roi_stands_for__"
_MULTIPLE = -1


class Graph(Nodes):
    """Nodes some of which are replaced with nodes that functions make."""

    def attributes_of(self, number: int) -> dict[str, str]:
        return self.nodes[number].get("attrs", {})

    @functools.cached_property
    def _variable(self) -> list[int | None]:
        """For each node the variable that it depends on, if any, or _MULTIPLE."""
        found: list[int | None] = []
        for number, node in enumerate(self.nodes):
            read = {found[place.node] for place in node["inputs"]} - {None}
            one = number if node["op"] == "null" else read.pop() if read else None
            found.append(_MULTIPLE if read else one)
        return found

    def stand_in(self, place: Place) -> mx.sym.Symbol:
        """A symbol for an output of a node, as the input of a function.

        It has what guards ask for: attributes, and whether it depends on one variable only.
        """
        several = self._variable[place.node] in (None, _MULTIPLE)
        hidden = {k: v for k, v in self.attributes_of(place.node).items() if k.startswith("__")}
        hidden[_STANDS_FOR] = f"{place.node} {place.output}"
        return mx.sym.add_n(*map(mx.sym.var, "ab" if several else "a"), attr=hidden)

    def replace(self, number: int, replacement: mx.sym.Symbol) -> dict[Place, Place]:
        """Put the nodes of a symbol, whose inputs are stand-ins, in the place of a node.

        Returns where outputs of the node are now, except for the first, which keeps its place.
        """
        content = parse_symbol(replacement.tojson())  # without the casts that AMP puts everywhere
        heads = [head[0] for head in content["heads"]]
        places: dict[int, Place] = {}
        for i, node in enumerate(content["nodes"]):
            stands_for = node.get("attrs", {}).get(_STANDS_FOR)
            if stands_for:
                places[i] = Place(*map(int, stands_for.split()))
            elif node["op"] != "null":
                read = [(places[entry[0]], entry[1]) for entry in node["inputs"]]
                node["inputs"] = [Place(place.node, place.output + k) for place, k in read]
                is_first = i == heads[0]
                places[i] = Place(number if is_first else len(self.nodes), 0)
                if is_first:
                    self.nodes[number] = node
                else:
                    self.nodes.append(node)
        return {Place(number, k): places[heads[k]] for k in range(1, len(heads))}


@contextlib.contextmanager
def own_scope(in_network: bool, **attributes: str) -> Iterator[None]:
    """Nodes get no names and attributes from the scopes of the caller."""
    with contextlib.ExitStack() as scopes:
        if in_network:
            scopes.enter_context(gluon.Block(prefix="network_").name_scope())
        scopes.enter_context(mx.name.NameManager())
        scopes.enter_context(mx.AttrScope())._attr = attributes
        yield


def switch_nodes(content: dict, options: Options, in_network: bool, is_body: bool = False) -> dict:
    """Switch the nodes of a symbol's file, or of the body of a loop in it, or raise ValueError.

    The graph of a Gluon network (`in_network`) gets the guards of one, as does one whose shapes
    MXNet infers while it runs.
    """
    in_network |= is_dynamic(content)
    graph = Graph(content)
    if in_network:
        replace_guards_with_zeros(graph)
    used = graph.used()
    replacements: dict[Place, Place] = {}
    for number, node in enumerate(list(graph.nodes)):
        if "subgraphs" in node:
            bodies = node["subgraphs"]
            node["subgraphs"] = [switch_nodes(one, options, in_network, True) for one in bodies]
        switch = BY_OPERATOR.get(node["op"])
        if switch is not None and options.includes(switch):
            # Nodes of a loop's body have the loop's name.
            loop = graph.attributes_of(number).get("__subgraph_name__", node["name"])
            with own_scope(in_network, **({"__subgraph_name__": loop} if is_body else {})):
                if in_network:
                    _set_weight_shape(graph, node, switch)
                replacement = _make_node(graph, number, switch, options, used)
            replacements.update(graph.replace(number, replacement))
    if replacements:
        graph.redirect(replacements)
        graph.heads = [replacements.get(head, head) for head in graph.heads]
    return graph.content()


def replace_guards_with_zeros(graph: Graph) -> None:
    """Put the guards of a network in the place of those with zeros, also those of version 1.0.0."""
    for number, node in enumerate(graph.nodes):
        if node["op"] not in ("_npi_subtract", "elemwise_sub", "_identity_with_attr_like_rhs"):
            continue
        zeros = node["inputs"][1].node
        if graph.nodes[zeros]["op"] == "_identity_with_attr_like_rhs":
            zeros = graph.nodes[zeros]["inputs"][0].node
        if graph.nodes[zeros]["op"] != "_zeros_without_dtype":
            continue
        if graph.nodes[zeros]["name"] not in (f"{node['name']}_zero", f"{node['name']}_shape"):
            continue
        # One zero guards any shape; others tell MXNet a shape with unknown sizes.
        shape = literal_eval(graph.attributes_of(zeros).get("shape", "(1,)"))
        hidden = {k: v for k, v in graph.attributes_of(number).items() if k.startswith("__")}
        variable = graph.nodes[node["inputs"][0].node]
        if variable["op"] == "null" and -1 in shape:
            sizes = tuple(max(size, 0) for size in shape)
            variable.setdefault("attrs", {}).setdefault("__shape__", str(sizes))
        axes = str(tuple(range(len(shape))))
        node.update(op="Dropout", attrs={**hidden, "p": "0", "axes": axes})
        node["inputs"] = node["inputs"][:1]


def _set_weight_shape(graph: Graph, node: dict, switch: Switch) -> None:
    """Give the weights of a convolution a shape with unknown channels, as a Gluon network does."""
    if "weight" not in switch.inputs:
        return
    given = node.get("attrs", {})
    place = node["inputs"][switch.inputs_of(given).index("weight")]
    variable = graph.nodes[place.node]
    if variable["op"] == "null":
        kernel = ", ".join(map(str, literal_eval(without_longs(given["kernel"]))))
        shape = f"({given['num_filter']}, 0, {kernel})"
        variable.setdefault("attrs", {}).setdefault("__shape__", shape)


def _make_node(
    graph: Graph, number: int, switch: Switch, options: Options, used: set[Place]
) -> mx.sym.Symbol:
    """Our nodes for one of MXNet's."""
    node, given = graph.nodes[number], dict(graph.attributes_of(number))
    name = f"node {node['name']} ({node['op']})"
    known = {argument.theirs for argument in switch.arguments}
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
    # MXNet's operators have hidden outputs, such as the positions of maxima. Ours have none, or one
    # of another type.
    if any(place.node == number and place.output > 0 for place in used):
        if switch.ours != "Proposal":
            raise ValueError(
                f"optimize: an output of {name} other than the first is used, which gluon_roi does "
                "not have"
            )
        if not is_true(given.get("output_score")):
            given["output_score"] = "True"
    arrays: dict[str, Any] = {
        key: graph.stand_in(place) for key, place in zip(inputs, node["inputs"])
    }
    try:
        return switch.node(node["name"], arrays, given, options.bad_index)
    except (TypeError, ValueError, mx.MXNetError) as error:
        raise ValueError(f"optimize: {name}: {error}") from None


def load_content(content: dict, like: mx.sym.Symbol) -> mx.sym.Symbol:
    """The symbol of a file, of the kind of another; its guards are numbered."""
    _number_guards(content["nodes"])
    result = mx.sym.load_json(text(content))
    return result.as_np_ndarray() if isinstance(like, NumpySymbol) else result


def _number_guards(nodes: list[dict]) -> None:
    """Give guards of computed maps numbers that are unique in their graph."""
    guards = 0
    for node in nodes:
        if node["op"] == "_copy" and ATTRIBUTE in node.get("attrs", {}):
            node["attrs"][ATTRIBUTE] = f"{node['name']}.optimized.{guards}"
            guards += 1
        for body in node.get("subgraphs", ()):
            _number_guards(body["nodes"])
