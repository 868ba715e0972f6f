# SPDX-License-Identifier: Apache-2.0
"""Exported models as modules of PyTorch. Needs neither MXNet nor gluon_roi."""

from .convert import to_torch
from .program import to_program

__all__ = ["to_program", "to_torch"]
