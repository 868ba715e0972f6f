# SPDX-License-Identifier: Apache-2.0
"""The HTML report of a run: one file with the figures and the embedded pictures."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

from ..files import replacing

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>R-FCN on {dataset}</title>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
td, th {{ padding: .2rem .8rem; border-bottom: 1px solid #ccc; text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }}
figure {{ margin: 1.5rem 0; }}
figcaption {{ color: #444; margin-top: .4rem; }}
img {{ max-width: 100%; }}
.pair {{ display: flex; flex-wrap: wrap; gap: 1rem; }}
.pair figure {{ flex: 1 1 18rem; margin: 0; }}
.table {{ overflow-x: auto; }}
.columns {{ columns: 2 20rem; overflow-wrap: anywhere; }}
.columns table {{ margin: 0; }}
</style>
</head>
<body>
<h1>R-FCN on {dataset}</h1>
<p>{network} backbone, {head} head, k = {k}, checkpoint of step {step} of {steps}.
{images} held-back images, {ms:.0f} ms per image.</p>
<h2>Average precision</h2>
{scores}
<h2>Recall of the proposals</h2>
{recall}
{pictures}
<h2>Training</h2>
<div class="pair">
{curves}
</div>
<h2>Arguments</h2>
<div class="columns">
{arguments}
</div>
</body>
</html>
"""

_HEADINGS = {
    "detections.png": "Detections",
    "score_maps.png": "What a good and a shifted RoI see",
    "parts.png": "Where the bins of good RoIs have moved",
}
_CAPTIONS = {
    "detections.png": "The first held-back images. A detection has the colour of its class, with "
    "name and score.",
    "score_maps.png": "Each map answers for one part of the object, and gives one vote: its mean "
    "in the bin drawn in green. On the good RoI the parts agree; on the shifted one they do not.",
    "parts.png": "Bins as the box divides (dotted) and where the learned offsets put them (green).",
    "loss.png": "The four losses and their sum, smoothed.",
    "map.png": "Mean average precision at two overlaps, on the validation images.",
}
REPORT = "report.html"
_CURVES = ("loss.png", "map.png")
_COLUMNS = {
    "map50": "AP@.5",
    "map75": "AP@.75",
    "voc07_map50": "VOC07 AP@.5",
    "voc07_map75": "VOC07 AP@.75",
    "coco_ap": "COCO AP",
    "coco_ap50": "COCO AP@.5",
    "coco_ap75": "COCO AP@.75",
}


def write(folder: Path, summary: dict) -> Path:
    """Write report.html beside the pictures that `commands.evaluate.report` names in a summary."""
    test, config = summary["test"], summary["config"]
    names = [name for name in _COLUMNS if name in test]
    means = [["mean", *(_number(test[name]) for name in names)]]
    classes = [
        [cls, *(_number(values.get(name)) for name in names)]
        for cls, values in test["per_class"].items()
    ]
    pictures = [
        f"<h2>{_HEADINGS[name]}</h2>\n{_figure(folder / name)}"
        for name in _HEADINGS
        if name in summary["files"]
    ]
    page = _PAGE.format(
        dataset=escape(summary["dataset"]),
        network=escape(config["network"]),
        head=escape(config["head"]),
        k=config["k"],
        step=summary["checkpoint_step"],
        steps=summary["arguments"]["steps"],
        images=test["images"],
        ms=test["ms_per_image"],
        scores=_table(["class", *(_COLUMNS[name] for name in names)], means + classes),
        recall=_table(
            ["proposals", "recall at IoU .5"],
            [[top, _number(value)] for top, value in test["rpn_recall"].items()],
        ),
        pictures="\n".join(pictures),
        curves="\n".join(_figure(folder / name) for name in _CURVES),
        arguments=_table(["argument", "value"], [[k, v] for k, v in summary["arguments"].items()]),
    )
    path = folder / REPORT
    with replacing(path) as part:
        part.write_text(page, encoding="utf-8")
    return path


def _figure(path: Path) -> str:
    caption = _CAPTIONS[path.name]
    content = base64.b64encode(path.read_bytes()).decode()
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{content}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _table(head: list[str], rows: list[list]) -> str:
    lines = ["<tr>" + "".join(f"<th>{escape(str(cell))}</th>" for cell in head) + "</tr>"]
    for row in rows:
        lines.append("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>")
    return '<div class="table"><table>\n' + "\n".join(lines) + "\n</table></div>"
