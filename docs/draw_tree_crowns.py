# SPDX-License-Identifier: Apache-2.0
"""Draws docs/tree_crowns.png: the detections of docs/own_data.md, section 6, in two photographs.

    python docs/draw_tree_crowns.py trees/JPEGImages runs/trees/found

The arguments are the folder of the images, and the one in which `demo_rfcn detect` wrote the boxes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import theme

NAMES = ("val_0000_0320", "val_0320_0320")
SIDE, GAP = 4.1, 0.1  # inches


def draw(images: Path, found: Path) -> Any:
    """Draw the images in a row, each box with its score."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Rectangle

    figure, axes = pyplot.subplots(1, len(NAMES), figsize=(theme.WIDTH, SIDE))
    figure.subplots_adjust(0, 0, 1, 1, wspace=GAP / SIDE)
    for axis, name in zip(axes, NAMES):
        image = Image.open(images / f"{name}.png")
        axis.imshow(np.asarray(image), extent=(0, image.width, image.height, 0))
        axis.set_axis_off()
        rows = json.loads((found / f"{name}.json").read_text(encoding="utf-8"))["detections"]
        # The best boxes last, so that their labels lie above the others.
        for row in reversed(rows):
            x1, y1, x2, y2 = row["box"]
            axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, ec="red", lw=1.5))
        for row in reversed(rows):
            x1, y1, *_ = row["box"]
            box: Any = {"facecolor": "red", "edgecolor": "none", "pad": 1}
            style: Any = {"fontsize": 9, "va": "bottom" if y1 > 12 else "top", "clip_on": True}
            axis.text(max(x1, 0), max(y1, 0), f"{row['score']:.2f}", bbox=box, **style)
    return figure


def main(images: Path, found: Path) -> None:
    """Write the picture, with a gap of a grey that suits light and dark pages."""
    path = Path(__file__).with_name("tree_crowns.png")
    draw(images, found).savefig(path, dpi=theme.DPI, facecolor="0.5")
    with Image.open(path) as picture:  # a palette takes a third of the bytes
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
