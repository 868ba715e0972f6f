# SPDX-License-Identifier: Apache-2.0
"""Folders in the layout of PASCAL VOC, also as labelling tools write them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from ..errors import BrokenFile, InputError
from .dataset import (
    AnnotatedImage,
    AnnotatedObject,
    DetectionSet,
    clip_box,
    first_names,
    is_clipped,
    plural,
)
from .images import check_exists, find_files, has_suffix
from .splits import SPLIT_NAMES, Source, find_split_folders

LISTS = Path("ImageSets", "Main")
#: Folders of images next to Annotations; the second one is Label Studio's.
IMAGE_FOLDERS = ("JPEGImages", "images")
#: The beginning of CVAT's labelmap.txt.
_LABEL_MAP = b"# label:color_rgb"
#: Tools whose corners are edges that count from 0, and what stands in all their XML files.
_TOOLS = {
    "Label Studio": (b"<owner>", b"<name>Label Studio</name>"),
    "labelImg": (b"<path>", b"<database>Unknown</database>"),
}
#: A corner that may be below 1, where VOC begins to count.
_LOW_CORNER = re.compile(rb"<[xy]min>\s*([-+]?0?[.0][^<]*|-[^<]*)<")


class VocLists(NamedTuple):
    """Lists of images in VOC folders.

    `lists` are pairs: a year (for the folder VOC<year>) or a folder, and the name of a list in
    ImageSets/Main, or None for all images that have an annotation. Objects of other classes are
    left out if `open_classes`; otherwise their file is broken. `from_zero` says why corners are
    edges that count from 0; if it is empty, they are the first and the last pixel, from 1 on.
    """

    root: Path
    lists: tuple[tuple[int | str, str | None], ...]
    open_classes: bool
    from_zero: str = ""

    def read(self, classes: Sequence[str]) -> DetectionSet:
        """Read the annotations; raise InputError if a folder or list is missing or empty."""
        folders = [self.root / (f"VOC{at}" if isinstance(at, int) else at) for at, _ in self.lists]
        names = [name for _, name in self.lists]
        titles = [f"{f.resolve().name} {name or ''}".strip() for f, name in zip(folders, names)]
        dataset = DetectionSet(" and ".join(titles), classes)
        dataset.annotated_classes = set()
        if self.from_zero:
            dataset.notes.append(f"boxes of {dataset} count from 0, VOC's from 1: {self.from_zero}")
        images: list[AnnotatedImage] = []
        for folder, (at, name) in zip(folders, self.lists):
            allowed = None if self.open_classes else classes
            for image in _read_folder(dataset, folder, name, allowed, not self.from_zero):
                images.append(image if at == "." else image._replace(name=f"{at}/{image.name}"))
        dataset.add_checked(images)
        return dataset


def find_sources(root: Path) -> dict[str, Source | None] | None:
    """Return the lists of a VOC-like folder by purpose; None if it is not one."""
    lists: dict[str, tuple[str, str | None] | None] = {}
    if _has_xml(root) or any((root / part).is_dir() for part in ("JPEGImages", "Annotations")):
        names = {path.stem.lower(): path.stem for path in (root / LISTS).glob("*.txt")}
        has_val = any(name in names for name in SPLIT_NAMES["val"])
        train = ("train", "trainval") if has_val else ("trainval", "train")
        for purpose, order in {**SPLIT_NAMES, "train": train}.items():
            listed = [names[name] for name in order if name in names]
            lists[purpose] = (".", listed[0]) if listed else None
        lists["train"] = lists["train"] or (".", None)
        annotations = [*find_files(root / "Annotations", _is_xml), *root.iterdir()]
    else:
        annotations = []
        for purpose, folders in find_split_folders(root).items():
            folder = next(filter(_has_xml, folders), None)
            lists[purpose] = (folder.name, None) if folder else None
            annotations += folder.iterdir() if folder else []
        if not lists["train"]:
            return None
    from_zero = _counts_from_zero(root, annotations)
    return {
        purpose: VocLists(root, (pair,), open_classes=True, from_zero=from_zero) if pair else None
        for purpose, pair in lists.items()
    }


def _has_xml(folder: Path) -> bool:
    return any(map(_is_xml, folder.glob("*")))


def _is_xml(path: Path) -> bool:
    return path.suffix.lower() == ".xml"


def _counts_from_zero(root: Path, annotations: Sequence[Path]) -> str:
    """Return what shows that corners are edges that count from 0; "" if nothing does.

    CVAT, Label Studio and labelImg write edges. VOC's pixels count from 1, so a corner below 1 is
    of another tool that counts from 0, and so are all files of the data set.
    """
    label_map = root / "labelmap.txt"
    if label_map.is_file() and label_map.read_bytes().startswith(_LABEL_MAP):
        return "CVAT wrote them (labelmap.txt)"
    low = []
    for path in filter(Path.is_file, filter(_is_xml, annotations)):
        content = path.read_bytes()
        for tool, marks in _TOOLS.items():
            if all(mark in content for mark in marks):
                return f"{tool} wrote them ({path.name})"
        if any(map(_is_below_one, _LOW_CORNER.findall(content))):
            low.append(path.name)
    return f"{plural(len(low), 'file')} with a corner below 1 ({first_names(low)})" if low else ""


def _is_below_one(text: bytes) -> bool:
    try:
        return float(text) < 1
    except ValueError:
        return False


def _read_folder(
    dataset: DetectionSet,
    folder: Path,
    list_name: str | None,
    allowed: Sequence[str] | None,
    from_one: bool,
) -> Iterator[AnnotatedImage]:
    """Yield the images of a list, or all that have an annotation; see `read_annotation`."""
    list_path = folder / LISTS / f"{list_name}.txt"
    annotation_folder = folder / "Annotations"
    image_folder = next(
        (folder / name for name in IMAGE_FOLDERS if (folder / name).exists()),
        folder / IMAGE_FOLDERS[0],
    )
    is_flat = not image_folder.exists() and not annotation_folder.exists() and _has_xml(folder)
    if is_flat:
        image_folder = annotation_folder = folder  # as labelImg writes them
        if inner := [path.name for path in sorted(folder.iterdir()) if _has_xml(path)]:
            dataset.notes.append(f"folders in {folder} are not read: {first_names(inner)}")
    needed = [image_folder, annotation_folder]
    for path in ([list_path] if list_name else []) + needed:
        if not path.exists():
            layout = "a VOC layout with JPEGImages, Annotations and ImageSets/Main"
            raise InputError(f"dataset: {path} is missing; expected {layout} in {folder}")
    images = _files_by_name(image_folder, has_suffix, is_flat)
    annotations = _files_by_name(annotation_folder, _is_xml, is_flat)
    if list_name:
        known = {*images, *annotations}
        names = [_resolve_listed_name(line, known) for line in read_list(list_path)]
    elif annotations:
        names = list(annotations)
    else:
        raise InputError(f"dataset: {annotation_folder} holds no annotation, expected *.xml")
    for name, times in Counter(names).items():
        if times > 1:
            dataset.broken.append(f"{list_path} names {name} more than once")
    used = set()
    for name in dict.fromkeys(names):
        xml = annotations.get(name, [annotation_folder / f"{name}.xml"])[0]
        size: tuple[float, float] = (0, 0)
        objects: list[AnnotatedObject] = []
        errors: list[str] = []
        file_name = ""
        try:
            size, objects, file_name = read_annotation(xml, allowed, from_one)
        except BrokenFile as error:
            errors.append(str(error))
        path, *twins = _find_images(image_folder, images, name, file_name)
        if twins:
            errors.append(f"{path} has the name of {', '.join(twin.name for twin in twins)}")
        used.add(path)
        yield AnnotatedImage(name, path, size, objects, errors)
    if not list_name:
        others = [path for name in sorted(images.keys() - set(names)) for path in images[name]]
        dataset.note_unlabelled([path.name for path in others if path not in used])


def _find_images(
    folder: Path, images: dict[str, list[Path]], name: str, file_name: str
) -> list[Path]:
    """Return the images that an annotation may be of.

    They are the images with the name of the XML file; if one of them is its <filename>, only that
    one. If there is no such image, its <filename> may have any name.
    """
    file = Path(file_name).name
    found = images.get(name, [])
    named = [path for path in found if path.name == file]
    if not found and file:
        sibling = (Path(name).parent / Path(file).stem).as_posix()
        named = [path for path in images.get(sibling, []) if path.name == file]
    return named or found or [folder / f"{name}.jpg"]


def _files_by_name(
    folder: Path, accepts: Callable[[Path], bool], is_flat: bool
) -> dict[str, list[Path]]:
    """Return the accepted files by their names without endings, subfolders included unless flat."""
    paths = sorted(filter(accepts, folder.iterdir())) if is_flat else find_files(folder, accepts)
    found: dict[str, list[Path]] = {}
    for path in paths:
        found.setdefault(path.relative_to(folder).with_suffix("").as_posix(), []).append(path)
    return found


def _resolve_listed_name(line: str, known: set[str]) -> str:
    """Return the name in a line of a list.

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


class _Builder(ElementTree.TreeBuilder):
    """Builds a tree of a file without document type."""

    def doctype(self, name: str, *_: str | None) -> None:
        """Refuse entities: nested ones turn a small file into gigabytes; annotations need none."""
        raise ValueError(f"it declares a document type, '{name}'")


def read_annotation(
    path: Path, classes: Sequence[str] | None, from_one: bool = True
) -> tuple[tuple[float, float], list[AnnotatedObject], str]:
    """Read the XML file of an image: its width and height in pixels, its objects, its file name.

    <difficult>, <truncated>, <pose> and <filename> may be absent. Corners are the first and the
    last pixel, which count from 1, or edges if not `from_one`. Boxes are clipped by `clip_box`.
    `classes` are the names that an object may have; any if None.
    """
    check_exists(path)
    try:
        parser = ElementTree.XMLParser(target=_Builder())
        root = ElementTree.fromstring(path.read_bytes(), parser)
    except (OSError, LookupError, ValueError, ElementTree.ParseError) as error:
        raise BrokenFile(f"{path} is not valid XML: {error}") from error
    try:
        entry = _child(root, "size")
        width, height = _number(entry, "width"), _number(entry, "height")
        if min(width, height) < 1:
            raise BrokenFile(f"gives {width:g} x {height:g} as <size>, expected at least 1 x 1")
        found = [_object(o, (width, height), classes, from_one) for o in root.iter("object")]
    except BrokenFile as error:
        raise BrokenFile(f"{path} {error}") from error
    return (width, height), found, (root.findtext("filename") or "").strip()


def _object(
    entry: ElementTree.Element,
    size: tuple[float, float],
    classes: Sequence[str] | None,
    from_one: bool,
) -> AnnotatedObject:
    name = (_child(entry, "name").text or "").strip()
    if not name or (classes is not None and name not in classes):
        expected = "a name" if classes is None else f"one of {', '.join(classes)}"
        raise BrokenFile(f"holds class '{name}', expected {expected}")
    bounds = _child(entry, "bndbox")
    corners = [_number(bounds, tag) for tag in ("xmin", "ymin", "xmax", "ymax")]
    described = "of '{}' from ({:g}, {:g}) to ({:g}, {:g})".format(name, *corners)
    xmin, ymin, xmax, ymax = corners
    first = 1 if from_one else 0
    box = [xmin - first, ymin - first, xmax, ymax]
    inside = clip_box(box, size)
    shortest = min(xmax - xmin, ymax - ymin)
    if shortest < 0 or (shortest == 0 and not from_one):
        below = "<=" if from_one else "<"
        raise BrokenFile(f"has a box {described}, expected xmin {below} xmax and ymin {below} ymax")
    if inside is None:
        limits = "within ({0}, {0}) to ({1:g}, {2:g})".format(first, *size)
        raise BrokenFile(f"has a box {described}, expected {limits}")
    difficult = (entry.findtext("difficult") or "").strip().lower() in ("1", "true")
    return AnnotatedObject(name, inside, difficult, clipped=is_clipped(box, inside))


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
