"""The functions ``gluon_roi.nd.*``, ``gluon_roi.sym.*`` and ``F.gluon_roi.*``, and the guard.

MXNet never tells a custom operator whether to overwrite or to add to a gradient, so it always
overwrites (measured on 1.9.1: wrong sums for ``grad_req='add'``, and for a map with 8 or more users
under ``static_alloc``). A *guard* between the inputs and the operator has a backward pass of
MXNet's own, which adds where it must. Nothing here calls an operator without its guard, but for
arrays that nothing is ever added into: outside of graphs these are all arrays but those that have a
gradient buffer of their own which is not known to be overwritten.
"""

import ctypes
import functools
import inspect
import re
import sys
from types import ModuleType
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Type

import mxnet as mx
from mxnet import base
from mxnet.gluon import HybridBlock

from ._compat import AttributeText

# Counts the guards of a node on the node itself: every guard of one map gets another number, and
# building the same graph twice gives the same numbers.
_USERS = "__gluon_roi_users__"
_GUARD = "__gluon_roi_guard__"
# On the node of an array whose gradient MXNet overwrites.
_OVERWRITTEN = "__gluon_roi_overwritten__"
# The inputs, and how many dimensions they have where that is fixed.
_RANKS = {"data": 4, "rois": 0, "rois_num": 1}
# Operator -> parameter -> its default, as text; _function() fills it in.
_DEFAULTS: Dict[str, Dict[str, str]] = {}
# NDArrays by class, and another kind by MXNet's rules.
_OTHER_KINDS = (mx.np.ndarray, mx.nd.sparse.BaseSparseNDArray)


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


def _check_kinds(operator: str, values: Dict[str, Any], kind: type) -> None:
    for name, value in values.items():
        if type(value) is kind:
            continue
        if not isinstance(value, kind) or isinstance(value, _OTHER_KINDS):
            raise TypeError(
                f"{operator}: argument {name}: expected a {kind.__module__}.{kind.__name__}, "
                f"got {type(value).__module__}.{type(value).__name__}"
            )


def _attributes(operator: str, inputs: int, values: Sequence[Any]) -> Dict[str, str]:
    """What differs from the defaults: MXNet reads each attribute of a call over and over again."""
    pairs = zip(_DEFAULTS[operator].items(), map(AttributeText, values))
    attributes = {name: value for (name, default), value in pairs if value != default}
    if inputs == len(_RANKS):
        attributes["rois_num"] = "True"
    return attributes


def _remember_grad_reqs() -> None:
    """Have arrays tell whether MXNet overwrites their gradients: it keeps that to itself.

    What marks an array as a variable of autograd also writes an attribute onto the new node of its
    graph, which lives as long as the mark is valid. Arrays that were marked before, or in another
    way, have none, and get a guard.
    """
    attach_grad, mark_variables = mx.nd.NDArray.attach_grad, mx.autograd.mark_variables

    def note(array: mx.nd.NDArray, grad_req: str) -> None:
        if grad_req == "write" and array.grad.stype == "default":
            mx.autograd.get_symbol(array)._set_attr(**{_OVERWRITTEN: "True"})

    @functools.wraps(attach_grad)
    def noted_attach_grad(
        self: mx.nd.NDArray, grad_req: str = "write", stype: Optional[str] = None
    ) -> None:
        attach_grad(self, grad_req, stype)
        note(self, grad_req)

    @functools.wraps(mark_variables)
    def noted_mark_variables(variables: Any, gradients: Any, grad_reqs: Any = "write") -> None:
        mark_variables(variables, gradients, grad_reqs)
        arrays = [variables] if isinstance(variables, mx.nd.NDArray) else variables
        for i, array in enumerate(arrays):
            note(array, grad_reqs if isinstance(grad_reqs, str) else grad_reqs[i])

    mx.nd.NDArray.attach_grad = noted_attach_grad
    mx.autograd.mark_variables = noted_mark_variables


_SAME_SHAPE = (ctypes.c_int64 * 1)(-2)


def _guarded(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """``array.reshape((-2,))``, recorded, if MXNet may add to the array's gradient buffer.

    By MXNet's C interface, in a third of the time: NDArray.grad makes an array of the gradient, and
    NDArray.reshape compares sizes in NumPy.
    """
    handle = base.NDArrayHandle()
    base.check_call(base._LIB.MXNDArrayGetGrad(array.handle, ctypes.byref(handle)))
    if not handle:
        return array
    base.check_call(base._LIB.MXNDArrayFree(handle))
    if mx.autograd.get_symbol(array).attr(_OVERWRITTEN):
        return array
    base.check_call(
        base._LIB.MXNDArrayReshape64(array.handle, 1, _SAME_SHAPE, False, ctypes.byref(handle))
    )
    return mx.nd.NDArray(handle)


@functools.lru_cache(maxsize=256, typed=True)
def _compiled(operator: str, inputs: int, *values: Any) -> mx.nd.CachedOp:
    """An operator with the values of its parameters, ready to be called.

    MXNet reads the attributes of a CachedOp once, and infers its shapes when they change.
    """
    function = getattr(mx.sym._internal, f"_gluon_roi_{operator}")
    variables = [mx.sym.var(name) for name in list(_RANKS)[:inputs]]
    attributes = _attributes(operator, inputs, values)
    return mx.nd.CachedOp(function(*variables, name=operator, **attributes))


def _call_nd(
    operator: str, inputs: Dict[str, Any], values: Sequence[Any], out: Any, name: Any
) -> Any:
    """Call on arrays. As in mx.nd, name is taken for the sake of hybrid_forward, and unused."""
    _check_kinds(operator, inputs, mx.nd.NDArray)
    arrays = list(inputs.values())
    if mx.autograd.is_recording():
        arrays = [_guarded(array) for array in arrays]
    try:
        if out is None:
            try:
                compiled = _compiled(operator, len(arrays), *values)
            except TypeError:  # a list or an array, where a number should be, has no hash
                compiled = _compiled(operator, len(arrays), *map(AttributeText, values))
            return compiled(*arrays)
        for array in out if isinstance(out, (list, tuple)) else (out,):
            _check_kinds(operator, {"out": array}, mx.nd.NDArray)
        # A CachedOp does not compare the shape of out with its own: it would write past the end.
        function = getattr(mx.nd._internal, f"_gluon_roi_{operator}")
        return function(*arrays, out=out, **_attributes(operator, len(arrays), values))
    except mx.MXNetError as error:
        reason = str(error).replace("MXNetError: ", "")
        reason = re.sub(rf"Error in operator \S*{operator}: ", "", reason)
        if out is not None and "inconsistent" in reason:
            reason = f"{operator}: argument out: {reason}"
        raise mx.MXNetError(reason) from None


def _call_sym(
    operator: str, inputs: Dict[str, Any], values: Sequence[Any], name: Any, attr: Any
) -> Any:
    _check_kinds(operator, inputs, mx.sym.Symbol)
    # The unbound method gives the name without the prefix, which each call below adds itself.
    node = mx.name.NameManager.get(mx.name.NameManager._current.value, name, operator.lower())
    guarded = []
    for key, symbol in inputs.items():
        # MXNet 1.9.1 crashes on its way to a custom operator's shape inference when too few ranks
        # are known; -1 is a dimension still to be inferred.
        rank = _RANKS[key]
        if rank and symbol.get_children() is None and symbol.attr("__shape__") is None:
            symbol._set_attr(__shape__=str((-1,) * rank))
        users = int(symbol.attr(_USERS) or 0)
        symbol._set_attr(**{_USERS: str(users + 1)})
        # MXNet merges equal nodes into one, and with that the guards of one map: the attribute
        # makes each of them unique.
        unique = {_GUARD: f"{node}.{key}.{users}"}
        guarded.append(mx.sym.identity(symbol, name=f"{node}_{key}", attr=unique))
    function = getattr(mx.sym._internal, f"_gluon_roi_{operator}")
    attributes = _attributes(operator, len(inputs), values)
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
    _DEFAULTS[operator] = {parameter.name: str(parameter.default) for parameter in own}

    def call(data: Any, rois: Any, rois_num: Any, values: Sequence[Any], *options: Any) -> Any:
        inputs = {"data": data, "rois": rois}
        if rois_num is not None:
            inputs["rois_num"] = rois_num
        return (_call_sym if symbolic else _call_nd)(operator, inputs, values, *options)

    # A function with this signature written out: Python binds its arguments in a sixtieth of the
    # time of Signature.bind, and a small call is mostly Python.
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    # Sizes become text: in a look-up, as _compiled() makes, (7, 7) is (7.0, 7.0).
    values = ", ".join(
        p.name if p.annotation in (bool, int, float, str) else f"text({p.name})" for p in own
    )
    bound = eval(
        f"lambda {str(inspect.Signature(bare))[1:-1]}: "
        f"call(data, rois, rois_num, ({values},), {', '.join(extra)})",
        {"call": call, "text": AttributeText},
    )

    def function(*args: Any, **kwargs: Any) -> Any:
        try:
            return bound(*args, **kwargs)
        except TypeError:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{operator}: {error}; expected {operator}{signature}") from None
            raise

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
    _remember_grad_reqs()
    modules = []
    for kind, symbolic in (("nd", False), ("sym", True)):
        module = ModuleType(f"gluon_roi.{kind}", f"The operators as functions of mx.{kind}.")
        for block in blocks:
            setattr(module, block.__name__, _function(block, symbolic))
        sys.modules[module.__name__] = module
        getattr(mx, kind).gluon_roi = module
        modules.append(module)
    return modules[0], modules[1]
