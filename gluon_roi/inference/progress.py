# SPDX-License-Identifier: Apache-2.0
"""A progress bar for a conversion that takes long."""

from __future__ import annotations

import sys
import time
from typing import Iterator, Sequence, TypeVar

Step = TypeVar("Step")

#: Seconds without a bar.
_PATIENCE = 2.0
_WIDTH = 30


def with_progress(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield the steps, and show a bar on a terminal if they take more than two seconds."""
    begin, is_shown = time.monotonic(), False
    for number, step in enumerate(steps):
        if time.monotonic() - begin > _PATIENCE and sys.stderr.isatty():
            bar = "#" * (_WIDTH * number // len(steps))
            print(f"\roptimize [{bar:{_WIDTH}}]", end="", file=sys.stderr, flush=True)
            is_shown = True
        yield step
    if is_shown:
        print(f"\roptimize [{'#' * _WIDTH}]", file=sys.stderr, flush=True)
