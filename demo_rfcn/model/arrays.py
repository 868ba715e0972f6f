# SPDX-License-Identifier: Apache-2.0
"""Types of the arguments of `hybrid_forward`; MXNet itself ships none.

Its F is the module `mxnet.ndarray` or `mxnet.symbol`, a ModuleType; its arrays are of that module.
"""

from __future__ import annotations

from typing import Union

import mxnet as mx

Array = Union[mx.nd.NDArray, mx.sym.Symbol]
