# SPDX-License-Identifier: Apache-2.0
"""Runs a program with MXNet's operators replaced with the operators of this package."""

from __future__ import annotations

import importlib.util
import io
import os
import runpy
import sys
import types
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from gluon_roi import _compat

from .functions import replace_builtins


def run(program: list[str], bad_index: str, rois_only: bool) -> int:
    """Run a program as Python does, after replace_builtins; return 2 if there is none.

    Errors and warnings are raised as without this function; tracebacks start with the program.
    """
    is_module = program[:1] == ["-m"]
    line = program[1:] if is_module else program
    if not line:
        return _refuse("expected SCRIPT or -m MODULE, got neither")
    reason = None if is_module else _script_error(line[0])
    if reason:
        return _refuse(reason)
    if not getattr(sys.flags, "safe_path", False):
        # As in Python: modules in the current folder, next to the script, or in the archive.
        has_modules = not is_module and _has_modules(line[0])
        parent = line[0] if has_modules else str(Path(line[0]).resolve().parent)
        sys.path[0] = os.getcwd() if is_module else parent
    try:
        reason = _module_error(line[0]) if is_module else None
        if reason:
            return _refuse(reason)
        replace_builtins(bad_index, rois_only)
        _compat.provide_distutils()
        sys.argv = line
        if is_module:
            runpy.run_module(line[0], run_name="__main__", alter_sys=True)
        elif _has_modules(line[0]) or line[0].endswith(".pyc"):
            runpy.run_path(line[0], run_name="__main__")
        else:
            _run_source(line[0])
    except SystemExit:
        raise
    except BaseException as error:
        _show_only(_frames_of_program(error.__traceback__))
        raise
    return 0


def _refuse(sentence: str) -> int:
    print(f"gluon_roi: run: {sentence}", file=sys.stderr)
    return 2


def _has_modules(path: str) -> bool:
    """Whether a path is a folder or an archive with a __main__."""
    return os.path.isdir(path) or os.path.isfile(path) and zipfile.is_zipfile(path)


def _script_error(path: str) -> str | None:
    """The reason why a path cannot be run, or None."""
    if not os.path.exists(path):
        return f"expected a script, but there is no file {path}"
    try:
        if os.path.isdir(path):
            names = os.listdir(path)
        elif _has_modules(path):
            with zipfile.ZipFile(path) as archive:
                names = archive.namelist()
        else:
            open(path, "rb").close()
            return None
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    kind = "folder" if os.path.isdir(path) else "archive"
    has_main = not {"__main__.py", "__main__.pyc"}.isdisjoint(names)
    return None if has_main else f"expected a script, but the {kind} {path} has no __main__.py"


def _module_error(name: str) -> str | None:
    """The reason why a module cannot be run, or None."""
    spec = _find(name)
    if spec is None:
        return f"-m: expected a module, but there is none of the name {name}"
    if spec.submodule_search_locations is not None:
        if _find(f"{name}.__main__") is None:
            return f"-m: expected a module, but the package {name} has no __main__"
    elif name in sys.builtin_module_names or spec.origin == "frozen":
        return f"-m: expected a module in Python, but {name} is part of Python itself"
    return None


def _find(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # raised for the parent package
        return None


def _run_source(path: str) -> None:
    """Run a script as `python SCRIPT` does; __file__ is the absolute path."""
    file = os.path.abspath(path)
    with io.open_code(file) as source:
        code = compile(source.read(), file, "exec", dont_inherit=True)
    module = types.ModuleType("__main__")
    module.__file__, module.__loader__ = file, SourceFileLoader("__main__", file)
    sys.modules["__main__"] = module
    exec(code, module.__dict__)


def _frames_of_program(trace: Any) -> Any:
    """The part of a traceback that begins with the program; None if there is none."""
    starters = (run.__code__.co_filename, runpy.run_module.__code__.co_filename)
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file not in starters and not file.startswith("<frozen importlib"):
            break
        trace = trace.tb_next
    return trace


def _show_only(trace: Any) -> None:
    """Make Python print the error that ends the program with this traceback.

    The error is still raised, so that Python exits as after any other error.
    """
    hook = sys.excepthook

    def show(cls: Any, error: Any, _: Any) -> None:
        hook(cls, error.with_traceback(trace), trace)

    sys.excepthook = show


def program_at(line: list[str]) -> int:
    """Index of the program in a command line of `run`, behind the options."""
    index = 1
    while index < len(line) and line[index].startswith("-") and line[index] != "-m":
        index += 2 if line[index] == "--bad-index" else 1
    return index
