# SPDX-License-Identifier: Apache-2.0
"""The detector: backbones, proposals, heads, losses, and the two graphs over them.

In `hybrid_forward`, F is the module `mxnet.ndarray` or `mxnet.symbol`, and an Array is of it.
"""

from typing import Union

import mxnet as mx

Array = Union[mx.nd.NDArray, mx.sym.Symbol]
