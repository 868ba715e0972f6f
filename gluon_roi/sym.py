# SPDX-License-Identifier: Apache-2.0
"""The operators as functions of symbols; see :mod:`gluon_roi.nd`."""

from .nd import *  # noqa: F403
from .nd import __all__  # noqa: F401
