# SPDX-License-Identifier: Apache-2.0
"""Several workers on one run: joining, exchange, agreement, and detection of lost processes.

MXNet's distributed key-value store (ps-lite) sums what the workers push. It waits forever for a
worker that has died, and ignores signals meanwhile. So everything that may wait for others runs in
a thread here, while the main thread handles signals and checks ps-lite's heartbeats. The scheduler
receives those of all nodes, and ends when one stops. The others receive the scheduler's answers,
and end when these stop.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import mxnet as mx
import numpy as np
from mxnet.base import _LIB

from ..errors import InputError, RunError
from .stop import SIGNALS, StopRequest

SCHEDULER, SERVERS_AND_WORKERS = 1, 2 + 4  # ps-lite's numbers for groups of nodes
ROLE, LAUNCHER = "DMLC_ROLE", "DEMO_RFCN_LAUNCHER"
NEEDED = (ROLE, *(f"DMLC_{n}" for n in ("PS_ROOT_URI", "PS_ROOT_PORT", "NUM_SERVER", "NUM_WORKER")))
INTERVAL, SILENCE = "PS_HEARTBEAT_INTERVAL", "PS_HEARTBEAT_TIMEOUT"  # seconds
START = 300  # seconds for all processes to come together
_FIRST_KEY = 10_000_000  # parameters have the small ones

_T = TypeVar("_T")


class Lost(RunError):
    """Another process of the run no longer answers."""


def listen_to_heartbeats() -> None:
    """Have ps-lite send heartbeats, from before it starts."""
    os.environ.setdefault(INTERVAL, "2")
    os.environ.setdefault(SILENCE, "15")


def silent_nodes(kvstore: mx.kv.KVStore, group: int) -> int:
    """Return how many nodes of a group have not been heard of for too long."""
    count = ctypes.c_int()
    timeout = ctypes.c_int(int(os.environ[SILENCE]))
    # An error is that there is no list of nodes any more: the run has ended.
    _LIB.MXKVStoreGetNumDeadNode(kvstore.handle, group, ctypes.byref(count), timeout)
    return count.value


def launcher_is_gone() -> bool:
    """Return whether the `launch` that started this process has ended."""
    return os.environ.get(LAUNCHER, str(os.getppid())) != str(os.getppid())


def listen_to_no_signals() -> None:
    """Leave the signals of the process to other threads than this one and those that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


class Alone:
    """The workers of a run in a single process: this one.

    Attributes
    ----------
    rank, num_workers : int
    kvstore : mxnet.kv.KVStore or None
        What sums the gradients of its devices; None for one device.
    """

    rank, num_workers = 0, 1

    def __init__(self, kvstore: Any = None) -> None:
        self.kvstore = kvstore

    def wait(self, function: Callable[[], _T], doing: str) -> _T:
        """Return the result of what may wait for other workers."""
        return function()

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of arrays, equal in shape, of all workers."""
        return values

    def close(self) -> None:
        """End together with the others."""


class Cluster(Alone):
    """A worker of a distributed run.

    Parameters
    ----------
    kind : str
        `dist_sync` or `dist_device_sync`.
    stop : StopRequest

    Raises
    ------
    InputError
        MXNet's environment variables are not set, or not all processes came.
    """

    def __init__(self, kind: str, stop: StopRequest) -> None:
        if missing := [name for name in NEEDED if name not in os.environ]:
            raise InputError(
                f"train: --kv-store {kind} expects MXNet's environment variables of a cluster; "
                f"not set: {', '.join(missing)}; 'python -m demo_rfcn launch' sets them"
            )
        listen_to_heartbeats()
        super().__init__()
        self._stop = stop
        self._keys: dict[tuple, int] = {}
        self._started = time.monotonic()
        self.kvstore = self.wait(lambda: mx.kv.create(kind), "for all processes to start")
        self.rank, self.num_workers = self.kvstore.rank, self.kvstore.num_workers

    def wait(self, function: Callable[[], _T], doing: str) -> _T:
        """Return the result of what may wait for other workers.

        Raises
        ------
        Lost
            One of them does not answer, or a second signal came.
        """
        done = threading.Event()
        results: list[_T] = []
        errors: list[Exception] = []

        def run() -> None:
            listen_to_no_signals()
            try:
                results.append(function())
            except Exception as error:
                errors.append(error)
            done.set()

        self._heed()  # even where nobody keeps it waiting
        threading.Thread(target=run, daemon=True).start()
        looked = time.monotonic()
        while not done.wait(0.1):
            self._heed()
            if time.monotonic() - looked > 1:
                looked = time.monotonic()
                self._look(doing)
        if errors:
            raise errors[0]
        return results[0]

    def _heed(self) -> None:
        """Raise `Lost` if a signal says so; notice that `launch` has ended."""
        self._stop.raised |= launcher_is_gone()
        if self._stop.gone:
            raise Lost("ends because another process of the run is gone")
        if self._stop.insists:
            raise Lost("was told twice to stop, and does not wait for the other workers")

    def _look(self, doing: str) -> None:
        """Raise `Lost` if nobody answers any more."""
        if self.kvstore is None:
            if self._stop.raised:
                raise Lost("was told to stop before all processes had started")
            if time.monotonic() - self._started > START:
                where = f"{os.environ[NEEDED[1]]}:{os.environ[NEEDED[2]]}"
                raise Lost(
                    f"waited {START} seconds for the scheduler at {where}, "
                    f"{os.environ[NEEDED[3]]} servers and {os.environ[NEEDED[4]]} workers"
                )
        elif silent_nodes(self.kvstore, SCHEDULER):
            raise Lost(f"waited {doing}, and a process of the run does not answer any more")

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of float32 arrays, equal in shape, of all workers.

        Where all but one of the terms are zero it is exact.
        """

        def exchange() -> np.ndarray:
            array = mx.nd.array(values, dtype="float32")
            key = self._keys.get(values.shape)
            if key is None:
                key = self._keys[values.shape] = _FIRST_KEY + len(self._keys)
                self.kvstore.init(key, mx.nd.zeros(values.shape))
            self.kvstore.pushpull(key, array)
            return array.asnumpy()

        return self.wait(exchange, "for the other workers")

    def close(self) -> None:
        """End together with the others.

        Raises
        ------
        Lost
        """
        self.wait(self.kvstore._barrier, "for the other workers to finish")
        # Everybody has what it wanted; it matters no more whether one dies now.
        handle, self.kvstore.handle = self.kvstore.handle, None
        ending = threading.Thread(target=_LIB.MXKVStoreFree, args=(handle,), daemon=True)
        ending.start()
        ending.join(20)


def join(kind: str, devices: int, stop: StopRequest) -> Alone:
    """Return the workers of a run with a kind of key-value store and that many devices each."""
    if kind.startswith("dist"):
        return Cluster(kind, stop)
    return Alone(mx.kv.create(kind) if devices > 1 else None)


def check_same_run(workers: Alone, **parts: int) -> None:
    """Make sure that all workers are on the same run.

    Parameters
    ----------
    workers : Alone
    **parts
        Numbers below 2**24 that they should agree in.

    Raises
    ------
    InputError
    """
    if workers.num_workers == 1:
        return
    own = np.zeros((workers.num_workers, len(parts)), np.float32)
    own[workers.rank] = [*parts.values()]
    table = workers.total(own)
    for rank, row in enumerate(table):
        for name, value, first in zip(parts, row, table[0]):
            if value != first:
                raise InputError(
                    f"train: worker {rank} has another run than worker 0: {name} {value:.0f}, not "
                    f"{first:.0f}"
                )
