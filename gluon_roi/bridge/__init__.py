"""From the functions and blocks of the operators to MXNet: arguments, guards, arrays, symbols."""

from .block import RoiBlock
from .call import call, operator_function

__all__ = ["RoiBlock", "call", "operator_function"]
