# SPDX-License-Identifier: Apache-2.0
"""Runs of `launch`, and how they end."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from demo_rfcn import cli

#: Seconds within which all processes end.
MINUTE = 60


def children(parent: int) -> dict[str, list[int]]:
    """Return the processes of a run that a process has started, by role."""
    found: dict[str, list[int]] = {"scheduler": [], "server": [], "worker": []}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and status(int(folder.name))[1] == str(parent):
                line = (folder / "cmdline").read_text().split("\0")
                role = line[-2] if line[-2] in found else "worker"
                found[role] += [int(folder.name)] * any("demo_rfcn" in word for word in line)
        except (OSError, IndexError):
            continue
    return found


def status(process: int) -> list[str]:
    """Return the fields of a process in /proc: its state, its parent, and more."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def lives(process: int) -> bool:
    try:
        return status(process)[0] != "Z"
    except OSError:
        return False


def sentences(text: str) -> list[str]:
    """Return the lines that report an end."""
    return [line for line in text.splitlines() if "demo_rfcn: " in line]


def words_of(line: list, *flags: str) -> list[str]:
    """Return the command `launch` of two workers and a server."""
    return ["launch", "-n", "2", "-s", "1", *flags, "--", *line]


def launched(
    line: list, *flags: str, end: Callable | None = None, trains: Callable | None = None
) -> tuple[int, list[str]]:
    """Run `launch` in this process; `end` gets its children after a random time of training.

    Return the status and the sentences; all processes have ended, within a minute.
    """
    output, ended, started = io.StringIO(), threading.Event(), time.monotonic()
    trains = trains or (lambda: "training on" in output.getvalue())

    def watch() -> None:
        while not trains() and time.monotonic() - started < 2 * MINUTE:
            if ended.wait(0.05):
                return
        if end:
            time.sleep(random.uniform(0.1, 0.6))
            end(children(os.getpid()))
        if not ended.wait(MINUTE):
            for process in sum(children(os.getpid()).values(), []):
                os.kill(process, signal.SIGKILL)
            output.write("demo_rfcn: it did not end within a minute\n")

    watching = threading.Thread(target=watch)
    watching.start()
    with redirect_stdout(output), redirect_stderr(output):
        code = cli.main(words_of(line, *flags))
    ended.set()
    watching.join()
    assert not any(children(os.getpid()).values())
    return code, sentences(output.getvalue())


class Process:
    """A `launch` in a process of its own."""

    def __init__(self, line: list, *flags: str) -> None:
        command = [sys.executable, "-W", "ignore", "-m", "demo_rfcn", *words_of(line, *flags)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen(command, text=True, **pipes)
        self.number = self._process.pid

    def kill_in_training(self) -> None:
        """Kill it after a random time of training, and see its processes end within a minute."""
        assert self._process.stdout
        assert any(line.startswith("training on") for line in self._process.stdout)
        started = children(self.number)
        assert [len(each) for each in started.values()] == [1, 1, 2]
        time.sleep(random.uniform(0.1, 0.6))
        self._process.kill()
        until, living = time.monotonic() + MINUTE, sum(started.values(), [])
        while time.monotonic() < until and (living := [*filter(lives, living)]):
            time.sleep(0.1)
        for process in living:
            os.kill(process, signal.SIGKILL)
        assert not living

    def end(self) -> tuple[int, list[str]]:
        """Return the status and the sentences of its end, which takes less than a minute."""
        output, _ = self._process.communicate(timeout=MINUTE)
        return self._process.returncode, sentences(output)


def kill(role: str, number: int) -> Callable[[dict], None]:
    """Return an end: one of the processes of a role gets a signal."""

    def end(started: dict[str, list[int]]) -> None:
        os.kill(random.choice(started[role]), number)

    return end


def stand_in(folder: Path, act: str, told: str, lost: str) -> Path:
    """Write a program that `launch` can start as Python; a worker acts, in sh, and then waits.

    `$first` is set in one of the workers. They end with these words if they are told to, or if
    another one is lost; servers do not end.
    """
    program = folder / "program"
    program.write_text(f"""#!/bin/sh
case "$2" in *.serve) exec sleep 99;; esac
trap 'echo {told} >&2; exit 130' TERM
trap 'echo {lost} >&2; exit 1' USR1
mkdir {folder}/first 2> /dev/null && first=1
{act}
while :; do sleep 0.1; done
""")
    program.chmod(0o755)
    return program
