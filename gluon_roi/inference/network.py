# SPDX-License-Identifier: Apache-2.0
"""Runs a network's converted graph, which is made again when its parameters have changed."""

from __future__ import annotations

import functools
import hashlib
import weakref
from typing import Any, Callable

import mxnet as mx
from mxnet import gluon

from ..weights import values_of
from .convert import Converted, convert

#: Methods of a parameter after which it may have another value: `data` returns the array itself.
_READERS_AND_WRITERS = ("data", "list_data", "set_data", "_init_impl", "cast")
#: The attribute of a parameter that lists who is told.
_WATCHERS = "_gluon_roi_watchers"


def use_converted(network: gluon.HybridBlock, *inputs: Any, winograd: bool) -> dict[str, int]:
    """Let calls of a network run its converted graph; return what the passes changed.

    Parameters
    ----------
    network : mxnet.gluon.HybridBlock
        Hybridized, and run once with `inputs`.
    winograd : bool
        Whether to use Winograd's algorithm.
    """
    restore_original(network)
    # Frees the memory of its call, for maps and outputs. Gluon compiles the graph again if needed.
    network._cached_op = None
    calls = ConvertedCall(network, winograd)
    changes = calls.convert(*inputs)
    network._call_cached_op = calls
    return changes


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

    def __init__(self, network: gluon.HybridBlock, winograd: bool) -> None:
        self._network = network
        self._winograd = winograd
        #: By context and types of the inputs, on which the conversion depends.
        self._compiled: dict[tuple, _CompiledGraph] = {}
        self._must_compare = True
        self._digest = b""

    def __getstate__(self) -> dict[str, Any]:
        """Copies of a network convert its graph again."""
        return {**vars(self), "_compiled": {}, "_must_compare": True, "_digest": b""}

    def __call__(self, *args: Any) -> Any:
        network = self._network
        if mx.autograd.is_recording() or mx.autograd.is_training():
            raise ValueError(
                f"{network.name} was converted by gluon_roi.optimize(..., inference=True), so it "
                "cannot be trained; expected a call outside of autograd.record(). "
                "gluon_roi.optimize without inference=True makes it trainable again"
            )
        given, graph = self._compiled_for(args)
        return gluon.block._regroup(graph(given), network._out_format)

    def convert(self, *args: Any) -> dict[str, int]:
        """Convert the network's graph for the context and the types of these inputs."""
        return self._compiled_for(args)[1].changes

    def _compiled_for(self, args: tuple) -> tuple[list[mx.nd.NDArray], _CompiledGraph]:
        """The arrays of a call, and the graph that is compiled for their context and types."""
        if self._must_compare:
            self._forget_changed_parameters()
        flat, form = gluon.block._flatten(args, "input")
        given = [value for value in flat if value is not None]
        context = given[0].context
        check_context(context)
        network = self._network
        if not network._cached_graph:
            self._compiled.clear()
            network._build_cache(*args)
            network._cached_op = None  # that of the graph before the conversion
        expected = network._in_format
        if _without_last_nones(form) != _without_last_nones(expected):
            raise ValueError(
                f"{network.name} was converted by gluon_roi.optimize(..., inference=True) for "
                f"arguments of the structure {expected}, got {form}; 0 is an array, -1 is None"
            )
        key = (context, *(value.dtype for value in given))
        if key not in self._compiled:
            self._compiled[key] = _CompiledGraph(network, given, context, self._winograd)
        return given, self._compiled[key]

    def _forget_changed_parameters(self) -> None:
        """Drop the compiled graphs if a parameter has another value, dtype or context than in them.

        Code that has read a parameter may have changed its array in place.
        """
        self._must_compare = False  # before the values are read: another thread may change them
        parameters = self._network.collect_params()
        digest = hashlib.blake2b()
        for name, parameter in sorted(parameters.items()):
            _watch(parameter, self)
            for array in _original(parameter, "list_data")() if parameter._data else ():
                values = values_of(array)
                digest.update(f"{name} {array.context} {values.dtype} {values.shape}".encode())
                digest.update(values.tobytes())
        if digest.digest() != self._digest:
            self._compiled.clear()
            self._digest = digest.digest()

    def parameters_may_have_changed(self) -> None:
        self._must_compare = True


def _without_last_nones(form: list) -> list:
    """The structure of a call's arguments; a trailing None is the same as no argument."""
    return form if not form or form[-1] != -1 else _without_last_nones(form[:-1])


class _CompiledGraph:
    """The converted graph for one context and one type of each input, compiled."""

    def __init__(
        self, network: gluon.HybridBlock, given: list, context: mx.Context, winograd: bool
    ) -> None:
        variables, symbol = network._cached_graph
        names = [variable.name for variable in variables]
        parameters = {
            name: _original(parameter, "data")(context)
            for name, parameter in network.collect_params().items()
            if name in set(symbol.list_inputs())
        }
        converted: Converted = convert(symbol, parameters, dict(zip(names, given)), winograd)
        self.changes = converted.changes
        self._network = network
        self._symbol = converted.symbol
        #: For each input of the graph, the index of a call's argument, or a parameter's array.
        self._inputs = [
            names.index(name)
            if name in names
            else converted.parameters[name].as_in_context(context)
            for name in converted.symbol.list_inputs()
        ]
        self._compile()

    def _compile(self) -> None:
        data = [i for i, value in enumerate(self._inputs) if isinstance(value, int)]
        constant = [i for i, value in enumerate(self._inputs) if not isinstance(value, int)]
        self._flags = list(self._network._flags)
        flags = [("data_indices", data), ("param_indices", constant), *self._flags]
        self._op = mx.nd.CachedOp(self._symbol, flags)

    def __call__(self, given: list[mx.nd.NDArray]) -> list:
        network = self._network
        if self._flags != network._flags:  # a SymbolBlock keeps its graph when it is hybridized
            self._compile()
        if network._callback:  # of register_op_hook
            self._op._register_op_hook(network._callback, network._monitor_all)
        out = self._op(*[given[i] if isinstance(i, int) else i for i in self._inputs])
        return [out] if isinstance(out, mx.nd.NDArray) else out


def _original(parameter: gluon.Parameter, method: str) -> Callable:
    """A method of a parameter that `_watch` has not replaced."""
    return functools.partial(getattr(type(parameter), method), parameter)


def _watch(parameter: gluon.Parameter, calls: ConvertedCall) -> None:
    """Replace the methods that read or write a parameter's value, so that `calls` is told.

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
