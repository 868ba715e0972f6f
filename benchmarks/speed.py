# SPDX-License-Identifier: Apache-2.0
"""Draws the times of README.md from results of `python -m benchmarks`.

    python -m benchmarks --only '^(PS)?ROI(Pool|Align) .*K=(128|300)' --peer ...
    python -m benchmarks.speed build/benchmarks/results.json
    python -m benchmarks.speed                   # draws the stored numbers again

What is drawn is stored in docs/speed.json, the pictures in docs/speed.png and speed-dark.png. Times
of whole detectors are in docs/models.json, which `python -m benchmarks.onnx --write` wrote.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Sequence

from . import theme
from .measure import LIMIT, OURS

FOLDER = Path(__file__).resolve().parent.parent / "docs"
#: Row of the table -> title. A line for each row and each way.
ROWS = {
    "ROIPool C=512 7x7 K=128": "ROIPool, 128 RoIs, 512 channels",
    "ROIAlign C=512 sampling 2 K=128": "ROIAlign, 128 RoIs, 512 channels",
    "PSROIPool 21x7x7 K=300": "PSROIPool, 300 RoIs, 21 classes",
    "PSROIAlign 21x7x7 sampling 2 K=300": "PSROIAlign, 300 RoIs, 21 classes",
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

#: Bars of a detector, from the top: way of `benchmarks.onnx`, label, and number of the colour. A
#: package has the colour that it has in the upper panel; `switched` has torchvision's, which has no
#: bar. All are float32; OpenVINO's default is bfloat16 on processors that have it.
BARS = (
    ("MXNet", "MXNet", 1),
    ("switched", "switched", 2),
    ("inference", "inference=True", 0),
    ("openvino", "OpenVINO", 4),
    ("onnxruntime", "onnxruntime", 5),
)


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


def draw(report: dict[str, Any], models: dict[str, Any]) -> Any:
    """A figure of the operators' times, and one of whole models below it."""
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(theme.WIDTH, 13), layout="constrained")
    panel, whole = figure.subplots(2, 1, height_ratios=[8, 9])
    lines = [(row, way) for row in ROWS for way in WAYS]
    for place, (row, way) in enumerate(lines):
        times = {name: ms for name, ms in report["times"][row][way].items() if name in NAMES}
        panel.plot([min(times.values()), max(times.values())], [place] * 2, color="0.5", lw=1)
        for number, (name, label) in enumerate(NAMES.items()):
            if name in times:
                style = {"color": theme.COLOURS[number], "marker": "Dosv^P"[number], "ls": "none"}
                size = 11 if name == OURS else 8
                known = panel.get_legend_handles_labels()[1]
                label = "" if label in known else label
                panel.plot(times[name], place, markersize=size, label=label, **style)
        ms = times[OURS]
        panel.annotate(
            f"{ms:.2g}", (ms, place), (-10, 0), textcoords="offset points", ha="right", va="center"
        )
    panel.set_yticks(range(len(lines)), [f"{ROWS[row]}\n{WAYS[way]}" for row, way in lines])
    panel.set(ylim=(len(lines) - 0.5, -0.5), xlim=(1, 500), xscale="log")
    machine, versions = report["machine"], report["versions"]
    version = versions["gluon_roi"].split()[0]
    about = f"{machine.get('cpu')}, {str(machine.get('time'))[:10]}, gluon_roi {version}"
    panel.set_title(f"Operators, one thread: {about}", x=0.3)
    panel.set_xlabel("milliseconds of a call in a network, logarithmic: less is better")
    figure.legend(loc="outside upper center", ncol=6, frameon=False, fontsize=10, columnspacing=1)
    detectors = models["seconds"]["1"]
    height = 0.8 / len(BARS)
    for place, seconds in enumerate(detectors.values()):
        for number, (way, label, colour) in enumerate(BARS):
            at = place + height * (number - (len(BARS) - 1) / 2)
            whole.barh(at, seconds[way], height, color=theme.COLOURS[colour], label=label)
            whole.text(seconds[way], at, f" {seconds[way]:.2f}", va="center", fontsize=7)
    bars, labels = whole.get_legend_handles_labels()
    whole.legend(bars[: len(BARS)], labels[: len(BARS)], loc="lower right", fontsize=10)
    whole.set_yticks(range(len(detectors)), [title.replace(", ", "\n", 1) for title in detectors])
    whole.set(ylim=(len(detectors) - 0.5, -0.5))
    about = f"{models['machine']['cpu']}, {models['machine']['time'][:10]}"
    whole.set_title(f"Whole detectors, one thread: {about}", x=0.3)
    whole.set_xlabel("seconds for an image of 600 x 800 pixels, in float32: less is better")
    for axis in (panel, whole):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="x", alpha=0.3)
        axis.set_axisbelow(True)
    return figure


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
    report = json.loads(stored.read_text())
    models = json.loads((FOLDER / "models.json").read_text())
    theme.save(lambda: draw(report, models), options.output)
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
