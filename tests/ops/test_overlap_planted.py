# SPDX-License-Identifier: Apache-2.0
"""Faults planted into overlaps and suppression, each of which the tests' calls find.

All faults are in one build of BoxNMS and BoxIoU: a variable chooses between each expression and
the one that takes its place.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import presets
import pytest
from support.kernel_checks import Kernels
from support.overlapped import CALLS as OVERLAPPED
from support.overlaps import exact_overlap, random_pairs
from support.suppressed import CALLS as SUPPRESSED
from support.suppressed import NMS

from gluon_roi import reference
from testing import c_api

pytestmark = [pytest.mark.slow, pytest.mark.night]

box_iou: Any = reference.box_iou
box_nms: Any = reference.box_nms
COMPILER = os.environ.get("CXX", "g++").split()
SOURCES = Path(__file__).parents[2] / "src"
ROTATED, OVERLAP = "core/geometry/rotated_overlap.h", "core/geometry/overlap.h"
ELEMENTARY = "core/geometry/elementary.h"
CPU, NMS_SOURCE = "cpu/suppression.h", "ops/box_nms.cc"
#: Fault -> file, expression, what takes its place.
FAULTS = {
    "a side that is not clipped": (ROTATED, "side < 4", "side < 3"),
    "an angle taken in radians": (
        ELEMENTARY,
        "(turned - 90.0 * quarters + rest) * kRadiansPerDegree",
        "(turned - 90.0 * quarters + rest)",
    ),
    "a clockwise angle": (ROTATED, "sine_cosine(angle, rest)", "sine_cosine(-angle, -rest)"),
    "a quarter turn too many": (
        ELEMENTARY,
        "(static_cast<int>(quarters) + 4) % 4",
        "(static_cast<int>(quarters) + 5) % 4",
    ),
    "half of a side taken for all": (ROTATED, "0.5 * length", "length"),
    "bounds of an upright box": (
        ROTATED,
        "kHalf * (box.width * fabs(turn.cosine) + box.height * fabs(turn.sine))",
        "kHalf * box.width",
    ),
    "bounds of one box": (ROTATED, "a.half_x + b.half_x", "a.half_x"),
    "the wrong divisor": (
        ROTATED,
        "over_first ? a.area : a.area + b.area - intersection",
        "a.area + b.area - intersection",
    ),
    "bounds of one box, in lanes": (
        CPU,
        "candidates = dx > reach_x ? Register{} : candidates",
        "candidates = dx > half_x ? Register{} : candidates",
    ),
    "a kept box that is not compared": (CPU, "boxes_[kept[first]]", "boxes_[kept[0]]"),
    "decay of a box of another class": (
        NMS_SOURCE,
        "members[end].class_id == members[begin].class_id",
        "true",
    ),
    "decay of a box that overlaps less": (OVERLAP, "overlap > threshold", "overlap > 0"),
    "an overlap that is not squared": (OVERLAP, "(overlap * overlap) / sigma", "overlap / sigma"),
    "the first score": (
        NMS_SOURCE,
        "static_cast<A>(box.score)",
        "static_cast<A>(sorted[box.place].score())",
    ),
    "equal scores in reverse": (CPU, "a.index < b.index", "a.index > b.index"),
    "low scores kept": (CPU, "!(box.score >= min_score)", "!(box.score >= 0)"),
    "an index off by one": (
        NMS_SOURCE,
        "first + ranks[place].index",
        "first + 1 + ranks[place].index",
    ),
    "indices of a batch": (NMS_SOURCE, "first + ranks[place].index", "ranks[place].index"),
}


def plant(sources: Path) -> None:
    """Give each expression a choice; several faults may have the same one."""
    planted: dict[tuple[str, str], str] = {}
    for number, (file, expression, fault) in enumerate(FAULTS.values(), 1):
        chosen = planted.get((file, expression), f"({expression})")
        planted[file, expression] = f"(planted_fault == {number} ? ({fault}) : {chosen})"
    for (file, expression), choice in planted.items():
        text = (sources / file).read_text()
        assert text.count(expression) == 1, (file, expression)
        (sources / file).write_text(text.replace(expression, choice))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    shutil.copytree(SOURCES, folder / "src")
    plant(folder / "src")
    types = folder / "src/core/types.h"
    types.write_text(types.read_text() + '\nextern "C" int planted_fault;\n')
    (folder / "fault.cc").write_text('extern "C" {\nint planted_fault = 0;\n}\n')
    flags = ["-O1", "-fPIC", "-fopenmp", "-ffp-contract=off", "-std=c++17"]
    sources = [folder / "fault.cc", *(folder / f"src/ops/box_{n}.cc" for n in ("nms", "iou"))]
    objects = []
    for source in sources:
        objects.append(source.with_suffix(".o"))
        subprocess.run([*COMPILER, *flags, "-c", source, "-o", objects[-1]], check=True)
    # The others as they are. Of functions in several files, the first one is linked.
    kernels = presets.build("release") / "CMakeFiles/kernels.dir/src"
    own = {"box_nms.cc.o", "box_iou.cc.o"}
    rest = sorted(file for file in kernels.rglob("*.o") if file.name not in own)
    target = folder / "libplanted.so"
    subprocess.run([*COMPILER, "-shared", "-fopenmp", *objects, *rest, "-o", target], check=True)
    return c_api.Library(target)


@functools.lru_cache(maxsize=None)
def exact_overlaps() -> list[float]:
    return [exact_overlap(*pair) for pair in zip(*random_pairs(0, 60))]


@functools.lru_cache(maxsize=None)
def expected_overlaps(name: str) -> Any:
    return box_iou(*OVERLAPPED[name].arrays("float32"), **OVERLAPPED[name].parameters)


@functools.lru_cache(maxsize=None)
def expected_rows(name: str) -> Any:
    suppressed = SUPPRESSED[name]
    return box_nms(*suppressed.arrays("float32"), **suppressed.parameters, geometry="float32")


def differs(expected: Any, got: Any) -> bool:
    return not np.allclose(got, expected, 1e-6, 1e-6)


def find(library: c_api.Library) -> list[str]:
    """What differs from exact arithmetic, or from the reference."""
    kernels, found = Kernels(library), []
    one, other = random_pairs(0, 60)
    out = np.empty(len(one), "float32")
    p = library.operators["box_iou"].params_of(format="rotated", aligned=True)
    library.forward("box_iou", p, c_api.tensors(one, other), out, c_api.Device(c_api.CPU))
    if differs(exact_overlaps(), out):
        found.append("pairs")
    for name, overlapped in OVERLAPPED.items():
        got = kernels.overlaps(overlapped, overlapped.arrays("float32"), cuda=False)[0]
        if differs(expected_overlaps(name), got):
            found.append(name)
    for name in NMS:
        suppressed = SUPPRESSED[name]
        arrays = suppressed.arrays("float32")
        try:
            got = kernels.suppressed(suppressed, arrays, cuda=False)
        except c_api.Error as error:  # of the backward pass, which checks the record
            found.append(f"{name}: {error}")
            continue
        if any(map(differs, expected_rows(name), got)):
            found.append(name)
    return found


def test_no_fault(library):
    assert not find(library)


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(library, fault):
    chosen = ctypes.c_int.in_dll(library.c, "planted_fault")
    chosen.value = list(FAULTS).index(fault) + 1
    try:
        assert find(library)
    finally:
        chosen.value = 0
