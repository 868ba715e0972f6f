"""The HTML report of a run: one file that holds the figures and, embedded, the pictures."""

from __future__ import annotations

import base64
from html import escape
from pathlib import Path

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>R-FCN on {dataset}</title>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
td, th {{ padding: .2rem .8rem; border-bottom: 1px solid #ccc; text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }}
img {{ max-width: 100%; }}
</style>
</head>
<body>
<h1>R-FCN on {dataset}</h1>
<p>{network} backbone, {head} head, k = {k}, {step} steps. {images} held-back images,
{ms:.0f} ms per image.</p>
<h2>Average precision</h2>
{scores}
<h2>Recall of the proposals</h2>
{recall}
{pictures}
<h2>Arguments</h2>
{arguments}
</body>
</html>
"""

_CAPTIONS = {
    "detections.png": "Detections",
    "score_maps.png": "What a good and a shifted RoI see",
    "loss.png": "Loss",
    "map.png": "Validation during training",
}


def write(folder: Path, summary: dict) -> Path:
    """Write report.html into the folder of a run.

    Parameters
    ----------
    folder : pathlib.Path
        Holds the pictures that the summary names.
    summary : dict
        See `demo.report`.

    Returns
    -------
    pathlib.Path
    """
    test, config = summary["test"], summary["config"]
    names = [name for name in test if "map" in name or name.startswith("coco")]
    means = [["mean", *(_number(test[name]) for name in names)]]
    classes = [
        [cls, *(_number(values.get(name)) for name in names)]
        for cls, values in test["per_class"].items()
    ]
    pictures = []
    for name in summary["files"]:
        content = base64.b64encode((folder / name).read_bytes()).decode()
        pictures.append(
            f'<h2>{_CAPTIONS[name]}</h2>\n<img alt="{_CAPTIONS[name]}" '
            f'src="data:image/png;base64,{content}">'
        )
    page = _PAGE.format(
        dataset=escape(summary["dataset"]),
        network=escape(config["network"]),
        head=escape(config["head"]),
        k=config["k"],
        step=summary["checkpoint_step"],
        images=test["images"],
        ms=test["ms_per_image"],
        scores=_table(["class", *names], means + classes),
        recall=_table(
            ["proposals", "recall at IoU .5"],
            [[top, _number(value)] for top, value in test["rpn_recall"].items()],
        ),
        pictures="\n".join(pictures),
        arguments=_table(["argument", "value"], [[k, v] for k, v in summary["arguments"].items()]),
    )
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _table(head: list, rows: list) -> str:
    lines = ["<tr>" + "".join(f"<th>{escape(str(cell))}</th>" for cell in head) + "</tr>"]
    for row in rows:
        lines.append("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>")
    return "<table>\n" + "\n".join(lines) + "\n</table>"
