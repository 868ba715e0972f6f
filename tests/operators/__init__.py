# SPDX-License-Identifier: Apache-2.0
"""The rows of all operators, a file for each: adding an operator is adding a file here.

A file holds everything that is specific to its operator:

    ORDER       its place in the tables
    OPERATOR    its test row, with errors of its own parameters and recorded results of others

Importing the rows needs only NumPy, because tests/golden/record.py and tests/gpu/check_kernels.py
use them where MXNet is not installed.
"""

from __future__ import annotations

import importlib
import pkgutil

from support.cases import Operator

_files = sorted(
    (importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)),
    key=lambda file: file.ORDER,
)

OPERATORS: tuple[Operator, ...] = tuple(file.OPERATOR for file in _files)
BY_NAME = {op.name: op for op in OPERATORS}
#: (operator, arguments) pairs: the rows of most tests.
ROWS = tuple((op, arguments) for op in OPERATORS for arguments in op.arguments)
