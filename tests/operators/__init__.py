"""The rows of all operators, a file for each: adding an operator is adding a file here.

A file holds all that tests and benchmarks know of its operator and of no other:

    ORDER       its place in the tables
    OPERATOR    its test row, with errors of its own parameters and what is recorded of others
    ITEMS       its work in `python -m benchmarks`

Importing the rows needs nothing but NumPy: tests/golden/record.py and tests/gpu/check_kernels.py
read them where MXNet is not installed.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

from cases import Operator

# Scripts of other folders read the rows too, and have no `benchmarks` in their path.
sys.path.append(str(Path(__file__).parents[2]))
from benchmarks.work import Item  # noqa: E402

_files = sorted(
    (importlib.import_module(f"{__name__}.{file.name}") for file in pkgutil.iter_modules(__path__)),
    key=lambda file: file.ORDER,
)

#: PyramidROIAlign has no test row.
OPERATORS: tuple[Operator, ...] = tuple(
    file.OPERATOR for file in _files if hasattr(file, "OPERATOR")
)
BY_NAME = {op.name: op for op in OPERATORS}
#: (operator, arguments) pairs: the rows of most tests.
ROWS = tuple((op, arguments) for op in OPERATORS for arguments in op.arguments)
#: What is measured, one operator after the other.
ITEMS: tuple[Item, ...] = tuple(item for file in _files for item in file.ITEMS)
