# SPDX-License-Identifier: Apache-2.0
"""Tables, a chart and files of the results and of the machine."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from typing import Sequence

from .libraries import LIBRARIES
from .measure import LIMIT, OURS, PAGES, STATES


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _label(row: dict) -> str:
    return row["item"] + ("" if row["dtype"] == "float32" else f" {row['dtype']}")


def table(rows: list[dict]) -> str:
    """Medians in milliseconds; `*` marks outputs of another convention."""
    present = {library for row in rows for library in row["results"]}
    peers = [k for k in LIBRARIES if k in present and k not in (OURS, LIMIT)]
    head = ["work", "way", "threads", OURS, "+-", "best peer", "times", LIMIT, "of limit", *peers]
    lines = [head]
    for row in rows:
        results, ours = row["results"], row["results"][OURS]
        low, high = ours["quartiles_ms"]
        line = [
            _label(row),
            row["way"],
            str(row["threads"]),
            _milliseconds(ours["median_ms"]),
            f"{50 * (high - low) / ours['median_ms']:.0f}%",
            row["best_peer"] or "-",
            f"{row['times_faster']:.2f}" if row["best_peer"] else "-",
            _milliseconds(results.get(LIMIT, {}).get("median_ms")),
            f"{100 * row['of_limit']:.0f}%" if row["of_limit"] else "-",
        ]
        for peer in peers:
            result = results.get(peer, {})
            mark = "*" if result.get("other_convention") else ""
            line.append(_milliseconds(result.get("median_ms")) + mark)
        lines.append(line)
    return columns(lines, left=(0, 1, 5))


def columns(lines: list[list[str]], left: Sequence[int]) -> str:
    """Cells one under the other; those columns to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    )


def idle_table(rows: list[dict]) -> str:
    """Medians in milliseconds, with minimum and maximum."""
    lines = [f"{'':54}" + "".join(f"{name:>24}" for name in PAGES)]
    for row in rows:
        cells = [
            f"{r['median_ms']:.4g} ({r['low_ms']:.4g}-{r['high_ms']:.4g})"
            for r in row["results"].values()
        ]
        label = f"{row['item']}, {STATES[row['state']]}"
        lines.append(f"{label:54}" + "".join(f"{cell:>24}" for cell in cells))
    return "\n".join(lines)


def chart(rows: list[dict], path: str) -> None:
    """One line a row, a dot for each library, the limit as a tick; logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 1.2 + 0.28 * len(rows)))
    styles = dict(zip(LIBRARIES, ("D", "o", "x", "s", "^", "v", "P", "<", ">", "|")))
    for library, marker in styles.items():
        found = [
            (row["results"][library]["median_ms"], y)
            for y, row in enumerate(rows)
            if library in row["results"]
        ]
        if found:
            colour = {"color": "black"} if library in (OURS, LIMIT) else {"alpha": 0.7}
            order = 3 if library == OURS else 2
            times, places = zip(*found)
            axes.scatter(times, places, marker=marker, s=36, label=library, zorder=order, **colour)
    labels = [
        f"{_label(r)}, {r['way']}" + (f", {r['threads']} threads" if r["threads"] > 1 else "")
        for r in rows
    ]
    axes.set_yticks(range(len(rows)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds a call, median (logarithmic; left is faster)")
    axes.grid(axis="x", which="both", alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.6 / (1.2 + 0.28 * len(rows))), ncol=7)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    pyplot.close(figure)


def machine() -> dict:
    """The machine of the measurements."""
    model = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            found = re.search(r"^model name\s*: (.*)$", file.read(), re.MULTILINE)
        model = found.group(1) if found else model
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def write_report(folder: str, name: str, report: dict, text: str) -> None:
    """`name`.json with all of it, `name`.txt with the machine and the text."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"{name}.json"), "w") as file:
        json.dump(report, file, indent=1)
    with open(os.path.join(folder, f"{name}.txt"), "w") as file:
        file.write(f"{report['machine']['cpu']}, {report['machine']['cores']} cores\n{text}\n")
