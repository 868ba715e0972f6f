# SPDX-License-Identifier: Apache-2.0
"""Reading MXNet's parameter files from untrusted sources.

MXNet trusts the files that it loads: a header with invalid sizes makes `mx.nd.load` abort the
process. This module parses the format (little endian) and checks it against the file's length:

    u64 0x112, u64 reserved, u64 count
    count arrays: u32 0xf993fac9 (0xf993faca from NumPy's shapes), i32 storage (0, dense),
                  i32 dimensions, i64 each of them, i32 + i32 device, i32 type, values
    u64 count
    count names:  u64 length, bytes in UTF-8
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np

_LIST, _ARRAYS = 0x112, (0xF993FAC9, 0xF993FACA)
_TYPES = ("float32", "float64", "float16", "uint8", "int32", "int8", "int64")
_MAX_DIMENSIONS = 32


def read(path: Path | str) -> dict[str, np.ndarray]:
    """Read a parameter file.

    Raises
    ------
    ValueError
        It is something else, or damaged; the message lacks the file's name.
    """
    if not Path(path).stat().st_size:
        raise ValueError("it is empty")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        (magic,) = struct.unpack_from("<Q", data) if len(data) >= 8 else (0,)
        if magic != _LIST:
            raise ValueError("it is no parameter file of MXNet")
        try:
            place, arrays = 24, []
            for _ in range(*struct.unpack_from("<Q", data, 16)):
                array, place = array_at(data, place)
                arrays.append(array.copy())
                del array  # or the file could not be closed
            (count,) = struct.unpack_from("<Q", data, place)
            place += 8
            names = []
            for _ in range(count):
                (length,) = struct.unpack_from("<Q", data, place)
                place += 8 + length
                if place > len(data):
                    raise ValueError("a name is cut short")
                names.append(data[place - length : place].decode())
        except (struct.error, OverflowError):
            raise ValueError("it is cut short") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"it holds a name that is not UTF-8: {error}") from error
    if len(names) != len(arrays) or len(set(names)) < len(names):
        raise ValueError(f"it holds {len(arrays)} arrays and {len(set(names))} names")
    return dict(zip(names, arrays))


def array_at(data: bytes | bytearray | mmap.mmap, place: int) -> tuple[np.ndarray, int]:
    """Return the array at a place of a file, a view of its bytes, and the place after it.

    Raises
    ------
    ValueError, struct.error
        It is damaged.
    """
    magic, storage, dimensions = struct.unpack_from("<Iii", data, place)
    if magic not in _ARRAYS or storage != 0:
        raise ValueError("it holds an array that is sparse, older than MXNet 1.0, or damaged")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise ValueError(f"it holds an array of {dimensions} dimensions")
    *shape, _, _, kind = struct.unpack_from(f"<{dimensions}q3i", data, place + 12)
    place += 12 + 8 * dimensions + 12
    if not 0 <= kind < len(_TYPES):
        raise ValueError(f"it holds an array of type {kind}")
    dtype, count = np.dtype(_TYPES[kind]).newbyteorder("<"), 1
    for side in shape:
        count *= side
        if side < 0 or count * dtype.itemsize > len(data) - place:
            raise ValueError(f"it holds an array of {shape} that it is too short for")
    values = np.frombuffer(data, dtype, count, place)
    return values.reshape(shape), place + values.nbytes
