# SPDX-License-Identifier: Apache-2.0
"""`optimize`: switches the operators of a model to gluon_roi's, and converts it for inference."""

from __future__ import annotations

import contextlib
import difflib
import functools
import os
import warnings
from typing import (
    Any,
    Callable,
    Iterable,
    Literal,
    Mapping,
    Sequence,
    TypeVar,
    Union,
    overload,
)

import mxnet as mx
from mxnet import gluon

from .. import gpu
from ..bridge.arguments import Symbol
from ..bridge.symbol_json import is_dynamic, symbol_content
from ..files import PathLike, load_symbol, read_symbol
from ..inference.model_files import checked_parameters, convert_symbol
from ..inference.network import check_has_graph, restore_original, use_converted
from .counting import (
    ARRAY_CODE,
    CUSTOM,
    EXPECTED,
    blocks_of,
    count_for,
    graphs_of,
    mentions,
    own_operators,
    used_in,
)
from .deconvolution import add_biases, adds_bias, forgets_bias
from .functions import is_replaced, switched_namespace
from .fuse_pyramids import fuse_sums
from .mapping import BY_FUNCTION, Options, builtins
from .symbols import load_content, switch_nodes

#: In signatures: a symbol or a network, of any class.
Model = TypeVar("Model", bound=Union[mx.sym.Symbol, gluon.Block])


@overload
def optimize(
    model: PathLike, *, bad_index: str = "error", rois_only: bool = False
) -> mx.sym.Symbol: ...
@overload
def optimize(
    model: mx.sym.Symbol | PathLike,
    *,
    bad_index: str = "error",
    rois_only: bool = False,
    inference: Literal[True],
    params: Mapping[str, mx.nd.NDArray] | PathLike,
    shapes: Mapping[str, Sequence[int]] | None = None,
    winograd: bool = True,
) -> tuple[mx.sym.Symbol, dict[str, mx.nd.NDArray]]: ...
@overload
def optimize(
    model: Model,
    *inputs: Any,
    bad_index: str = "error",
    rois_only: bool = False,
    inference: bool = False,
    winograd: bool = True,
    **flags: Any,
) -> Model: ...
def optimize(
    model: Any,
    *inputs: Any,
    bad_index: str = "error",
    rois_only: bool = False,
    inference: bool = False,
    params: Any = None,
    shapes: Any = None,
    winograd: bool = True,
    **flags: Any,
) -> Any:
    """Switch MXNet's detection operators in a symbol or network to the operators of this package.

    The operators that :func:`gluon_roi.replace_builtins` lists become the equivalent operators of
    this package, with gradient guards, also in the bodies of control flow operators. Arguments,
    auxiliary states, parameters and outputs keep their names, so checkpoints load as before. In a
    symbol that is already switched, the guards are renumbered, which distinguishes copies that
    share weights. A network that is not hybridized (``hybridize(active=False)``) calls the
    operators of this package through ``F``. With MXNet 1.8.0, the bias of a Deconvolution, which it
    ignores, is added by a node of its own.

    Parameters
    ----------
    model : mxnet.sym.Symbol, mxnet.gluon.Block, str or pathlib.Path
        A symbol, the path of a symbol file, or the outermost network. A network is switched in
        place, and stays switched after later calls of ``hybridize()``.
    inputs : arrays
        Inputs of the network. It is called once at the end, to trace its graph, switched and, with
        `inference=True`, converted. This also finishes deferred initialization; its outputs are
        waited for. Not for symbols and files.
    bad_index : {'error', 'padding'}
    rois_only : bool
        As in :func:`gluon_roi.replace_builtins`.
    inference : bool
        Convert the model for inference on a CPU as well, with or without RoI operators: fold
        BatchNorm into weights, compute 3 x 3 convolutions by Winograd's algorithm where that is
        faster, and let oneDNN fuse the rest. Results differ by rounding. A network cannot be
        trained until it is optimized without `inference`. Its parameters stay as they are. Its
        graph is converted again after a parameter is written through Gluon, or through an array
        that ``param.data()`` has returned since the last call.
    params : dict of str to NDArray, str or pathlib.Path
        For a symbol with `inference=True`: the values of its parameters, or the path of their file.
    shapes : dict of str to tuple of int, optional
        For a symbol with `inference=True`: typical shapes of its inputs, used to choose an
        algorithm for each layer.
    winograd : bool
        With `inference=True`: whether to use Winograd's algorithm. Its weights take 4 to 7 times
        the memory; False saves it, and is slower.
    flags
        Arguments of ``model.hybridize``, such as ``static_alloc=True``; with ``backend=``, also the
        options of that backend. A hybridized network keeps its other flags. With `inference=True`,
        static_alloc and static_shape are True unless they are given here.

    Returns
    -------
    mxnet.sym.Symbol or mxnet.gluon.Block
        A new symbol, or the same network. With `inference=True`, a new symbol and the dict of its
        parameters.

    Raises
    ------
    TypeError, OSError
        `model` has another type, or is a file that cannot be read; a flag is unknown.
    ValueError
        The file is not a symbol file. The model has no such operator, or one that cannot be
        switched because of an unknown attribute, a missing input, or a hidden second output that is
        used. With `inference=True`, the network is on a GPU. The operators of the model are then
        as before; parameters whose initialization was deferred may be initialized.
    mxnet.base.MXNetError
        The call of the network fails, such as for a batch index beyond the batch. The operators of
        the model are as before.

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
    if not (winograd or inference):
        raise TypeError("optimize: winograd=False is for inference=True")
    if isinstance(model, (str, os.PathLike)):
        model = load_symbol("optimize", read_symbol("optimize", model))
    if isinstance(model, Symbol):
        if inputs or flags:
            raise TypeError("optimize: a symbol takes no inputs and no flags of hybridize()")
        values = checked_parameters(params, shapes, inference)
        used = used_in([symbol_content(model)])
        switched = _switch_and_fuse(symbol_content(model), model, options, in_network=False)
        if not inference:
            _check_any(used, "symbol", options, [switched])
        _warn_of_python(used)
        if not inference:
            return switched
        return convert_symbol(switched, values, shapes or {}, winograd)[:2]
    if not isinstance(model, gluon.Block):
        raise TypeError(f"optimize: {EXPECTED}, got {type(model)}")
    if params is not None or shapes is not None:
        raise TypeError("optimize: params and shapes are for a symbol; a network has its own")
    if not inputs:
        raise TypeError("optimize: a network needs the inputs of one call: optimize(net, data)")
    if inference:
        check_has_graph(model)
    _check_flags(flags)
    before = [(block, dict(vars(block))) for block in blocks_of(model)]
    try:
        for block, _ in before:
            restore_original(block)
            _switch_block(block, options)
        model.hybridize(**flags)
        for block, state in before:
            # hybridize() without a backend forgets the one of optimize_for(backend="MKLDNN").
            if state.get("_backend") and "backend" not in flags:
                block._backend, block._backend_opts = state["_backend"], state["_backend_opts"]
            if state.get("_active"):
                kept = {k: v for k, v in state["_flags"] if k not in flags}
                block._flags = list({**dict(block._flags), **kept}.items())
        if inference:
            use_converted(model, winograd, flags)
        with mx.autograd.pause() if inference else contextlib.nullcontext():
            _wait_for(model(*inputs))
        used = count_for("optimize", model)
        if not inference:
            _check_any(used, "network", options, graphs_of("optimize", model))
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


def _wait_for(outputs: Any) -> None:
    """Wait for the arrays in the result of a network, so that an error of a kernel is raised."""
    if isinstance(outputs, mx.nd.NDArray):
        outputs.wait_to_read()
    elif isinstance(outputs, dict):
        _wait_for(list(outputs.values()))
    elif isinstance(outputs, (list, tuple)):
        for output in outputs:
            _wait_for(output)


def switch_file(path: PathLike, bad_index: str, rois_only: bool) -> mx.sym.Symbol:
    """The symbol of a file, switched; the same symbol if it has nothing to switch."""
    options = Options.checked("switch", bad_index, rois_only)
    symbol = load_symbol("switch", read_symbol("switch", path))
    return _switch_and_fuse(symbol_content(symbol), symbol, options, in_network=False)


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


def _check_any(
    used: dict[str, int], kind: str, options: Options, switched: Iterable[mx.sym.Symbol]
) -> None:
    """Raise ValueError unless a model has something to switch."""
    expected = builtins(options)
    if any(used[name] for name in (*expected, *own_operators())):
        return
    if any(adds_bias(symbol_content(graph)) for graph in switched):
        return
    message = f"optimize: the {kind} has no RoI operator, expected one of {', '.join(expected)}"
    if used["Custom"]:
        message += f"; it has the Custom operators {_python_types(used)}"
    if used["Custom"] or kind == "network":
        message += f"; gluon_roi.replace_builtins() switches what {ARRAY_CODE}"
    raise ValueError(message)


def _python_types(used: dict[str, int]) -> str:
    types = (name.partition(CUSTOM)[2] for name in used)
    return ", ".join(f"{name} ({used[CUSTOM + name]})" for name in types if name)


def _warn_of_python(used: dict[str, int]) -> None:
    if used["Custom"] and not is_replaced():
        warnings.warn(
            f"optimize: the Custom operators {_python_types(used)} stay as they are; if their code "
            "calls RoI operators of MXNet, call gluon_roi.replace_builtins() too",
            stacklevel=3,
        )


def _switch_and_fuse(
    content: dict, symbol: mx.sym.Symbol, options: Options, in_network: bool
) -> mx.sym.Symbol:
    """A symbol with its RoI operators switched, and sums of ROIAligns on a pyramid fused into one.

    `content` is the content of the symbol's file. A graph whose shapes MXNet infers while it runs
    gets the guards of a network.
    """
    in_network |= is_dynamic(content)
    content = switch_nodes(content, options, in_network)
    if forgets_bias(content):
        content = add_biases(content, in_network)
    return load_content(fuse_sums(content, in_network), symbol)


def _switch_block(block: gluon.Block, options: Options) -> None:
    """Let a block use the operators of this package from its next call on.

    The symbol of a SymbolBlock is switched at once, and the graph of another HybridBlock when it is
    created. ``block.summary`` becomes one that works for hybridized networks.
    """
    if not isinstance(block.summary, functools.partial):
        block.summary = functools.partial(_summary, block.summary)
    if isinstance(block, gluon.SymbolBlock):
        _switch_symbol_block(block, options)
    elif isinstance(block, gluon.HybridBlock):
        _switch_hybrid_block(block, options)


def _switch_symbol_block(block: gluon.SymbolBlock, options: Options) -> None:
    variables, symbol = block._cached_graph
    content = symbol_content(symbol)
    used = used_in([content])
    # Operators of this package are rewritten too: the guards of a network differ from a symbol's.
    has_operators = any(used[name] for name in (*builtins(options), *own_operators()))
    if has_operators or forgets_bias(content):
        symbol = _switch_and_fuse(content, symbol, options, in_network=True)
        block._cached_graph = variables, symbol
        block._clear_cached_op()


def _switch_hybrid_block(block: gluon.HybridBlock, options: Options) -> None:
    get_graph = block._get_graph
    if isinstance(get_graph, functools.partial) and get_graph.func is _get_switched_graph:
        get_graph = get_graph.args[0]
    block._get_graph = functools.partial(_get_switched_graph, get_graph, options)
    if mentions(block, BY_FUNCTION):
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
        used = used_in([content])
        has_builtins = any(used[name] for name in builtins(options))
        # Blocks of this package have the guards of a network already; several ROIAligns may become
        # one PyramidROIAlign.
        if has_builtins or used["_gluon_roi_ROIAlign"] > 1 or forgets_bias(content):
            symbol = _switch_and_fuse(content, symbol, options, in_network=True)
            block._cached_graph = inputs, symbol
    return block._cached_graph


def _summary(summary: Callable, *inputs: Any) -> None:
    """``block.summary``, which MXNet refuses for networks that are hybridized."""
    network = summary.__self__  # type: ignore[attr-defined]
    active = [block for block in blocks_of(network) if getattr(block, "_active", False)]
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
