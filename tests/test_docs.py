"""Every example in a docstring or on a page runs and prints the output shown."""

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import gluon_roi
from gluon_roi import reference

ROOT = Path(__file__).resolve().parent.parent
MODULES = [
    *(block.__module__ for block in gluon_roi.OPERATORS),
    *(
        f"gluon_roi.{name}"
        for name in (
            *("library", "onnx", "rois", "switch.functions", "switch.models"),
            *("nd", "ops.deformable_blocks"),
        )
    ),
    *sorted({getattr(reference, name).__module__ for name in reference.__all__}),
]
PAGES = [
    str(page.relative_to(ROOT))
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")))
    if ">>> " in page.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0


@pytest.mark.parametrize("block", gluon_roi.OPERATORS, ids=lambda block: block.__name__)
def test_signatures(block):
    name, file = block.__name__, block.__module__.rpartition(".")[2]
    page = (ROOT / "docs" / "operators" / f"{file}.md").read_text()
    parameters = inspect.signature(getattr(gluon_roi.nd, name)).parameters.values()
    shown = ", ".join(
        each.name if each.default is each.empty else f"{each.name}={each.default!r}"
        for each in parameters
        if each.kind is not each.KEYWORD_ONLY
    )
    assert f"{name}({shown})" in " ".join(page.split())


@pytest.mark.parametrize("page", PAGES)
def test_pages(page):
    result = doctest.testfile(str(ROOT / page), module_relative=False)
    assert result.attempted > 0 and result.failed == 0
