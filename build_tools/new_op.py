# SPDX-License-Identifier: Apache-2.0
"""Writes the files of a new operator that pools boxes, as stubs.

    python3 build_tools/new_op.py MyOp

The stubs compile, and pool zeros. Tests with the operator's name fail until its formula is written.
CONTRIBUTING.md ("Add an operator") says what goes into each file, and `make lint` what to format.
Nothing is written if the operator exists or the name is unusable.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TEMPLATES = Path(__file__).resolve().with_name("new_op")

#: Templates, and the files that they become.
FILES = {
    "params.h.in": "src/include/gluon_roi/my_op.h",
    "operator.h.in": "src/ops/my_op.h",
    "operator.cc.in": "src/ops/my_op.cc",
    "operator.cu.in": "src/ops/my_op.cu",
    "operator.py.in": "gluon_roi/ops/my_op.py",
    "reference.py.in": "gluon_roi/reference/my_op_reference.py",
    "row.py.in": "tests/operators/my_op.py",
    "page.md.in": "docs/operators/my_op.md",
}

HEADER = "src/include/gluon_roi.h"
REFERENCES = "gluon_roi/reference/__init__.py"


class Insertion(NamedTuple):
    """Lines for an existing file, before its first line that matches `before`."""

    path: str
    text: str
    before: str  # a regular expression, or "" for the first line that is greater than `text`
    among: str = ""  # the lines that are compared then, a regular expression


#: New operators that pool boxes follow the others, before the operators without boxes.
INSERTIONS = (
    Insertion(HEADER, '#include "gluon_roi/my_op.h"\n', "", r'#include "gluon_roi/'),
    Insertion(HEADER, "  X(my_op)@PAD@\\\n", r"  X\(deformable_sampling\)"),
    Insertion(
        "gluon_roi/nd.py", "from .ops.my_op import my_op as MyOp\n", "", r"from \.ops\.\w+ import "
    ),
    Insertion("gluon_roi/nd.py", '    "MyOp",\n', "", r'    "\w+",$'),
    Insertion(
        "gluon_roi/__init__.py",
        "from .ops.my_op import MyOp as MyOp\n",
        "",
        r"from \.ops\.\w+ import ",
    ),
    Insertion("gluon_roi/__init__.py", "    MyOp,\n", r"    DeformableSampling,"),
    Insertion(REFERENCES, "from .my_op_reference import *\n", "", r"from \.\w+ import \*"),
    Insertion(REFERENCES, "    *my_op_reference.__all__,\n", r"    \*sampling\.__all__,"),
    Insertion(
        "docs/operators.md",
        "| [MyOp](operators/my_op.md) | say what a bin is | name the libraries that agree | |\n",
        r"\| \[DeformableSampling\]",
    ),
)


def snake_case(name: str) -> str:
    """'PSROIAlign' -> 'ps_roi_align'."""
    words = re.findall(r"ROI|[A-Z]+(?=ROI|[A-Z][a-z]|$)|[A-Z][a-z0-9]+", name)
    return "_".join(words).lower()


def insert(text: str, insertion: Insertion, added: str) -> str:
    """The text of a file with the insertion, whose own text is `added`."""
    lines = text.splitlines(keepends=True)
    pattern = insertion.before or insertion.among
    places = [number for number, line in enumerate(lines) if re.match(pattern, line)]
    if not places:
        raise SystemExit(f"new_op: {insertion.path} has no line {pattern!r} any more")
    place = places[0]
    if not insertion.before:  # in the order of the alphabet
        place = next((number for number in places if lines[number] > added), places[-1] + 1)
    return "".join([*lines[:place], added, *lines[place:]])


def rendered(text: str, name: str) -> str:
    return text.replace("MyOp", name).replace("my_op", snake_case(name))


def new_order() -> int:
    """A place in the tables of the tests after all others."""
    rows = (ROOT / "tests/operators").glob("*.py")
    orders = [re.search(r"^ORDER = (\d+)", row.read_text(), re.M) for row in rows]
    return max(int(order[1]) for order in orders if order) + 1


def main(arguments: list[str]) -> None:
    name = arguments[0] if len(arguments) == 1 else ""
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*", name):
        raise SystemExit(
            f"new_op: the name is {name!r}, expected one in capitals and small letters: "
            "make new-op NAME=MyOp"
        )
    paths = {ROOT / rendered(path, name): TEMPLATES / template for template, path in FILES.items()}
    for path in paths:
        if path.exists():
            raise SystemExit(f"new_op: {path.relative_to(ROOT)} exists already")
    written = {
        path: rendered(template.read_text(), name).replace("@ORDER@", str(new_order()))
        for path, template in paths.items()
    }
    for insertion in INSERTIONS:
        path = ROOT / insertion.path
        added = rendered(insertion.text, name)
        # The backslashes of the list of operators stand in one column.
        added = added.replace("@PAD@", " " * max(1, 31 - len(added.split("@")[0])))
        written[path] = insert(written.get(path, path.read_text()), insertion, added)
    # The reference's module, among those that its package imports. (A module with the name of the
    # function would be replaced by it.)
    path = ROOT / REFERENCES
    modules = re.search(r"^from \. import (.+)$", written[path], re.M)
    assert modules is not None
    names = sorted([*modules[1].split(", "), f"{snake_case(name)}_reference"])
    written[path] = written[path].replace(modules[0], f"from . import {', '.join(names)}")
    for path, text in written.items():
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
