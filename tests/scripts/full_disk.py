# SPDX-License-Identifier: Apache-2.0
"""Trains on a disk that fills up and then becomes read-only, in a mount namespace.

    unshare --user --map-root-user --mount python full_disk.py DATA RUN WORK

DATA is a data set, RUN the folder of a finished run of six steps on it, WORK an empty folder, which
gets the last checkpoint.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
from pathlib import Path

from support.demo_runs import train_arguments

from demo_rfcn import cli

data, run, work = map(Path, sys.argv[1:])
disk = work / "disk"
disk.mkdir()
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
folder, ballast = disk / "run", disk / "ballast"
folder.mkdir()
shutil.copy(run / "last.ckpt", folder)
kept = (folder / "last.ckpt").read_bytes()


def train(words: str = "") -> None:
    """Go on for two steps; with words, that fails with them, and the disk stays as it was."""
    line = train_arguments(data, folder, "--resume", folder / "last.ckpt", "--steps", "8")
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        status = cli.main(line)
    files = {path.name for path in folder.iterdir()}
    if not words:
        assert status == 0 and {"history.json", "last.ckpt"} <= files, files
        return
    # best.ckpt is written first, if the score rose.
    message = errors.getvalue().splitlines()[-1].replace("best.ckpt", "last.ckpt")
    assert (status, message) == (2, f"demo_rfcn: cannot write {words}"), message
    assert files == {"last.ckpt"} and (folder / "last.ckpt").read_bytes() == kept


def fill(free: int) -> None:
    """Leave so many bytes of the disk free."""
    ballast.unlink(missing_ok=True)
    with ballast.open("wb", buffering=0) as file:
        file.write(bytes(shutil.disk_usage(disk).free - free))


fill(0)
train(f"{folder}: No space left on device")
fill(2 * 2**20)
train(f"{folder / 'last.ckpt'}: No space left on device")
ballast.unlink()
subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
train(f"{folder}: Read-only file system")
subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
train()
shutil.copy(folder / "last.ckpt", work)
