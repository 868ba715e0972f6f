"""The types of what `hybrid_forward` is called with; MXNet itself ships none.

Its F is the module `mxnet.ndarray` or `mxnet.symbol`, a ModuleType, and its arrays are that one's.
"""

from __future__ import annotations

from typing import Union

import mxnet as mx

Array = Union[mx.nd.NDArray, mx.sym.Symbol]
