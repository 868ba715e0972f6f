# SPDX-License-Identifier: Apache-2.0
"""The HTML report of a run: one file with the figures and the embedded pictures."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from ..config import SUMMARY
from ..data import folder_name
from ..errors import InputError
from ..files import is_json_of, read_json, replacing
from ..metrics import describe_images

REPORT = "report.html"

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="generator" content="demo_rfcn">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
td, th {{ padding: .2rem .8rem; border-bottom: 1px solid #ccc; text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }}
figure {{ margin: 1.5rem 0; }}
h1 {{ overflow-x: auto; }}
img {{ max-width: 100%; }}
</style>
<h1>{title}</h1>
{body}
</html>
"""
_PICTURES = {
    "detections.png": (
        "Detections",
        "Some of the images. A detection has the colour of its class, with name and score.",
    ),
    "score_maps.png": (
        "Score maps of a good and of a shifted RoI",
        "Each map scores one part of the object, and gives one vote: its mean in the green bin. On "
        "the good RoI the votes are high; on the shifted one they are not.",
    ),
    "parts.png": (
        "Shifted bins of good RoIs",
        "Bins of equal parts of the box (dotted) and with the learned offsets (green).",
    ),
    "loss.png": ("Training", "The four losses and their sum, smoothed."),
    "map.png": ("", "Mean average precision at two overlaps, on the validation images."),
}
_COLUMNS = {
    "map50": "AP@0.5",
    "map75": "AP@0.75",
    "voc07_map50": "VOC07 AP@0.5",
    "voc07_map75": "VOC07 AP@0.75",
    "coco_ap": "COCO AP",
    "coco_ap50": "COCO AP@0.5",
    "coco_ap75": "COCO AP@0.75",
}


def write_report(folder: Path, summary: dict) -> Path:
    """Write report.html in the folder of the pictures that a summary names; see `evaluate`."""
    test, config = summary["test"], summary["config"]
    names = [name for name in _COLUMNS if name in test]
    rows = [("mean", test), *test["per_class"].items()]  # a class may have the name "mean"
    parts = [
        f"<p>{escape(config['network'])} backbone, {escape(config['head'])} head, "
        f"k = {config['k']}, checkpoint of step {summary['checkpoint_step']} of "
        f"{summary['arguments']['steps']}. {describe_images(test)}; "
        f"{test['ms_per_image']:.0f} ms per image.</p>",
        "<h2>Average precision</h2>",
        _table(
            ["class", *(_COLUMNS[name] for name in names)],
            ([cls, *(format_score(values.get(name)) for name in names)] for cls, values in rows),
        ),
        "<h2>Recall of the proposals</h2>",
        _table(
            ["proposals", "recall at IoU 0.5"],
            ([top, format_score(value)] for top, value in test["rpn_recall"].items()),
        ),
    ]
    for name, (heading, caption) in _PICTURES.items():
        if name in summary["files"]:
            content = base64.b64encode((folder / name).read_bytes()).decode()
            picture = f'<img alt="{caption}" src="data:image/png;base64,{content}">'
            parts.append(f"<h2>{heading}</h2>" if heading else "")
            parts.append(f"<figure>{picture}<figcaption>{caption}</figcaption></figure>")
    parts += ["<h2>Arguments</h2>", _table(["argument", "value"], summary["arguments"].items())]
    path = folder / REPORT
    with replacing(path) as part:
        title = f"R-FCN on {escape(folder_name(summary['location']))}"
        part.write_text(_PAGE.format(title=title, body="\n".join(parts)), encoding="utf-8")
    return path


def is_summary(path: Path) -> bool:
    """Return whether a file is the summary of an evaluation."""
    return is_json_of(path, "dataset", "checkpoint_step", "config", "arguments", "test", "files")


def report_files(folder: Path) -> list[Path]:
    """Return the files of an evaluation in a folder, that is, of its summary; none if it has none.

    A file that a user wrote is not among them.
    """
    summary = folder / SUMMARY
    if not is_summary(summary):
        return []
    pictures = [name for name in _PICTURES if name in read_json(summary, "eval")["files"]]
    return [folder / name for name in (*pictures, REPORT, SUMMARY)]


def check_report_folder(folder: Path) -> None:
    """Raise InputError if an evaluation would replace a file that none has written."""
    written = report_files(folder)
    for name in (SUMMARY, REPORT, *_PICTURES):
        if (folder / name).exists() and folder / name not in written:
            other = f"{folder / name} was not written by an evaluation"
            raise InputError(f"eval: {other}; choose another --save-prefix")


def remove_report(folder: Path) -> None:
    """Remove the files of an evaluation from a folder, the summary last."""
    for path in report_files(folder):
        path.unlink(missing_ok=True)


def format_score(value: float | None) -> str:
    """Return a score as it is printed."""
    return "-" if value is None else f"{value:.3f}"


def _table(head: list[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [("th", head), *(("td", row) for row in rows)]
    cells = ("".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in line) for tag, line in lines)
    return "<table>\n" + "\n".join(f"<tr>{row}</tr>" for row in cells) + "\n</table>"
