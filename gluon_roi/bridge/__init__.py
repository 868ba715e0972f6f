# SPDX-License-Identifier: Apache-2.0
"""Connects the operators' functions and blocks to MXNet: arguments, guards, arrays, symbols."""

from .arguments import Tensor
from .block import OperatorBlock, keeps_arguments
from .call import call, operator_function

__all__ = ["OperatorBlock", "Tensor", "call", "keeps_arguments", "operator_function"]
