# SPDX-License-Identifier: Apache-2.0
"""Reasons to stop: a signal, or a process of the run that no longer answers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading

import mxnet as mx
from mxnet.base import _LIB

ROLE, LAUNCHER = "DMLC_ROLE", "DEMO_RFCN_LAUNCHER"
HEARTBEAT_INTERVAL_VAR = "PS_HEARTBEAT_INTERVAL"  # environment variables, in seconds
HEARTBEAT_TIMEOUT_VAR = "PS_HEARTBEAT_TIMEOUT"
SCHEDULER, SERVERS_AND_WORKERS = 1, 2 + 4  # ps-lite's numbers for groups of nodes
SILENT = "a process of the run does not answer any more"
PEER_LOST = signal.SIGUSR1  # sent to a worker if another process of its run is lost
SIGNALS = (signal.SIGINT, signal.SIGTERM, PEER_LOST)


def listen_to_heartbeats() -> None:
    """Make ps-lite send heartbeats; call this before it starts."""
    os.environ.setdefault(HEARTBEAT_INTERVAL_VAR, "2")
    os.environ.setdefault(HEARTBEAT_TIMEOUT_VAR, "15")


def silent_nodes(kvstore: mx.kv.KVStore, group: int) -> int:
    """Return the number of nodes of a group that have been silent for too long."""
    count = ctypes.c_int()
    timeout = ctypes.c_int(int(os.environ[HEARTBEAT_TIMEOUT_VAR]))
    # An error means that there is no list of nodes any more: the run has ended.
    _LIB.MXKVStoreGetNumDeadNode(kvstore.handle, group, ctypes.byref(count), timeout)
    return count.value


def launcher_is_gone() -> bool:
    """Return whether the `launch` that started this process has ended."""
    return os.environ.get(LAUNCHER, str(os.getppid())) != str(os.getppid())


def block_signals() -> None:
    """Leave signals to other threads than this one and those that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


class StopRequest:
    """Turns signals into flags, so that no step is cut in two.

    SIGINT or SIGTERM sets `raised` and prints the `announcement`; a second one sets `repeated`, and
    ends the process if it `ends_at_once`. `peer_lost` is set by PEER_LOST. A thread reads the
    signals: Python's own handlers wait until a call into MXNet returns.
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
                    self._react()

    def _react(self) -> None:
        self.raised, self.repeated = True, self.raised
        ends = self.repeated and self.ends_at_once
        with contextlib.suppress(OSError):  # nobody may be left to read it
            if ends:
                print("demo_rfcn: ended at once, without a checkpoint", file=sys.stderr, flush=True)
            elif self.announcement and not self.repeated:
                print(f"{self.announcement}; a second signal ends at once", file=sys.stderr)
        if ends:
            os._exit(130)
