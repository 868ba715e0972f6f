# SPDX-License-Identifier: Apache-2.0
"""Parameters of tests by day and by night: pairs by day, all combinations by night."""

from __future__ import annotations

import itertools
from typing import Any, Iterable, Sequence

import pytest


def in_turn(*lists: Sequence, every: int, of: Iterable[tuple] | None = None) -> list[Any]:
    """Combinations of an element of each list, or those in `of`; all but some are for the night.

    By day a combination runs if the sum of its elements' numbers is a multiple of `every`. So any
    two elements of different lists meet by day, if a further list has at least `every` elements.
    """
    found = []
    for combination in itertools.product(*lists) if of is None else of:
        numbers = sum(each.index(one) for each, one in zip(lists, combination))
        marks = [pytest.mark.night] * (numbers % every != 0)
        found.append(pytest.param(*combination, marks=marks))
    return found
