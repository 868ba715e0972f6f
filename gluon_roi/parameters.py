# SPDX-License-Identifier: Apache-2.0
"""Checks the sizes in a file of parameters, which MXNet does not check.

The format is that of ``mx.nd.save`` (``src/ndarray/ndarray.cc`` of MXNet), little-endian::

    uint64 0x112, uint64 reserved
    uint64 number of arrays, and the arrays
    uint64 number of names, and for each name its length in uint64 and its bytes

    array   uint32 version, int32 storage, shape of the stored values if sparse, shape,
            int32 device, int32 its number, int32 type, for each index of a sparse array its type
            and shape, the values, the indices; an array without a shape ends there
    shape   int32 number of axes, int64 for each

Arrays of MXNet before 0.11 have neither a version nor a storage: they begin with 0xF993FAC8, or
with the number of axes, whose sizes are then uint32.
"""

from __future__ import annotations

import math
import os
import struct
from typing import Any, BinaryIO

_LIST = 0x112
_VERSION_1, _VERSION_2, NUMPY_VERSION = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
#: Bytes per element by MXNet's type flag.
_BYTES = {0: 4, 1: 8, 2: 2, 3: 1, 4: 4, 5: 1, 6: 8, 7: 1, 8: 2, 9: 2, 10: 4, 11: 8, 12: 2}
#: Number of index arrays by MXNet's storage type: dense, row sparse, compressed sparse rows.
_INDICES = {0: 0, 1: 1, 2: 2}


class DamagedError(ValueError):
    """The file is not a file of parameters, or it is truncated."""


class _Reader:
    """Reads a file; raises DamagedError at its end."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.remaining = os.fstat(file.fileno()).st_size

    def numbers(self, format: str, count: int = 1) -> tuple:
        """Numbers in a format of the module struct."""
        size = struct.calcsize(f"<{format}") * count
        self._consume(size)
        return struct.unpack(f"<{count}{format}", self.file.read(size))

    def number(self, format: str) -> int:
        return self.numbers(format)[0]

    def skip(self, size: int) -> None:
        self._consume(size)
        self.file.seek(size, os.SEEK_CUR)

    def _consume(self, size: int) -> None:
        if not 0 <= size <= self.remaining:
            raise DamagedError
        self.remaining -= size


def check(file: BinaryIO) -> bool:
    """Raise DamagedError unless a file contains all arrays and names that it declares.

    Returns whether the arrays were saved under ``np_shape``, as MXNet has to load them.
    """
    reader = _Reader(file)
    if reader.number("Q") != _LIST:
        raise DamagedError
    reader.number("Q")
    count = reader.number("Q")
    versions = set()
    for _ in range(count):  # at least 4 bytes each, so a wrong count ends soon
        versions.add(_check_array(reader))
    names = reader.number("Q")
    if names not in (0, count):
        raise DamagedError
    for _ in range(names):
        reader.skip(reader.number("Q"))
    return NUMPY_VERSION in versions


def _check_array(reader: _Reader) -> int:
    """Skip an array, and return its version."""
    version = reader.number("I")
    if version in (_VERSION_2, NUMPY_VERSION):
        storage = reader.number("i")
        if storage not in _INDICES:
            raise DamagedError
        indices = _INDICES[storage]
        stored = _shape(reader) if indices else None
        shape = _shape(reader)
        has_values = shape is not None and (version == NUMPY_VERSION or len(shape) > 0)
    else:
        indices, stored = 0, None
        shape = _shape(reader) if version == _VERSION_1 else reader.numbers("I", version)
        has_values = bool(shape)
    if not has_values:
        return version
    reader.numbers("i", 2)  # the device
    size = _bytes(reader)
    index_arrays = [(_bytes(reader), _shape(reader)) for _ in range(indices)]
    if indices:
        shape = _values_shape(shape, stored, [sizes for _, sizes in index_arrays])
    for element_size, sizes in [(size, shape), *index_arrays]:
        if sizes is None:
            raise DamagedError
        reader.skip(element_size * math.prod(sizes))
    return version


def _values_shape(shape: Any, stored: Any, indices: list) -> Any:
    """The shape of a sparse array's values, from its shape, the stored shape and its indices.

    MXNet does not store the number of values of a CSR matrix.
    """
    if None in (shape, stored, *indices) or any(len(sizes) != 1 for sizes in indices) or not shape:
        raise DamagedError
    if len(indices) == 1:  # row sparse: the indices of the stored rows
        expected = (*indices[0], *shape[1:])
        fits = expected[0] <= shape[0]
    else:  # CSR: the first value of each row, and the columns of all values
        expected = indices[1]
        fits = len(shape) == 2 and indices[0][0] in (0, shape[0] + 1)
    if not fits or math.prod(stored) and stored != expected:
        raise DamagedError
    return expected


def _shape(reader: _Reader) -> tuple[int, ...] | None:
    """A shape; None if it, or one of its sizes, is unknown."""
    axes = reader.number("i")
    if axes < -1:
        raise DamagedError
    sizes = reader.numbers("q", max(axes, 0))
    if any(size < -1 for size in sizes):
        raise DamagedError
    return None if axes < 0 or -1 in sizes else sizes


def _bytes(reader: _Reader) -> int:
    """Read a type flag; return the bytes per element."""
    type_flag = reader.number("i")
    if type_flag not in _BYTES:
        raise DamagedError
    return _BYTES[type_flag]
