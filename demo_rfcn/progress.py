# SPDX-License-Identifier: Apache-2.0
"""Progress of a command: a bar on a terminal, lines with percent and time in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TypeVar

from tqdm import tqdm

#: Seconds between two lines of a log.
INTERVAL = 10.0

_T = TypeVar("_T")


class Progress:
    """Shows a count on the standard error output: tqdm's bar on a terminal, lines in a log.

    With `brief`, a log has a line only after some time; `shown=False` shows nothing.
    """

    def __init__(
        self,
        total: int,
        title: str,
        unit: str,
        initial: int = 0,
        shown: bool = True,
        brief: bool = False,
    ) -> None:
        self._total, self._title, self._unit = total, title, unit
        self._initial = self._done = initial
        self._figures = ""
        self._shown, self._brief = shown, brief
        self._start = self._printed = time.monotonic()
        self._bar: tqdm | None = None
        if shown and sys.stderr.isatty():
            self._bar = tqdm(
                total=total, initial=initial, desc=title, unit=f" {unit}", mininterval=1
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        elif kind is None and self._done > self._initial and not self._brief:
            self._print()

    def update(self, count: int = 1) -> None:
        """Count some more."""
        self._done += count
        if self._bar is not None:
            self._bar.update(count)
        elif time.monotonic() - self._printed >= INTERVAL:
            self._print()

    def reach(self, done: int) -> None:
        """Count up to a number."""
        self.update(done - self._done)

    def over(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yield items, and count each when the next one is asked for."""
        with self:
            for item in items:
                yield item
                self.update()

    def figures(self, text: str) -> None:
        """Show some current figures beside the count."""
        self._figures = f", {text}"
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)

    def write(self, text: str) -> None:
        """Write a line of results to the standard output, above the bar if there is one."""
        if self._shown:
            tqdm.write(text)

    def _print(self) -> None:
        self._printed, self._brief = time.monotonic(), False
        if not self._shown:
            return
        elapsed = self._printed - self._start
        rest = elapsed * (self._total - self._done) / max(self._done - self._initial, 1)
        times = duration(elapsed) + (f", {duration(rest)} left" if self._done < self._total else "")
        with suppress(OSError):  # the work continues even if nobody is left to read this
            print(
                f"{self._title}: {100 * self._done // max(self._total, 1)} %, "
                f"{self._done} of {self._total} {self._unit} in {times}{self._figures}",
                file=sys.stderr,
                flush=True,
            )


def duration(seconds: float) -> str:
    """Return a time in a readable form."""
    if seconds < 100:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 6000:
        return "{} min {:02} s".format(*divmod(round(seconds), 60))
    return f"{seconds / 3600:.1f} h"
