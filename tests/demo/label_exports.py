# SPDX-License-Identifier: Apache-2.0
"""Data sets as labelling tools export them, drawn small: red cups and blue spoons."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("cup", "spoon")
SIZE = WIDTH, HEIGHT = 96, 72
COLOURS = {"cup": (220, 30, 30), "spoon": (30, 30, 220)}
#: Numbers of the images by folder, where an export has one folder per split.
SPLITS = {"train": (0, 1, 2, 3), "valid": (4, 5), "test": (6,)}
EVERY = sum(SPLITS.values(), ())


def boxes(number: int) -> dict[str, tuple[int, int, int, int]]:
    """Return the edges of the cup and of the spoon of an image."""
    return {"cup": (6 + number, 8, 36 + number, 32), "spoon": (52, 40 - number, 86, 58 - number)}


def draw(path: Path, number: int) -> None:
    """Draw an image, without loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((HEIGHT, WIDTH, 3), 90 + number, np.uint8)
    for name, (x1, y1, x2, y2) in boxes(number).items():
        pixels[y1:y2, x1:x2] = COLOURS[name]
    Image.fromarray(pixels).save(path)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def voc(path: Path, number: int, first: int = 0, head: str = "") -> None:
    """Write an XML file; its first pixel is 1 as in VOC, or corners are edges from 0."""
    size = f"<size><width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth></size>"
    objects = ""
    for name, (x1, y1, x2, y2) in boxes(number).items():
        corners = {"xmin": x1 + first, "ymin": y1 + first, "xmax": x2, "ymax": y2}
        box = "".join(f"<{tag}>{value}</{tag}>" for tag, value in corners.items())
        objects += f"<object><name>{name}</name><bndbox>{box}</bndbox></object>"
    write(path, f"<annotation>{head}{size}{objects}</annotation>")


def yolo(path: Path, number: int) -> None:
    """Write a text file of boxes."""
    rows = []
    for cls, (x1, y1, x2, y2) in enumerate(boxes(number).values()):
        sides = (x1 + x2) / 2 / WIDTH, (y1 + y2) / 2 / HEIGHT, (x2 - x1) / WIDTH, (y2 - y1) / HEIGHT
        rows.append(f"{cls} " + " ".join(f"{side:.6f}" for side in sides))
    write(path, "\n".join(rows) + "\n")


def coco(path: Path, numbers: tuple, name: str = "photo_{}.png", dummy: bool = False) -> None:
    """Write an annotation file, perhaps with a category that only groups the others."""
    images: list[dict] = []
    objects: list[dict] = []
    for number in numbers:
        entry = {"id": number, "file_name": name.format(number)}
        images.append({**entry, "width": WIDTH, "height": HEIGHT})
        for cls, (x1, y1, x2, y2) in enumerate(boxes(number).values(), start=int(dummy)):
            box = {"bbox": [x1, y1, x2 - x1, y2 - y1], "category_id": cls, "image_id": number}
            objects.append({"id": len(objects), **box})
    group = "things" if dummy else ""
    categories = [{"name": each, "supercategory": group} for each in CLASSES]
    if dummy:
        categories.insert(0, {"name": group, "supercategory": "none"})
    content = {
        "images": images,
        "annotations": objects,
        "categories": [{"id": number, **each} for number, each in enumerate(categories)],
    }
    write(path, json.dumps(content))


def voc_lists(root: Path) -> None:
    """PASCAL VOC itself."""
    for number in EVERY:
        draw(root / "JPEGImages" / f"{number}.png", number)
        voc(root / "Annotations" / f"{number}.xml", number, first=1)
    for name, part in zip(("train", "val", "test"), SPLITS.values()):
        write(root / "ImageSets/Main" / f"{name}.txt", "\n".join(map(str, part)))


def voc_cvat(root: Path) -> None:
    head = "<source><database>Unknown</database><annotation>Unknown</annotation></source>"
    for number in EVERY:
        draw(root / "JPEGImages/camera" / f"{number}.png", number)
        voc(root / "Annotations/camera" / f"{number}.xml", number, 0, head)
    write(root / "labelmap.txt", "# label:color_rgb:parts:actions\nbackground:0,0,0::\n")
    for name, part in zip(("Train", "Validation", "Test"), SPLITS.values()):
        write(root / "ImageSets/Main" / f"{name}.txt", "".join(f"camera/{n}\n" for n in part))


def voc_labelimg(root: Path) -> None:
    for number in EVERY:
        draw(root / f"{number}.png", number)
        head = f"<path>/home/me/{number}.png</path><source><database>Unknown</database></source>"
        voc(root / f"{number}.xml", number, 0, head)


def voc_label_studio(root: Path) -> None:
    head = "<folder>images</folder><filename>{}</filename><owner><name>Label Studio</name></owner>"
    for number in EVERY:
        draw(root / "images" / f"{number}.png", number)
        voc(root / "Annotations" / f"{number}.xml", number, 0, head.format(number))


def voc_roboflow(root: Path) -> None:
    for folder, part in SPLITS.items():
        for number in part:
            draw(root / folder / f"{number}.png", number)
            head = f"<path>{number}.png</path><source><database>roboflow.com</database></source>"
            voc(root / folder / f"{number}.xml", number, 1, head)


def coco_roboflow(root: Path) -> None:
    for folder, part in SPLITS.items():
        for number in part:
            draw(root / folder / f"photo_{number}.png", number)
        coco(root / folder / "_annotations.coco.json", part, dummy=True)


def coco_cvat(root: Path) -> None:
    for number in EVERY:
        draw(root / "images/default" / f"photo_{number}.png", number)
    coco(root / "annotations/instances_default.json", EVERY)


def coco_label_studio(root: Path) -> None:
    for number in EVERY:
        draw(root / "images" / f"photo_{number}.png", number)
    coco(root / "result.json", EVERY, "images/photo_{}.png")


def coco_2017(root: Path) -> None:
    for folder, part in zip(("train2017", "val2017", "test2017"), SPLITS.values()):
        for number in part:
            draw(root / folder / f"photo_{number}.png", number)
        coco(root / "annotations" / f"instances_{folder}.json", part)


def yolo_labelimg(root: Path) -> None:
    for number in EVERY:
        draw(root / f"{number}.png", number)
        yolo(root / f"{number}.txt", number)
    write(root / "classes.txt", "cup\nspoon\n")


def yolo_label_studio(root: Path) -> None:
    for number in EVERY:
        draw(root / "images" / f"{number}.png", number)
        yolo(root / "labels" / f"{number}.txt", number)
    write(root / "classes.txt", "cup\nspoon\n")
    write(root / "notes.json", '{"categories": [{"id": 0, "name": "cup"}], "info": {}}')


def yolo_ultralytics(root: Path) -> None:
    for folder, part in SPLITS.items():
        for number in part:
            draw(root / "images" / folder / f"{number}.png", number)
            yolo(root / "labels" / folder / f"{number}.txt", number)
    keys = "path: ../datasets/photos\ntrain: images/train\nval: images/valid\ntest: images/test\n"
    write(root / "photos.yaml", f"{keys}names:\n  0: cup\n  1: spoon\n")


def yolo_roboflow(root: Path) -> None:
    for folder, part in SPLITS.items():
        for number in part:
            draw(root / folder / "images" / f"{number}.png", number)
            yolo(root / folder / "labels" / f"{number}.txt", number)
    keys = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n"
    write(root / "data.yaml", f"{keys}\nnc: 2\nnames: ['cup', 'spoon']\n")


def yolo_darknet(root: Path) -> None:
    """Roboflow's Darknet."""
    for folder, part in SPLITS.items():
        for number in part:
            draw(root / folder / f"{number}.png", number)
            yolo(root / folder / f"{number}.txt", number)
        write(root / folder / "_darknet.labels", "cup\nspoon\n")


def yolo_cvat(root: Path) -> None:
    """CVAT's YOLO 1.1."""
    keys = ["classes = 2", "names = data/obj.names", "backup = backup/"]
    for name, part in zip(("train", "Validation", "test"), SPLITS.values()):
        lines = []
        for number in part:
            draw(root / f"obj_{name}_data" / f"{number}.png", number)
            yolo(root / f"obj_{name}_data" / f"{number}.txt", number)
            lines.append(f"data/obj_{name}_data/{number}.png\n")
        write(root / f"{name}.txt", "".join(lines))
        keys.insert(1, f"{name} = data/{name}.txt")
    write(root / "obj.data", "\n".join(keys) + "\n")
    write(root / "obj.names", "cup\nspoon\n")


def yolo_cvat_lists(root: Path) -> None:
    """CVAT's Ultralytics YOLO."""
    for name, part in zip(("train", "val", "test"), SPLITS.values()):
        for number in part:
            draw(root / "images" / name / f"{number}.png", number)
            yolo(root / "labels" / name / f"{number}.txt", number)
        lines = "".join(f"data/images/{name}/{number}.png\n" for number in part)
        write(root / f"{name}.txt", lines)
    keys = "path: .\ntrain: train.txt\nval: val.txt\ntest: test.txt\n"
    write(root / "data.yaml", f"names:\n  0: cup\n  1: spoon\n{keys}")


def yolo_names_alone(root: Path) -> None:
    """Folders of the splits, and a data.yaml that does not name them."""
    yolo_darknet(root)
    write(root / "data.yaml", "names: [cup, spoon]\n")


#: Whether the export has training, validation and test images, by the function that draws it.
LAYOUTS: dict[Callable[[Path], None], bool] = {
    voc_lists: True,
    voc_cvat: True,
    voc_labelimg: False,
    voc_label_studio: False,
    voc_roboflow: True,
    coco_roboflow: True,
    coco_cvat: False,
    coco_label_studio: False,
    coco_2017: True,
    yolo_labelimg: False,
    yolo_label_studio: False,
    yolo_ultralytics: True,
    yolo_roboflow: True,
    yolo_darknet: True,
    yolo_cvat: True,
    yolo_cvat_lists: True,
    yolo_names_alone: True,
}
