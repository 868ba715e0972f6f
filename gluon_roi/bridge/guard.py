"""The gradient guard.

MXNet never tells a custom operator whether to overwrite or to add to a gradient, so it always
overwrites (measured on 1.9.1: wrong sums for ``grad_req='add'``, and for a map with 8 or more users
under ``static_alloc``). A *guard* between an input and the operator has a backward pass of MXNet's
own, which adds where it must. Nothing calls an operator without its guards, but for arrays that
nothing is ever added into: outside of graphs these are all arrays that have no gradient buffer of
their own.
"""

from __future__ import annotations

import ctypes
import itertools

import mxnet as mx
from mxnet import base

# Tells the guards of computed maps apart. The numbers follow from the order of the calls, so that a
# program exports the same file each time.
ATTRIBUTE = "__gluon_roi_guard__"
_numbers = itertools.count()

_SAME_SHAPE = (ctypes.c_int64 * 1)(-2)


def guarded_array(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """``array.reshape((-2,))``, recorded, if the array has a gradient buffer of its own.

    By MXNet's C interface, in a third of the time: NDArray.grad makes an array of the gradient, and
    NDArray.reshape compares sizes in NumPy.
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


def guarded_symbol(
    role: str, symbol: mx.sym.Symbol, name: str, rank: int, tell_rank: bool
) -> mx.sym.Symbol:
    """An input of an operator behind a guard that MXNet cannot merge with another.

    MXNet merges nodes with equal attributes and equal inputs, and gives guards that became one the
    gradient of a single user. An attribute alone does not keep them apart: a symbol that is
    composed twice, or a SymbolBlock that is called twice, copies it. MXNet never merges a node with
    an input that comes from nowhere, nor one with a state, but both cost something on a whole map.
    So maps get the latter only if copies can meet at all: a map that depends on parameters is
    another map in each copy, for each copy has parameters of its own; where it is composed with the
    same ones again, the graph pass numbers the guards anew. (Guards of counts may merge: every
    user's gradient is 0.) The body of a loop is a graph of its own, where nothing is composed
    and MXNet infers shapes from inputs alone: zeros from nowhere would have none.

    Parameters
    ----------
    role : str
        Of the input.
    symbol : mxnet.sym.Symbol
        What the operator reads.
    name : str
        Of the guard.
    rank : int
        How many dimensions the input has; 0 if that depends on its form.
    tell_rank : bool
        Whether the guard has to tell the rank of a map, by zeros from nowhere of unknown sizes. In
        an executor they cost nothing; a CachedOp fills them.
    """
    if role in ("rois", "rows", "like") or (role == "maps" and tell_rank):
        sizes = {} if rank == 0 else {"shape": (-1,) * rank}
        nowhere = mx.sym._internal._zeros_without_dtype(name=f"{name}_shape", **sizes)
        if nowhere.attr("__subgraph_name__") is None:
            return mx.sym._internal._identity_with_attr_like_rhs(symbol, nowhere, name=name)
    if role == "maps" and len(symbol.list_inputs()) == 1:
        # An identity with a state. The axes leave a mask of one element.
        return mx.sym.Dropout(symbol, p=0, axes=(0, 1, 2, 3), name=name)
    return mx.sym.identity(symbol, name=name, attr={ATTRIBUTE: f"{name}.{next(_numbers)}"})
