"""Looking at image files before they are needed: is one whole, and of the size it should have?"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import mxnet as mx
from PIL import Image, UnidentifiedImageError

from ..errors import BrokenFile

# Pillow warns of more pixels, and refuses twice as many. Phones take 200 million.
Image.MAX_IMAGE_PIXELS = 2**27

_START, _END = b"\xff\xd8", b"\xff\xd9"
# Within compressed data, ff stands before 00 or before the number of a restart; before another
# marker it may be repeated.
_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")


def check_there(path: Path) -> None:
    """Refuse a file that is missing or empty.

    Raises
    ------
    BrokenFile
    """
    if not path.is_file():
        raise BrokenFile(f"{path} is missing")
    if not path.stat().st_size:
        raise BrokenFile(f"{path} is empty")


def read_header(path: Path) -> tuple[str, tuple[int, int]]:
    """Return the format of an image file, and its width and height.

    Raises
    ------
    BrokenFile
        It is damaged, or has more pixels than any camera's.
    PIL.UnidentifiedImageError
        It is of a format that Pillow does not know, or is no image.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images, and of tags that nobody reads
            with Image.open(path) as image:
                return str(image.format), image.size
    except UnidentifiedImageError:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BrokenFile(f"{path} cannot be read: {error}") from error


def check_image(path: Path, size: Sequence[float] | None = None) -> None:
    """Refuse an image file that training could not read, or would read only in part.

    MXNet gives the lost part of a JPEG as grey pixels, without an error. Its header and its last
    bytes show what is wanted here in a small part of the time that decoding would take; a file in
    another format is decoded.

    Parameters
    ----------
    path : pathlib.Path
    size : sequence of float or None
        Width and height that the annotation gives, pixels; None if it gives none.

    Raises
    ------
    BrokenFile
    """
    check_there(path)
    try:
        kind, found = read_header(path)
    except UnidentifiedImageError:
        raise BrokenFile(f"{path} is not an image") from None
    whole = not is_cut_jpeg(path) if kind in ("JPEG", "MPO") else _decodes(path)
    if not whole:
        raise BrokenFile(f"{path} is cut short, or of a kind that MXNet does not decode ({kind})")
    if size is not None and found != tuple(size):
        raise BrokenFile(
            f"{path} has {found[0]} x {found[1]} pixels, and its annotation says "
            f"{size[0]:g} x {size[1]:g}"
        )


def is_cut_jpeg(path: Path) -> bool:
    """Tell whether a file is a JPEG that ends before its end marker; anything may follow that."""
    with path.open("rb") as file:
        if file.read(2) != _START:
            return False
        file.seek(-2, os.SEEK_END)
        if file.read() == _END:
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


def _decodes(path: Path) -> bool:
    try:
        mx.image.imread(str(path)).wait_to_read()
    except mx.MXNetError:
        return False
    return True
