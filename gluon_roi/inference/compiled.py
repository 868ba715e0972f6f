# SPDX-License-Identifier: Apache-2.0
"""Compiles a converted graph for the shapes of its inputs, and keeps what it has compiled."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Sequence

import mxnet as mx

from ..bridge.symbol_json import Nodes, is_dynamic, symbol_content
from .fusion import FUSED_PREFIX

#: The most memory that the compiled graphs of a network keep; that of the last call may take more.
#: Beyond it graphs are forgotten, the least recently used ones first. Compiling one anew takes
#: about as long as a call without static_alloc, which lays out all weights too; so little is lost
#: if a graph is forgotten, and the limit can be small.
MAX_BYTES = 256 * 2**20


class _CompiledGraph(NamedTuple):
    """A graph that is compiled for the shapes of its inputs, and its bytes of memory."""

    shapes: tuple[tuple[int, ...], ...]
    call: mx.nd.CachedOp
    bytes: int


class CompiledGraphs:
    """The compiled graphs of a converted graph, to call with its inputs.

    There is one for each set of shapes and each thread that calls at the same time.

    A CachedOp with static_alloc and static_shape keeps the memory of all maps, and the weights of
    layers as oneDNN lays them out, from call to call, but for one set of shapes: it would lay them
    out anew in each call whose shapes are not those of the call before. So each set of shapes gets
    a CachedOp of its own. Threads cannot share one: a call takes one that no other call uses, and
    puts it back unless it fails.

    Parameters
    ----------
    symbol : mxnet.sym.Symbol
    inputs : list of int or NDArray
        For each variable of the symbol, the array of a parameter, or the index of an input.
    static_alloc, static_shape : bool
        As in ``HybridBlock.hybridize``. Graphs for which MXNet is wrong with them, or that could
        tell the difference, are compiled without.
    """

    def __init__(
        self,
        symbol: mx.sym.Symbol,
        inputs: Sequence[int | mx.nd.NDArray],
        static_alloc: bool,
        static_shape: bool,
    ) -> None:
        self._symbol = symbol
        self._inputs = inputs
        self._static_alloc = static_alloc and _can_be_static(symbol_content(symbol))
        self._static_shape = static_shape and self._static_alloc
        self._flags: list[tuple[str, Any]] = []
        #: From the least to the most recently used one.
        self._idle: list[_CompiledGraph] = []

    def __call__(
        self, given: Sequence[mx.nd.NDArray], flags: list[tuple[str, Any]], hook: Any = None
    ) -> list[mx.nd.NDArray]:
        """The outputs for inputs, with the other flags and the hook of a HybridBlock."""
        if flags != self._flags:
            self._flags, self._idle = flags, []
        shapes = tuple(array.shape for array in given) if self._static_shape else ()
        compiled = self._take(shapes) or self._compile(shapes)
        if hook is not None:
            compiled.call._register_op_hook(*hook)
        outputs = compiled.call(*[given[i] if isinstance(i, int) else i for i in self._inputs])
        self._idle.append(compiled)
        return [outputs] if isinstance(outputs, mx.nd.NDArray) else outputs

    def _take(self, shapes: tuple) -> _CompiledGraph | None:
        for compiled in reversed(list(self._idle)):
            if compiled.shapes == shapes:
                try:
                    self._idle.remove(compiled)
                except ValueError:  # another thread has taken it
                    continue
                return compiled
        return None

    def _compile(self, shapes: tuple) -> _CompiledGraph:
        """Compile the graph for shapes, and forget what is too much then."""
        indices = range(len(self._inputs))
        flags = {
            **dict(self._flags),
            "data_indices": [i for i in indices if isinstance(self._inputs[i], int)],
            "param_indices": [i for i in indices if not isinstance(self._inputs[i], int)],
            "static_alloc": self._static_alloc,
            "static_shape": self._static_shape,
        }
        size = self._bytes(shapes) if shapes else 0
        while self._idle and size + sum(one.bytes for one in self._idle) > MAX_BYTES:
            del self._idle[:1]
        return _CompiledGraph(shapes, mx.nd.CachedOp(self._symbol, list(flags.items())), size)

    def _bytes(self, shapes: tuple) -> int:
        """About the memory that a CachedOp keeps for inputs of these shapes: maps, weights."""
        known = {
            name: shapes[value] if isinstance(value, int) else value.shape
            for name, value in zip(self._symbol.list_inputs(), self._inputs)
        }
        graph = Nodes(symbol_content(self._symbol))
        weights = {
            graph.nodes[entry.node]["name"]
            for node in graph.nodes
            if node["op"].startswith(FUSED_PREFIX)
            for entry in node["inputs"]
            if graph.nodes[entry.node]["op"] == "null"
        }
        elements = sum(math.prod(known[name]) for name in weights)
        return 4 * (elements + _largest_live(graph, known))


def _can_be_static(content: dict) -> bool:
    """Whether MXNet computes a graph with static_alloc and static_shape as it does without.

    It computes loops in static memory wrongly, and an operator in Python would keep its state from
    call to call.
    """
    has_body = any(
        "subgraphs" in node and not node["op"].startswith(FUSED_PREFIX) for node in content["nodes"]
    )
    is_custom = any(node["op"] == "Custom" for node in content["nodes"])
    return not (has_body or is_custom or is_dynamic(content))


def _largest_live(graph: Nodes, shapes: dict[str, tuple[int, ...]]) -> int:
    """The most elements of maps that exist at once, if each exists until it is read last.

    0 if the shapes do not fit, for which the call raises an error.
    """
    every, entries = graph.first_outputs()
    try:
        _, found, _ = every.infer_shape_partial(**shapes)
    except mx.MXNetError:
        return 0
    sizes = {
        entry.node: 0 if graph.nodes[entry.node]["op"] == "null" else math.prod(shape or ())
        for entry, shape in zip(entries, found)
    }
    last_reader = {
        entry.node: number for number in sizes for entry in graph.nodes[number]["inputs"]
    }
    live = largest = 0
    for number, size in sizes.items():
        live += size
        largest = max(largest, live)
        read = {entry.node for entry in graph.nodes[number]["inputs"]}
        live -= sum(sizes[one] for one in read if last_reader[one] == number)
    return largest
