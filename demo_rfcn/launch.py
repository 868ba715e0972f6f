# SPDX-License-Identifier: Apache-2.0
"""`launch`: starts the processes of a distributed run, on one or several machines.

MXNet's dmlc_tracker also starts them, but runs each line through a shell, does not notice a dead
worker, and leaves the others behind.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import IO, Any

from .distributed.stop import LAUNCHER, PEER_LOST, ROLE, StopRequest, listen_to_heartbeats
from .errors import InputError, Interrupted, RunError

ROLES = ("scheduler", "server", "worker")
PATIENCE = 4.0  # seconds for the others to end by themselves after one has failed
SHUTDOWN_GRACE = 20.0  # seconds for the last checkpoint, before the rest is killed


def command(
    workers: int, servers: int, address: str, only: Sequence[str], line: Sequence[str]
) -> None:
    """Train with several processes: launch -n WORKERS -s SERVERS -- train ...

    Starts the processes, prints their output, and ends all when one fails, with the status of the
    worker if it had one. `address` is empty for this machine and a free port, `only` for all roles,
    and `line` the command of a worker.
    """
    if only and not address and len(set(only)) < len(ROLES):
        raise InputError("launch: --only without --address, expected HOST:PORT of the scheduler")
    host, port = _address(address)
    roles = list(only) or ["scheduler", *["server"] * servers, *["worker"] * workers]
    listen_to_heartbeats()
    environment = {
        **os.environ,
        LAUNCHER: str(os.getpid()),
        "DMLC_PS_ROOT_URI": host,
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_SERVER": str(servers),
        "DMLC_NUM_WORKER": str(workers),
    }
    environment.pop(ROLE, None)
    if host == "127.0.0.1":
        environment["DMLC_NODE_HOST"] = host
    cores = len(os.sched_getaffinity(0))
    environment.setdefault("OMP_NUM_THREADS", str(max(cores // max(roles.count("worker"), 1), 1)))
    print(f"launch: {', '.join(roles)}; scheduler at {host}:{port}", flush=True)
    with StopRequest() as stop, _Processes() as processes:
        for role in roles:
            if role == "worker":
                processes.start(role, ["demo_rfcn", *line], {**environment, ROLE: role})
            else:
                processes.start(role, ["demo_rfcn.distributed.serve", role], environment)
        processes.watch(stop)


def _address(text: str) -> tuple[str, int]:
    """Return the scheduler's host and port."""
    if not text:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return "127.0.0.1", int(probe.getsockname()[1])
    host, _, number = text.rpartition(":")
    if not host or not number.isdecimal() or not 0 < int(number) < 2**16:
        raise InputError(f"launch: --address {text}, expected HOST:PORT")
    return host, int(number)


class _Processes(AbstractContextManager):
    """The started processes, and their output."""

    def __init__(self) -> None:
        self._children: list[tuple[str, subprocess.Popen]] = []
        self._readers: list[threading.Thread] = []
        self._lock = threading.Lock()

    def __exit__(self, *details: object) -> None:
        for _, child in self._children:
            if child.poll() is None:
                child.kill()
            child.wait()
        for reader in self._readers:
            reader.join(5)

    def start(self, role: str, module: list[str], environment: dict[str, str]) -> None:
        """Start a process in its own session, so that signals of a terminal come only here."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        pipes.update(stdin=subprocess.DEVNULL, env=environment, start_new_session=True)
        child = subprocess.Popen([sys.executable, "-m", *module], **pipes)
        self._children.append((role, child))
        for streams in ((child.stdout, sys.stdout), (child.stderr, sys.stderr)):
            self._readers.append(threading.Thread(target=self._print, args=streams, daemon=True))
            self._readers[-1].start()

    def _print(self, source: IO[bytes], target: IO[str]) -> None:
        """Print the lines of a process."""
        for data in source:
            with self._lock:
                target.write(data.decode("utf-8", "replace"))
                target.flush()

    def watch(self, stop: StopRequest) -> None:
        """Wait for the end of all; when one fails, or a signal comes, have the others end."""
        failed, deadline, notified, forwarded = None, 0.0, False, False
        # Without a worker on this machine, servers run until workers of other machines have ended.
        awaited = "worker" if any(role == "worker" for role, _ in self._children) else "server"
        awaited = awaited if any(role == awaited for role, _ in self._children) else "scheduler"
        while any(child.poll() is None for role, child in self._children if role == awaited):
            time.sleep(0.2)
            if failed is None and (failed := self._failed()):
                role, status = failed
                deadline = time.monotonic() + (PATIENCE if role == "worker" and status > 0 else 0)
            if failed and time.monotonic() > deadline and not notified:
                # A stopped process may still react.
                self._send(PEER_LOST, "worker")
                self._send(signal.SIGCONT, "worker")
                notified = True
            if notified and time.monotonic() > deadline + SHUTDOWN_GRACE:
                break
            if stop.raised:
                self._send(signal.SIGTERM, awaited)
                stop.raised, forwarded = False, True  # until there is another one
        role, status = failed or self._failed() or ("", 0)
        if role == "worker" and status > 0:
            error = RunError("")  # the worker has printed the reason
            error.status = status
            raise error
        self._end_servers()
        if forwarded and awaited != "worker":
            raise Interrupted("launch: stopped all processes of this machine")
        if role:
            how = f"ended with status {status}" if status > 0 else f"was killed by signal {-status}"
            raise RunError(f"launch: a {role} {how}; all other processes of this machine ended")

    def _failed(self) -> tuple[str, int] | None:
        """Return role and status of a process that failed; heartbeats detect one that hangs."""
        failed = ((role, child.returncode) for role, child in self._children if child.poll())
        return next(failed, None)

    def _send(self, number: int, *roles: str) -> None:
        """Send a signal to all processes of some roles."""
        for role, child in self._children:
            if role in roles and child.poll() is None:
                child.send_signal(number)

    def _end_servers(self) -> None:
        """Give scheduler and servers time to end after the workers, before and after a signal."""
        for _ in range(2):
            until = time.monotonic() + PATIENCE
            while any(child.poll() is None for _, child in self._children):
                if time.monotonic() > until:
                    break
                time.sleep(0.2)
            self._send(signal.SIGTERM, *ROLES)
