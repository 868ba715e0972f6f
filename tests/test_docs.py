"""Every example of a docstring or a page runs and prints what it says."""

import doctest
import importlib
from pathlib import Path

import pytest

import gluon_roi
from gluon_roi import reference

ROOT = Path(__file__).resolve().parent.parent
MODULES = [
    *(block.__module__ for block in gluon_roi.OPERATORS),
    *(f"gluon_roi.{name}" for name in ("builtins", "graph", "library", "onnx", "rois")),
    *sorted({getattr(reference, name).__module__ for name in reference.__all__}),
]
PAGES = ["README.md", "docs/onnx.md", "docs/operators.md", "docs/switch.md"]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize("page", PAGES)
def test_pages(page):
    result = doctest.testfile(str(ROOT / page), module_relative=False)
    assert result.attempted > 0 and result.failed == 0
