# SPDX-License-Identifier: Apache-2.0
"""Folders in the layout of YOLO: data.yaml, images, and a text file of boxes for each image."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ..errors import BrokenFile, InputError
from .dataset import AnnotatedImage, AnnotatedObject, DetectionSet, clip_box, is_clipped, plural
from .images import check_exists, find_files, has_suffix, read_header
from .splits import SPLIT_NAMES, Source, find_split_folders

#: Files with the names of the classes, one per line, where there is no data.yaml.
CLASS_FILES = ("classes.txt", "labels/classes.txt", "obj.names", "_darknet.labels")
_KEY = re.compile(r"([A-Za-z_]\w*)\s*:(?:\s+(.*))?$")
#: A part of a list in brackets: quoted and plain text up to the next comma.
_ITEM = re.compile(r"""(?:'(?:[^']|'')*'|"(?:[^"\\]|\\.)*"|[^,'"])+""")


class YoloFolders(NamedTuple):
    """Folders of images, or lists of them in text files, and the names of the classes.

    `left_out` are folders of other purposes inside them. `keypoints` is the number of values of
    keypoints in a row, which follow the box.
    """

    root: Path
    places: tuple[Path, ...]
    names: tuple[str, ...]
    left_out: tuple[Path, ...] = ()
    keypoints: int = 0

    def read(self, classes: Sequence[str]) -> DetectionSet:
        """Read the boxes of all images; without `classes`, the set has all names, in their order.

        Images without a file of boxes are left out. Raises InputError if there are no images.
        """
        titles = [_relative(place, self.root) for place in self.places]
        title = f"{self.root.resolve().name} {' and '.join(titles)}"
        dataset = DetectionSet(title, classes or self.names)
        dataset.annotated_classes = set(self.names)
        found: list[Path] = []
        for place in self.places:
            found += self._find_images(place, dataset)
        images, unlabelled, used = [], [], set()
        for path in dict.fromkeys(found):
            label_path = _label_path(path)
            if path.is_file() and not label_path.is_file():
                unlabelled.append(path.name)
                continue
            image = AnnotatedImage(_relative(path, self.root), path, (0, 0), [], [])
            if label_path in used:
                image.errors.append(f"{path} has the boxes of another image, {label_path}")
            used.add(label_path)
            try:
                size = read_header(path).upright
                image.objects.extend(_read_labels(label_path, self.names, size, self.keypoints))
            except BrokenFile as error:
                if not str(error).startswith(str(path)):  # the check of the images reports those
                    image.errors.append(str(error))
            images.append(image)
        if not images:
            places = " or ".join(str(place) for place in self.places)
            raise InputError(f"dataset: {places} has no image with a file of boxes")
        folders = {place for place in self.places if place.is_dir()}
        folders |= {path.parent for path in found if not folders.intersection(path.parents)}
        for folder in sorted(folders):
            dataset.broken += _find_orphans(folder)
        dataset.note_unlabelled(unlabelled)
        dataset.add_checked(images)
        return dataset

    def _find_images(self, place: Path, dataset: DetectionSet) -> list[Path]:
        """Return the images in a folder and its subfolders, or the images of a list.

        Raises InputError if no image of a list is there.
        """
        if place.is_dir():
            return [
                path
                for path in find_files(place, has_suffix)
                if not any(folder in path.parents for folder in self.left_out)
            ]
        lines = [line.strip() for line in _read_index(place).splitlines() if line.strip()]
        for line, times in Counter(lines).items():
            if times > 1:
                dataset.broken.append(f"{place} names {line} more than once")
        paths = [_find_listed(line, place.parent, self.root) for line in lines]
        if not any(map(os.path.isfile, paths)):  # of any text, unlike Path.is_file
            none = f"none of the {plural(len(paths), 'image')} of {place} is there"
            first = f", the first would be {paths[0]}" if paths else ""
            raise InputError(f"dataset: {none}{first}")
        return paths


def find_sources(root: Path) -> dict[str, Source | None] | None:
    """Return the image folders of a YOLO export by purpose; None if the folder is not one.

    Validation folders equal to the training folders are ignored, so that images are held back.
    """
    folders = find_split_folders(root)
    config, names, keypoints = _read_config(root, folders)
    if not config and not _has_labels([root, root / "images", *sum(folders.values(), [])]):
        return None
    if not names:
        expected = f"expected them in data.yaml, or in {', '.join(CLASS_FILES)}"
        raise InputError(f"dataset: {root} has YOLO's labels without names of classes; {expected}")
    base = root / str(config.get("path") or "")
    places: dict[str, tuple[Path, ...]] = {}
    for purpose, purpose_names in SPLIT_NAMES.items():
        value = next((config[name] for name in purpose_names if config.get(name)), None)
        entries = value if isinstance(value, list) else [value] if value else []
        known = [_resolve_place(root, base, str(entry)) for entry in entries]
        if purpose == "train" and None in known:
            missing = entries[known.index(None)]
            raise InputError(f"dataset: folder {missing} of data.yaml is missing in {root}")
        places[purpose] = tuple(place for place in known if place)
        if not value:
            usual = [path / "images" for path in folders[purpose]]
            usual += find_split_folders(root / "images")[purpose]
            usual += [path for path in folders[purpose] if find_files(path, has_suffix)]
            places[purpose] = tuple(filter(Path.is_dir, usual))[:1]
    left_out: tuple[Path, ...] = ()
    if not places["train"]:
        places["train"] = (root / "images" if (root / "images").is_dir() else root,)
        left_out = places["val"] + places["test"]
    return {
        purpose: YoloFolders(root, found, names, left_out if purpose == "train" else (), keypoints)
        if found and (purpose == "train" or found != places["train"])
        else None
        for purpose, found in places.items()
    }


def _has_labels(folders: Sequence[Path]) -> bool:
    """Return whether a folder has YOLO's labels, in a separate folder or with the images."""
    return any(
        (folder / "labels").is_dir()
        or any(path.with_suffix(".txt").is_file() for path in filter(has_suffix, folder.glob("*")))
        for folder in folders
    )


def _resolve_place(root: Path, base: Path, entry: str) -> Path | None:
    """Return the folder, or list of images, that data.yaml names; None if it is missing.

    Roboflow writes ../train/images for train/images, CVAT data/train.txt for train.txt, and other
    tools the path on their machine.
    """
    inner = re.sub(r"^(\.\.?[\\/])+", "", entry)
    parts = Path(inner).parts
    for place in (base / entry, root / entry, root / inner, root / Path(*parts[-2:])):
        if place.exists():
            return _spell_from(root, place)
    last = root / parts[-1]
    return last if last.is_file() else None


def _spell_from(root: Path, place: Path) -> Path:
    """Return a path inside the root as it is written from the root, in any spelling of both.

    Names of images are relative to the root. Links inside it are kept: labels are found by the
    names of folders.
    """
    for spell in (os.path.abspath, os.path.realpath):
        top, inner = Path(spell(root)), Path(spell(place))
        if top in inner.parents:
            return root / inner.relative_to(top)
    return place


def _find_listed(line: str, folder: Path, root: Path) -> Path:
    """Return the path of an image in a list, which is in a folder.

    CVAT writes data/ in front of paths, and other tools write those on their machine: if there is
    no such file, the path continues from the root after its first folders.
    """
    parts = PurePosixPath(line.replace("\\", "/")).parts
    places = [root.joinpath(*parts[start:]) for start in range(len(parts))]
    return next(filter(os.path.isfile, [folder / line, *places]), folder / line)


def _relative(path: Path, root: Path) -> str:
    """Return a path as it is written from the root, if it is inside."""
    return path.relative_to(root).as_posix() if root in path.parents else path.as_posix()


def _label_path(image: Path) -> Path:
    """Return the file of an image's boxes: in `labels` in place of `images`, or with the image."""
    path, parts = image.with_suffix(".txt"), [*image.parts]
    if "images" not in parts:
        return path
    index = len(parts) - 1 - parts[::-1].index("images")
    mapped = Path(*parts[:index], "labels", *parts[index + 1 :]).with_suffix(".txt")
    return path if path.is_file() and not mapped.is_file() else mapped


def _find_orphans(folder: Path) -> list[str]:
    """Return a sentence for each file of boxes whose image is missing in a folder of images."""
    labels = _label_path(folder / "image").parent
    if labels == folder:
        return []  # other text files may be with the images
    images = {path.relative_to(folder).with_suffix("") for path in find_files(folder, has_suffix)}
    return [
        f"{path} has boxes of an image that is missing"
        for path in find_files(labels, lambda path: path.suffix == ".txt")
        if path.relative_to(labels).with_suffix("") not in images and path.name != "classes.txt"
    ]


def _read_labels(
    path: Path, names: Sequence[str], size: tuple[int, int], keypoints: int
) -> list[AnnotatedObject]:
    """Read the boxes of an image of a size, width and height in pixels.

    A row has a class and, as fractions of the image, the centre and the sides of a box, then as
    many values of `keypoints`; or the corners of a polygon, of which the bounding box is returned.
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
        polygon = not keypoints and len(values) >= 7 and len(values) % 2 == 1
        is_row = polygon or len(values) in (5, 5 + keypoints)
        if not is_row or not all(map(math.isfinite, values)):
            expected = "a class and 4 numbers, or a class and the corners of a polygon"
            if keypoints:
                expected = f"a class, the 4 numbers of a box, and {keypoints} of keypoints"
            raise BrokenFile(f"{path}: line {number} is '{line.strip()[:60]}', expected {expected}")
        cls, *rest = values
        if cls not in range(len(names)):
            classes = f"0 to {len(names) - 1}"
            raise BrokenFile(f"{path}: line {number} has class {cls:g}, expected {classes}")
        if polygon:
            fractions = [extreme(rest[axis::2]) for extreme in (min, max) for axis in (0, 1)]
        else:
            x, y, width, height = rest[:4]
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


def _read_config(
    root: Path, folders: dict[str, list[Path]]
) -> tuple[dict[str, Any], tuple[str, ...], int]:
    """Return the keys of a folder's data.yaml or obj.data, the classes, and the keypoints' values.

    Keys are in lower case. The first two are empty if there is no such file.
    """
    files = [*sorted(root.glob("*.yaml")), *sorted(root.glob("*.yml"))]
    files.sort(key=lambda path: path.name != "data.yaml")
    for path in files:
        config = parse_yaml(path, ("path", "names", "kpt_shape", *sum(SPLIT_NAMES.values(), ())))
        if names := config.get("names"):
            if isinstance(names, dict):
                if sorted(names) != sorted(str(index) for index in range(len(names))):
                    numbers = ", ".join(names)
                    raise InputError(f"dataset: {path} names classes {numbers}, expected 0, 1, ...")
                names = [names[str(index)] for index in range(len(names))]
            return config, _check_names(path, names), _count_keypoints(path, config)
    config = {}
    if (root / "obj.data").is_file():  # of CVAT and Darknet, lines "key = value"
        lines = _read_index(root / "obj.data").splitlines()
        pairs = (line.partition("=") for line in lines)
        config = {key.strip().lower(): value.strip() for key, _, value in pairs}
    named = [root / name for name in CLASS_FILES]
    named += [folder / name for folder in folders["train"] for name in CLASS_FILES]
    for path in filter(Path.is_file, named):
        lines = [line.strip() for line in _read_index(path).splitlines()]
        return config, _check_names(path, [line for line in lines if line]), 0
    return config, (), 0


def _count_keypoints(path: Path, config: dict[str, Any]) -> int:
    """Return the number of values of keypoints in a row: points times 2 or 3."""
    shape = config.get("kpt_shape", ["0", "2"])
    if not isinstance(shape, list) or not all(str(side).isdigit() for side in shape):
        raise InputError(f"dataset: {path} has kpt_shape {shape}, expected [points, 2 or 3]")
    return math.prod(map(int, shape))


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
            current = lines.setdefault(match[1].lower(), [])
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
