# SPDX-License-Identifier: Apache-2.0
"""Which nodes have the same outputs in every call, if their inputs have the same values.

MXNet does not tell which of its operators draw random numbers, keep a state, run Python code or
read a file, and other libraries add operators. So the operators that do not are listed, and a node
of any other operator is not computed in advance.
"""

from __future__ import annotations

#: Operators that parameters of a layer are computed with: of shapes, copies, constants, products,
#: reductions, functions, and of two arrays or an array and a number.
_DETERMINISTIC = """
Concat Convolution Flatten FullyConnected InstanceNorm L2Normalization LayerNorm Pad Reshape
SliceChannel SwapAxis _npi_concatenate _npi_flip _npi_hstack _npi_stack _npi_vstack _np_moveaxis
_np_reshape _np_squeeze _np_transpose _npx_reshape _split_v2 broadcast_axis broadcast_like
broadcast_to _npi_broadcast_to depth_to_space diag expand_dims gather_nd pick repeat reshape_like
reverse slice slice_axis slice_like space_to_depth squeeze stack take tile transpose

Cast amp_cast amp_multicast _copy _np_copy _identity_with_attr_like_rhs BlockGrad MakeLoss
make_loss

_arange _eye _full _linspace _npi_arange _npi_eye _npi_full_like _npi_identity _npi_ones
_npi_zeros _ones _zeros _zeros_without_dtype ones_like zeros_like

_npi_matmul _np_dot _npi_tensordot _npi_tensordot_int_axes _linalg_gemm _linalg_gemm2 batch_dot
dot

_np_max _np_min _np_prod _np_sum _npi_mean _npi_norm _npi_std _npi_var max mean min moments norm
prod sum _square_sum

Activation _npi_absolute _npi_around _npi_ceil _npi_cos _npi_exp _npi_floor _npi_log _npi_negative
_npi_reciprocal _npi_rint _npi_sign _npi_sin _npi_sqrt _npi_square _npi_tanh _npx_relu
_npx_sigmoid abs cbrt ceil clip cos erf exp expm1 fix floor hard_sigmoid log log1p log_softmax
negative rcbrt reciprocal relu rint round rsqrt sigmoid sign sin softmax softsign sqrt square tanh
trunc

_equal _greater _greater_equal _hypot _lesser _lesser_equal _maximum _minimum _not_equal _power
_npi_add _npi_equal _npi_greater _npi_less _npi_multiply _npi_not_equal _npi_power _npi_subtract
_npi_true_divide _npi_where add_n broadcast_add broadcast_div broadcast_equal broadcast_greater
broadcast_greater_equal broadcast_lesser broadcast_lesser_equal broadcast_maximum
broadcast_minimum broadcast_mul broadcast_not_equal broadcast_power broadcast_sub elemwise_add
elemwise_div elemwise_mul elemwise_sub where

_div_scalar _equal_scalar _greater_equal_scalar _greater_scalar _lesser_equal_scalar
_lesser_scalar _maximum_scalar _minimum_scalar _minus_scalar _mul_scalar _not_equal_scalar
_plus_scalar _power_scalar _rdiv_scalar _rminus_scalar _rpower_scalar _npi_add_scalar
_npi_greater_scalar _npi_less_scalar _npi_multiply_scalar _npi_power_scalar _npi_rsubtract_scalar
_npi_rtrue_divide_scalar _npi_subtract_scalar _npi_true_divide_scalar
"""
_NAMES = frozenset(_DETERMINISTIC.split())


def is_deterministic(node: dict) -> bool:
    """Whether a node's outputs follow from its inputs alone. `node` is that of a symbol file."""
    if node["op"] == "Dropout":  # a copy, except in training
        return node.get("attrs", {}).get("mode", "training") == "training"
    return node["op"] in _NAMES
