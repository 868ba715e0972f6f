# SPDX-License-Identifier: Apache-2.0
"""Replaces MXNet's functions with functions that call the operators of this package.

`python -m gluon_roi run` replaces them in child processes, too: it sets an environment variable,
which gluon_roi/_compat.py and ``import gluon_roi`` read.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import sys
import threading
from types import ModuleType
from typing import Any, Callable

import mxnet as mx

from .. import _compat, nd
from ..bridge.arguments import NDArray, NumpySymbol
from .mapping import BY_FUNCTION, Options, Switch


@functools.lru_cache(maxsize=None)
def _adapter(function: Callable, switch: Switch, options: Options | None) -> Callable:
    """A function with the signature of MXNet's `function` that calls gluon_roi's equivalent.

    Without `options`, it does so while a replacement is active, and calls `function` otherwise.
    """
    original = getattr(function, "_original", function)
    signature = _signature(original, switch)

    @functools.wraps(original)
    def adapter(*args: Any, **kwargs: Any) -> Any:
        chosen = options or next(reversed(_active), None)
        if chosen is None or not chosen.includes(switch):
            return original(*args, **kwargs)
        given = dict(signature.bind_partial(*args, **kwargs).arguments)
        given.update(given.pop("kwargs", {}))
        if not any(isinstance(given.get(name), NDArray) for name in switch.inputs):
            # MXNet names the node, creates missing variables and checks the arguments.
            return _switched_node(original(*args, **kwargs), switch, chosen.bad_index)
        name, arguments = switch.translate(given, chosen.bad_index)
        return getattr(nd, name)(**{**dict.fromkeys(switch.inputs), **arguments})

    adapter._original = original  # type: ignore[attr-defined]
    return adapter


def _signature(function: Callable, switch: Switch) -> inspect.Signature:
    """The signature of MXNet's function, or of its operator if a wrapper of AMP hides it."""
    signature = inspect.signature(function)
    if switch.inputs[0] in signature.parameters:
        return signature
    names = mx.operator.get_operator_arguments(switch.mxnet_name).names
    Parameter = inspect.Parameter
    given = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    return inspect.Signature([*given, Parameter("kwargs", Parameter.VAR_KEYWORD)])


def _switched_node(symbol: mx.sym.Symbol, switch: Switch, bad_index: str) -> mx.sym.Symbol:
    """The equivalent of a node of MXNet's operator, with its name, inputs and attributes."""
    node = symbol.as_nd_ndarray() if isinstance(symbol, NumpySymbol) else symbol
    given = node.list_attr()
    for key in [key for key in given if key.startswith("__")]:
        given.pop(key.strip("_"), None)  # MXNet also lists __lr_mult__ and others without __
    inputs = dict(zip(switch.inputs, node.get_children()))
    result = switch.node(node.name, inputs, given, bad_index)
    return result if node is symbol else result.as_np_ndarray()


#: Submodules of mx.nd and mx.sym that hold RoI functions as well.
_SUBMODULES = ("contrib", "npx", "numpy_extension", "op")


def switched_namespace(module: ModuleType, options: Options) -> ModuleType:
    """A copy of mx.nd or mx.sym, such as the F of ``hybrid_forward``, with gluon_roi's operators.

    It is a copy rather than a proxy because networks read ``F.contrib.__dict__``.
    """
    copy = ModuleType(module.__name__)
    members = vars(copy)
    members.update(vars(module))
    for name, switch in BY_FUNCTION.items():
        if name in members:
            members[name] = _adapter(members[name], switch, options)
    for name in _SUBMODULES:
        if name in members:
            members[name] = switched_namespace(members[name], options)
    return copy


def replace_builtins(bad_index: str = "error", rois_only: bool = False) -> contextlib.ExitStack:
    """Replace MXNet's functions with the operators of this package.

    In every module that holds ``ROIPooling``, ``contrib.ROIAlign``, ``contrib.PSROIPooling``,
    ``contrib.DeformablePSROIPooling``, ``contrib.RROIAlign``, ``contrib.DeformableConvolution``,
    ``contrib.ModulatedDeformableConvolution``, ``contrib.box_nms``, ``contrib.box_iou``,
    ``contrib.Proposal``, ``contrib.MultiProposal`` or ``npx.roi_pooling`` (of ``mx.nd`` or
    ``mx.sym``), it is replaced with a function that has the same signature and calls the operator
    of this package. This affects array code, networks that are not hybridized, and symbols built
    from then on. For existing symbols and symbol files, use :func:`gluon_roi.optimize`.

    The replacement applies to the whole process, in all threads, until the ``with`` block ends or
    ``close()`` is called on the result; without either it is permanent. Replacements may overlap in
    any order: the newest active one determines both arguments, and MXNet's functions are restored
    when the last one ends.

    Parameters
    ----------
    bad_index : {'error', 'padding'}
        How to treat a batch index beyond the batch: 'error' raises, 'padding' treats the row as
        padding, as MXNet's ``ROIPooling`` does.
    rois_only : bool
        Whether to replace only operators that pool boxes: not the deformable convolutions,
        ``box_nms``, ``box_iou``, ``Proposal`` or ``MultiProposal``.

    Returns
    -------
    contextlib.ExitStack
        Restores MXNet's functions when it is closed.

    Raises
    ------
    ValueError
        `bad_index` has another value.

    Examples
    --------
    >>> import mxnet as mx, gluon_roi
    >>> data, rois = mx.nd.ones((1, 1, 4, 4)), mx.nd.array([[0, 0, 0, 3, 3], [-1, 0, 0, 0, 0]])
    >>> with gluon_roi.replace_builtins():
    ...     y = mx.nd.contrib.ROIAlign(data, rois, pooled_size=(1, 1), spatial_scale=1)
    >>> y.asnumpy().ravel().tolist()                              # row 1 is padding
    [1.0, 0.0]
    """
    global _active
    options = Options.checked("replace_builtins", bad_index, rois_only)
    with _changes:
        _replace()
        _active = (*_active, options)
    undo = contextlib.ExitStack()
    undo.callback(_end, options)
    return undo


#: The options of the active replacements, in the order of their calls.
_active: tuple[Options, ...] = ()
#: Lock for changes of _active and of modules.
_changes = threading.Lock()
#: MXNet's functions by the id() of their replacements.
_replaced: dict[int, Callable] = {}


#: The replacement that a parent process asked for.
inherited = contextlib.ExitStack()


def replace_in_children(bad_index: str, rois_only: bool) -> None:
    """Let processes that this one starts replace MXNet's functions when they import MXNet."""
    options = {"package": _compat.PACKAGE, "bad_index": bad_index, "rois_only": rois_only}
    os.environ[_compat.RUN] = json.dumps(options)


def replace_as_parent() -> None:
    """Replace MXNet's functions if the process that started this one asks for it."""
    options = _compat.options_of_parent()
    if options is not None:
        inherited.enter_context(replace_builtins(**options))


def is_replaced() -> bool:
    """Whether MXNet's functions are currently replaced."""
    return bool(_active)


def _replace() -> None:
    """Replace MXNet's functions with adapters, in every module."""
    adapters = {}
    for module in _modules("mxnet"):
        for name, switch in BY_FUNCTION.items():
            function = vars(module).get(name)
            # gluon.contrib has classes of the same names.
            if inspect.isfunction(function) and id(function) not in _replaced:
                adapter = adapters[id(function)] = _adapter(function, switch, None)
                _replaced[id(adapter)] = function
    _put(adapters)


def _end(options: Options) -> None:
    global _active
    with _changes:
        _active = tuple(other for other in _active if other is not options)
        if not _active:
            _put(_replaced)


def _put(functions: dict[int, Callable]) -> None:
    """Replace the functions that have these ids, in all modules."""
    for module in _modules():
        for name, value in list(vars(module).items()):
            if id(value) in functions:
                vars(module)[name] = functions[id(value)]


def _modules(package: str = "") -> list[ModuleType]:
    """The imported modules, or those of one package."""
    return [
        module
        for name, module in list(sys.modules.items())
        if isinstance(module, ModuleType) and (not package or name.split(".")[0] == package)
    ]
