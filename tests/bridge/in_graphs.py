# SPDX-License-Identifier: Apache-2.0
"""What tests of the operators in graphs share."""

from __future__ import annotations

from pathlib import Path

import pytest
from operators import OPERATORS
from support.cases import row_id

POOLED, SCALE = (2, 3), 0.3
SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
HYBRIDIZE: dict[str, dict | None] = {
    "imperative": None,
    "hybridized": {},
    "static_alloc": {"static_alloc": True},
    "static_shape": {"static_alloc": True, "static_shape": True},
}
operators = pytest.mark.parametrize("op", OPERATORS, ids=row_id)


def channels_of(op):
    return op.channels(3, POOLED, {})
