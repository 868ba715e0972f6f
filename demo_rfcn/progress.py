# SPDX-License-Identifier: Apache-2.0
"""Progress of a command: tqdm's bar on a terminal, lines with percent and time in a log."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from tqdm import tqdm

#: Seconds between two lines of a log.
INTERVAL = 10.0
LINE = (
    "{desc}: {percentage:.0f} %, {n_fmt} of {total_fmt}{unit} in {elapsed}, {remaining} left"
    "{postfix}"
)


class _Log(io.StringIO):
    """The standard error output as a file that shows each state of a bar as a line."""

    _last = ""

    def write(self, text: str) -> int:
        """Print a state, unless it is the last one again."""
        with suppress(OSError):  # the work continues even if nobody is left to read this
            if text.strip() not in ("", self._last):
                print(text.strip(), file=sys.stderr, flush=True)
                self._last = text.strip()
        return len(text)


class Progress(tqdm):
    """A bar over items, or with a `total`; a `brief` one has a line in a log only if it is slow.

    Other arguments are passed to tqdm.
    """

    def __init__(
        self, title: str, unit: str, items: Iterable | None = None, brief: bool = False, **how: Any
    ) -> None:
        log = not sys.stderr.isatty()
        how.update(desc=title, unit=f" {unit}", miniters=1, mininterval=INTERVAL if log else 1)
        if log:
            # Any delay prevents a line at 0 %; a position of 0 codes that move a terminal's cursor.
            how.update(delay=INTERVAL if brief else 1e-9, position=0)
            how.update(file=_Log(), bar_format=LINE, smoothing=0, ascii=True)
        super().__init__(items, **how)

    def reach(self, done: int) -> None:
        """Count up to a number."""
        self.update(done - self.n)

    def results(self, text: str) -> None:
        """Write a line to the standard output, above the bar if there is one."""
        if not self.disable:
            tqdm.write(text)
