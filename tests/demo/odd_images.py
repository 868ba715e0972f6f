# SPDX-License-Identifier: Apache-2.0
"""Odd but legal content, of phones, scanners and labelling tools, as a VOC folder and as COCO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable
from xml.etree import ElementTree

import numpy as np
from PIL import Image

ORIENTATION = 0x112
CLASSES = ("cup", "spoon")


def picture(width: int = 96, height: int = 72, seed: int = 0) -> np.ndarray:
    """Return a noisy image with a bright box, edges (20, 10, 60, 50), RGB."""
    image = np.random.default_rng(seed).integers(0, 90, (height, width, 3)).astype(np.uint8)
    image[10:50, 20:60] = (250, 200, 40)
    return image


def plain(**how: Any) -> Callable:
    """Return a function that saves an image in the format of its name."""
    return lambda pixels, path: Image.fromarray(pixels).save(path, **how)


def converted(mode: str, **how: Any) -> Callable:
    """Return a function that saves an image in another mode of Pillow."""
    return lambda pixels, path: Image.fromarray(pixels).convert(mode).save(path, **how)


def turned(orientation: int) -> Callable:
    """Return a function that saves an image as a rotated camera does: the pixels, and a tag."""

    def save(pixels: np.ndarray, path: Path) -> None:
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        stored = np.rot90(pixels, {3: 2, 6: 1, 8: -1}[orientation])
        Image.fromarray(np.ascontiguousarray(stored)).save(path, quality=95, exif=exif)

    return save


def sixteen_bits(pixels: np.ndarray, path: Path) -> None:
    Image.fromarray(pixels.mean(axis=2).astype(np.uint16) * 257).save(path)


#: By file name: how it is saved. Number n holds `picture(seed=n)`, upright.
KINDS: dict[str, Callable] = {
    "plain.jpg": plain(quality=95),
    "UPPER.JPG": plain(quality=95),
    "Mixed.JpEg": plain(format="JPEG", quality=95),
    "tasse è 猫.jpg": plain(quality=95),
    "a b (copy) 1.jpg": plain(quality=95),
    "two.dots.in.name.png": plain(),
    "grey.jpg": converted("L", quality=95),
    "grey-p.png": converted("L"),
    "rgba.png": converted("RGBA"),
    "palette.png": converted("P"),
    "16 bits.png": sixteen_bits,
    "cmyk.jpg": converted("CMYK", quality=95),
    "progressive.jpg": plain(quality=95, progressive=True),
    "picture.bmp": plain(),
    "picture-w.webp": plain(lossless=True),
    "picture-t.tiff": plain(),
    "phone-6.jpg": turned(6),
    "phone-8.jpg": turned(8),
    "phone-3.jpg": turned(3),
}


def annotation(path: Path, size: tuple[int, int], objects: list) -> None:
    """Write VOC's XML: objects are (class, box), boxes are edges."""
    root = ElementTree.Element("annotation")
    entry = ElementTree.SubElement(root, "size")
    for tag, value in zip(("width", "height", "depth"), (*size, 3)):
        ElementTree.SubElement(entry, tag).text = str(value)
    for name, box in objects:
        entry = ElementTree.SubElement(root, "object")
        ElementTree.SubElement(entry, "name").text = name
        bounds = ElementTree.SubElement(entry, "bndbox")
        x1, y1, x2, y2 = box
        for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), (x1 + 1, y1 + 1, x2, y2)):
            ElementTree.SubElement(bounds, tag).text = str(value)
    ElementTree.ElementTree(root).write(str(path), encoding="utf-8")


def write_voc_like(root: Path) -> Path:
    """Write all kinds of images with their boxes as a folder without lists."""
    images, annotations = root / "JPEGImages", root / "Annotations"
    for folder in (images, annotations):
        folder.mkdir(parents=True)
    for number, (name, save) in enumerate(KINDS.items()):
        save(picture(seed=number), images / name)
        objects = [(CLASSES[number % 2], (20, 10, 60, 50))]
        annotation(annotations / f"{Path(name).stem}.xml", (96, 72), objects)
    odd = {
        "dot": ((1, 1), [("cup", (0, 0, 1, 1))]),
        "line": ((96, 72), [("spoon", (5, 5, 6, 61)), ("cup", (0, 71, 96, 72))]),
        "panorama": ((900, 12), [("cup", (10, 2, 41, 10))]),
        "empty": ((96, 72), []),
    }
    for name, (size, objects) in odd.items():
        Image.fromarray(picture(*size, seed=99)).save(images / f"{name}.png")
        annotation(annotations / f"{name}.xml", size, objects)
    return root


def write_coco(root: Path, names: tuple[str, ...] = CLASSES) -> tuple[Path, Path]:
    """Write the same as an annotation file and a folder of images; ids have gaps, and no order."""
    folder = root / "my photos"
    folder.mkdir(parents=True)
    ids = {name: 7 * (len(names) - place) for place, name in enumerate(names)}
    images: list[dict] = []
    boxes: list[dict] = []
    for number, (name, save) in enumerate(KINDS.items()):
        save(picture(seed=number), folder / name)
        images.append({"id": 900 - number, "file_name": name, "width": 96, "height": 72})
        boxes.append(
            {
                "id": number + 5,
                "image_id": 900 - number,
                "category_id": ids[names[number % len(names)]],
                "bbox": [20, 10, 40, 40],
            }
        )
    common = {"image_id": 900, "category_id": ids[names[0]]}
    boxes += [
        {"id": 1000, **common, "bbox": [0, 0, 96, 72], "iscrowd": 1, "area": 90.5},
        {"id": 1001, **common, "bbox": [5, 5, 0, 9]},  # without area
    ]
    Image.fromarray(picture(seed=99)).save(folder / "empty.png")
    images.append({"id": 3, "file_name": "empty.png", "width": 96, "height": 72})
    categories = [{"id": number, "name": name} for name, number in ids.items()]
    path = root / "export.json"
    content = {"images": images, "annotations": boxes, "categories": categories}
    path.write_text(json.dumps(content))
    return path, folder
