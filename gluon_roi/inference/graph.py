# SPDX-License-Identifier: Apache-2.0
"""The graph that the passes change: nodes as a symbol file lists them, and their parameters."""

from __future__ import annotations

import warnings
from ast import literal_eval
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

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
from ..weights import array_of, copy_weights, values_of, view_of
from .deterministic import is_deterministic
from .memory import return_freed_memory


class Use(NamedTuple):
    """A node that reads an output, and the index of the input that reads it."""

    node: int
    input: int


#: Operators that add arrays of equal shapes and types.
SUMS = ("elemwise_add", "add_n")
#: If dropped parameters have more elements, their memory is returned to the system at once.
_LARGE = 1 << 18
#: In lists of uses: an output of the symbol.
OUTPUT = Use(-1, 0)
#: The nodes that read each output. No list is empty.
Uses = Dict[NodeEntry, List[Use]]
#: Stands for the index of an output or input where a node only has to run before another.
_ORDER = -1


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
        self._constants: set[str] = set()  # names of parameters that passes have made

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

    def uses(self) -> Uses:
        """The nodes that read each output, and OUTPUT for outputs of the symbol."""
        found: Uses = {}
        for number in self.needed():
            for entry, use in self._read_by(number):
                found.setdefault(entry, []).append(use)
        for head in self.heads:
            found.setdefault(head, []).append(OUTPUT)
        return found

    def _read_by(self, number: int) -> list[tuple[NodeEntry, Use]]:
        """What a node reads, and the nodes that have to run before it."""
        node = self.nodes[number]
        read = [(entry, Use(number, i)) for i, entry in enumerate(node["inputs"])]
        before = [(NodeEntry(n, _ORDER), Use(number, _ORDER)) for n in node.get("control_deps", ())]
        return read + before

    # ---- Values of parameters ----------------------------------------------------------------

    def value(self, entry: NodeEntry) -> np.ndarray | None:
        """The value of an output that is the same in every call; None if it may not be.

        Such as the weights of a deformable convolution, which are parameters that the graph
        reshapes.
        """
        node = self.nodes[entry.node]
        if node["op"] == "null":
            return self._value_of_parameter(node["name"]) if self._has_value(node) else None
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

    def _value_of_parameter(self, name: str) -> np.ndarray:
        array = self.parameters[name]
        is_own = name in self._constants and array.size > 0  # no other thread uses it
        return view_of(array) if is_own else values_of(array)

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

    def is_of_network(self) -> bool:
        """Whether the types of all inputs are known, as in a network's call; of files none are."""
        return set(self.inputs()) <= set(self.input_types)

    def type_of(self, variable: str) -> Any:
        """The type of a parameter or an input; None if it is not known."""
        if variable in self.parameters:
            return self.parameters[variable].dtype
        return self.input_types.get(variable)

    # ---- Changes -----------------------------------------------------------------------------

    def constant(self, name: str, value: np.ndarray) -> NodeEntry:
        """Add a parameter, and return its entry."""
        name = self._unused(name)
        self.parameters[name] = array_of(value)
        self._constants.add(name)
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
        self, old: NodeEntry, new: NodeEntry, uses: Uses, *known: dict[NodeEntry, Any]
    ) -> None:
        """Replace an output wherever it is read, rename the new node, and drop unread parameters.

        The new node gets the old node's name, so that outputs of the symbol keep their names, and
        its shape or type in each dict of `known`, so that a pass can replace what reads it, too.
        Parameters that nothing reads any more may have hundreds of MB. `uses` becomes what
        `uses()` would return.
        """
        readers = uses.pop(old, [])
        if not readers:
            return  # an earlier replacement of the same pass has removed all its readers
        for values in known:
            if old in values:
                values[new] = values[old]
        self.nodes[new.node]["name"] = self.nodes[old.node]["name"]
        for reader in readers:
            if reader != OUTPUT:
                self.nodes[reader.node]["inputs"][reader.input] = new
        self.heads = [new if head == old else head for head in self.heads]
        self._add_uses(new, readers, uses)
        self._drop_unread([old.node], uses)

    def set_inputs(self, number: int, inputs: Sequence[NodeEntry], uses: Uses) -> None:
        """Let a node read other outputs, and drop unread parameters. `uses` changes as well."""
        before = self._read_by(number)
        self.nodes[number]["inputs"] = list(inputs)
        for entry, use in self._read_by(number):
            self._add_uses(entry, [use], uses)
        for entry, use in before:
            _remove(use, entry, uses)
        self._drop_unread([entry.node for entry, _ in before], uses)

    def _add_uses(self, entry: NodeEntry, readers: list[Use], uses: Uses) -> None:
        """Add readers of an output, and what its node reads if nothing has read this node yet."""
        read, pending = {source.node for source in uses}, [(entry, readers)]
        while pending:
            added, added_readers = pending.pop()
            uses.setdefault(added, []).extend(added_readers)
            if added.node not in read:
                read.add(added.node)
                pending += [(source, [use]) for source, use in self._read_by(added.node)]

    def _drop_unread(self, numbers: Sequence[int], uses: Uses) -> None:
        """Remove each of these nodes from `uses` if nothing reads it, and what only it reads.

        Parameters that are removed lose their values.
        """
        pending, dropped, size = list(numbers), set(), 0
        while pending:
            number = pending.pop()
            if number in dropped or number in {entry.node for entry in uses}:
                continue
            dropped.add(number)
            node = self.nodes[number]
            is_parameter = node["op"] == "null" and self._has_value(node)
            # Several variables may have one name, of which another may still be read.
            if is_parameter and node["name"] not in self._names_of(uses):
                size += self.parameters.pop(node["name"]).size
            for entry, use in self._read_by(number):
                _remove(use, entry, uses)
                pending.append(entry.node)
        if size > _LARGE:
            return_freed_memory()

    def _names_of(self, uses: Uses) -> set[str]:
        return {self.nodes[entry.node]["name"] for entry in uses}

    def has_value(self, entry: NodeEntry) -> bool:
        """Whether an output is a parameter with a value."""
        return self.is_node(entry, "null") and self._has_value(self.nodes[entry.node])

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


def _remove(use: Use, entry: NodeEntry, uses: Uses) -> None:
    uses[entry].remove(use)
    if not uses[entry]:
        del uses[entry]


def _warn_of(what: str, consequence: str, error: mx.MXNetError) -> None:
    warnings.warn(
        f"optimize: MXNet cannot infer the {what} of this graph, so {consequence}: "
        f"{sentence(str(error))}",
        stacklevel=3,
    )
