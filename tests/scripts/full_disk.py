# SPDX-License-Identifier: Apache-2.0
"""Trains on a disk that fills up and then becomes read-only, in a mount namespace.

    unshare --user --map-root-user --mount python full_disk.py DATA RUN WORK

DATA is a data set, RUN the folder of a finished run of six steps on it, WORK an empty folder.
Prints the result of each step as JSON; the test that starts it checks them.
"""

from __future__ import annotations

import contextlib
import io
import json
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


def train() -> dict:
    """Go on for two steps; returns the exit status, the last message and what is on the disk."""
    line = train_arguments(data, folder, "--resume", str(folder / "last.ckpt"), "--steps", "8")
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        status = cli.main(line)
    return {
        "status": status,
        "message": errors.getvalue().splitlines()[-1],
        "files": sorted(path.name for path in folder.iterdir()),
        "kept": (folder / "last.ckpt").read_bytes() == kept,
    }


def fill(free: int) -> None:
    """Leave so many bytes of the disk free."""
    ballast.unlink(missing_ok=True)
    with ballast.open("wb", buffering=0) as file:
        file.write(bytes(shutil.disk_usage(disk).free - free))


results = {}
fill(0)
results["full"] = train()
fill(2 * 2**20)
results["filling"] = train()
ballast.unlink()
subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
results["read-only"] = train()
subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
results["free"] = train()
shutil.copy(folder / "last.ckpt", work)
print(json.dumps(results))
