# SPDX-License-Identifier: Apache-2.0
"""Draws the bars of README.md from results of `python -m benchmarks`.

    python -m benchmarks --only '^(PS)?ROI(Pool|Align) .*K=(128|300)' --peer ...
    python -m benchmarks.speed build/benchmarks/results.json
    python -m benchmarks.speed                   # draws the stored numbers again

What is drawn is stored in docs/speed.json, the picture in docs/speed.png.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Sequence

from .measure import LIMIT, OURS

FOLDER = Path(__file__).resolve().parent.parent / "docs"
#: Row of the table -> title. A panel of bars for each row and each way.
ROWS = {
    "ROIPool C=512 7x7 K=128": "ROIPool\n128 RoIs, 512 channels",
    "ROIAlign C=512 sampling 2 K=128": "ROIAlign\n128 RoIs, 512 channels",
    "PSROIPool 21x7x7 K=300": "PSROIPool\n300 RoIs, 21 classes",
    "PSROIAlign 21x7x7 sampling 2 K=300": "PSROIAlign\n300 RoIs, 21 classes",
}
WAYS = {"forward in a network": "forward", "forward+backward in a network": "forward and backward"}
NAMES = {
    "gluon_roi": "gluon_roi",
    "mxnet": "MXNet",
    "torchvision": "torchvision",
    "paddle": "Paddle",
    "openvino": "OpenVINO",
    "onnxruntime": "onnxruntime",
}


def kept(report: dict[str, Any]) -> dict[str, Any]:
    """The part of a report that is drawn: medians in milliseconds."""
    times: dict[str, dict[str, dict[str, float]]] = {}
    for row in report["rows"]:
        if row["item"] in ROWS and row["way"] in WAYS and row["threads"] == 1:
            times.setdefault(row["item"], {})[row["way"]] = {
                name: float(f"{result['median_ms']:.4g}")
                for name, result in row["results"].items()
                if name in NAMES and not result.get("other_convention")
            }
    missing = [(row, way) for row in ROWS for way in WAYS if way not in times.get(row, {})]
    if missing:
        raise SystemExit(f"benchmarks.speed: the results lack {missing[0]}")
    machine = {key: report["machine"].get(key) for key in ("cpu", "cores", "time")}
    versions = {name: v for name, v in report["versions"].items() if name != LIMIT}
    return {"machine": machine, "versions": versions, "times": times}


def draw(report: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        len(WAYS), len(ROWS), figsize=(11, 4.6), height_ratios=[6, 4], layout="constrained"
    )
    most = {way: max(len(row[way]) for row in report["times"].values()) for way in WAYS}
    for column, (row, title) in zip(panels.T, ROWS.items()):
        for panel, (way, label) in zip(column, WAYS.items()):
            times = report["times"][row][way]
            names = [name for name in NAMES if name in times]
            colours = ["#0b6e4f" if name == OURS else "#b8c0c8" for name in names]
            panel.barh([NAMES[name] for name in names], [times[n] for n in names], color=colours)
            for place, name in enumerate(names):
                ratio = times[name] / times[OURS]
                text = f" {times[name]:.3g}" + (f"  ({ratio:.2g}x)" if name != OURS else " ms")
                panel.text(times[name], place, text, va="center", fontsize=8)
            panel.set_ylim(most[way] - 0.5, -0.6)  # bars of one height
            panel.set_xlim(0, 1.5 * max(times.values()))
            panel.set_xticks([])
            panel.spines[["top", "right", "bottom"]].set_visible(False)
            panel.tick_params(left=False, labelsize=8)
            panel.set_title(f"{title}\n{label}" if panel is column[0] else label, fontsize=9)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("results", type=Path, nargs="?", help="results.json of a run")
    parser.add_argument("--output", type=Path, default=FOLDER / "speed.png", metavar="FILE")
    options = parser.parse_args(argv)
    stored = options.output.with_suffix(".json")
    if options.results:
        report = kept(json.loads(options.results.read_text()))
        stored.write_text(json.dumps(report, indent=1) + "\n")
    draw(json.loads(stored.read_text()), options.output)
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
