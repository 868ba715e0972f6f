# SPDX-License-Identifier: Apache-2.0
"""Runs a program that calls MXNet's operators with ours in their place."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
from pathlib import Path

from .functions import replace_builtins


def run(program: list[str], bad_index: str, rois_only: bool) -> int:
    """Run a program as Python does, after replace_builtins; return 2 if it is not there.

    Errors and warnings of the program are its own.
    """
    is_module = program[:1] == ["-m"]
    line = program[1:] if is_module else program
    if not line:
        return _refuse("expected SCRIPT or -m MODULE, got neither")
    if not is_module and not os.path.exists(line[0]):
        return _refuse(f"expected a script, but there is no file {line[0]}")
    if not getattr(sys.flags, "safe_path", False):
        # As Python does: modules in the current folder, or beside the script.
        sys.path[0] = os.getcwd() if is_module else str(Path(line[0]).resolve().parent)
    if is_module and not _is_module(line[0]):
        return _refuse(f"-m: expected a module, but there is none of the name {line[0]}")
    replace_builtins(bad_index, rois_only)
    sys.argv = line
    if is_module:
        runpy.run_module(line[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(line[0], run_name="__main__")
    return 0


def _refuse(sentence: str) -> int:
    print(f"gluon_roi: run: {sentence}", file=sys.stderr)
    return 2


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # of the package that it is in
        return False


def program_at(line: list[str]) -> int:
    """Where options of `run` end in a line, and the program begins."""
    place = 1
    while place < len(line) and line[place].startswith("-") and line[place] != "-m":
        place += 2 if line[place] == "--bad-index" else 1
    return place
