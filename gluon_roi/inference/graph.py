# SPDX-License-Identifier: Apache-2.0
"""The graph that the passes change: nodes as a symbol file lists them, and their parameters."""

from __future__ import annotations

import collections
import warnings
from ast import literal_eval
from typing import Any, Mapping, NamedTuple, Sequence

import mxnet as mx
import numpy as np

from ..bridge.arguments import is_true, text
from ..bridge.symbol_json import (
    NodeEntry,
    Nodes,
    is_dynamic,
    symbol_content,
    symbol_text,
    without_longs,
)
from ..files import sentence
from ..weights import copy_weights, values_of
from .deterministic import is_deterministic
from .memory import return_freed_memory


class Use(NamedTuple):
    """A node that reads an output, and the index of the input that reads it."""

    node: int
    input: int


#: Operators that add arrays of equal shapes and types.
SUMS = ("elemwise_add", "add_n")
#: If unread parameters have more elements, `replace` returns their memory to the system at once.
_LARGE = 1 << 18
#: In lists of uses: an output of the symbol.
OUTPUT = Use(-1, 0)


class InferenceGraph(Nodes):
    """A symbol with the values of its parameters.

    Parameters
    ----------
    symbol : mxnet.sym.Symbol
    parameters : dict of str to NDArray
        Values of arguments and auxiliary states. Arguments without a value are the inputs.
    shapes : dict of str to tuple of int
        Shapes of inputs, as far as they are known. With those of all inputs, passes can choose by
        the sizes of maps.
    types : dict of str to type
        Types of inputs, as far as they are known.
    """

    def __init__(
        self,
        symbol: mx.sym.Symbol,
        parameters: Mapping[str, mx.nd.NDArray],
        shapes: Mapping[str, Sequence[int]],
        types: Mapping[str, Any],
    ) -> None:
        content = symbol_content(symbol)
        super().__init__(content)
        self.is_dynamic = is_dynamic(content)
        self.parameters = {
            name: parameters[name] for name in symbol.list_inputs() if name in parameters
        }
        self.input_shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.input_types = dict(types)
        self._names = {node["name"] for node in self.nodes}

    # ---- Attributes and uses --------------------------------------------------------------------

    def attribute(self, number: int, name: str, default: str) -> str:
        return without_longs(self.nodes[number].get("attrs", {}).get(name, default))

    def integer(self, number: int, name: str, default: int = 0) -> int:
        return int(self.attribute(number, name, str(default)))

    def flag(self, number: int, name: str, default: bool = False) -> bool:
        return is_true(self.attribute(number, name, str(default)))

    def sizes(self, number: int, name: str, default: str = "()") -> tuple[int, ...]:
        """An attribute that is a tuple of int."""
        value = literal_eval(self.attribute(number, name, default))
        return tuple(value) if isinstance(value, (tuple, list)) else (value,)

    def is_node(self, entry: NodeEntry, *operators: str) -> bool:
        """Whether an output is the first of a node of one of these operators."""
        return entry.output == 0 and self.nodes[entry.node]["op"] in operators

    def uses(self) -> dict[NodeEntry, list[Use]]:
        """The nodes that read each output, and OUTPUT for outputs of the symbol."""
        found: dict[NodeEntry, list[Use]] = collections.defaultdict(list)
        for number in self.needed():
            for position, entry in enumerate(self.nodes[number]["inputs"]):
                found[entry].append(Use(number, position))
        for head in self.heads:
            found[head].append(OUTPUT)
        return found

    # ---- Values of parameters ----------------------------------------------------------------

    def value(self, entry: NodeEntry) -> np.ndarray | None:
        """The value of an output that is the same in every call; None if it may not be.

        Such as the weights of a deformable convolution, which are parameters that the graph
        reshapes.
        """
        node = self.nodes[entry.node]
        if node["op"] == "null":
            return values_of(self.parameters[node["name"]]) if self._has_value(node) else None
        part = Nodes({"nodes": [dict(node) for node in self.nodes], "heads": [entry]})
        part.attributes = self.attributes
        for number in part.needed():
            node = part.nodes[number]
            is_constant = self._has_value(node) if node["op"] == "null" else is_deterministic(node)
            if not is_constant:
                return None
        symbol = mx.sym.load_json(symbol_text(part.content()))
        arrays = [copy_weights(self.parameters[name]) for name in symbol.list_inputs()]
        # A CachedOp needs an input, and gradients of all operators unless they are blocked. An
        # Executor would fuse the graph first, and fails on some.
        call = mx.nd.CachedOp(mx.sym.Group([mx.sym.BlockGrad(symbol), mx.sym.var("unused")]))
        return call(*arrays, mx.nd.zeros(1))[0].asnumpy()

    def _has_value(self, node: dict) -> bool:
        return node["name"] in self.parameters

    # ---- Shapes and types --------------------------------------------------------------------

    def shapes(self) -> dict[NodeEntry, tuple[int, ...]]:
        """Shapes of the first outputs of nodes.

        Empty if those of inputs are not known, or depend on values; and, with a warning, if MXNet
        cannot infer them.
        """
        if self.is_dynamic or not set(self.inputs()) <= set(self.input_shapes):
            return {}
        symbol, entries = self.first_outputs()
        known = {name: array.shape for name, array in self.parameters.items()}
        used = set(symbol.list_inputs())
        given = {**known, **self.input_shapes}
        try:
            _, shapes, _ = symbol.infer_shape(**{k: v for k, v in given.items() if k in used})
        except mx.MXNetError as error:
            _warn_of("shapes", "layers are chosen for usual sizes", error)
            return {}
        return dict(zip(entries, shapes or ()))

    def types(self) -> dict[NodeEntry, Any]:
        """Types of the first outputs of nodes; empty, with a warning, if MXNet cannot infer them.

        Inputs of unknown type are taken for float32. Layers are float32 if their weights are.
        """
        symbol, entries = self.first_outputs()
        known = {name: array.dtype for name, array in self.parameters.items()}
        given = {**dict.fromkeys(self.inputs(), np.float32), **known, **self.input_types}
        used = set(symbol.list_inputs())
        try:
            _, types, _ = symbol.infer_type(**{k: v for k, v in given.items() if k in used})
        except mx.MXNetError as error:
            _warn_of("types", "most layers stay as they are", error)
            return {}
        return dict(zip(entries, types or ()))

    def inputs(self) -> list[str]:
        """Names of the arguments without a value."""
        return [
            self.nodes[number]["name"]
            for number in self.needed()
            if self.nodes[number]["op"] == "null" and not self._has_value(self.nodes[number])
        ]

    def type_of(self, variable: str) -> Any:
        """The type of a parameter or an input; None if it is not known."""
        if variable in self.parameters:
            return self.parameters[variable].dtype
        return self.input_types.get(variable)

    # ---- Changes -----------------------------------------------------------------------------

    def constant(self, name: str, value: np.ndarray) -> NodeEntry:
        """Add a parameter, and return its entry."""
        name = self._unused(name)
        self.parameters[name] = mx.nd.array(value, dtype=value.dtype)
        entry = self.add("null", name)
        # MXNet's library API infers wrong shapes where the ranks of several inputs are unknown.
        self.nodes[entry.node]["attrs"] = {"__shape__": text(value.shape), "__dtype__": "0"}
        return entry

    def node(
        self, operator: str, name: str, inputs: Sequence[NodeEntry], **attributes: Any
    ) -> NodeEntry:
        """Add a node with attributes, and return its first output."""
        entry = self.add(operator, name, inputs)
        self.nodes[entry.node]["attrs"] = {key: text(value) for key, value in attributes.items()}
        return entry

    def replace(
        self, old: NodeEntry, new: NodeEntry, *known: dict[NodeEntry, Any]
    ) -> dict[NodeEntry, list[Use]]:
        """Replace an output wherever it is read, rename the new node, and drop unread parameters.

        The new node gets the old node's name, so that outputs of the symbol keep their names, and
        its shape or type in each dict of `known`, so that a pass can replace what reads it, too.
        Parameters that nothing reads any more may have hundreds of MB. Returns what `uses` does.
        """
        for values in known:
            if old in values:
                values[new] = values[old]
        self.nodes[new.node]["name"] = self.nodes[old.node]["name"]
        self.redirect({old: new})
        self.heads = [new if head == old else head for head in self.heads]
        uses = self.uses()
        names = {self.nodes[entry.node]["name"] for entry in uses}
        unread = [self.parameters.pop(name) for name in self.parameters.keys() - names]
        size = sum(array.size for array in unread)
        del unread
        if size > _LARGE:
            return_freed_memory()
        return uses

    def _unused(self, name: str) -> str:
        """The name, or with a number behind it if a node has it."""
        unused, number = name, 1
        while unused in self._names:
            number += 1
            unused = f"{name}{number}"
        self._names.add(unused)
        return unused

    def symbol(self) -> mx.sym.Symbol:
        return mx.sym.load_json(symbol_text(self.content()))

    def used_parameters(self, symbol: mx.sym.Symbol) -> dict[str, mx.nd.NDArray]:
        """The values of the parameters that a symbol has."""
        return {
            name: self.parameters[name] for name in symbol.list_inputs() if name in self.parameters
        }


def _warn_of(what: str, consequence: str, error: mx.MXNetError) -> None:
    warnings.warn(
        f"optimize: MXNet cannot infer the {what} of this graph, so {consequence}: "
        f"{sentence(str(error))}",
        stacklevel=3,
    )
