# SPDX-License-Identifier: Apache-2.0
"""The gradient guard.

MXNet never tells a custom operator whether to overwrite a gradient or to add to it, so the operator
always overwrites. (Measured on 1.9.1: wrong sums for ``grad_req='add'``, and for a map with 8 or
more users under ``static_alloc``.) A *guard* between an input and the operator has MXNet's own
backward pass, which adds where it must. Every input has a guard, except arrays that nothing is ever
added to: outside of graphs, these are all arrays without a gradient buffer of their own.
"""

from __future__ import annotations

import ctypes
import itertools

import mxnet as mx
from mxnet import base
from mxnet.symbol.register import _make_symbol_function

from ..library import function_of

# Distinguishes the guards of computed maps. The numbers follow the order of the calls, so that a
# program exports the same file each time.
ATTRIBUTE = "__gluon_roi_guard__"
_numbers = itertools.count()

_SAME_SHAPE = (ctypes.c_int64 * 1)(-2)


# In bfloat16, AMP wraps MXNet's own. Its wrapper fails on a node without inputs.
_zeros = function_of("_zeros_without_dtype", _make_symbol_function)
_identity_of_shape = function_of("_identity_with_attr_like_rhs", _make_symbol_function)


def guarded_array(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """``array.reshape((-2,))``, recorded, if the array has a gradient buffer of its own.

    MXNet's C interface takes a third of the time: NDArray.grad creates an array for the gradient,
    and NDArray.reshape compares sizes in NumPy.
    """
    handle = base.NDArrayHandle()
    base.check_call(base._LIB.MXNDArrayGetGrad(array.handle, ctypes.byref(handle)))
    if not handle:
        return array
    base.check_call(base._LIB.MXNDArrayFree(handle))
    base.check_call(
        base._LIB.MXNDArrayReshape64(array.handle, 1, _SAME_SHAPE, False, ctypes.byref(handle))
    )
    return mx.nd.NDArray(handle)


def of_shape(symbol: mx.sym.Symbol, shape: tuple, name: str) -> mx.sym.Symbol | None:
    """The symbol behind a node `name` that tells MXNet its sizes; None in the body of a loop.

    A source node tells them: -1 is a size that is not known, () a rank that is not. In a loop's
    body MXNet infers shapes from inputs only, so a source node would have no shape.
    """
    sizes = {"shape": shape} if shape else {}
    nowhere = _zeros(name=f"{name}_shape", **sizes)
    if nowhere.attr("__subgraph_name__") is not None:
        return None
    # In bfloat16, AMP puts a cast to float32 in front of an identity.
    (symbol,) = mx.sym.identity(symbol, name=name).get_children()
    return _identity_of_shape(symbol, nowhere, name=name)


def guarded_symbol(
    role: str, symbol: mx.sym.Symbol, name: str, rank: int, tell_rank: bool
) -> mx.sym.Symbol:
    """Put a guard in front of an operator's input, one that MXNet cannot merge with another.

    MXNet merges nodes with equal attributes and equal inputs, and gives merged guards the gradient
    of a single user. A distinct attribute is not enough, because it is copied when a symbol is
    composed twice or a SymbolBlock is called twice. MXNet never merges

    - a node with a source node (zeros without inputs) as its input;
    - a node with a state.

    Both have a cost on a whole map. So maps get the stateful guard only if copies can be merged at
    all. A map that depends on parameters is a different map in each copy, because each copy has its
    own parameters; if it is composed with the same parameters again, gluon_roi.optimize
    renumbers the guards. (Guards of counts may merge: every user's gradient is 0.) The body of a
    loop is a graph of its own, in which nothing is composed.

    Parameters
    ----------
    role, symbol, rank : str, mxnet.sym.Symbol, int
        Of the input; rank is 0 if it depends on the input's form.
    name : str
        Name of the guard.
    tell_rank : bool
        Whether the guard has to tell MXNet the rank of a map, by a source node with unknown sizes.
        In an executor this costs nothing; a CachedOp fills the zeros.
    """
    if role in ("rois", "rows", "boxes", "like") or (role == "maps" and tell_rank):
        guard = of_shape(symbol, (-1,) * rank, name)
        if guard is not None:
            return guard
    if role == "maps" and len(symbol.list_inputs()) == 1:
        # An identity with a state. The axes leave a mask of one element.
        return mx.sym.Dropout(symbol, p=0, axes=(0, 1, 2, 3), name=name)
    return mx.sym.identity(symbol, name=name, attr={ATTRIBUTE: f"{name}.{next(_numbers)}"})
