# SPDX-License-Identifier: Apache-2.0
"""The sum of two levels of a pyramid, the coarser one twice as large: the operator UpsampleAdd."""

from __future__ import annotations

from typing import Any

from .operators import function_for

__all__ = ["OPERATOR", "upsample_add"]

#: The operator's name in MXNet and in symbol files.
OPERATOR = "_gluon_roi_UpsampleAdd"


def upsample_add(low: Any, high: Any, **naming: Any) -> Any:
    """Call the operator on arrays or symbols of mx.nd and mx.sym.

    Parameters
    ----------
    low : array or symbol (N, C, h, w)
        float32, on the CPU.
    high : array or symbol (N, C, H, W)
        H <= 2 * h, W <= 2 * w.
    naming
        ``name`` and ``attr`` of the node of a symbol, ``out`` of arrays.

    Returns
    -------
    array or symbol (N, C, H, W)
        ``high[..., y, x] + low[..., y // 2, x // 2]``. It has no gradient.

    Raises
    ------
    MXNetError
        Shapes or types do not match, or the arrays are on a GPU.

    Examples
    --------
    >>> import mxnet as mx
    >>> low, high = mx.nd.array([[[[1, 2]]]]), mx.nd.array([[[[10, 20, 30]]]])
    >>> upsample_add(low, high).asnumpy()
    array([[[[11., 21., 32.]]]], dtype=float32)
    """
    return function_for(OPERATOR, low)(low, high, **naming)
