# SPDX-License-Identifier: Apache-2.0
"""Folders in the layout of PASCAL VOC: reading them, also those of labelling tools; writing."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

import cv2
import numpy as np

from ..errors import BrokenFile, InputError
from ..progress import Progress
from . import signals
from .dataset import AnnotatedImage, AnnotatedObject, DetectionSet, plural
from .images import check_exists, has_suffix

YEAR_FOLDER = "VOC2007"  # of a generated set
LISTS = Path("ImageSets", "Main")


def read_folders(
    root: Path, lists: Sequence[tuple], classes: Sequence[str], leaves_out: bool
) -> DetectionSet:
    """Read VOC folders; raise InputError if a folder or list is missing or empty.

    `lists` are pairs: a year (for the folder VOC<year>) or a folder, and the name of a list in
    ImageSets/Main, or None for all images that have an annotation. Objects of other classes are
    left out if `leaves_out`; otherwise their file is broken.
    """
    places = [root / (f"VOC{at}" if isinstance(at, int) else at) for at, _ in lists]
    titles = [f"{p.resolve().name} {name or ''}".strip() for p, (_, name) in zip(places, lists)]
    dataset = DetectionSet(" and ".join(titles), classes)
    dataset.annotated_classes = set()
    images: list[AnnotatedImage] = []
    for place, (at, name) in zip(places, lists):
        for image in _described(dataset, place, name, None if leaves_out else classes):
            images.append(image if at == "." else image._replace(name=f"{at}/{image.name}"))
    dataset.add_checked(images)
    return dataset


def _described(
    dataset: DetectionSet, folder: Path, list_name: str | None, allowed: Sequence[str] | None
) -> Iterator[AnnotatedImage]:
    """Yield the images of a list, or all that have an annotation."""
    list_path = folder / LISTS / f"{list_name}.txt"
    places = [folder / "JPEGImages", folder / "Annotations"]
    if not any(place.exists() for place in places) and any(folder.glob("*.[xX][mM][lL]")):
        places = [folder, folder]  # as labelImg writes them
    for wanted in (*([list_path] if list_name else []), *places):
        if not wanted.exists():
            layout = "a VOC layout with JPEGImages, Annotations and ImageSets/Main"
            raise InputError(f"dataset: {wanted} is missing; expected {layout} in {folder}")
    images = _by_name(places[0], has_suffix)
    annotations = _by_name(places[1], lambda path: path.suffix.lower() == ".xml")
    if list_name:
        names = [
            _resolve_listed_name(line, {*images, *annotations}) for line in read_list(list_path)
        ]
    else:
        if not annotations:
            raise InputError(f"dataset: {places[1]} holds no annotation, expected *.xml")
        names = list(annotations)
        others = [p.name for n in sorted(images.keys() - annotations.keys()) for p in images[n]]
        if others:
            shown = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
            count = plural(len(others), "image")
            dataset.notes.append(f"{count} without annotation left out: {shown}")
    for name, times in Counter(names).items():
        if times > 1:
            dataset.broken.append(f"{list_path} names {name} more than once")
        path, *doubles = images.get(name, [places[0] / f"{name}.jpg"])
        xml = annotations.get(name, [places[1] / f"{name}.xml"])[0]
        image = AnnotatedImage(name, path, (0, 0), [], [])
        try:
            size, objects = read_annotation(xml, allowed)
            image = image._replace(size=size, objects=objects)
        except BrokenFile as error:
            image.faults.append(str(error))
        if doubles:
            names_of_others = ", ".join(double.name for double in doubles)
            image.faults.append(f"{path} has the name of {names_of_others}")
        yield image


def _by_name(folder: Path, wanted: Callable[[Path], bool]) -> dict[str, list[Path]]:
    """Return the wanted files of a folder by their names without endings."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if wanted(path):
            found.setdefault(path.stem, []).append(path)
    return found


def _resolve_listed_name(line: str, known: set[str]) -> str:
    """Return the name that a line of a list means.

    The lists of one class have rows "name 1", "name 0" and "name -1"; but a name may end so.
    """
    short = re.sub(r"\s+(-1|0|1)$", "", line)
    stems = [str(Path(each).with_suffix("")) for each in (line, short) if has_suffix(Path(each))]
    return next((name for name in (line, short, *stems) if name in known), short)


def read_list(path: Path) -> list[str]:
    """Return the lines of a list of images; raise InputError if it is not text or is empty."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"dataset: {path} is not a list of images in UTF-8: {error}") from error
    names = [line.strip() for line in lines if line.strip().strip("\0")]
    if not names:
        raise InputError(f"dataset: {path} names no image, expected one name per line")
    return names


def read_annotation(
    path: Path, classes: Sequence[str] | None
) -> tuple[tuple[float, float], list[AnnotatedObject]]:
    """Read the XML file of an image: its width and height in pixels, and its objects.

    <difficult>, <truncated> and <pose> may be absent. Boxes may extend beyond the image by a pixel,
    as those of tools that count from 0, or to the width instead of the last column; they are
    clipped. `classes` are the names that an object may have; any if None.
    """
    check_exists(path)
    try:
        data = path.read_bytes()
        guard = expat.ParserCreate()
        guard.EntityDeclHandler = _refuse_entity
        guard.Parse(data, True)
        root = ElementTree.fromstring(data)
    except (OSError, LookupError, ValueError, expat.ExpatError, ElementTree.ParseError) as error:
        raise BrokenFile(f"{path} is not whole XML: {error}") from error
    try:
        entry = _child(root, "size")
        width, height = _number(entry, "width"), _number(entry, "height")
        if min(width, height) < 1:
            raise BrokenFile(f"gives {width:g} x {height:g} as <size>, expected at least 1 x 1")
        found = [_object(entry, width, height, classes) for entry in root.iter("object")]
    except BrokenFile as error:
        raise BrokenFile(f"{path} {error}") from error
    return (width, height), found


def _refuse_entity(name: str, *_: object) -> None:
    """Refuse entities: nested ones turn a small file into gigabytes; annotations need none."""
    raise ValueError(f"it declares an entity, '{name}'")


def _object(
    entry: ElementTree.Element, width: float, height: float, classes: Sequence[str] | None
) -> AnnotatedObject:
    name = (_child(entry, "name").text or "").strip()
    if not name or (classes is not None and name not in classes):
        expected = "a name" if classes is None else f"one of {', '.join(classes)}"
        raise BrokenFile(f"holds class '{name}', expected {expected}")
    bounds = _child(entry, "bndbox")
    box = [_number(bounds, tag) for tag in ("xmin", "ymin", "xmax", "ymax")]
    x1, y1, x2, y2 = (side - 1 for side in box)  # VOC counts from 1
    shown = "of '{}' from ({:g}, {:g}) to ({:g}, {:g})".format(name, *box)
    if min(x1, y1) < -1 or x2 > width or y2 > height:
        raise BrokenFile(f"has a box {shown}, expected within (1, 1) to ({width:g}, {height:g})")
    x1, y1, x2, y2 = max(x1, 0), max(y1, 0), min(x2, width - 1), min(y2, height - 1)
    if not (x1 <= x2 and y1 <= y2):
        raise BrokenFile(f"has a box {shown}, expected xmin <= xmax and ymin <= ymax")
    difficult = (entry.findtext("difficult") or "").strip().lower() in ("1", "true")
    return AnnotatedObject(name, (x1, y1, x2, y2), difficult)


def _child(entry: ElementTree.Element, tag: str) -> ElementTree.Element:
    child = entry.find(tag)
    if child is None:
        raise BrokenFile(f"has <{entry.tag}> without <{tag}>")
    return child


def _number(entry: ElementTree.Element, tag: str) -> float:
    text = (_child(entry, tag).text or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BrokenFile(f"has '{text}' for <{tag}>, expected a number")
    return value


def write_image(folder: Path, name: str, image: np.ndarray, objects: list[signals.Object]) -> None:
    """Write an image, (H, W, 3) uint8, RGB, as JPEGImages/<name>.jpg and Annotations/<name>.xml."""
    # Not imwrite, which ignores a full disk.
    coded = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 92])[1]
    (folder / "JPEGImages" / f"{name}.jpg").write_bytes(coded.tobytes())
    root = ElementTree.Element("annotation")
    ElementTree.SubElement(root, "filename").text = f"{name}.jpg"
    size = ElementTree.SubElement(root, "size")
    for tag, value in zip(("height", "width", "depth"), image.shape):
        ElementTree.SubElement(size, tag).text = str(value)
    for class_name, box, difficult in objects:
        entry = ElementTree.SubElement(root, "object")
        ElementTree.SubElement(entry, "name").text = class_name
        ElementTree.SubElement(entry, "difficult").text = str(int(difficult))
        bounds = ElementTree.SubElement(entry, "bndbox")
        for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), box):
            ElementTree.SubElement(bounds, tag).text = str(value + 1)  # VOC counts from 1
    ElementTree.ElementTree(root).write(str(folder / "Annotations" / f"{name}.xml"))


def write_splits(
    folder: Path, paint: Callable, splits: dict[str, int], seed: int, recipe: str
) -> None:
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (folder / part).mkdir(parents=True)
    with Progress(f"painting {recipe}", "images", total=sum(splits.values())) as progress:
        for number, (split, count) in enumerate(splits.items()):
            names = [f"{split}_{index:05d}" for index in range(count)]
            for index, name in enumerate(names):
                image, objects = paint(np.random.default_rng([seed, number, index]))
                write_image(folder, name, image, objects)
                progress.update()
            (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n")
