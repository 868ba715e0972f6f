# SPDX-License-Identifier: Apache-2.0
"""Python started as it starts once the package is installed."""

import os
import subprocess
import sys
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
