"""The one matrix of a MATLAB file of level 5 (MATLAB's default): real, of two dimensions.

The format is published ("MAT-File Format", The MathWorks). Only numbers are read: no cell, structure, object or
function, whatever the file says.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from mdl.errors import DataError

_HEADER_BYTES = 128
_MATRIX, _COMPRESSED, _INT8, _INT32, _UINT32 = 14, 15, 1, 5, 6
_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
# Classes of arrays of numbers: double to uint64.
_NUMERIC = range(6, 16)
_COMPLEX = 0x0800


def read_matrix(content: bytes, most_bytes: int, where: str) -> NDArray[np.generic]:
    """Return the matrix (rows, columns). most_bytes: its limit when unpacked. Raises DataError for anything else."""
    if content[:6] != b"MATLAB" or len(content) < _HEADER_BYTES or content[126:128] != b"IM":
        raise DataError(f"{where}: not a MATLAB file of level 5 (little-endian); save it with -v7 or earlier")
    try:
        kind, body, _ = _take(content, _HEADER_BYTES)
        if kind == _COMPRESSED:
            opened = zlib.decompressobj()
            body = opened.decompress(body, most_bytes)
            if opened.unconsumed_tail:
                raise DataError(f"{where}: unpacks to more than {most_bytes} bytes")
            kind, body, _ = _take(body, 0)
        if kind != _MATRIX:
            raise ValueError(f"an element of type {kind}")
        return _matrix(body)
    except (ValueError, struct.error, zlib.error) as error:
        raise DataError(f"{where}: expected one matrix of real numbers ({error})") from None


def _matrix(body: bytes) -> NDArray[np.generic]:
    kind, flags, at = _take(body, 0)
    if kind != _UINT32 or len(flags) != 8 or flags[0] not in _NUMERIC or int.from_bytes(flags[:4], "little") & _COMPLEX:
        raise ValueError("it is of another class")
    kind, sizes, at = _take(body, at)
    shape = struct.unpack(f"<{len(sizes) // 4}i", sizes)
    if kind != _INT32 or len(shape) != 2 or min(shape) < 0:
        raise ValueError(f"it has the dimensions {shape}")
    kind, _, at = _take(body, at)
    if kind != _INT8:
        raise ValueError("its name is missing")
    kind, values, _ = _take(body, at)
    if kind not in _TYPES:
        raise ValueError(f"values of type {kind}")
    flat = np.frombuffer(values, _TYPES[kind])
    if flat.size != shape[0] * shape[1]:
        raise ValueError(f"{flat.size} values for {shape[0]} x {shape[1]}")
    return flat.reshape(shape, order="F")


def _take(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Return (type, content, start of the next element) of the element at `at`; small ones lie within their tag."""
    kind, size = struct.unpack_from("<II", data, at)
    if kind >> 16:
        kind, size = kind & 0xFFFF, kind >> 16
        if size > 4:
            raise ValueError("a small element of more than 4 bytes")
        return kind, data[at + 4 : at + 4 + size], at + 8
    content = data[at + 8 : at + 8 + size]
    if len(content) != size:
        raise ValueError("it ends too early")
    return kind, content, at + 8 + size + -size % 8
