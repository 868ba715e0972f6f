# SPDX-License-Identifier: Apache-2.0
"""Growth of time and memory with RoIs, channels, map and bins: a table and pictures.

    python -m benchmarks.growth [--operators ROIPool ...] [--seconds 0.3]
    python -m benchmarks.growth --draw docs/growth.json

See METHOD.md next to this file.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Sequence

import numpy as np

from . import theme
from .kernels import Kernels, touched_cells
from .measure import MOST_CALLS, Contender, note
from .report import columns
from .ways import ROOT
from .work import OPERATORS, Item
from .worker import serve

PASSES, UNITS = ("forward", "forward+backward"), ("ms", "MB")
COLUMNS = [f"{passed} {unit}" for unit in UNITS for passed in PASSES]
LEAST = 0.004  # MB: a page, where there is none
FOLDER = ROOT / "docs"
#: Operators with a colour and a name in the picture: the cheapest, a common one, and the one that
#: takes most.
LABELLED = dict(
    zip(("PSROIPool", "ROIAlign", "RotatedROIAlign"), (theme.COLOURS[n] for n in (0, 3, 2)))
)
#: What stays the same along the other axes.
ROIS, CHANNELS, MAP, BINS = 512, 128, (38, 50), 7
#: Image pixels per cell, and the boxes of a map of MAP: 32 to 400 pixels of 608 x 800.
STRIDE, SIDES = 16, (32.0, 400.0)
#: From a page upwards an array gets memory of its own, and freed memory goes to the system: what a
#: call takes is not hidden in what was freed before.
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "4096", "MALLOC_TRIM_THRESHOLD_": "4096"}


def item_of(
    operator: str,
    rois: int = ROIS,
    channels: int = CHANNELS,
    size: tuple[int, int] = MAP,
    bins: int = BINS,
) -> Item:
    """A point. `channels` are those of the map; with score maps, multiples of the bins.

    Boxes cover the same part of each map.
    """
    of_output = -(-channels // bins**2) if OPERATORS[operator].score_maps else channels
    scale = (size[0] * size[1] / (MAP[0] * MAP[1])) ** 0.5
    return Item(
        operator,
        operator,
        of_output,
        rois,
        pooled=bins,
        sampling_ratio=2,
        image=(size[0] * STRIDE, size[1] * STRIDE),
        stride=STRIDE,
        levels=3 if OPERATORS[operator].several_maps else 1,
        sides=(SIDES[0] * scale, SIDES[1] * scale),
    )


#: Name, the argument of item_of, its values, and what the axis counts.
AXES: tuple[tuple[str, str, Sequence[Any], Callable[[Item], int]], ...] = (
    ("RoIs", "rois", (8, 32, 128, 512, 2000, 8000), lambda item: item.rois),
    (
        "channels of the map",
        "channels",
        (16, 64, 256, 1024, 2048),
        lambda item: item.map_shapes[0][1],
    ),
    (
        "cells of the map",
        "size",
        ((19, 25), (38, 50), (75, 100), (150, 200), (200, 304)),
        lambda item: item.map_shapes[0][2] * item.map_shapes[0][3],
    ),
    ("bins", "bins", (3, 5, 7, 10, 14), lambda item: item.pooled**2),
)


# ---- In a process of its own ---------------------------------------------------------------------


def kernels_of(item: Item) -> Kernels:
    maps = [np.ones(shape, np.float32) for shape in item.map_shapes]
    return Kernels(item, maps, item.boxes(), np.ones(item.out_shape, np.float32))


def times(item: Item, seconds: float) -> dict[str, float]:
    """Pass -> milliseconds of processor time of its fastest call, on the same outputs each time.

    The processor's time, as other programs' does not belong to it.
    """
    kernels, fastest = kernels_of(item), []
    for passed in (kernels.forward, kernels.backward):
        passed()
        taken: list[float] = []
        while not taken or (sum(taken) < seconds and len(taken) < MOST_CALLS):
            start = time.process_time()
            passed()
            taken.append(time.process_time() - start)
        fastest.append(min(taken) * 1e3)
    return dict(zip(PASSES, (fastest[0], sum(fastest))))


def resident() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS:"))


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def memory(item: Item) -> dict[str, int]:
    """Pass -> bytes that it takes at most, inputs and outputs left out, which are there before.

    These are the pages that the call touches for the first time, and what the call before has kept.
    (Linux counts the peak of resident memory too coarsely.) Memory that is given back and taken
    again counts twice, so this is never too little.
    """
    # The first call loads code.
    first = kernels_of(replace(item.shrunk(), rois=1, image=(STRIDE, STRIDE)))
    kernels = kernels_of(item)
    for passed in (first.forward, first.backward):
        passed()
    for array in kernels.outputs:
        array.fill(0)
    before, taken = resident(), []
    for passed in (kernels.forward, kernels.backward):
        kept, faults = max(resident() - before, 0), page_faults()
        passed()
        taken.append(kept + (page_faults() - faults) * resource.getpagesize())
    return dict(zip(PASSES, (taken[0], max(taken))))


def serve_measurements() -> None:
    def answer(request: dict) -> dict:
        item = Item.from_dict(request["item"])
        return memory(item) if sys.argv[1] == "memory" else times(item, request["seconds"])

    serve(answer)


# ---- Measuring and writing -----------------------------------------------------------------------


def process(what: str, **variables: str) -> Contender:
    """Answers with times() or with memory() of an item, on one thread."""
    return Contender(what, sys.executable, 1, "benchmarks.growth", **variables)


def measure(operators: Sequence[str], seconds: float, quick: bool) -> list[dict]:
    """A row for each operator, axis and point."""
    timing = process("times")
    rows = []
    try:
        for axis, argument, values, count in AXES:
            for operator in operators:
                note(f"{operator}: {axis}")
                for value in values[:2] if quick else values:
                    item = item_of(operator, **{argument: value})
                    measured = point(timing, item.shrunk() if quick else item, seconds)
                    rows.append({"operator": operator, "axis": axis, "at": count(item), **measured})
    finally:
        timing.close()
    return rows


def point(timing: Contender, item: Item, seconds: float) -> dict[str, float]:
    """Times and megabytes of both passes, by their names in COLUMNS."""
    taken = timing.require(item=item.as_dict(), seconds=seconds)
    row = {f"{passed} ms": taken[passed] for passed in PASSES}
    fresh = process("memory", **GIVE_BACK)
    try:
        most = fresh.require(item=item.as_dict())
    finally:
        fresh.close()
    row.update({f"{passed} MB": most[passed] / 1e6 for passed in PASSES})
    return {**row, "touched MB": 4e-6 * touched_cells(item, item.boxes())}


def slope(rows: list[dict], column: str) -> float:
    """Slope of the upper half of a line: 1 means proportional to the axis."""
    upper = rows[(len(rows) - 1) // 2 :]
    x, y = ([max(row[name], LEAST) for row in upper] for name in ("at", column))
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def lines_of(rows: list[dict]) -> dict[tuple[str, str], list[dict]]:
    """Axis, operator -> its points."""
    lines: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        lines.setdefault((row["axis"], row["operator"]), []).append(row)
    return lines


def table(rows: list[dict]) -> str:
    """The points, and after each line its slopes."""
    cells = [["axis", "operator", "at", *COLUMNS, "touched MB", "MB / touched"]]
    for (axis, operator), points in lines_of(rows).items():
        for row in points:
            numbers = [f"{row[column]:.4g}" for column in (*COLUMNS, "touched MB")]
            share = f"{row[COLUMNS[-1]] / row['touched MB']:.2f}"
            cells.append([axis, operator, str(row["at"]), *numbers, share])
        slopes = [f"{slope(points, column):.2f}" for column in COLUMNS]
        cells.append([axis, operator, "slope", *slopes, "", ""])
    return columns(cells, left=(0, 1))


def draw(rows: list[dict]) -> Any:
    """A figure with a column of panels for each axis: both passes' times, and memory.

    Every operator has a line; those of LABELLED have colours, which a legend names.
    """
    from matplotlib import pyplot

    axes = [axis for axis, *_ in AXES]
    shown = {
        "forward ms": "forward, ms",
        "forward+backward ms": "forward, backward, ms",
        "forward+backward MB": "memory, MB",
    }
    size = theme.WIDTH, 2.5 * len(shown)
    figure, panels = pyplot.subplots(
        len(shown), len(axes), figsize=size, sharex="col", layout="constrained"
    )
    for (axis, operator), points in lines_of(rows).items():
        x = [row["at"] for row in points]
        colour = LABELLED.get(operator)
        for column, panel in zip(shown, panels[:, axes.index(axis)]):
            y = [
                max(row[column], LEAST) if column.endswith("MB") else row[column] for row in points
            ]
            style = {"color": colour or "0.6", "lw": 2.2 if colour else 0.8}
            panel.plot(x, y, zorder=3 if colour else 2, **style)
    for panel in panels.flat:
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.grid(which="major", alpha=0.3)
        panel.tick_params(labelsize=9)
        for scale in (panel.xaxis, panel.yaxis):
            scale.set_major_formatter("{x:g}")
        # What doubles where the axis does, through the middle of the panel.
        (left, right), (low, high) = panel.get_xlim(), panel.get_ylim()
        middle, centre = (left * right) ** 0.5, (low * high) ** 0.5
        guide = [centre * at / middle for at in (left, right)]
        panel.plot((left, right), guide, ":", color="0.5", lw=1.5)
        panel.set_xlim(left, right)
        panel.set_ylim(low, high)
    for i, axis in enumerate(axes):
        panels[-1, i].set_xlabel(axis)
    for panel, label in zip(panels[:, 0], shown.values()):
        panel.set_ylabel(label)
    keys: list[tuple[str, dict[str, Any]]] = [
        *((operator, {"color": colour, "lw": 2.2}) for operator, colour in LABELLED.items()),
        ("other operators", {"color": "0.6", "lw": 0.8}),
        ("proportional", {"color": "0.5", "ls": ":", "lw": 1.5}),
    ]
    lines = [pyplot.Line2D([], [], label=label, **style) for label, style in keys]
    title = "Time and memory of one thread; both axes are logarithmic"
    legend = figure.legend(
        handles=lines, title=title, loc="outside upper center", ncol=len(lines), frameon=False
    )
    legend.get_title().set_fontsize(13)
    return figure


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    every = [*OPERATORS]
    parser.add_argument(
        "--operators",
        nargs="+",
        default=every,
        choices=every,
        metavar="OPERATOR",
        help=f"of {', '.join(every)} (default: all)",
    )
    parser.add_argument("--seconds", type=float, default=0.3, help="of calls at each point")
    parser.add_argument(
        "--output",
        type=Path,
        default=FOLDER / "growth.png",
        metavar="FILE",
        help="the picture; measurements are stored next to it, as .json (default: %(default)s)",
    )
    parser.add_argument("--draw", type=Path, metavar="JSON", help="measurements of an earlier run")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, two points: a test")
    options = parser.parse_args(argv)
    if options.draw:
        rows = json.loads(options.draw.read_text())
    else:
        rows = measure(options.operators, 0.0 if options.quick else options.seconds, options.quick)
        rows = [
            {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in row.items()}
            for row in rows
        ]
        lines = ",\n".join(json.dumps(row) for row in rows)
        options.output.with_suffix(".json").write_text(f"[\n{lines}\n]\n")
    print(table(rows))
    theme.save(lambda: draw(rows), options.output)
    note(f"written to {options.output}")


if __name__ == "__main__":
    serve_measurements() if sys.argv[1:2] in (["times"], ["memory"]) else main()
