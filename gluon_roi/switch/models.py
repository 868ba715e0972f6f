# SPDX-License-Identifier: Apache-2.0
"""Counts the RoI operators of existing models, and switches them to gluon_roi's."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import warnings
from collections import Counter
from types import CodeType
from typing import Any, Callable, Iterable, Iterator, TypeVar, Union, overload

import mxnet as mx
from mxnet import gluon

from .. import gpu, library
from ..bridge import OperatorBlock
from ..bridge.arguments import Symbol
from ..bridge.symbol_json import parse_symbol, symbol_content
from ..files import PathLike, load_symbol, read_symbol
from .functions import is_replaced, switched_namespace
from .mapping import BY_FUNCTION, Options, builtins
from .pyramids import fuse_sums
from .symbols import load_content, switch_nodes

#: In signatures: a symbol or a network, of any class.
Model = TypeVar("Model", bound=Union[mx.sym.Symbol, gluon.Block])
#: MXNet's operators that run arbitrary Python code.
_PYTHON = ("Custom", "_NDArray", "_Native")
_CUSTOM = "Custom:"
_EXPECTED = "expected a symbol or a block, or the path of a symbol file"
_ARRAY_CODE = "array code calls, such as that of a plain gluon.Block or a Custom operator"


def count(model: Any) -> dict[str, int]:
    """Count the RoI operators of a symbol or network.

    Parameters
    ----------
    model : mxnet.sym.Symbol, mxnet.gluon.Block, str or pathlib.Path
        A symbol, the path of a symbol file, whose operators need not be registered, or a network. A
        network has to be hybridized and run once before; the operators of its graph in the last run
        are counted, whether for training or inference.

    Returns
    -------
    dict of str to int
        Number of nodes for each operator name, MXNet's (``'ROIPooling'``) and gluon_roi's
        (``'_gluon_roi_ROIPool'``), including zeros and the bodies of control flow operators.
        ``'Custom'`` is the number of all operators written in Python, whose code is not part of a
        graph, and ``'Custom:<op_type>'`` the number of those of one type.

    Raises
    ------
    TypeError, OSError
        `model` has another type, or is a file that cannot be read.
    ValueError
        A part of the network that may use such operators has no graph yet, or the file is not a
        symbol file.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> symbol = mx.sym.ROIPooling(pooled_size=(7, 7), spatial_scale=1 / 16)
    >>> gluon_roi.count(symbol)['ROIPooling']
    1
    """
    return _count("count", model)


def _count(caller: str, model: Any) -> dict[str, int]:
    if isinstance(model, (str, os.PathLike)):
        graphs = [parse_symbol(read_symbol(caller, model))]
    elif isinstance(model, Symbol):
        graphs = [symbol_content(model)]
    elif isinstance(model, gluon.Block):
        graphs = [symbol_content(graph) for graph in _graphs(caller, model)]
        if not graphs:
            hybrid = any(isinstance(block, gluon.HybridBlock) for block in _blocks(model))
            raise ValueError(_no_graph(caller, model, hybrid))
    else:
        raise TypeError(f"{caller}: {_EXPECTED}, got {type(model)}")
    return _used_in(graphs)


def _used_in(graphs: list[dict]) -> dict[str, int]:
    """The result of count for the contents of symbol files."""
    used: Counter = Counter()
    types: Counter = Counter()
    for graph in graphs:
        for node in _with_bodies(graph["nodes"]):
            if node["op"] in _PYTHON:
                # Old files call the attributes attr or param.
                given = node.get("attrs") or node.get("attr") or node.get("param") or {}
                types[given.get("op_type", node["op"])] += 1
            used[node["op"]] += 1
    return {
        **{name: used[name] for name in (*builtins(), *_ours())},
        "Custom": sum(types.values()),
        **{_CUSTOM + name: uses for name, uses in sorted(types.items())},
    }


def _blocks(model: gluon.Block) -> list[gluon.Block]:
    blocks: list[gluon.Block] = []
    model.apply(blocks.append)
    return blocks


def _ours() -> list[str]:
    return [f"_gluon_roi_{name}" for name in library.operators()]


def _with_bodies(nodes: list[dict]) -> Iterator[dict]:
    for node in nodes:
        yield node
        for body in node.get("subgraphs", ()):
            yield from _with_bodies(body["nodes"])


def _graphs(caller: str, block: gluon.Block) -> Iterator[mx.sym.Symbol]:
    """The graphs of the outermost blocks that have a graph."""
    if getattr(block, "_cached_graph", ()):
        yield block._cached_graph[1]
        return
    if isinstance(block, OperatorBlock) or _mentions(block, (*BY_FUNCTION, *library.operators())):
        raise ValueError(_no_graph(caller, block, isinstance(block, gluon.HybridBlock)))
    for child in block._children.values():
        yield from _graphs(caller, child)


def _no_graph(caller: str, block: gluon.Block, can_have_one: bool) -> str:
    message = f"{caller}: {type(block).__name__} {block.name} has no graph to be counted; call "
    if can_have_one:
        message += "hybridize() on the network and run it once, or "
    return f"{message}gluon_roi.replace_builtins(), which switches what {_ARRAY_CODE}"


def _mentions(block: gluon.Block, names: Iterable[str]) -> bool:
    """Whether the code of a block contains one of the names; MXNet's blocks do only in contrib."""
    wanted = frozenset(names)
    members = list(vars(block).values())  # such as the function of a HybridLambda
    for owner in type(block).__mro__:
        of_mxnet = owner.__module__.split(".")[0] in ("mxnet", "builtins")
        if not of_mxnet or owner.__module__.startswith("mxnet.gluon.contrib."):
            members.extend(vars(owner).values())
    return any(
        _code_mentions(member.__code__, wanted) for member in members if inspect.isfunction(member)
    )


def _code_mentions(code: CodeType, wanted: frozenset) -> bool:
    if not wanted.isdisjoint(code.co_names):
        return True
    return any(
        _code_mentions(constant, wanted) if isinstance(constant, CodeType) else constant in wanted
        for constant in code.co_consts
        if isinstance(constant, (CodeType, str))
    )


@overload
def optimize(
    model: PathLike, *, bad_index: str = "error", rois_only: bool = False
) -> mx.sym.Symbol: ...
@overload
def optimize(
    model: Model, *inputs: Any, bad_index: str = "error", rois_only: bool = False, **flags: Any
) -> Model: ...
def optimize(
    model: Any, *inputs: Any, bad_index: str = "error", rois_only: bool = False, **flags: Any
) -> Any:
    """Switch MXNet's detection operators in a symbol or network to the operators of this package.

    The operators that :func:`gluon_roi.replace_builtins` lists become the equivalent operators of
    this package, with gradient guards, also in the bodies of control flow operators. Arguments,
    auxiliary states, parameters and outputs keep their names, so checkpoints load as before. In a
    symbol that is already switched, the guards are renumbered, which distinguishes copies that
    share weights. A network that is not hybridized (``hybridize(active=False)``) calls the
    operators of this package through ``F``.

    Parameters
    ----------
    model : mxnet.sym.Symbol, mxnet.gluon.Block, str or pathlib.Path
        A symbol, the path of a symbol file, or the outermost network. A network is switched in
        place, and stays switched after later calls of ``hybridize()``.
    inputs : arrays
        Inputs of the network. It is called once at the end, to inspect its graph, which also
        finishes deferred initialization. Not for symbols and files.
    bad_index : {'error', 'padding'}
    rois_only : bool
        As in :func:`gluon_roi.replace_builtins`.
    flags
        Arguments of ``model.hybridize``, such as ``static_alloc=True``; with ``backend=``, also the
        options of that backend. A hybridized network keeps its other flags.

    Returns
    -------
    mxnet.sym.Symbol or mxnet.gluon.Block
        A new symbol, or the same network.

    Raises
    ------
    TypeError, OSError
        `model` has another type, or is a file that cannot be read; a flag is unknown.
    ValueError
        The file is not a symbol file. The model has no such operator, or one that cannot be
        switched because of an unknown attribute, a missing input, or a hidden second output that is
        used. The model is then unchanged.

    Warns
    -----
    UserWarning
        Custom operators remain, whose Python code may call MXNet's RoI operators.
        :func:`gluon_roi.replace_builtins` switches those.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> symbol = mx.sym.ROIPooling(name='pool', pooled_size=(7, 7), spatial_scale=1 / 16)
    >>> gluon_roi.optimize(symbol).list_arguments()
    ['pool_data', 'pool_rois']
    >>> class Head(mx.gluon.HybridBlock):
    ...     def hybrid_forward(self, F, x, rois):
    ...         return F.contrib.ROIAlign(x, rois, (2, 2), 0.5, sample_ratio=2)
    >>> data, rois = mx.nd.ones((1, 8, 16, 16)), mx.nd.array([[0, 0, 0, 30, 30]])
    >>> net = gluon_roi.optimize(Head(), data, rois, static_alloc=True)
    >>> gluon_roi.count(net)['_gluon_roi_ROIAlign']
    1
    """
    options = Options.checked("optimize", bad_index, rois_only)
    if isinstance(model, (str, os.PathLike)):
        model = load_symbol("optimize", read_symbol("optimize", model))
    if isinstance(model, Symbol):
        if inputs or flags:
            raise TypeError("optimize: a symbol takes no inputs and no flags of hybridize()")
        content = symbol_content(model)
        used = _used_in([content])
        _check_any(used, "symbol", options)
        result = _optimized(content, model, options, in_network=False)
        _warn_of_python(used)
        return result
    if not isinstance(model, gluon.Block):
        raise TypeError(f"optimize: {_EXPECTED}, got {type(model)}")
    if not inputs:
        raise TypeError("optimize: a network needs the inputs of one call: optimize(net, data)")
    _check_flags(flags)
    before = [(block, dict(vars(block))) for block in _blocks(model)]
    try:
        for block, _ in before:
            _switch_block(block, options)
        model.hybridize(**flags)
        for block, state in before:
            # hybridize() without a backend forgets the one of optimize_for(backend="MKLDNN").
            if state.get("_backend") and "backend" not in flags:
                block._backend, block._backend_opts = state["_backend"], state["_backend_opts"]
            if state.get("_active"):
                kept = {k: v for k, v in state["_flags"] if k not in flags}
                block._flags = list({**dict(block._flags), **kept}.items())
        model(*inputs)
        used = _count("optimize", model)
        _check_any(used, "network", options)
    except BaseException:
        for block, state in before:
            vars(block).clear()
            vars(block).update(state)
        raise
    _warn_of_python(used)
    if gpu.HAS_GPUS:
        for parameter in model.collect_params().values():
            for context in parameter.list_ctx():
                gpu.warn_unless_checked(context)
        for value in inputs:
            if isinstance(value, mx.nd.NDArray):
                gpu.warn_unless_checked(value.context)
    return model


#: The arguments of HybridBlock.hybridize, with those that it passes on to MXNet's CachedOp.
_FLAGS = (
    "active", "backend", "clear", "static_alloc", "static_shape", "inline_limit",
    "forward_bulk_size", "backward_bulk_size",
)  # fmt: skip


def _check_flags(flags: dict[str, Any]) -> None:
    """Raise TypeError for unknown flags, which MXNet may ignore, unless a backend defines them."""
    for flag in flags:
        if flag in _FLAGS or flags.get("backend"):
            continue
        close = difflib.get_close_matches(flag, _FLAGS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise TypeError(f"optimize: unknown flag {flag}, expected one of {', '.join(_FLAGS)}{hint}")


def _check_any(used: dict[str, int], kind: str, options: Options) -> None:
    expected = builtins(options)
    if any(used[name] for name in (*expected, *_ours())):
        return
    message = f"optimize: the {kind} has no RoI operator, expected one of {', '.join(expected)}"
    if used["Custom"]:
        message += f"; it has the Custom operators {_python_types(used)}"
    if used["Custom"] or kind == "network":
        message += f"; gluon_roi.replace_builtins() switches what {_ARRAY_CODE}"
    raise ValueError(message)


def _python_types(used: dict[str, int]) -> str:
    types = (name.partition(_CUSTOM)[2] for name in used)
    return ", ".join(f"{name} ({used[_CUSTOM + name]})" for name in types if name)


def _warn_of_python(used: dict[str, int]) -> None:
    if used["Custom"] and not is_replaced():
        warnings.warn(
            f"optimize: the Custom operators {_python_types(used)} stay as they are; if their code "
            "calls RoI operators of MXNet, call gluon_roi.replace_builtins() too",
            stacklevel=3,
        )


def _optimized(
    content: dict, symbol: mx.sym.Symbol, options: Options, in_network: bool
) -> mx.sym.Symbol:
    """Switch a symbol; `content` is the content of its file."""
    content = switch_nodes(content, options, in_network)
    return load_content(fuse_sums(content, in_network), symbol)


def _switch_block(block: gluon.Block, options: Options) -> None:
    if not isinstance(block.summary, functools.partial):
        block.summary = functools.partial(_summary, block.summary)
    if isinstance(block, gluon.SymbolBlock):
        variables, symbol = block._cached_graph
        content = symbol_content(symbol)
        used = _used_in([content])
        if any(used[name] for name in (*builtins(options), *_ours())):
            symbol = _optimized(content, symbol, options, in_network=True)
            block._cached_graph = variables, symbol
            block._clear_cached_op()
        return
    if not isinstance(block, gluon.HybridBlock):
        return
    get_graph = block._get_graph
    if isinstance(get_graph, functools.partial) and get_graph.func is _get_switched_graph:
        get_graph = get_graph.args[0]
    block._get_graph = functools.partial(_get_switched_graph, get_graph, options)
    if _mentions(block, BY_FUNCTION):
        # A block without a graph (one that is not hybridized, or is part of another block's graph)
        # calls gluon_roi's functions through F. MXNet's blocks compare F with mx.nd, so F is
        # replaced only for blocks that need it.
        forward = block.hybrid_forward
        if isinstance(forward, functools.partial) and forward.func is _forward:
            forward = forward.args[0]
        block.hybrid_forward = functools.partial(_forward, forward, options)


def _get_switched_graph(get_graph: Callable, options: Options, *args: Any) -> tuple:
    """``block._get_graph``: a graph is switched when it is created.

    A function at module level, so that networks can be copied.
    """
    block = get_graph.__self__  # type: ignore[attr-defined]
    if not block._cached_graph:
        inputs, symbol = get_graph(*args)
        content = symbol_content(symbol)
        used = _used_in([content])
        if any(used[name] for name in builtins(options)) or used["_gluon_roi_ROIAlign"] > 1:
            symbol = _optimized(content, symbol, options, in_network=True)
            block._cached_graph = inputs, symbol
    return block._cached_graph


def _summary(summary: Callable, *inputs: Any) -> None:
    """``block.summary``, which MXNet refuses for networks that are hybridized."""
    network = summary.__self__  # type: ignore[attr-defined]
    active = [block for block in _blocks(network) if getattr(block, "_active", False)]
    for block in active:
        block._active = False
    try:
        summary(*inputs)
    finally:
        for block in active:
            block._active = True


def _forward(hybrid_forward: Callable, options: Options, F: Any, *args: Any, **kwargs: Any) -> Any:
    """``hybrid_forward`` with gluon_roi's operators in F.

    A function at module level, so that networks can be copied.
    """
    return hybrid_forward(switched_namespace(F, options), *args, **kwargs)
