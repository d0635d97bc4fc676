"""UCI HAR (Human Activity Recognition Using Smartphones, ESANN 2013): the original folder, its zip, or the .npz.

Windows of 128 samples at 50 Hz, half overlapping, nine channels: body acceleration x y z (g), angular velocity x y z
(rad/s), total acceleration x y z (g). The official split: 21 people train, 9 others test.

`level=person` brings each of a person's channels to mean 0 and deviation 1 over all of that person's windows, with all
activities. People differ more in the phone's position at the waist than sitting does from standing. This takes no
label, only that everybody does about the same in the end (docs/training-strangers.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.data.readers.archive import ArchiveFiles, check_numbers, load_arrays, open_members, parse_table
from mdl.data.windows import DataSet, Floats, Integers, make_windows
from mdl.errors import DataError

CHANNELS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
UNITS = (*("g",) * 3, *("rad/s",) * 3, *("g",) * 3)
CLASSES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
WINDOW = 128
RATE_HZ = 50.0
_HALF = WINDOW // 2


class UciHarOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """level: see the module."""

    level: Literal["fixed", "person"] = "fixed"


def read_uci_har(path: Path, options: UciHarOptions) -> DataSet:
    """Read the data set at `path`. Raises DataError naming the file and line that is missing or wrong."""
    sides = _read_npz(path) if path.suffix == ".npz" else _read_text(path)
    first_group = 0
    windows = []
    for x, y, subject in sides:
        if not len(y) == len(x) == len(subject):
            raise DataError(f"{path}: {len(x)} windows, {len(y)} labels and {len(subject)} subjects; expected as many")
        if not len(y):
            raise DataError(f"{path}: no windows")
        if y.min() < 1 or y.max() > len(CLASSES):
            raise DataError(f"{path}: labels {y.min()}..{y.max()}; expected 1..{len(CLASSES)}")
        group = first_group + _number_stretches(x, y, subject)
        first_group = int(group[-1]) + 1
        if options.level == "person":
            _level(x, subject)
        windows.append(make_windows(x, y - 1, subject, group))
    return DataSet(
        "uci-har", windows[0], windows[1], CLASSES, "subject",
        description="UCI HAR: waist-worn smartphone, official split by subject", channels=CHANNELS, rate_hz=RATE_HZ,
        channel_units=UNITS if options.level == "fixed" else (),
    )  # fmt: skip


def _level(x: Floats, subject: Integers) -> None:
    """Level the windows in place; a constant channel becomes 0."""
    for person in np.unique(subject):
        mine = subject == person
        own = x[mine]
        own -= own.mean(axis=(0, 2), keepdims=True, dtype=np.float64)
        deviation = own.std(axis=(0, 2), keepdims=True, dtype=np.float64)
        x[mine] = own / np.where(deviation > 0.0, deviation, 1.0)


def _number_stretches(x: Floats, y: Integers, subject: Integers) -> Integers:
    """Give each uninterrupted stretch a number: a window belongs to the one that it repeats in its first half.

    The published six digits repeat exactly in total acceleration; the text files differ in no digit between windows.
    """
    total = x[:, 6:]
    follows = (total[1:, :, :_HALF] == total[:-1, :, _HALF:]).all(axis=(1, 2))
    follows &= (y[1:] == y[:-1]) & (subject[1:] == subject[:-1])
    return np.concatenate([[0], np.cumsum(~follows)]).astype(np.int64)


def _read_npz(path: Path) -> list[tuple[Floats, Integers, Integers]]:
    stored = load_arrays(path, [*_keys("train"), *_keys("test")])
    sides = [[stored[name] for name in _keys(side)] for side in ("train", "test")]
    check_numbers(path, {name: stored[name] for side in ("train", "test") for name in _keys(side)[1:]})
    for x, _, _ in sides:
        if x.dtype.kind not in "fiu" or x.ndim != 3 or x.shape[1:] != (WINDOW, len(CHANNELS)):
            raise DataError(f"{path}: windows of shape {x.shape}; expected (n, {WINDOW}, {len(CHANNELS)})")
    return [(_by_channel(x), y.astype(np.int64), subject.astype(np.int64)) for x, y, subject in sides]


def _by_channel(x: NDArray[np.generic]) -> Floats:
    return np.ascontiguousarray(np.swapaxes(x, 1, 2), dtype=np.float32)


def _keys(side: str) -> list[str]:
    return [f"{side}_{name}" for name in ("X", "y", "subject")]


def _read_text(path: Path) -> list[tuple[Floats, Integers, Integers]]:
    with open_members(path) as members:
        return [_read_side(members, side, path) for side in ("train", "test")]


def _read_side(members: ArchiveFiles, side: str, path: Path) -> tuple[Floats, Integers, Integers]:
    y = _read_member(members, f"{side}/y_{side}.txt", 1, path)[:, 0].astype(np.int64)
    subject = _read_member(members, f"{side}/subject_{side}.txt", 1, path)[:, 0].astype(np.int64)
    x = np.empty((len(y), len(CHANNELS), WINDOW), dtype=np.float32)
    for channel, name in enumerate(CHANNELS):
        rows = _read_member(members, f"{side}/Inertial Signals/{name}_{side}.txt", WINDOW, path)
        if len(rows) != len(y):
            raise DataError(f"{path}: {name}_{side}.txt has {len(rows)} lines, y_{side}.txt has {len(y)}")
        x[:, channel] = rows
    return x, y, subject


def _read_member(members: ArchiveFiles, name: str, columns: int, path: Path) -> NDArray[np.float64]:
    found = [member for member in members.names() if member == name or member.endswith(f"/{name}")]
    if not found:
        raise DataError(f"{path}: no {name}; expected the folder 'UCI HAR Dataset', its zip, or the .npz")
    return parse_table(members.read(found[0]), columns, f"{path}: {name}")
