# SPDX-License-Identifier: Apache-2.0
"""Modules, those of the tests too: no import leads back to its own file; folders keep an order."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
PACKAGES = ("gluon_roi", "demo_rfcn", "benchmarks")
#: Each folder of the demo, and those below it that it may import; so may all its files at the top.
BELOW: dict[str, set[str]] = {
    "data": set(),
    "model": {"data"},
    "show": {"data", "model"},
    "settings": {"data", "model"},
    "distributed": {"data", "model", "run"},
    "run": {"data", "model", "settings", "distributed"},
    "commands": {"data", "model", "run", "show", "settings"},
}
#: What the folders of the demo stand on.
BASE = {"errors", "files", "progress"}


def module(file: Path) -> str:
    """The name under which a file is imported; one of the tests by its name alone."""
    base = TESTS if TESTS in file.parents else ROOT
    parts = file.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FOLDERS = (*(ROOT / package for package in PACKAGES), TESTS)
FILES = {module(file): file for folder in FOLDERS for file in folder.rglob("*.py")}


@lru_cache(maxsize=None)
def imports(name: str) -> tuple[str, ...]:
    """The modules of these packages that a module imports, wherever in it, for types alone too."""
    found = []
    file = FILES[name]
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
            base = base if node.level else str(node.module)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.append(inner if inner in FILES else base)
    return tuple(sorted({each for each in found if each in FILES} - {name}))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_no_circle(folder):
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for imported in imports(name):
                if folder in FILES[imported].parents:
                    walk(imported, (*path, name))
            done.add(name)

    for name, file in FILES.items():
        if folder in file.parents:
            walk(name, ())


def test_folders_of_the_demo_keep_their_order():
    for name in FILES:
        package, folder, *inner = [*name.split("."), ""]
        if package != "demo_rfcn" or not inner or not inner[0]:
            continue
        for imported in imports(name):
            if imported.startswith("demo_rfcn."):
                other = imported.split(".")[1]
                assert other in {folder} | BELOW[folder] | BASE, f"{name} imports {imported}"


def test_the_package_does_not_know_the_demo():
    for name in FILES:
        if name.startswith("gluon_roi"):
            assert not any(imported.startswith("demo_rfcn") for imported in imports(name)), name


def test_benchmarks_and_tests_do_not_know_each_other():
    """What both need is in tests/support. What measures uses the rows of the benchmarks."""
    measuring = ("test_benchmarks", "check_kernels")
    for name in FILES:
        if TESTS in FILES[name].parents and FILES[name].stem not in measuring:
            assert not [imported for imported in imports(name) if "benchmarks" in imported], name
    of_tests = {file.stem for file in (ROOT / "tests").glob("*.py")} | {"operators", "tests"}
    for file in (ROOT / "benchmarks").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            assert not of_tests & {name.split(".")[0] for name in names}, file


@pytest.mark.parametrize("folder", PACKAGES)
def test_no_file_is_too_long(folder):
    for file in (ROOT / folder).rglob("*.py"):
        # (_compat.py is loaded by its path, as one file.)
        assert len(file.read_text().splitlines()) <= 400 or file.name == "_compat.py", file
