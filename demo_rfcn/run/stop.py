# SPDX-License-Identifier: Apache-2.0
"""Stopping by a signal, between two steps."""

from __future__ import annotations

import signal

#: Tells a worker that another process of its run is gone.
GONE = signal.SIGUSR1
SIGNALS = (signal.SIGINT, signal.SIGTERM, GONE)


class StopRequest:
    """Turns signals into flags, so that a step is never cut in two.

    Attributes
    ----------
    raised : bool
        Whether SIGINT or SIGTERM came.
    insists : bool
        Whether another one came after it.
    gone : bool
        Whether another process of the run is known to be gone.
    """

    def __enter__(self) -> StopRequest:
        self.raised = self.insists = self.gone = False
        self._previous = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: object) -> None:
        if number == GONE:
            self.gone = True
        else:
            self.insists = self.raised
            self.raised = True
