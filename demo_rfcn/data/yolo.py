# SPDX-License-Identifier: Apache-2.0
"""Folders in the layout of YOLO: data.yaml, images, and a text file of boxes for each image."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BrokenFile, InputError
from .dataset import AnnotatedImage, AnnotatedObject, DetectionSet, clip_box, is_clipped
from .images import check_exists, has_suffix, read_header
from .splits import SPLIT_FOLDERS, Source

#: Files with the names of the classes, one per line, where there is no data.yaml.
CLASS_FILES = ("classes.txt", "labels/classes.txt", "obj.names")
_KEY = re.compile(r"([A-Za-z_]\w*)\s*:(?:\s+(.*))?$")
#: A part of a list in brackets: quoted and plain text up to the next comma.
_ITEM = re.compile(r"""(?:'(?:[^']|'')*'|"(?:[^"\\]|\\.)*"|[^,'"])+""")


class YoloFolders(NamedTuple):
    """Folders of images, or lists of them in text files, and the names of the classes."""

    root: Path
    places: tuple[Path, ...]
    names: tuple[str, ...]

    def read(self, classes: Sequence[str]) -> DetectionSet:
        """Read the boxes of all images; without `classes`, the set has all names, in their order.

        Images without a file of boxes are left out. Raises InputError if there are no images.
        """
        titles = [_relative(place, self.root) for place in self.places]
        title = f"{self.root.resolve().name} {' and '.join(titles)}"
        dataset = DetectionSet(title, classes or self.names)
        dataset.annotated_classes = set(self.names)
        found = [image for place in self.places for image in _find_images(place)]
        images, unlabelled, used = [], [], set()
        for path in dict.fromkeys(found):
            label_path = _label_path(path)
            if not label_path.is_file():
                unlabelled.append(path.name)
                continue
            name = _relative(path, self.root)
            image = AnnotatedImage(name, path, (0, 0), [], [])
            if label_path in used:
                image.errors.append(f"{path} has the boxes of another image, {label_path}")
            used.add(label_path)
            try:
                image.objects.extend(
                    _read_labels(label_path, self.names, read_header(path).upright)
                )
            except BrokenFile as error:
                if not str(error).startswith(str(path)):  # the check of the images reports those
                    image.errors.append(str(error))
            images.append(image)
        if not images:
            places = " or ".join(str(place) for place in self.places)
            raise InputError(f"dataset: {places} has no image with a file of boxes")
        for folder in sorted({path.parent for path in used if path.parent.name != "images"}):
            if folder not in {path.parent for path in found}:
                for path in sorted(folder.glob("*.txt")):
                    if path not in used and path.name != "classes.txt":
                        dataset.broken.append(f"{path} has boxes of an image that is missing")
        dataset.note_unlabelled(unlabelled)
        dataset.add_checked(images)
        return dataset


def find_sources(root: Path) -> dict[str, Source | None] | None:
    """Return the image folders of a YOLO export by purpose; None if the folder is not one.

    Validation folders equal to the training folders are ignored, so that images are held back.
    """
    config, names = _read_config(root)
    if not config and not _has_labels(root):
        return None
    if not names:
        expected = f"expected them in data.yaml, or in {', '.join(CLASS_FILES)}"
        raise InputError(f"dataset: {root} has YOLO's labels without names of classes; {expected}")
    base = root / str(config.get("path") or "")
    found: dict[str, Source | None] = {}
    for purpose, folders in SPLIT_FOLDERS.items():
        value = config.get(purpose) or config.get("valid" if purpose == "val" else purpose)
        entries = value if isinstance(value, list) else [value] if value else []
        places = [_resolve_place(root, base, str(entry)) for entry in entries]
        if purpose == "train" and None in places:
            missing = entries[places.index(None)]
            raise InputError(f"dataset: folder {missing} of data.yaml is missing in {root}")
        known = [place for place in places if place]
        if not value:
            usual = [
                f"{a}/{b}" for name in folders for a, b in ((name, "images"), ("images", name))
            ]
            known = [root / place for place in usual if (root / place).is_dir()][:1]
        if not known and purpose == "train":
            known = [root / "images" if (root / "images").is_dir() else root]
        found[purpose] = YoloFolders(root, tuple(known), names) if known else None
    for purpose in ("val", "test"):
        if found[purpose] == found["train"]:
            found[purpose] = None
    return found


def _has_labels(root: Path) -> bool:
    """Return whether a folder has YOLO's labels, in separate folders or with the images."""
    folders = ("labels", *(f"{name}/labels" for name in SPLIT_FOLDERS["train"]))
    with_images = (path.with_suffix(".txt") for path in root.iterdir() if has_suffix(path))
    return any((root / name).is_dir() for name in folders) or any(map(Path.is_file, with_images))


def _resolve_place(root: Path, base: Path, entry: str) -> Path | None:
    """Return the folder, or list of images, that data.yaml names; None if it is missing.

    Roboflow writes ../train/images for train/images, and other tools the path on their machine.
    """
    inner = re.sub(r"^(\.\.?[\\/])+", "", entry)
    tail = Path(*Path(inner).parts[-2:])
    for place in (base / entry, root / entry, root / inner, root / tail):
        if place.exists():
            resolved, top = place.resolve(), root.resolve()
            # Names of images are relative to the root, in any spelling of its path.
            return root / resolved.relative_to(top) if top in resolved.parents else place
    return None


def _relative(path: Path, root: Path) -> str:
    """Return a path as it is written from the root, if it is inside."""
    return path.relative_to(root).as_posix() if root in path.parents else path.as_posix()


def _find_images(place: Path) -> list[Path]:
    """Return the images in a folder and its subfolders, or the images of a list."""
    if place.is_dir():
        return sorted(filter(has_suffix, place.rglob("*")))
    lines = _read_index(place).splitlines()
    return [place.parent / line.strip() for line in lines if line.strip()]


def _label_path(image: Path) -> Path:
    """Return the file of an image's boxes: in `labels` in place of `images`, or with the image."""
    path, parts = image.with_suffix(".txt"), [*image.parts]
    if "images" not in parts:
        return path
    index = len(parts) - 1 - parts[::-1].index("images")
    mapped = Path(*parts[:index], "labels", *parts[index + 1 :]).with_suffix(".txt")
    return path if path.is_file() and not mapped.is_file() else mapped


def _read_labels(path: Path, names: Sequence[str], size: tuple[int, int]) -> list[AnnotatedObject]:
    """Read the boxes of an image of a size, width and height in pixels.

    A row has a class and, as fractions of the image, the centre and the sides of a box, or the
    corners of a polygon, of which the bounding box is returned.
    """
    if not path.stat().st_size:
        return []
    objects = []
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            values = [float(word) for word in line.split()]
        except ValueError:
            values = []
        polygon = len(values) >= 7 and len(values) % 2 == 1
        if not (polygon or len(values) == 5) or not all(map(math.isfinite, values)):
            expected = "a class and 4 numbers, or a class and the corners of a polygon"
            raise BrokenFile(f"{path}: line {number} is '{line.strip()[:60]}', expected {expected}")
        cls, *rest = values
        if cls not in range(len(names)):
            classes = f"0 to {len(names) - 1}"
            raise BrokenFile(f"{path}: line {number} has class {cls:g}, expected {classes}")
        if polygon:
            fractions = [extreme(rest[axis::2]) for extreme in (min, max) for axis in (0, 1)]
        else:
            x, y, width, height = rest
            fractions = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
        box = x1, y1, x2, y2 = [part * side for part, side in zip(fractions, size * 2)]
        inside = clip_box(box, size)
        if inside is None or min(x2 - x1, y2 - y1) <= 0:
            expected = "expected fractions of the image's width and height, within it"
            raise BrokenFile(
                f"{path}: line {number} has the box {' '.join(line.split()[1:])}, {expected}"
            )
        objects.append(AnnotatedObject(names[int(cls)], inside, clipped=is_clipped(box, inside)))
    return objects


def _read_index(path: Path) -> str:
    """Return the text of a file without which there is no data set."""
    try:
        return _read_text(path)
    except BrokenFile as error:
        raise InputError(f"dataset: {error}") from error


def _read_text(path: Path) -> str:
    check_exists(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BrokenFile(f"{path} is not text in UTF-8: {error}") from error


def _read_config(root: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the keys of a folder's data.yaml, and the names of the classes; {} and () if none."""
    files = [*sorted(root.glob("*.yaml")), *sorted(root.glob("*.yml"))]
    files.sort(key=lambda path: path.name != "data.yaml")
    for path in files:
        config = parse_yaml(path, ("path", "names", *SPLIT_FOLDERS, "valid"))
        if names := config.get("names"):
            if isinstance(names, dict):
                if sorted(names) != sorted(str(index) for index in range(len(names))):
                    numbers = ", ".join(names)
                    raise InputError(f"dataset: {path} names classes {numbers}, expected 0, 1, ...")
                names = [names[str(index)] for index in range(len(names))]
            return config, _check_names(path, names)
    for path in (root / name for name in CLASS_FILES):
        if path.is_file():
            lines = [line.strip() for line in _read_index(path).splitlines()]
            return {}, _check_names(path, [line for line in lines if line])
    return {}, ()


def _check_names(path: Path, names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(names) or len(set(names)) < len(names):
        raise InputError(
            f"dataset: {path} has {names!r} as names, expected a list of different names"
        )
    return tuple(names)


def parse_yaml(path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Read some keys of a YAML file as exports write them: a text, a list or a mapping of texts.

    Lists and mappings are in brackets, or have a line for each entry. Other keys may have any
    content. Raises InputError if one of the keys has another form.
    """
    lines: dict[str, list[str]] = {}
    current: list[str] = []
    for raw in _read_index(path).splitlines():
        line = _without_comment(raw).rstrip()
        if match := _KEY.match(line):
            current = lines.setdefault(match[1], [])
            current.append((match[2] or "").strip())
        elif line.strip() and line != "---":
            current.append(line.strip())
    values = {}
    for key in keys:
        if key in lines:
            try:
                values[key] = _parse_value(lines[key])
            except ValueError as error:
                raise InputError(
                    f"dataset: {path} has '{key}' in an unknown form: {error}"
                ) from error
    return values


def _without_comment(line: str) -> str:
    for match in re.finditer(r"(^|\s)#", line):
        before = line[: match.start()]
        if before.count("'") % 2 == 0 and before.count('"') % 2 == 0:
            return before
    return line


def _parse_value(lines: list[str]) -> Any:
    first, *rest = lines
    if first[:1] in ("[", "{"):
        text = " ".join(lines)
        if text[-1] != {"[": "]", "{": "}"}[first[0]]:
            raise ValueError(f"'{text[:60]}' has no closing bracket")
        entries = [entry.strip() for entry in _ITEM.findall(text[1:-1]) if entry.strip()]
        return [_scalar(e) for e in entries] if first[0] == "[" else _parse_mapping(entries)
    if first and rest:
        raise ValueError(f"'{rest[0][:60]}' follows '{first[:60]}'")
    if first or not rest:
        return _scalar(first)
    if all(line.startswith("- ") for line in rest):
        return [_scalar(line[2:].strip()) for line in rest]
    return _parse_mapping(rest)


def _parse_mapping(entries: list[str]) -> dict[str, str]:
    found = {}
    for entry in entries:
        key, colon, value = entry.partition(":")
        if not colon:
            raise ValueError(f"'{entry[:60]}', expected 'number: name'")
        found[_scalar(key.strip())] = _scalar(value.strip())
    return found


def _scalar(text: str) -> str:
    """Return a text without its quotes."""
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    if len(text) > 1 and text[0] == text[-1] == '"':
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text
