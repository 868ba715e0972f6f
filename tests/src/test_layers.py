# SPDX-License-Identifier: Apache-2.0
"""The layers of src/: includes go down, never up, and never in a circle."""

from __future__ import annotations

import re
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"
#: Each layer, and those below it that it may include.
BELOW: dict[str, set[str]] = {
    "arm": set(),
    "include": set(),
    "core": {"include"},
    "cpu": {"include", "core"},
    "cuda": {"include", "core"},
    "bindings": {"include", "core", "cpu", "cuda"},
    "ops": {"include", "core", "cpu", "cuda", "bindings"},
}


def includes(file: Path) -> list[Path]:
    """The files of src/ that a file includes."""
    found = [file.parent / name for name in re.findall(r'#include "(.+)"', file.read_text())]
    return [path.resolve() for path in found if path.is_file()]


def layer(file: Path) -> str:
    return file.relative_to(SRC).parts[0]


FILES = sorted(file for kind in ("h", "cc", "cu") for file in SRC.rglob(f"*.{kind}"))


def test_includes_go_down():
    assert {layer(file) for file in FILES} == set(BELOW)
    for file in FILES:
        for included in includes(file):
            allowed = {layer(file)} | BELOW[layer(file)]
            assert layer(included) in allowed, f"{file} includes {included}"


def test_no_circle():
    def walk(file: Path, path: tuple[Path, ...]) -> None:
        assert file not in path, " -> ".join(map(str, (*path, file)))
        for included in includes(file):
            walk(included, (*path, file))

    for file in FILES:
        walk(file, ())


def test_operators_do_not_know_each_other():
    for file in FILES:
        if layer(file) == "ops":
            for included in includes(file):
                assert layer(included) != "ops" or included.stem == file.stem, f"{file}: {included}"


def test_a_new_operator_recompiles_no_other():
    """One source file reads the header of all operators; any other reads those that it needs."""
    whole = SRC / "include/gluon_roi.h"
    assert [file.name for file in FILES if whole in includes(file)] == ["c.cc"]
    assert {*includes(whole)} == {*whole.with_suffix("").glob("*.h")}


def test_one_room_knows_mxnet():
    """Its library API is known to one file."""

    def including(name: str) -> set[str]:
        return {file.name for file in FILES if f'"{name}"' in file.read_text()}

    assert including("lib_api.h") == {"mxnet.cc"}
    assert including("mxnet_shapes.h") == {"mxnet.cc", "mxnet_shapes.cc"}


def code(file: Path) -> str:
    """Without comments."""
    return re.sub(r"//.*|/\*[\s\S]*?\*/", "", file.read_text())


#: At the beginning of a line, as functions of a namespace stand: a type, a name, parameters.
FUNCTION = r"^(?!using|static_assert|typedef)[\w\[][\w:<>*& \[\]]*?[ *&](\w+)\([^;{}]*?\)\s*"


def test_functions_are_defined_in_the_layer_that_declares_them():
    """A function declared in a header and defined in a higher layer would be a call upwards."""
    defined: dict[str, set[str]] = {}
    for file in FILES:
        for name in re.findall(FUNCTION + r"\{", code(file), re.M):
            defined.setdefault(name, set()).add(layer(file))
    declared = [
        (name, file)
        for file in FILES
        if file.suffix == ".h" and layer(file) != "include"
        for name in re.findall(FUNCTION + ";", code(file), re.M)
    ]
    assert {"zero_fill", "check_shapes", "simd_level"} <= {name for name, _ in declared}
    for name, file in declared:
        assert layer(file) in defined[name], f"{file} declares {name}, defined in {defined[name]}"
