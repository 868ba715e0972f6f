# SPDX-License-Identifier: Apache-2.0
"""The workers of a run behind one interface; for a single process it does next to nothing.

For several, MXNet's distributed key-value store (ps-lite) sums what the workers push. It waits
forever for a worker that has died, and ignores signals meanwhile. So everything that may wait for
others runs in a thread, while the main thread handles signals and checks ps-lite's heartbeats: the
scheduler receives heartbeats from all nodes, and every other node receives the scheduler's.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, suppress
from typing import Any, TypeVar

import mxnet as mx
import numpy as np
from mxnet.base import _LIB

from ..errors import InputError, Interrupted, RunError
from ..model import RFCN
from . import stop as stopping

ADDRESS = tuple(f"DMLC_{n}" for n in ("PS_ROOT_URI", "PS_ROOT_PORT", "NUM_SERVER", "NUM_WORKER"))
JOIN_TIMEOUT_S = 300  # for all processes to come together
STATISTICS = ".*running_(mean|var)$"  # the parameters of batch normalisation that hold them
_FIRST_KEY = 10_000_000  # parameters have the small ones

_T = TypeVar("_T")


class Lost(RunError):
    """Another process of the run no longer answers."""


class Workers(AbstractContextManager):
    """The workers of a run, as one of them uses them.

    `rank` is the number of this one out of `num_workers`; the worker of rank 0 writes the files.
    `kvstore` is for the trainer, which sums the gradients of several devices with it.
    """

    rank, num_workers = 0, 1
    kvstore: Any = None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave the run, together with the other workers unless it ends with an error."""

    def start(self, net: RFCN, trainer: mx.gluon.Trainer, **values: int) -> None:
        """Share the weights of worker 0; raise InputError unless all have equal values."""

    def sum_gradients(self, trainer: mx.gluon.Trainer, *flags: bool) -> tuple[bool, ...]:
        """Sum the gradients of all devices of all workers, and share the statistics of one device.

        These are the statistics of batch normalisation, taken from the first device of worker 0.
        Otherwise each device would keep the statistics of its own images. Returns for each flag
        whether any worker set it.
        """
        raise NotImplementedError

    def restore(self) -> None:
        """End the last step, or undo an unfinished one after a worker was lost."""
        raise NotImplementedError


class SingleWorker(Workers):
    """The only worker of a run, with one or several devices."""

    def __init__(self, kvstore: Any = None) -> None:
        self.kvstore = kvstore

    def start(self, net: RFCN, trainer: mx.gluon.Trainer, **values: int) -> None:
        """Keep the network."""
        self._net = net

    def sum_gradients(self, trainer: mx.gluon.Trainer, *flags: bool) -> tuple[bool, ...]:
        """Sum the gradients of the devices, and copy the statistics of the first one."""
        trainer.allreduce_grads()
        for parameter in self._net.collect_params(STATISTICS).values():
            first, *others = parameter.list_data()
            for other in others:
                first.copyto(other)
        return flags

    def restore(self) -> None:
        """Wait for the last step."""
        mx.nd.waitall()


class ClusterWorkers(Workers):
    """The workers of a distributed run with a `dist_sync` or `dist_device_sync` store."""

    def __init__(self, kind: str, stop: stopping.StopRequest) -> None:
        if missing := [name for name in (stopping.ROLE, *ADDRESS) if name not in os.environ]:
            expected = f"--kv-store {kind} needs the environment variables of MXNet's clusters"
            unset = f"not set: {', '.join(missing)}; 'python -m demo_rfcn launch' sets them"
            raise InputError(f"train: {expected}; {unset}")
        stopping.listen_to_heartbeats()
        self._stop = stop
        self._keys: dict[tuple, int] = {}
        self._started = time.monotonic()
        self._thread = ThreadPoolExecutor(1, initializer=stopping.block_signals)
        self.kvstore = self._wait(lambda: mx.kv.create(kind), "for all processes to start")
        self.rank, self.num_workers = self.kvstore.rank, self.kvstore.num_workers

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._close()
        elif issubclass(kind, Interrupted):
            with suppress(Lost):  # all workers stop, and everything to keep is kept
                self._close()

    def start(self, net: RFCN, trainer: mx.gluon.Trainer, **values: int) -> None:
        """Compare the values, numbers below 2**24, then share the weights of worker 0."""
        table = np.zeros((self.num_workers, len(values)), np.float32)
        table[self.rank] = [*values.values()]
        table = self._total(table)
        for rank, row in enumerate(table):
            for name, value, first in zip(values, row, table[0]):
                if value != first:
                    other = f"{name} {value:.0f}, not {first:.0f}"
                    started = f"worker {rank} was started with different options than worker 0"
                    raise InputError(f"train: {started}: {other}")
        self._net, self._statistics = net, _statistics(net)

        def share_weights() -> None:
            # The trainer would fetch the weights after the first backward pass, in no order with
            # the exchange of gradients under the same keys: a worker might get a gradient for a
            # weight.
            trainer._init_kvstore()
            trainer._init_params()
            mx.nd.waitall()

        self._wait(share_weights, "for the weights of worker 0")

    def sum_gradients(self, trainer: mx.gluon.Trainer, *flags: bool) -> tuple[bool, ...]:
        """Sum the gradients and flags, and copy the statistics of worker 0."""

        def exchange() -> None:
            trainer.allreduce_grads()
            mx.nd.waitall()

        self._wait(exchange, "for the gradients of the others")
        statistics = _statistics(self._net)
        statistics = statistics if self.rank == 0 else np.zeros_like(statistics)
        total = self._total(np.append(np.array(flags, np.float32), statistics))
        self._statistics = total[len(flags) :]
        self.restore()
        return tuple(bool(value) for value in total[: len(flags)])

    def restore(self) -> None:
        """Set the statistics of the last step that all workers finished."""
        parameters = [*self._net.collect_params(STATISTICS).values()]
        ends = np.cumsum([np.prod(parameter.shape, dtype=int) for parameter in parameters])
        for parameter, values in zip(parameters, np.split(self._statistics, ends)):
            parameter.set_data(mx.nd.array(values.reshape(parameter.shape)))

    def _wait(self, function: Callable[[], _T], doing: str) -> _T:
        """Return the result of a function that may wait for other workers, or raise `Lost`."""
        self._check_signals()  # also if the function does not wait
        future, looked = self._thread.submit(function), time.monotonic()
        while not wait([future], 0.1).done:
            self._check_signals()
            if time.monotonic() - looked > 1:
                looked = time.monotonic()
                self._check_peers(doing)
        return future.result()

    def _check_signals(self) -> None:
        """Raise `Lost` after a signal that ends the run; request a stop if `launch` has ended."""
        self._stop.raised |= stopping.launcher_is_gone()
        if self._stop.peer_lost:
            raise self._lost("ends because another process of the run is gone")
        if self._stop.repeated:
            raise self._lost("was told twice to stop, and does not wait for the other workers")

    def _check_peers(self, doing: str) -> None:
        """Raise `Lost` if the other processes do not answer."""
        if self.kvstore is not None:
            if stopping.silent_nodes(self.kvstore, stopping.SCHEDULER):
                raise self._lost(f"waited {doing}, and {stopping.SILENT}")
        elif self._stop.raised:
            raise self._lost("was told to stop before all processes had started")
        elif time.monotonic() - self._started > JOIN_TIMEOUT_S:
            uri, port, servers, workers = (os.environ[name] for name in ADDRESS)
            others = f"the scheduler at {uri}:{port}, {servers} servers and {workers} workers"
            raise self._lost(f"waited {JOIN_TIMEOUT_S} seconds for {others}")

    def _lost(self, why: str) -> Lost:
        return Lost(f"train: worker {self.rank} {why}")

    def _total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of float32 arrays of all workers; exact if all but one term are zero."""

        def exchange() -> np.ndarray:
            array = mx.nd.array(values, dtype="float32")
            key = self._keys.get(values.shape)
            if key is None:
                key = self._keys[values.shape] = _FIRST_KEY + len(self._keys)
                self.kvstore.init(key, mx.nd.zeros(values.shape))
            self.kvstore.pushpull(key, array)
            return array.asnumpy()

        return self._wait(exchange, "for the other workers")

    def _close(self) -> None:
        """End together with the others, or raise `Lost`."""
        self._wait(self.kvstore._barrier, "for the other workers to finish")
        # All workers are done; losing one no longer matters.
        handle, self.kvstore.handle = self.kvstore.handle, None
        ending = threading.Thread(target=_LIB.MXKVStoreFree, args=(handle,), daemon=True)
        ending.start()
        ending.join(20)


def join(kind: str, devices: int, stop: stopping.StopRequest) -> Workers:
    """Return the workers of a run with a kind of key-value store and that many devices each."""
    if kind.startswith("dist"):
        return ClusterWorkers(kind, stop)
    return SingleWorker(mx.kv.create(kind) if devices > 1 else None)


def _statistics(net: RFCN) -> np.ndarray:
    """Return the running statistics of batch normalisation as one vector."""
    parameters = net.collect_params(STATISTICS).values()
    values = [parameter.list_data()[0].asnumpy().ravel() for parameter in parameters]
    return np.concatenate([np.zeros(0, np.float32), *values])
