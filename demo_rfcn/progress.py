# SPDX-License-Identifier: Apache-2.0
"""Progress of a command: tqdm's bar on a terminal, lines with percent and time in a log."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from tqdm import tqdm

#: Seconds between two lines of a log.
INTERVAL = 10.0
LINE = (
    "{desc}: {percentage:.0f} %, {n_fmt} of {total_fmt}{unit} in {elapsed}, {remaining} left"
    "{postfix}"
)

_T = TypeVar("_T")


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
    """Shows a count; a `brief` one has a line in a log only if it takes long."""

    def __init__(
        self,
        total: int,
        title: str,
        unit: str,
        initial: int = 0,
        shown: bool = True,
        brief: bool = False,
    ) -> None:
        log = not sys.stderr.isatty()
        how = {"file": _Log(), "bar_format": LINE, "smoothing": 0, "ascii": True} if log else {}
        super().__init__(
            total=total,
            desc=title,
            unit=f" {unit}",
            initial=initial,
            disable=not shown,
            mininterval=INTERVAL if log else 1,
            miniters=1,
            # Any delay prevents a line at 0 %; a position of 0 codes that move a terminal's cursor.
            delay=(INTERVAL if brief else 1e-9) if log else 0,
            position=0 if log else None,
            **how,
        )

    def reach(self, done: int) -> None:
        """Count up to a number."""
        self.update(done - self.n)

    def over(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yield items, and count each when the next one is asked for."""
        with self:
            for item in items:
                yield item
                self.update()

    def figures(self, text: str) -> None:
        """Show some current figures beside the count."""
        self.set_postfix_str(text, refresh=False)

    def results(self, text: str) -> None:
        """Write a line to the standard output, above the bar if there is one."""
        if not self.disable:
            tqdm.write(text)
