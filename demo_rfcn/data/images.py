# SPDX-License-Identifier: Apache-2.0
"""Image files: complete, upright according to their EXIF tag, three channels of eight bits."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from ..errors import BrokenFile

# Pillow warns of more pixels, and refuses twice as many. Phones take 200 million.
Image.MAX_IMAGE_PIXELS = 2**27

SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".dib", ".webp", ".tif", ".tiff", ".gif"),
    *(".jp2", ".ppm", ".pgm", ".pbm", ".pnm", ".ras", ".avif"),
    *(".heic", ".heif"),  # of phones; reported, because Pillow does not decode them
)

_END = b"\xff\xd9"
_PNG_END = b"IEND\xaeB`\x82"
#: Largest value of a grey image with more than 8 bits, and the factor that makes them 8 bits.
_RANGES = {1: 255.0, 255: 1.0, 4095: 1 / 16, 65535: 1 / 256}
# Within compressed data, ff stands before 00 or before the number of a restart; before another
# marker it may be repeated.
_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")
_ORIENTATION, _BITS_PER_SAMPLE = 0x112, 0x102


def has_suffix(path: Path) -> bool:
    """Return whether a file has the name of an image."""
    return path.suffix.lower() in SUFFIXES


class Header(NamedTuple):
    """Format, width and height of the stored pixels, and EXIF orientation, 1 (upright) to 8.

    `limit` is the end of the range of the stored values: 255, or one of `_RANGES`.
    """

    format: str
    size: tuple[int, int]
    orientation: int
    limit: int = 255

    @property
    def upright(self) -> tuple[int, int]:
        """Width and height of the upright image."""
        return self.size if self.orientation <= 4 else (self.size[1], self.size[0])


@contextlib.contextmanager
def _open_image(path: Path) -> Iterator[Image.Image]:
    """Open an image file with Pillow; raise BrokenFile if its content makes that fail."""
    check_exists(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images and of unused tags
            with Image.open(path) as image:
                yield image
    except UnidentifiedImageError as error:
        why = "not an image"
        if path.read_bytes()[4:8] == b"ftyp":
            why = "in a format that Pillow does not decode (HEIF); make it a JPEG"
        raise BrokenFile(f"{path} is {why}") from error
    except BrokenFile:
        raise
    except Exception as error:  # Pillow's decoders raise many
        raise BrokenFile(f"{path} cannot be read: {error}") from error


def _read_header(image: Image.Image) -> Header:
    file_format, orientation = str(image.format), None
    if (
        file_format != "PNG" or "exif" in image.info
    ):  # a PNG would be decoded to look for a late tag
        with contextlib.suppress(Exception):  # a broken tag may raise anything
            orientation = image.getexif().get(_ORIENTATION)
    if not isinstance(orientation, int) or not 1 <= orientation <= 8:
        orientation = 1
    if file_format != "TIFF":
        return Header(file_format, image.size, orientation)
    # Pillow turns TIFFs by itself, and some versions give the size before that.
    width, height = (int(image.tag_v2[tag]) for tag in (256, 257))  # type: ignore[attr-defined]
    return Header(file_format, (width, height) if orientation <= 4 else (height, width), 1)


def check_exists(path: Path) -> None:
    """Raise BrokenFile if a file is missing or empty."""
    if not os.path.isfile(path):  # of any text, unlike Path.is_file
        raise BrokenFile(f"{path} is missing")
    if not path.stat().st_size:
        raise BrokenFile(f"{path} is empty")


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read_header(path: Path) -> Header:
    """Return the header of an image file; raise BrokenFile if it has none."""
    with _open_image(path) as image:
        return _read_header(image)


def check_image(path: Path) -> Header:
    """Return the header of an image file; raise BrokenFile if it is not complete."""
    with _open_image(path) as image:
        header = _read_header(image)
        # The last bytes show whether a file is complete, in a fraction of the time of decoding.
        if header.format in ("JPEG", "MPO"):
            if is_truncated_jpeg(path):
                raise BrokenFile(f"{path} is truncated")
        elif header.format == "PNG" and not _has_more_bits(image):
            if not _ends_with(path, _PNG_END):
                image.verify()
        else:
            image.load()
        return header._replace(limit=_find_limit(path, image))


def _has_more_bits(image: Image.Image) -> bool:
    """Return whether an image has one channel of 16 bits, of 32 bits or of floats."""
    return image.mode.startswith("I") or image.mode == "F"


def _find_limit(path: Path, image: Image.Image) -> int:
    """Return the end of the range of the stored values; raise BrokenFile if they fit none.

    Files do not say which part of 16 or 32 bits is used: the smallest usual range that holds the
    values is taken. Only floats may be fractions. Pillow divides the values of a TIFF with three
    channels of 16 bits by 256, which leaves nothing of 12 bits.
    """
    if not _has_more_bits(image):
        bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (8,))
        if max(bits) == 16 and np.asarray(image).max() < 16:
            raise BrokenFile(f"{path} has 12 of 16 bits in three channels, expected 8 or all 16")
        return 255
    values = np.asarray(image)
    low, high = values.min(), values.max()
    for limit in _RANGES:
        if low >= 0 and high <= limit and (limit > 1 or image.mode == "F"):
            return limit
    ranges = "0 to 1 (floats), 255, 4095 or 65535"
    raise BrokenFile(f"{path} has values from {low:g} to {high:g}, expected {ranges}")


def find_files(folder: Path, accepts: Callable[[Path], bool]) -> list[Path]:
    """Return the accepted files in a folder and its subfolders, in order of their paths.

    Links to folders are followed; a folder that is reached twice counts once.
    """
    found, seen = [], set()
    for place, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        found += [path for path in (Path(place, name) for name in names) if accepts(path)]
    return sorted(found)


class Reading(Enum):
    """How the boxes of an image are read, if EXIF's orientation turns or mirrors its pixels."""

    UPRIGHT = "boxes of the upright image"
    STORED = "boxes of the stored pixels, to be turned with them"
    AMBIGUOUS = "the annotation's size, if it has one, fits both: boxes of the upright image"


def upright_boxes(
    path: Path, header: Header, size: Sequence[float], boxes: np.ndarray
) -> tuple[np.ndarray, Reading]:
    """Return boxes (M, 4) in the upright image, and how they were read.

    Most tools write boxes for the upright image; some ignore the EXIF tag. If the annotation's size
    matches only the stored pixels, the boxes are turned with them. `size` is (0, 0) if the
    annotation has none; raises BrokenFile if it matches neither.
    """
    if tuple(size) not in ((0, 0), header.upright, header.size):
        pixels = "{} x {} pixels".format(*header.upright)
        annotated = "{:g} x {:g}".format(*size)
        raise BrokenFile(f"{path} has {pixels}, and its annotation has {annotated}")
    if header.orientation == 1:
        return boxes, Reading.UPRIGHT
    if tuple(size) == (0, 0) or header.upright == header.size:
        return boxes, Reading.AMBIGUOUS
    if tuple(size) == header.upright:
        return boxes, Reading.UPRIGHT
    return orient_boxes(boxes, header), Reading.STORED


def orient_boxes(boxes: np.ndarray, header: Header) -> np.ndarray:
    """Turn boxes (M, 4) of the stored pixels upright."""
    (width, height), orientation = header.size, header.orientation
    x1, y1, x2, y2 = boxes.T
    if orientation in (2, 3, 7, 8):
        x1, x2 = width - x2, width - x1
    if orientation in (3, 4, 6, 7):
        y1, y2 = height - y2, height - y1
    if orientation >= 5:
        x1, y1, x2, y2 = y1, x1, y2, x2
    return np.stack([x1, y1, x2, y2], axis=1)


def orient_pixels(image: np.ndarray, orientation: int) -> np.ndarray:
    """Turn stored pixels upright."""
    if orientation in (2, 3, 7, 8):
        image = image[:, ::-1]
    if orientation in (3, 4, 6, 7):
        image = image[::-1]
    return image.transpose(1, 0, 2) if orientation >= 5 else image


def read_image(path: Path, header: Header) -> np.ndarray:
    """Read the pixels of an image file, (H, W, 3) uint8, RGB, upright."""
    with _open_image(path) as image:
        if _has_more_bits(image):  # Pillow would clip the values to 255
            grey = (np.asarray(image) * np.float32(_RANGES[header.limit])).astype(np.uint8)
            pixels = np.repeat(grey[..., None], 3, axis=2)
        else:
            pixels = np.asarray(image.convert("RGB"))
    return orient_pixels(pixels, header.orientation)


def is_truncated_jpeg(path: Path) -> bool:
    """Return whether a JPEG ends before its end marker; other bytes may follow the marker.

    Pillow decodes zeros in place of lost data without an error.
    """
    if _ends_with(path, _END):
        return False
    content = path.read_bytes()
    # From segment to segment, so that the end of a thumbnail in the header does not count.
    place = 2
    while marker := _MARKER.search(content, place):
        if marker[0] == _END:
            return False
        place = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2], "big")
    return True


def _ends_with(path: Path, end: bytes) -> bool:
    with path.open("rb") as file:
        file.seek(-min(len(end), path.stat().st_size), os.SEEK_END)
        return file.read() == end
