# SPDX-License-Identifier: Apache-2.0
"""The scheduler or a server of a distributed run: python -m demo_rfcn.distributed.serve ROLE.

`import mxnet` does the same if DMLC_ROLE is set, but these end when a process of the run is lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, check_call

from . import stop as stopping


def serve(role: str) -> str | None:
    """Run a scheduler or a server until training ends; return the reason if it ends early."""
    stopping.listen_to_heartbeats()
    os.environ[stopping.ROLE] = role  # not before: MXNet would become one as it is imported
    kvstore = mx.kv.create("dist")
    watched = stopping.SERVERS_AND_WORKERS if role == "scheduler" else stopping.SCHEDULER
    with stopping.StopRequest() as stop:
        serving = threading.Thread(target=_run_server, args=(kvstore,), daemon=True)
        serving.start()
        started = time.monotonic()
        while serving.is_alive():
            serving.join(1)
            # MXNet has made the list of nodes long before.
            if time.monotonic() - started > 5 and stopping.silent_nodes(kvstore, watched):
                return stopping.SILENT
            if stop.raised or stopping.launcher_is_gone():
                return "was told to stop"
    return None


def _run_server(kvstore: Any) -> None:
    """Serve; unlike MXNet's own server, never unpickle the body of a command."""
    stopping.block_signals()
    controller = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
    check_call(_LIB.MXKVStoreRunServer(kvstore.handle, controller(lambda *_: None), None))


if __name__ == "__main__":
    if why := serve(sys.argv[1]):
        with contextlib.suppress(OSError):  # nobody may be left to read it
            print(f"demo_rfcn: {sys.argv[1]}: {why}", file=sys.stderr, flush=True)
        os._exit(1)  # MXNet would wait for the others
