# SPDX-License-Identifier: Apache-2.0
"""Switches existing code and models from MXNet's own operators to those of this package."""

from .counting import count
from .functions import replace_builtins
from .models import optimize

__all__ = ["count", "optimize", "replace_builtins"]
