"""How time and memory grow with RoIs, channels, the map and the bins: a table and pictures.

    python -m benchmarks.growth [--operators ROIPool ...] [--seconds 0.3]

See README.md next to this file.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
from dataclasses import replace
from typing import Any, Callable, Sequence

import numpy as np

from .kernels import Kernels, touched_cells
from .libraries import COMMON
from .measure import MOST_CALLS, OURS, Contender, note
from .report import columns
from .work import OPERATORS, Item, shrink
from .worker import serve

PASSES, UNITS = ("forward", "forward+backward"), ("ms", "MB")
COLUMNS = [f"{passed} {unit}" for unit in UNITS for passed in PASSES]
LEAST = 0.004  # MB: a page, where there is none
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
    """A point. `channels` are those of the map, in multiples of the bins where each has its own.

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

    def kernels_of(item: Item) -> Kernels:
        maps = [np.ones(shape, np.float32) for shape in item.map_shapes]
        return Kernels(item, maps, item.boxes(), np.ones(item.out_shape, np.float32))

    # The first call loads code.
    first = kernels_of(replace(shrink(item), rois=1, image=(STRIDE, STRIDE)))
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


def main_of_memory() -> None:
    serve(lambda request: memory(Item.from_dict(request["item"])))


# ---- Measuring and writing -----------------------------------------------------------------------


def measure(operators: Sequence[str], seconds: float, quick: bool) -> list[dict]:
    """A row for each operator, axis and point."""
    timing = Contender(OURS, sys.executable, 1)
    rows = []
    try:
        for axis, argument, values, count in AXES:
            for operator in operators:
                note(f"{operator}: {axis}")
                for value in values[:2] if quick else values:
                    item = item_of(operator, **{argument: value})
                    measured = point(timing, shrink(item) if quick else item, seconds)
                    rows.append({"operator": operator, "axis": axis, "at": count(item), **measured})
    finally:
        timing.close()
    return rows


def point(timing: Contender, item: Item, seconds: float) -> dict[str, float]:
    """Times and megabytes of both passes, by their names in COLUMNS."""
    row = {}
    timing.require(do="prepare", item=item.as_dict(), call=False)
    for passed in PASSES:
        first = timing.require(do="time", way=passed, calls=1, warm=True)["seconds"]
        calls = int(min(max(seconds / first[0], 2), MOST_CALLS))
        measured = timing.require(do="time", way=passed, calls=calls, warm=False)["seconds"]
        row[f"{passed} ms"] = float(np.median(measured) * 1e3)
    timing.require(do="release")
    fresh = Contender("memory", sys.executable, 1, "benchmarks.growth", **GIVE_BACK)
    try:
        most = fresh.require(item=item.as_dict())
    finally:
        fresh.close()
    row.update({f"{passed} MB": most[passed] / 1e6 for passed in PASSES})
    return {**row, "touched MB": 4e-6 * touched_cells(item, item.boxes())}


def slope(rows: list[dict], column: str) -> float:
    """Of the upper half of a line: 1 is proportional to what the axis counts."""
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
    """The points, and behind each line its slopes."""
    cells = [["axis", "operator", "at", *COLUMNS, "touched MB", "MB / touched"]]
    for (axis, operator), points in lines_of(rows).items():
        for row in points:
            numbers = [f"{row[column]:.4g}" for column in (*COLUMNS, "touched MB")]
            share = f"{row[COLUMNS[-1]] / row['touched MB']:.2f}"
            cells.append([axis, operator, str(row["at"]), *numbers, share])
        slopes = [f"{slope(points, column):.2f}" for column in COLUMNS]
        cells.append([axis, operator, "slope", *slopes, "", ""])
    return columns(cells, left=(0, 1))


def draw(rows: list[dict], path: str) -> None:
    """A column of panels for each axis: time, and memory below; one line for each pass."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    axes = [axis for axis, *_ in AXES]
    operators = [*dict.fromkeys(row["operator"] for row in rows)]
    size = 4.5 * len(axes), 7 + 0.4 * len(operators)
    room = {"hspace": 0.1 + 0.07 * len(operators)}  # for the legends
    figure, panels = pyplot.subplots(2, len(axes), figsize=size, sharex="col", gridspec_kw=room)
    for (axis, operator), points in lines_of(rows).items():
        x = [row["at"] for row in points]
        for unit, panel in zip(UNITS, panels[:, axes.index(axis)]):
            names = [f"{passed} {unit}" for passed in PASSES]
            slopes = ", ".join(f"{slope(points, name):.2f}" for name in names)
            for name, style in zip(names, ("-", "--")):
                y = [max(row[name], LEAST) for row in points]
                label = f"{operator}: {slopes}" if style == "-" else None
                colour = f"C{operators.index(operator)}"
                panel.plot(x, y, style, marker=".", color=colour, label=label)
    for panel in panels.flat:
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.grid(which="major", alpha=0.3)
        # Above the panel: 'best' lies on the lines.
        panel.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize=8, frameon=False)
    for i, axis in enumerate(axes):
        panels[1, i].set_xlabel(axis)
    panels[0, 0].set_ylabel("milliseconds a call, one thread")
    panels[1, 0].set_ylabel("MB at most, inputs and outputs left out")
    figure.suptitle(
        "forward (solid), forward+backward (dashed), and the slopes of their upper halves", y=1
    )
    figure.savefig(path, dpi=80, bbox_inches="tight")
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    every = [*OPERATORS]
    parser.add_argument(
        "--operators",
        nargs="+",
        default=COMMON,
        choices=[*every, "all"],
        metavar="OPERATOR",
        help=f"of {', '.join(every)}, or all (default: {' '.join(COMMON)})",
    )
    parser.add_argument("--seconds", type=float, default=0.3, help="of calls at each point")
    parser.add_argument(
        "--output", default=os.path.join("benchmarks", "growth.png"), metavar="FILE"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes, two points: a test")
    options = parser.parse_args(argv)
    operators = every if "all" in options.operators else options.operators
    rows = measure(operators, 0.0 if options.quick else options.seconds, options.quick)
    print(table(rows))
    draw(rows, options.output)
    note(f"written to {options.output}")


if __name__ == "__main__":
    main_of_memory() if sys.argv[1:2] == ["memory"] else main()
