# SPDX-License-Identifier: Apache-2.0
"""Python started as it starts once the package is installed, and children of this process."""

import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# What a start of Python does once the package is installed: the line of gluon_roi.pth.
FOLDER = ROOT / "build_tools/start"
START = f"import sys; sys.path[:0] = {[str(ROOT), str(FOLDER)]!r}; "
START += (FOLDER / "gluon_roi.pth").read_text()


def python(script, folder=None, **variables):
    """What a process with gluon_roi.pth prints, or the last line of its error."""
    path = [str(folder)] if folder else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **variables}
    command = [sys.executable, "-c", START + script]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    return run.stdout.strip() if run.returncode == 0 else run.stderr.strip().splitlines()[-1]


def ended_by(call):
    """The number of the signal that ends a child of this process during a call."""
    with warnings.catch_warnings():
        # Python warns of a fork while threads run.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(300)
        try:
            call()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"it exited with status {os.WEXITSTATUS(status)}"
    return os.WTERMSIG(status)


def forked(call, folder="."):
    """Status, stdout and stderr of a call in a child of this process, which runs in a folder.

    MXNet and the package are imported there already; starting Python with them takes seconds.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        with warnings.catch_warnings():
            # Python warns of a fork while threads run.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            signal.alarm(300)
            status = 1
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(error.fileno(), 2)
                sys.stdout, sys.stderr = (os.fdopen(n, "w", closefd=False) for n in (1, 2))
                os.chdir(folder)
                status = int(call() or 0)
            except SystemExit as ended:
                status = int(ended.code or 0)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        assert os.WIFEXITED(status), f"it was ended by signal {os.WTERMSIG(status)}"
        out.seek(0)
        error.seek(0)
        return os.WEXITSTATUS(status), out.read(), error.read()
