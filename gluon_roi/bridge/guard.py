# SPDX-License-Identifier: Apache-2.0
"""The gradient guard, a node of MXNet between an input and a custom operator.

MXNet does not pass `grad_req` to a custom operator's backward pass, so it always overwrites the
gradient. (Measured on 1.9.1: wrong sums for ``grad_req='add'``, and for a map with 8 or more
consumers under ``static_alloc``.) The backward pass of a guard is MXNet's and accumulates where
requested. Inputs in graphs always have guards; arrays outside of graphs have one if a gradient
buffer is attached.
"""

from __future__ import annotations

import ctypes
import itertools

import mxnet as mx
from mxnet import base
from mxnet.symbol.register import _make_symbol_function

from ..library import function_of

# Distinguishes the guards that are identities. They are numbered in the order of the calls, so that
# a program exports the same file each time.
ATTRIBUTE = "__gluon_roi_guard__"
_numbers = itertools.count()

_SAME_SHAPE = (ctypes.c_int64 * 1)(-2)

#: The attribute of a node with one more input, its last, for MXNet's shape inference.
RANK_INPUT = "__gluon_roi_ranks__"
#: The rank of that input. MXNet sums the ranks of a node's inputs to get the size of a buffer,
#: where an unknown rank counts as -1, and ends with std::bad_alloc if the sum is negative. It then
#: writes one number too many for each unknown rank. With 6, they stay inside of what malloc rounds
#: the buffer up to, for two unknown ranks (24 bytes for 4 numbers), and for one and a known rank of
#: 2, 3 or 4.
_RANK_OF_INPUT = 6

# MXNet's functions without the wrappers of AMP.
_zeros = function_of("_zeros_without_dtype", _make_symbol_function)
_zeros_with_dtype = function_of("_zeros", _make_symbol_function)
_identity_of_shape = function_of("_identity_with_attr_like_rhs", _make_symbol_function)
_elementwise_subtract = function_of("elemwise_sub", _make_symbol_function)
_numpy_subtract = function_of("_npi_subtract", _make_symbol_function)


def guarded_array(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """``array.reshape((-2,))``, recorded by autograd, if the array has an attached gradient buffer.

    MXNet's C interface takes a third of the time of its Python interface, where NDArray.grad
    creates an array for the gradient and NDArray.reshape compares sizes in NumPy.
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


def rank_input(name: str) -> mx.sym.Symbol | None:
    """An input of a known rank, for a node whose other inputs may all have unknown ranks.

    None in the body of a loop, where a node without inputs has no shape.
    """
    zeros = _zeros_with_dtype(name=name, shape=(1,) * _RANK_OF_INPUT, dtype="float32")
    return None if zeros.attr("__subgraph_name__") is not None else zeros


def with_rank(symbol: mx.sym.Symbol, shape: tuple, name: str) -> mx.sym.Symbol | None:
    """The symbol minus zeros whose attribute `shape` gives MXNet the symbol's rank.

    -1 is an unknown size. In the body of a loop MXNet infers shapes from inputs only, where zeros
    without inputs would have no shape; there the result is None.
    """
    zeros = _zeros(name=f"{name}_shape", shape=shape)
    if zeros.attr("__subgraph_name__") is not None:
        return None
    symbol = _as_amp_casts(symbol)
    zeros = _identity_of_shape(zeros, symbol, name=f"{name}_zeros")
    return _elementwise_subtract(symbol, zeros, name=name)


def _as_amp_casts(symbol: mx.sym.Symbol) -> mx.sym.Symbol:
    """The symbol, cast as AMP casts the input of an identity: to float32 in bfloat16 mode."""
    (result,) = mx.sym.identity(symbol, name="identity").get_children()
    return result


def _minus_zero(symbol: mx.sym.Symbol, zero: mx.sym.Symbol, name: str) -> mx.sym.Symbol:
    """The symbol minus an array of one zero.

    NumPy's subtraction, because it alone accepts a zero of another dtype after AMP has converted
    the graph.
    """
    arguments = [value.as_np_ndarray() for value in (_as_amp_casts(symbol), zero)]
    return _numpy_subtract(*arguments, name=name).as_nd_ndarray()


def guarded_symbol(
    role: str, symbol: mx.sym.Symbol, name: str, rank: int, has_gradient: bool, in_network: bool
) -> mx.sym.Symbol:
    """Insert a guard before an operator's input such that MXNet cannot merge it with another guard.

    MXNet merges nodes with equal attributes and equal inputs, and merged guards get the gradient of
    a single consumer. A distinct attribute is not enough, because it is copied when a symbol is
    composed twice or a SymbolBlock is called twice. MXNet never merges

    - a node with a state, such as Dropout. Its dtype must be known, so only a Gluon network can
      have one before every input;
    - a node that reads zeros without inputs. (Not possible in a network with boolean_mask, cond or
      while_loop: MXNet infers shapes and dtypes from inputs there while it runs. An executor infers
      dtypes first.)

    An identity with an attribute is sufficient where merging does no harm:

    - The gradient of the input is 0 for every consumer.
    - A map that depends on parameters is a different map in each copy, because each copy has
      different parameters; if a symbol is composed twice with the same parameters,
      gluon_roi.optimize renumbers the guards.
    - The body of a loop is a separate graph, in which nothing is composed.

    In an executor of a graph with boolean_mask, cond or while_loop, the backward pass of a guard
    must have as many outputs as the guard has inputs, which is true of all these guards.

    Parameters
    ----------
    role, symbol, has_gradient : str, mxnet.sym.Symbol, bool
        Role of the input, the input, and whether it has a gradient.
    name : str
        Name of the guard.
    rank : int
        The rank of the input if MXNet's shape inference needs it, otherwise 0. The cost in an
        executor is small; a network with boolean_mask, cond or while_loop cannot do it.
    in_network : bool
        Whether the guard is part of a Gluon network.
    """
    if rank:
        guard = with_rank(symbol, (-1,) * rank, name)
        if guard is not None:  # not in the body of a loop
            return guard
    if role == "maps" and len(symbol.list_inputs()) == 1:
        # A map of a single variable, usually the network's input, is the same map in each copy.
        # With these axes the mask of Dropout has one element.
        return mx.sym.Dropout(symbol, p=0, axes=(0, 1, 2, 3), name=name)
    if role != "maps" and has_gradient and in_network:
        # RoIs or offsets with a gradient; a network knows their dtype.
        return mx.sym.Dropout(symbol, p=0, axes=(0,), name=name)
    if role != "maps" and has_gradient:
        # The same in an executor, where the dtype may be unknown.
        zero = _zeros(name=f"{name}_zero", shape=(1,))
        if zero.attr("__subgraph_name__") is None:  # not in the body of a loop
            return _minus_zero(symbol, zero, name)
    # Merging does no harm: no gradient, a map that depends on parameters, or the body of a loop.
    return mx.sym.identity(symbol, name=name, attr={ATTRIBUTE: f"{name}.{next(_numbers)}"})
