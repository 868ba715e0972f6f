# SPDX-License-Identifier: Apache-2.0
"""Runs a network's converted graph. A call takes four steps:

1. If parameters may have changed since the last call, their values are compared; if they have, all
   converted graphs are forgotten (`ConvertedCall._forget_changed_parameters`). The first call
   traces the network before.
2. The graph that is converted for the context and the types of the inputs is looked up, or made
   from the network's own (`ConvertedCall._converted_for`).
3. For the shapes of the inputs, a compiled graph that no other call uses is taken, or made
   (`compiled.CompiledGraphs`).
4. MXNet runs it, and the outputs get the structure of the network's outputs.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from typing import Any, Callable, Mapping, NamedTuple

import mxnet as mx
import numpy as np
from mxnet import gluon

from ..bridge.symbol_json import is_dynamic, symbol_content
from ..weights import values_of
from .compiled import CompiledGraphs
from .convert import Converted, convert
from .memory import return_freed_memory

#: Methods of a parameter after which it may have another value: `data` returns the array itself.
_READERS_AND_WRITERS = ("data", "list_data", "set_data", "_init_impl", "cast")
#: The attribute of a parameter that lists the converted networks to notify.
_WATCHERS = "_gluon_roi_watchers"


class _Options(NamedTuple):
    """How a network is converted and compiled."""

    winograd: bool
    static_alloc: bool
    static_shape: bool


def use_converted(network: gluon.HybridBlock, winograd: bool, flags: Mapping[str, Any]) -> None:
    """Let calls of a network run its converted graph. The first call converts it.

    Parameters
    ----------
    network : mxnet.gluon.HybridBlock
        Hybridized.
    winograd : bool
        Whether to use Winograd's algorithm.
    flags : dict
        Flags of hybridize() that the caller passed. static_alloc and static_shape default to True.
    """
    static_alloc = bool(flags.get("static_alloc", True))
    static_shape = static_alloc and bool(flags.get("static_shape", True))
    restore_original(network)
    # Free the maps and outputs of an earlier call. Gluon compiles the graph again if needed.
    network._cached_op = None
    return_freed_memory()
    options = _Options(winograd, static_alloc, static_shape)
    network._call_cached_op = ConvertedCall(network, options)


def check_has_graph(network: gluon.Block) -> None:
    if not isinstance(network, gluon.HybridBlock):
        raise TypeError(
            f"optimize: inference: expected a HybridBlock, which has a graph, got {type(network)}"
        )
    if type(network).hybrid_forward is gluon.HybridBlock.hybrid_forward:
        raise TypeError(
            f"optimize: inference: {type(network).__name__} has no hybrid_forward, of which MXNet "
            "makes the graph; expected one in place of forward"
        )


def check_context(context: mx.Context) -> None:
    if context.device_type != "cpu":
        raise ValueError(
            f"optimize: inference=True expects a network on the CPU, got context {context}"
        )


def restore_original(network: gluon.Block) -> None:
    """Let calls of a network run its own graph again."""
    if isinstance(vars(network).get("_call_cached_op"), ConvertedCall):
        del network._call_cached_op


class ConvertedCall:
    """``network._call_cached_op`` of a converted network.

    Calls with symbols, as export makes them, and calls of a network that is not hybridized do not
    come here, so they have the original graph.
    """

    def __init__(self, network: gluon.HybridBlock, options: _Options) -> None:
        self._network = network
        self._options = options
        #: Keys are the context and the types of the inputs, on which the conversion depends.
        self._converted: dict[tuple, _ConvertedGraph] = {}
        self._must_compare = True
        self._digest = b""

    def __getstate__(self) -> dict[str, Any]:
        """Copies of a network convert its graph again."""
        return {**vars(self), "_converted": {}, "_must_compare": True, "_digest": b""}

    def __call__(self, *args: Any) -> Any:
        network = self._network
        if mx.autograd.is_recording() or mx.autograd.is_training():
            raise ValueError(
                f"{network.name} was converted by gluon_roi.optimize(..., inference=True), so it "
                "cannot be trained; expected a call outside of autograd.record(). "
                "gluon_roi.optimize without inference=True makes it trainable again"
            )
        given, graph = self._converted_for(args)
        hook = (network._callback, network._monitor_all) if network._callback else None
        outputs = graph.compiled(given, network._flags, hook)
        return gluon.block._regroup(outputs, network._out_format)

    def _converted_for(self, args: tuple) -> tuple[list[mx.nd.NDArray], _ConvertedGraph]:
        """The arrays of a call, and the graph that is converted for their context and types."""
        flat, structure = gluon.block._flatten(args, "input")
        given = [value for value in flat if value is not None]
        context = given[0].context
        check_context(context)
        network = self._network
        if not network._cached_graph:
            self._converted = {}
        if not network._cached_op_args:  # a SymbolBlock always has its graph
            network._build_cache(*args)  # finishes deferred initialization, too
            network._cached_op = None  # _build_cache compiled the graph before the conversion
        if self._must_compare:
            self._forget_changed_parameters()
        converted = self._converted  # another thread that finds new values replaces it
        expected = network._in_format
        if _without_last_nones(structure) != _without_last_nones(expected):
            raise ValueError(
                f"{network.name} was converted by gluon_roi.optimize(..., inference=True) for "
                f"arguments of the structure {expected}, got {structure}; 0 is an array, -1 is None"
            )
        key = (context, *(value.dtype for value in given))
        graph = converted.get(key)
        if graph is None:
            graph = converted[key] = _ConvertedGraph(network, given, context, self._options)
        return given, graph

    def _forget_changed_parameters(self) -> None:
        """Drop the converted graphs if a parameter's value, dtype or context has changed.

        Code that has read a parameter since the last comparison may have changed its array in
        place. A later write into that array goes unnoticed.
        """
        self._must_compare = False  # before the values are read: another thread may change them
        parameters = self._network.collect_params()
        digest = hashlib.blake2b()
        for name, parameter in sorted(parameters.items()):
            _watch(parameter, self)
            for array in _original(parameter, "list_data")() if parameter._data else ():
                values = values_of(array)
                digest.update(f"{name} {array.context} {values.dtype} {values.shape}".encode())
                digest.update(values.reshape(-1).view(np.uint8))
        if digest.digest() != self._digest:
            self._converted = {}  # another thread's conversion of the old values keeps the old one
            self._digest = digest.digest()

    def parameters_may_have_changed(self) -> None:
        self._must_compare = True


def _check_shapes(symbol: mx.sym.Symbol, values: Mapping[str, mx.nd.NDArray]) -> None:
    """Raise MXNet's error if arrays do not fit, which names layers of the network's own graph."""
    if not is_dynamic(symbol_content(symbol)):
        # Symbol.infer_shape prints all arguments before it raises.
        symbol._infer_shape_impl(False, **{n: values[n].shape for n in symbol.list_arguments()})


def _without_last_nones(form: list) -> list:
    """The structure of a call's arguments; a trailing None is the same as no argument."""
    return form if not form or form[-1] != -1 else _without_last_nones(form[:-1])


class _ConvertedGraph:
    """The network's graph, converted for one context and one type of each input."""

    def __init__(
        self, network: gluon.HybridBlock, given: list, context: mx.Context, options: _Options
    ) -> None:
        variables, symbol = network._cached_graph
        names = [variable.name for variable in variables]
        parameters = {
            name: _original(parameter, "data")(context)
            for name, parameter in network.collect_params().items()
            if name in set(symbol.list_inputs())
        }
        inputs = dict(zip(names, given))
        _check_shapes(symbol, {**parameters, **inputs})
        converted: Converted = convert(symbol, parameters, inputs, options.winograd)
        self.changes = converted.changes
        self.compiled = CompiledGraphs(
            converted.symbol,
            [
                names.index(name)
                if name in names
                else converted.parameters[name].as_in_context(context)
                for name in converted.symbol.list_inputs()
            ],
            options.static_alloc,
            options.static_shape,
        )


def _original(parameter: gluon.Parameter, method: str) -> Callable:
    """A method of a parameter that `_watch` has not replaced."""
    return functools.partial(getattr(type(parameter), method), parameter)


def _watch(parameter: gluon.Parameter, calls: ConvertedCall) -> None:
    """Replace the methods that read or write a parameter's value, so that they notify `calls`.

    Several networks may share a parameter.
    """
    vars(parameter).setdefault(_WATCHERS, weakref.WeakSet()).add(calls)
    for method in _READERS_AND_WRITERS:
        setattr(parameter, method, functools.partial(_called, parameter, method))


def _called(parameter: gluon.Parameter, method: str, *args: Any, **options: Any) -> Any:
    """A replaced method of a parameter.

    A function at module level, so that networks can be copied.
    """
    for calls in getattr(parameter, _WATCHERS):
        calls.parameters_may_have_changed()
    return _original(parameter, method)(*args, **options)
