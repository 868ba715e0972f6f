"""From the functions and blocks of the operators to MXNet: arguments, guards, arrays, symbols."""

from .block import OperatorBlock
from .call import call, operator_function

__all__ = ["OperatorBlock", "call", "operator_function"]
