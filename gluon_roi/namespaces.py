"""The functions ``gluon_roi.nd.*``, ``gluon_roi.sym.*`` and ``F.gluon_roi.*``, and the guard.

MXNet never tells a custom operator whether to overwrite or to add to a gradient, so it always
overwrites (measured on 1.9.1: wrong sums for ``grad_req='add'``, and for a map with 8 or more users
under ``static_alloc``). A *guard* between the inputs and the operator has a backward pass of
MXNet's own, which adds where it must. Nothing here calls an operator without its guard, but for
arrays that nothing is ever added into: outside of graphs that is every array without a gradient
buffer of its own.
"""

import ctypes
import inspect
import sys
from types import ModuleType
from typing import Any, Callable, Dict, Sequence, Tuple, Type

import mxnet as mx
from mxnet import base
from mxnet.gluon import HybridBlock

# Counts the guards of a node on the node itself: every guard of one map gets another number, and
# building the same graph twice gives the same numbers.
_USERS = "__gluon_roi_users__"
_GUARD = "__gluon_roi_guard__"
# Inputs of which the number of dimensions is fixed.
_RANKS = {"data": 4, "rois_num": 1}
# NDArrays by class, and another kind by MXNet's rules.
_OTHER_KINDS = (mx.np.ndarray, mx.nd.sparse.BaseSparseNDArray)
# What MXNet's C interface calls the operators by; install() fills it in.
_HANDLES: Dict[str, ctypes.c_void_p] = {}


class RoiBlock(HybridBlock):
    """Base of the operator blocks: keeps the arguments, calls the function of the same name."""

    def __init__(self, arguments: Dict[str, Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._arguments = arguments

    def hybrid_forward(self, F: Any, data: Any, rois: Any, rois_num: Any = None) -> Any:
        function = getattr(F.gluon_roi, type(self).__name__)
        return function(data, rois, rois_num=rois_num, **self._arguments)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._arguments.items())
        return f"{type(self).__name__}({shown})"


def _check_kind(operator: str, name: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind) or isinstance(value, _OTHER_KINDS):
        raise TypeError(
            f"{operator}: argument {name}: expected a {kind.__module__}.{kind.__name__}, "
            f"got {type(value).__module__}.{type(value).__name__}"
        )


_SAME_SHAPE = (ctypes.c_int64 * 1)(-2)


def _view(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """``array.reshape((-2,))``, recorded, in a third of the time: that compares sizes in NumPy."""
    handle = base.NDArrayHandle()
    base.check_call(
        base._LIB.MXNDArrayReshape64(array.handle, 1, _SAME_SHAPE, False, ctypes.byref(handle))
    )
    return type(array)(handle=handle, writable=array.writable)


def _invoke(
    handle: ctypes.c_void_p,
    arrays: Sequence[mx.nd.NDArray],
    attributes: Dict[str, Any],
    outputs: Sequence[mx.nd.NDArray],
) -> ctypes.c_void_p:
    """Call an operator on arrays, in two thirds of the time of the function that MXNet makes of it.

    A small call is mostly Python: 8 boxes on 16 channels are pooled in 5 us of 40. Returns the
    handle of the output.
    """
    count = ctypes.c_int(len(outputs))
    results = ctypes.POINTER(base.NDArrayHandle)()
    if outputs:
        results = ctypes.cast(base.c_handle_array(outputs), ctypes.POINTER(base.NDArrayHandle))
    base.check_call(
        base._LIB.MXImperativeInvokeEx(
            handle,
            len(arrays),
            base.c_handle_array(arrays),
            ctypes.byref(count),
            ctypes.byref(results),
            len(attributes),
            base.c_str_array(attributes),
            base.c_str_array([str(value) for value in attributes.values()]),
            ctypes.byref(ctypes.POINTER(ctypes.c_int)()),
        )
    )
    return base.NDArrayHandle(results[0])


def _operator_handle(name: str) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    base.check_call(base._LIB.NNGetOpHandle(base.c_str(name), ctypes.byref(handle)))
    return handle


def _call_nd(
    operator: str, inputs: Dict[str, Any], attributes: Dict[str, Any], out: Any, name: Any
) -> Any:
    """Call on arrays. As in mx.nd, name is taken for the sake of hybrid_forward, and unused."""
    for key, value in inputs.items():
        _check_kind(operator, key, value, mx.nd.NDArray)
    outputs = () if out is None else out if isinstance(out, (list, tuple)) else (out,)
    for array in outputs:
        _check_kind(operator, "out", array, mx.nd.NDArray)
    arrays = list(inputs.values())
    if mx.autograd.is_recording():
        arrays = [array if array.grad is None else _view(array) for array in arrays]
    try:
        handle = _invoke(_HANDLES[operator], arrays, attributes, outputs)
    except mx.MXNetError as error:
        reason = str(error).replace("MXNetError: ", "")
        if outputs and "inconsistent" in reason:
            raise mx.MXNetError(f"{operator}: argument out: {reason}") from None
        raise
    return out if outputs else mx.nd.NDArray(handle)


def _call_sym(
    operator: str, inputs: Dict[str, Any], attributes: Dict[str, Any], name: Any, attr: Any
) -> Any:
    for key, value in inputs.items():
        _check_kind(operator, key, value, mx.sym.Symbol)
    # The unbound method gives the name without the prefix, which each call below adds itself.
    node = mx.name.NameManager.get(mx.name.NameManager._current.value, name, operator.lower())
    guarded = []
    for key, symbol in inputs.items():
        # MXNet 1.9.1 crashes on its way to a custom operator's shape inference when too few ranks
        # are known; -1 is a dimension still to be inferred.
        if key in _RANKS and symbol.get_children() is None and symbol.attr("__shape__") is None:
            symbol._set_attr(__shape__=str((-1,) * _RANKS[key]))
        users = int(symbol.attr(_USERS) or 0)
        symbol._set_attr(**{_USERS: str(users + 1)})
        # MXNet merges equal nodes into one, and with that the guards of one map: the attribute
        # makes each of them unique.
        unique = {_GUARD: f"{node}.{key}.{users}"}
        guarded.append(mx.sym.identity(symbol, name=f"{node}_{key}", attr=unique))
    function = getattr(mx.sym._internal, f"_gluon_roi_{operator}")
    return function(*guarded, name=node, attr=attr, **attributes)


def _function(block: Type[RoiBlock], symbolic: bool) -> Callable[..., Any]:
    """The nd or sym function of an operator, with the arguments of its block."""
    operator = block.__name__
    keyword = inspect.Parameter.KEYWORD_ONLY
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = list(inspect.signature(block.__init__).parameters.values())[1:-1]
    extra = ["name", "attr"] if symbolic else ["out", "name"]
    signature = inspect.Signature(
        [inspect.Parameter(name, positional) for name in ("data", "rois")]
        + own
        + [inspect.Parameter("rois_num", positional, default=None)]
        + [inspect.Parameter(name, keyword, default=None) for name in extra]
    )

    names = list(signature.parameters)
    most = len(names) - len(extra)
    known = frozenset(names)
    required = frozenset(
        n for n in names if signature.parameters[n].default is inspect.Parameter.empty
    )

    def function(*args: Any, **kwargs: Any) -> Any:
        # What Signature.bind does, in a tenth of its time: small calls are mostly Python.
        arguments = {**dict(zip(names, args)), **kwargs}
        twice = len(arguments) < len(args) + len(kwargs)
        if twice or len(args) > most or not required <= arguments.keys() <= known:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{operator}: {error}; expected {operator}{signature}") from None
        inputs = {"data": arguments.pop("data"), "rois": arguments.pop("rois")}
        rois_num = arguments.pop("rois_num", None)
        options = [arguments.pop(name, None) for name in extra]
        if rois_num is not None:
            inputs["rois_num"] = rois_num
            arguments["rois_num"] = True
        call = _call_sym if symbolic else _call_nd
        return call(operator, inputs, arguments, *options)

    function.__name__ = function.__qualname__ = operator
    function.__module__ = f"gluon_roi.{'sym' if symbolic else 'nd'}"
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__doc__ = (
        f"Function form of :class:`gluon_roi.{operator}`: its inputs, then its parameters.\n\n"
        + (inspect.getdoc(block) or "")
    )
    return function


def install(blocks: Sequence[Type[RoiBlock]]) -> Tuple[ModuleType, ModuleType]:
    """Make the modules gluon_roi.nd and gluon_roi.sym, and hang them into MXNet as F.gluon_roi."""
    for block in blocks:
        _HANDLES[block.__name__] = _operator_handle(f"_gluon_roi_{block.__name__}")
    modules = []
    for kind, symbolic in (("nd", False), ("sym", True)):
        module = ModuleType(f"gluon_roi.{kind}", f"The operators as functions of mx.{kind}.")
        for block in blocks:
            setattr(module, block.__name__, _function(block, symbolic))
        sys.modules[module.__name__] = module
        getattr(mx, kind).gluon_roi = module
        modules.append(module)
    return modules[0], modules[1]
