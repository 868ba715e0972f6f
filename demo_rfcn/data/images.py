# SPDX-License-Identifier: Apache-2.0
"""Image files: completeness, orientation and pixels.

Training, evaluation and detection follow one rule: images are upright according to their EXIF tag,
and have three channels of eight bits.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

from ..errors import BrokenFile

# Pillow warns of more pixels, and refuses twice as many. Phones take 200 million.
Image.MAX_IMAGE_PIXELS = 2**27

SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".png", ".bmp", ".dib", ".webp", ".tif", ".tiff", ".gif"),
    *(".jp2", ".ppm", ".pgm", ".pbm", ".pnm", ".pxm", ".ras", ".sr", ".avif"),
    *(".heic", ".heif"),  # of phones: no image for OpenCV, and named as such
)

_START, _END = b"\xff\xd8", b"\xff\xd9"
_PNG_END = b"IEND\xaeB`\x82"
# Within compressed data, ff stands before 00 or before the number of a restart; before another
# marker it may be repeated.
_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")
_ORIENTATION = 0x112


def has_suffix(path: Path) -> bool:
    """Return whether a file has the name of an image."""
    return path.suffix.lower() in SUFFIXES


class Header(NamedTuple):
    """Contents of the header of an image file.

    Attributes
    ----------
    kind : str
        Pillow's name of the format; empty if only OpenCV knows it.
    size : tuple of int
        Width and height of the stored pixels.
    orientation : int
        Transformation that makes them upright, 1 (none) to 8, as in EXIF.
    """

    kind: str
    size: tuple[int, int]
    orientation: int

    @property
    def upright(self) -> tuple[int, int]:
        """Width and height of the upright image."""
        return self.size if self.orientation <= 4 else (self.size[1], self.size[0])


def read_header(path: Path) -> Header:
    """Read the header of an image file.

    Raises
    ------
    BrokenFile
        The file is missing, empty, damaged, no image, or has more pixels than any camera's.
    """
    check_there(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, and of tags that nobody reads
            with Image.open(path) as image:
                kind, size = str(image.format), image.size
                # OpenCV turns TIFFs by itself; Pillow decodes a PNG to look for a late tag.
                tagged = kind != "TIFF" and (kind != "PNG" or "exif" in image.info)
                orientation = _orientation(image) if tagged else 1
                if kind == "TIFF":
                    size = _tiff_size(image)
                return Header(kind, size, orientation)
    except UnidentifiedImageError:
        height, width = _decoded(path, "").shape[:2]
        return Header("", (width, height), 1)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BrokenFile(f"{path} cannot be read: {error}") from error


def _orientation(image: Image.Image) -> int:
    value = None
    with contextlib.suppress(Exception):  # a broken tag says nothing, and raises anything
        value = image.getexif().get(_ORIENTATION)
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _tiff_size(image: Image.Image) -> tuple[int, int]:
    """Return the upright size of a TIFF, as OpenCV does."""
    width, height = (int(image.tag_v2[tag]) for tag in (256, 257))  # type: ignore[attr-defined]
    return (width, height) if _orientation(image) <= 4 else (height, width)


def check_there(path: Path) -> None:
    """Refuse a file that is missing or empty.

    Raises
    ------
    BrokenFile
    """
    if not os.path.isfile(path):  # of any text, unlike Path.is_file
        raise BrokenFile(f"{path} is missing")
    if not path.stat().st_size:
        raise BrokenFile(f"{path} is empty")


def check_image(path: Path) -> Header:
    """Refuse an image file that could not be read, or only in part; return its header.

    Decoders fill the lost part of a JPEG with grey pixels, without an error. The header and the
    last bytes of a JPEG or PNG show whether it is complete, in a fraction of the time of decoding.
    Files in other formats are decoded.

    Raises
    ------
    BrokenFile
    """
    header = read_header(path)
    if header.kind in ("JPEG", "MPO"):
        if is_cut_jpeg(path):
            raise BrokenFile(f"{path} is cut short")
    elif header.kind and not (header.kind == "PNG" and _ends_with(path, _PNG_END)):
        _decoded(path, header.kind)
    return header


def boxes_as_meant(
    path: Path, header: Header, size: Sequence[float], boxes: np.ndarray
) -> tuple[np.ndarray, bool]:
    """Return boxes of the upright image, where an annotation gives the size that they are within.

    Most tools show images upright and write boxes for the upright image; some ignore the tag. If
    the size matches only the stored pixels, the boxes are turned with them.

    Parameters
    ----------
    path : pathlib.Path
    header : Header
    size : sequence of float
        Width and height that the annotation gives.
    boxes : numpy.ndarray
        (M, 4) x1, y1, x2, y2, ends inclusive, counted from 0.

    Returns
    -------
    boxes : numpy.ndarray
    turned : bool
        Whether the annotation was of the stored pixels.

    Raises
    ------
    BrokenFile
        The annotation gives another size.
    """
    if tuple(size) == header.upright:
        return boxes, False
    if tuple(size) != header.size:
        width, height = header.upright
        raise BrokenFile(
            f"{path} has {width} x {height} pixels, and its annotation says "
            f"{size[0]:g} x {size[1]:g}"
        )
    return turn_boxes(boxes, header), True


def turn_boxes(boxes: np.ndarray, header: Header) -> np.ndarray:
    """Turn boxes (M, 4) of the stored pixels with them."""
    (width, height), orientation = header.size, header.orientation
    x1, y1, x2, y2 = boxes.T
    if orientation in (2, 3, 7, 8):
        x1, x2 = width - 1 - x2, width - 1 - x1
    if orientation in (3, 4, 6, 7):
        y1, y2 = height - 1 - y2, height - 1 - y1
    if orientation >= 5:
        x1, y1, x2, y2 = y1, x1, y2, x2
    return np.stack([x1, y1, x2, y2], axis=1)


def turn(image: np.ndarray, orientation: int) -> np.ndarray:
    """Turn stored pixels upright."""
    if orientation in (2, 3, 7, 8):
        image = image[:, ::-1]
    if orientation in (3, 4, 6, 7):
        image = image[::-1]
    return image.transpose(1, 0, 2) if orientation >= 5 else image


def read_image(path: Path, header: Header) -> np.ndarray:
    """Read the pixels of an image file, (H, W, 3) uint8, RGB, upright.

    Raises
    ------
    BrokenFile
    """
    return turn(_decoded(path, header.kind)[..., ::-1], header.orientation)


def _decoded(path: Path, kind: str) -> np.ndarray:
    """Decode an image as it is stored, (H, W, 3) uint8, BGR."""
    try:
        data = np.fromfile(path, np.uint8)  # imread takes no name that is not UTF-8
    except OSError as error:
        raise BrokenFile(f"{path} cannot be read: {error.strerror}") from error
    image = None
    with contextlib.suppress(cv2.error):
        image = cv2.imdecode(data, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
    if image is None and kind:
        raise BrokenFile(f"{path} is cut short, or of a kind that OpenCV does not decode ({kind})")
    if image is None and data[4:8].tobytes() == b"ftyp":
        raise BrokenFile(f"{path} is of a kind that OpenCV does not decode (HEIF); make it a JPEG")
    if image is None:
        raise BrokenFile(f"{path} is not an image")
    return image


def is_cut_jpeg(path: Path) -> bool:
    """Tell whether a file is a JPEG that ends before its end marker; anything may follow that."""
    with path.open("rb") as file:
        if file.read(2) != _START:
            return False
        if _ends_with(path, _END):
            return False
        file.seek(0)
        content = file.read()
    # From segment to segment, so that the end of a thumbnail in the header is not taken for it.
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
