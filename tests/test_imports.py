# SPDX-License-Identifier: Apache-2.0
"""Modules, those of the tests too: no import leads back to its own file; folders keep an order."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
PACKAGES = ("gluon_roi", "gluon_roi_torch", "demo_rfcn", "benchmarks", "testing")
#: The modules and folders of the demo; each imports only those before it.
DEMO: tuple[str, ...] = (
    "errors",
    "files",
    "progress",
    "data",
    "model",
    "losses",
    "variants",
    "networks",
    "checkpoint",
    "config",
)
DEMO += ("predictor", "metrics", "provenance", "report", "distributed", "run")
DEMO += ("train", "evaluate", "demo", "detect", "export", "launch", "options", "cli")
#: What the three files of the method do without: it is for variants, clusters and reports.
NOT_IN_THE_METHOD = {"variants", "distributed", "report", "launch", "provenance"}


def module(file: Path) -> str:
    """The name under which a file is imported; a file of tests by its name alone."""
    if TESTS in file.parents and list(file.parent.glob("test_*.py")):
        return file.stem
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


def imports_in_demo(name: str) -> set[str]:
    """The modules and folders of the demo that a module imports."""
    return {each.split(".")[1] for each in imports(name) if each.startswith("demo_rfcn.")}


def test_modules_of_the_demo_keep_their_order():
    for name in FILES:
        package, *inner = name.split(".")
        if package == "demo_rfcn" and inner and inner[0] != "__main__":
            place = DEMO.index(inner[0])
            assert imports_in_demo(name) <= set(DEMO[: place + 1]), name


def test_the_method_is_in_three_files():
    assert imports_in_demo("demo_rfcn.model") == set()
    # Of the data, only the names of the columns of labels.
    assert imports_in_demo("demo_rfcn.losses") == {"data", "model"}
    assert imports("demo_rfcn.losses") == ("demo_rfcn.data.dataset", "demo_rfcn.model")
    assert not imports_in_demo("demo_rfcn.train") & NOT_IN_THE_METHOD


def test_the_package_does_not_know_the_demo():
    for name in FILES:
        if name.startswith("gluon_roi"):
            assert not any(imported.startswith("demo_rfcn") for imported in imports(name)), name


def test_benchmarks_and_tests_do_not_know_each_other():
    """What both need is in testing/. What measures uses the rows of the benchmarks."""
    measuring = ("test_benchmarks", "test_demo_ablation", "check_kernels")
    for name in FILES:
        if TESTS in FILES[name].parents and FILES[name].stem not in measuring:
            assert not [imported for imported in imports(name) if "benchmarks" in imported], name
    of_tests = {file.stem for file in TESTS.rglob("*.py") if list(file.parent.glob("test_*.py"))}
    of_tests |= {"operators", "support", "tests"}
    for file in (ROOT / "benchmarks").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [str(node.module)]
            assert not of_tests & {name.split(".")[0] for name in names}, file
