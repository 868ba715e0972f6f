# SPDX-License-Identifier: Apache-2.0
"""Stopping by a signal, between two steps."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading

#: Tells a worker that another process of its run is lost.
PEER_LOST = signal.SIGUSR1
SIGNALS = (signal.SIGINT, signal.SIGTERM, PEER_LOST)


def block_signals() -> None:
    """Leave signals to other threads than this one and those that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


class StopRequest:
    """Turns signals into flags, so that no step is cut in two.

    `raised` is set by SIGINT or SIGTERM, `repeated` by a second one, and `peer_lost` if another
    process of the run is known to be lost. The first signal prints the `announcement`; the second
    ends the process if it `ends_at_once`.

    A thread reads the signals: Python's own handlers wait until a call into MXNet returns.
    """

    def __enter__(self) -> StopRequest:
        self.raised = self.repeated = self.peer_lost = self.ends_at_once = False
        self.announcement = ""
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._previous = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._writer.close()

    def _listen(self) -> None:
        block_signals()
        with self._reader:
            while data := self._reader.recv(1):
                if data[0] == PEER_LOST:
                    self.peer_lost = True
                elif data[0] in SIGNALS:
                    self.raised, self.repeated = True, self.raised
                    self._react()

    def _react(self) -> None:
        ends = self.repeated and self.ends_at_once
        with contextlib.suppress(OSError):  # nobody may be left to read it
            if ends:
                print("demo_rfcn: ended at once, without a checkpoint", file=sys.stderr, flush=True)
            elif self.announcement and not self.repeated:
                print(f"{self.announcement}; a second signal ends at once", file=sys.stderr)
        if ends:
            os._exit(130)
