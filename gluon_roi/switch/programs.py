# SPDX-License-Identifier: Apache-2.0
"""Runs a program with MXNet's operators replaced with the operators of this package."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
import zipfile
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from gluon_roi import _compat

from .functions import replace_builtins, replace_in_children


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
    # As in Python: modules in the current folder, next to the script, or in the archive.
    is_safe = getattr(sys.flags, "safe_path", False)
    if not is_module and _has_modules(line[0]):
        sys.path[: not is_safe] = [os.path.abspath(line[0])]
    elif not is_safe:
        sys.path[0] = os.getcwd() if is_module else str(Path(line[0]).resolve().parent)
    try:
        reason = _module_error(line[0]) if is_module else None
        if reason:
            return _refuse(reason)
        replace_builtins(bad_index, rois_only)
        replace_in_children(bad_index, rois_only)
        _compat.provide_distutils()
        module, code = _main(line[0], is_module)
        sys.argv = [str(module.__file__) if is_module else line[0], *line[1:]]
        sys.modules["__main__"] = module
        exec(code, vars(module))
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
    elif spec.origin is not None and spec.origin.endswith(tuple(EXTENSION_SUFFIXES)):
        return f"-m: expected a module in Python, but {name} is compiled"
    return None


def _find(name: str) -> Any:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # raised for the parent package
        return None


def _main(program: str, is_module: bool) -> tuple[ModuleType, CodeType]:
    """The module __main__ of a program, with the names that Python gives it, and its code."""
    file = os.path.abspath(program)
    spec: Any = None
    if is_module:
        spec = _find(program)
        if spec.submodule_search_locations is not None:
            spec = _find(f"{program}.__main__")
    elif _has_modules(program):
        spec = PathFinder.find_spec("__main__", [file])
    if spec is not None:
        loader, code = spec.loader, spec.loader.get_code(spec.name)
    elif file.endswith(".pyc"):
        loader = SourcelessFileLoader("__main__", file)
        code = loader.get_code("__main__")
    else:
        loader = SourceFileLoader("__main__", file)
        with io.open_code(file) as source:
            code = compile(source.read(), file, "exec", dont_inherit=True)
    module = ModuleType("__main__")
    vars(module).update(
        __file__=spec.origin if spec else file,
        __cached__=spec.cached if spec else None,
        __package__=spec.parent if spec else None,
        __spec__=spec,
        __loader__=loader,
        __builtins__=builtins,  # exec would add a dict
    )
    if sys.version_info < (3, 14):
        vars(module).update(__annotations__={})
    return module, code


def _frames_of_program(trace: Any) -> Any:
    """The part of a traceback that begins with the program; None if there is none."""
    starters = (run.__code__.co_filename, "<frozen importlib", "<frozen zipimport")
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(starters):
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
