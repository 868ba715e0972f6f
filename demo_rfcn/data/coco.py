"""Reading COCO folders through GluonCV and pycocotools."""

from __future__ import annotations

import importlib.util
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from gluoncv.data import COCODetection
from gluoncv.utils.bbox import bbox_clip_xyxy, bbox_xywh_to_xyxy

from ..errors import BrokenFile, InputError
from ..files import read_json
from .images import check_image
from .voc import LABEL_WIDTH


class COCOFolder(COCODetection):
    """GluonCV's COCODetection with labels of `VOCFolder`'s form; crowds count as difficult.

    Images without boxes are kept. All files are looked at here: broken ones, and broken entries of
    the annotation file, are noted in `broken`, and their images left out. Boxes are clipped to
    their image; those that have less than a pixel then are left out, as in GluonCV: COCO itself has
    two without height. `area`, `iscrowd` and, beside `file_name`, `coco_url` may be absent.

    Parameters
    ----------
    root : str or pathlib.Path
        Folder with `annotations` and the image folders.
    split : str
        Name of the annotation file, `instances_val2017` for example.

    Attributes
    ----------
    broken : list of str
        One sentence for every broken file or entry.
    left_out : set of str
        Paths of the images that are left out.

    Raises
    ------
    InputError
        pycocotools or the annotation file is missing, or that file is not COCO's.
    """

    def __init__(self, root: Path | str, split: str) -> None:
        # GluonCV would run pip by itself.
        if importlib.util.find_spec("pycocotools") is None:
            raise InputError("dataset: 'coco' needs pycocotools; run 'pip install pycocotools'")
        self._path = Path(root) / "annotations" / f"{split}.json"
        if not self._path.is_file():
            raise InputError(
                f"dataset: {self._path} is missing; expected the COCO layout in {root}"
            )
        self.broken: list[str] = []
        self.left_out: set[str] = set()
        super().__init__(root=str(root), splits=(split,))

    @property
    def labels(self) -> list[np.ndarray]:
        """Labels of all images, each (M, 6) float32."""
        return self._labels

    @property
    def images(self) -> list[str]:
        """Paths of all images."""
        return self._items

    def aspect_ratio(self, index: int) -> float:
        """Return width / height of an image."""
        return self._im_aspect_ratios[index]

    def image_id(self, index: int) -> int:
        """Return COCO's number of an image."""
        return self._numbers[index]

    def _load_jsons(self) -> tuple[list[str], list[np.ndarray], list[float]]:
        from pycocotools.coco import COCO

        coco = COCO()
        coco.dataset = self._whole_entries(read_json(self._path, "dataset"))
        with redirect_stdout(StringIO()):
            coco.createIndex()
        self._coco.append(coco)
        self._numbers = sorted(coco.imgs)
        entries = coco.loadImgs(self._numbers)
        paths = [self._parse_image_path(entry) for entry in entries]
        labels = [self._rows(entry, coco.imgToAnns[entry["id"]]) for entry in entries]
        return paths, labels, [entry["width"] / entry["height"] for entry in entries]

    def _parse_image_path(self, entry: dict) -> str:
        if "/" in str(entry.get("coco_url")):
            return super()._parse_image_path(entry)
        folder = self._path.stem.split("_", 1)[-1]
        return str(Path(self._root, folder, _field(entry, "file_name", str)))

    def _whole_entries(self, content: Any) -> dict:
        """Return the annotation file without the images that are broken in any way."""
        parts = ("images", "annotations", "categories")
        if not isinstance(content, dict) or not all(
            isinstance(content.get(part), list) for part in parts
        ):
            raise InputError(f"dataset: {self._path} does not hold lists of {', '.join(parts)}")
        try:
            names = {entry["id"]: entry["name"] for entry in content["categories"]}
        except (KeyError, TypeError):
            names = {}
        if list(names.values()) != list(self.classes):
            raise InputError(
                f"dataset: {self._path} has the categories {', '.join(map(str, names.values()))}, "
                f"expected COCO's {len(self.classes)} in their order"
            )
        self.contiguous_id_to_json = dict(enumerate(names))
        self.json_id_to_contiguous = {number: cls for cls, number in enumerate(names)}

        images: dict[int, dict] = {}
        whole: set[int] = set()
        for place, entry in enumerate(content["images"]):
            path = f"{self._path}: images[{place}]"
            try:
                number = _field(entry, "id", int)
                if number in images:
                    raise BrokenFile(f"has the id of another image, {number}")
                size = _field(entry, "width", (int, float)), _field(entry, "height", (int, float))
                if not min(size) >= 1:
                    raise BrokenFile(f"gives {size[0]} x {size[1]} as its size")
                images[number] = entry
                path = self._parse_image_path(entry)
                if not Path(path).parent.is_dir():
                    raise InputError(f"dataset: folder {Path(path).parent} of images is missing")
            except BrokenFile as error:
                self.broken.append(f"{path} {error}")
                self.left_out.add(path)
                continue
            try:
                check_image(Path(path), size)
                whole.add(number)
            except BrokenFile as error:
                self.broken.append(str(error))
                self.left_out.add(path)
        kept: dict[int, dict] = {}
        for place, entry in enumerate(content["annotations"]):
            image = None
            try:
                image = images.get(_field(entry, "image_id", int))
                _check_annotation(entry, image, names)
                if entry["id"] in kept:
                    raise BrokenFile(f"has the id of another annotation, {entry['id']}")
                kept[entry["id"]] = entry
            except BrokenFile as error:
                self.broken.append(f"{self._path}: annotations[{place}] {error}")
                if image and image["id"] in whole:
                    whole.remove(image["id"])
                    self.left_out.add(self._parse_image_path(image))
        return {
            **content,
            "images": [entry for number, entry in images.items() if number in whole],
            "annotations": [entry for entry in kept.values() if entry["image_id"] in whole],
        }

    def _rows(self, image: dict, annotations: list) -> np.ndarray:
        rows = []
        for entry in annotations:
            box = bbox_clip_xyxy(bbox_xywh_to_xyxy(entry["bbox"]), image["width"], image["height"])
            counts = entry["area"] > 0 and not entry.get("ignore", 0)
            if counts and box[0] < box[2] and box[1] < box[3]:
                cls = self.json_id_to_contiguous[entry["category_id"]]
                rows.append((*box, cls, bool(entry["iscrowd"])))
        return np.array(rows, np.float32).reshape(-1, LABEL_WIDTH)


def _field(entry: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    """Return a field of an entry of the annotation file, if it is of the type."""
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, kind):
        raise BrokenFile(f"has {value!r} for '{name}'")
    return value


def _check_annotation(entry: dict, image: dict | None, categories: dict) -> None:
    """Check an annotation of an image; supply what may be absent."""
    if image is None:
        raise BrokenFile(f"is of image {entry['image_id']}, which the file does not have")
    _field(entry, "id", int)
    if _field(entry, "category_id", int) not in categories:
        raise BrokenFile(f"is of category {entry['category_id']}, which the file does not have")
    box = _field(entry, "bbox", list)
    numbers = all(isinstance(side, (int, float)) and abs(side) < 1e9 for side in box)  # no NaN
    if len(box) != 4 or not numbers or min(box[2:]) < 0:
        raise BrokenFile(f"has the box {box}, expected x, y, width, height")
    x, y, width, height = box
    if x >= image["width"] or y >= image["height"] or x + width < 0 or y + height < 0:
        size = f"{image['width']} x {image['height']}"
        raise BrokenFile(f"has the box {box} outside its image of {size} pixels")
    entry.setdefault("area", width * height)
    entry.setdefault("iscrowd", 0)
    _field(entry, "area", (int, float))
