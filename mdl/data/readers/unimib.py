"""UniMiB SHAR (Micucci et al. 2017): the folder with acc_data.mat and acc_labels.mat, or its zip.

50 Hz, segments of 151 samples around a peak, acceleration x y z of a phone in a trouser pocket, here in g. `of=all`:
nine activities and eight falls; `of=adl` and `of=fall`: these alone. `signal=magnitude` has the length of the vector
as the only channel, as MDLdroid has one. Every fifth person tests.

Each file is the one matrix of a MATLAB file of level 5 (MATLAB's default): real, of two dimensions. The format is
published ("MAT-File Format", The MathWorks). Only numbers are read: no cell, structure, object or function, whatever
the file says.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.data.readers.archive import LARGEST_MEMBER_BYTES, ArchiveFiles, open_members
from mdl.data.windows import DataSet, make_windows, number_runs, take_windows
from mdl.errors import DataError

_ADL = (
    "standing up from sitting", "standing up from lying", "walking", "running", "going upstairs", "jumping",
    "going downstairs", "lying down", "sitting down",
)  # fmt: skip
_FALLS = (
    "falling forward", "falling right", "falling back", "hitting an obstacle", "falling with protection",
    "falling back, sitting", "syncope", "falling left",
)  # fmt: skip
CLASSES = _ADL + _FALLS
SAMPLES = 151
RATE_HZ = 50.0
_TEST_EVERY = 5
_G = 9.81
_HEADER_BYTES = 128
_MATRIX, _COMPRESSED, _INT8, _INT32, _UINT32 = 14, 15, 1, 5, 6
_TYPES = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
# Classes of arrays of numbers: double to uint64.
_NUMERIC = range(6, 16)
_COMPLEX = 0x0800


class UnimibOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    of: Literal["all", "adl", "fall"] = "all"
    signal: Literal["axes", "magnitude"] = "axes"


def read_unimib(path: Path, options: UnimibOptions) -> DataSet:
    """Read the data set. Raises DataError naming the file that is missing or wrong."""
    with open_members(path) as members:
        values = _read(members, "acc_data.mat", path).astype(np.float32)
        told = _read(members, "acc_labels.mat", path)
    if values.shape[1] != 3 * SAMPLES or told.shape != (len(values), 3):
        raise DataError(
            f"{path}: acc_data.mat is {values.shape} and acc_labels.mat {told.shape}; expected (n, {3 * SAMPLES}) "
            "and (n, 3)"
        )
    label, subject, trial = (told[:, column].astype(np.int64) for column in range(3))
    if len(label) and not (label.min() >= 1 and label.max() <= len(CLASSES)):
        raise DataError(
            f"{path}: acc_labels.mat has classes {label.min()} to {label.max()}; expected 1 to {len(CLASSES)}"
        )
    chosen = {"all": range(1, 18), "adl": range(1, 10), "fall": range(10, 18)}[options.of]
    kept = np.isin(label, chosen)
    x = values[kept].reshape(-1, 3, SAMPLES) / np.float32(_G)
    if options.signal == "magnitude":
        x = np.linalg.norm(x, axis=1, keepdims=True)
    group = number_runs(subject[kept], label[kept], trial[kept])
    windows = make_windows(x, label[kept] - chosen[0], subject[kept], group)
    test = windows.subject % _TEST_EVERY == 0
    names = CLASSES[chosen[0] - 1 : chosen[-1]]
    return DataSet(
        "unimib", take_windows(windows, ~test), take_windows(windows, test), names, "subject",
        description="UniMiB SHAR: a phone in a trouser pocket", rate_hz=RATE_HZ,
        channels=("acc_x", "acc_y", "acc_z") if options.signal == "axes" else ("acc_magnitude",),
        channel_units=("g",) * x.shape[1],
    )  # fmt: skip


def _read(members: ArchiveFiles, name: str, path: Path) -> NDArray[np.generic]:
    found = [member for member in members.names() if member == name or member.endswith(f"/{name}")]
    if not found:
        raise DataError(f"{path}: no {name}; expected the folder UniMiB-SHAR, or its zip")
    return read_matrix(members.read(found[0]), LARGEST_MEMBER_BYTES, f"{path}: {name}")


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
