# SPDX-License-Identifier: Apache-2.0
"""The HTML report of a run: one file with the figures and the embedded pictures."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from ..data import folder_name
from ..files import replacing

REPORT = "report.html"

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
td, th {{ padding: .2rem .8rem; border-bottom: 1px solid #ccc; text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }}
figure {{ margin: 1.5rem 0; }}
img {{ max-width: 100%; }}
</style>
<h1>{title}</h1>
{body}
</html>
"""
_PICTURES = {
    "detections.png": (
        "Detections",
        "The first held-back images. A detection has the colour of its class, with name and score.",
    ),
    "score_maps.png": (
        "What a good and a shifted RoI see",
        "Each map answers for one part of the object, and gives one vote: its mean in the green "
        "bin. On the good RoI the parts agree; on the shifted one they do not.",
    ),
    "parts.png": (
        "Where the bins of good RoIs have moved",
        "Bins as the box divides (dotted) and with the learned offsets (green).",
    ),
    "loss.png": ("Training", "The four losses and their sum, smoothed."),
    "map.png": ("", "Mean average precision at two overlaps, on the validation images."),
}
_COLUMNS = {
    "map50": "AP@.5",
    "map75": "AP@.75",
    "voc07_map50": "VOC07 AP@.5",
    "voc07_map75": "VOC07 AP@.75",
    "coco_ap": "COCO AP",
    "coco_ap50": "COCO AP@.5",
    "coco_ap75": "COCO AP@.75",
}


def write_report(folder: Path, summary: dict) -> Path:
    """Write report.html beside the pictures that `commands.evaluate.report` names in a summary."""
    test, config = summary["test"], summary["config"]
    names = [name for name in _COLUMNS if name in test]
    rows = {"mean": test, **test["per_class"]}
    parts = [
        f"<p>{escape(config['network'])} backbone, {escape(config['head'])} head, "
        f"k = {config['k']}, checkpoint of step {summary['checkpoint_step']} of "
        f"{summary['arguments']['steps']}. {test['images']} held-back images, "
        f"{test['ms_per_image']:.0f} ms per image.</p>",
        "<h2>Average precision</h2>",
        _table(
            ["class", *(_COLUMNS[name] for name in names)],
            ([cls, *(shown(values.get(name)) for name in names)] for cls, values in rows.items()),
        ),
        "<h2>Recall of the proposals</h2>",
        _table(
            ["proposals", "recall at IoU .5"],
            ([top, shown(value)] for top, value in test["rpn_recall"].items()),
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


def shown(value: float | None) -> str:
    """Return a score as it is printed."""
    return "-" if value is None else f"{value:.3f}"


def _table(head: list[str], rows: Iterable[Iterable[Any]]) -> str:
    lines = [("th", head), *(("td", row) for row in rows)]
    cells = ("".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in line) for tag, line in lines)
    return "<table>\n" + "\n".join(f"<tr>{row}</tr>" for row in cells) + "\n</table>"
