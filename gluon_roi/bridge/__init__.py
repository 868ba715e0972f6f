# SPDX-License-Identifier: Apache-2.0
"""Connects the operators' functions and blocks to MXNet: arguments, guards, arrays, symbols."""

from .arguments import Tensor
from .block import OperatorBlock
from .call import call_operator
from .signature import optional_input, public_name

__all__ = ["OperatorBlock", "Tensor", "call_operator", "optional_input", "public_name"]
