# SPDX-License-Identifier: Apache-2.0
"""Cuts the annotated aerial photographs in the wheel of deepforest into a VOC folder of tiles.

python examples/tree_crowns.py deepforest-2.1.0-py3-none-any.whl trees
"""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

from PIL import Image

#: Tiles of one photograph are trained on, those of the other one are held back.
PHOTOGRAPHS = {
    "train": "2019_YELL_2_528000_4978000_image_crop2",
    "val": "2019_YELL_2_541000_4977000_image_crop",
}
TILE = 320  # pixels, which are 10 cm on the ground
#: Tiles to train on overlap, so that each tree is complete in one of them.
STRIDES = {"train": 160, "val": 320}
CORNERS = ("xmin", "ymin", "xmax", "ymax")


def main(wheel: Path, folder: Path) -> None:
    """Write the tiles of both photographs, their annotations and their lists."""
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        for split, name in PHOTOGRAPHS.items():
            stem = f"deepforest/data/{name}"
            photograph = Image.open(io.BytesIO(archive.read(f"{stem}.png"))).convert("RGB")
            names = cut(photograph, read_boxes(archive.read(f"{stem}.xml")), split, folder)
            (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n")
            print(f"{split}: {len(names)} tiles of {name}")


def read_boxes(xml: bytes) -> list[list[float]]:
    """Return the corners of all trees, in VOC's pixels, which start at 1 and are inclusive."""
    entries = ElementTree.fromstring(xml).iter("bndbox")
    return [[float(entry.findtext(tag) or "nan") for tag in CORNERS] for entry in entries]


def cut(photograph: Image.Image, boxes: list[list[float]], split: str, folder: Path) -> list[str]:
    """Write the tiles that have a tree, and return their names."""
    names = []
    for top in range(0, photograph.height - TILE + 1, STRIDES[split]):
        for left in range(0, photograph.width - TILE + 1, STRIDES[split]):
            rows = [row for box in boxes if (row := clip(box, left, top))]
            if rows:
                names.append(f"{split}_{top:04d}_{left:04d}")
                tile = photograph.crop((left, top, left + TILE, top + TILE))
                tile.save(folder / "JPEGImages" / f"{names[-1]}.png")
                write_annotation(folder / "Annotations" / f"{names[-1]}.xml", rows)
    return names


def clip(box: list[float], left: int, top: int) -> list[float]:
    """Return the part of a box inside a tile, or nothing if that is less than half of it."""
    x1, y1, x2, y2 = box[0] - left, box[1] - top, box[2] - left, box[3] - top
    inside = [max(x1, 1), max(y1, 1), min(x2, TILE), min(y2, TILE)]
    width, height = inside[2] - inside[0] + 1, inside[3] - inside[1] + 1
    whole = (x2 - x1 + 1) * (y2 - y1 + 1)
    return inside if min(width, height) > 0 and width * height >= 0.5 * whole else []


def write_annotation(path: Path, rows: list[list[float]]) -> None:
    """Write VOC's XML file of a tile."""
    root = ElementTree.Element("annotation")
    size = ElementTree.SubElement(root, "size")
    for tag, value in zip(("width", "height", "depth"), (TILE, TILE, 3)):
        ElementTree.SubElement(size, tag).text = str(value)
    for row in rows:
        entry = ElementTree.SubElement(root, "object")
        ElementTree.SubElement(entry, "name").text = "tree"
        bounds = ElementTree.SubElement(entry, "bndbox")
        for tag, value in zip(CORNERS, row):
            ElementTree.SubElement(bounds, tag).text = f"{value:g}"
    ElementTree.ElementTree(root).write(str(path))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
