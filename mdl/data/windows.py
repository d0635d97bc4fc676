"""Windows of sensor data or images, their learning targets, and a data set made of training and test windows.

Windows that must stay together share a group id: windows that overlap, or that come from one uninterrupted stretch. So
no sample is ever on both sides of a split.

The target of a window is its class, numbers (regression), or several labels that may hold (multi-label). The type of
the array tells the kind: int64 (n,) are classes, float32 (n, k) are k numbers, uint8 (n, k) are k labels, 1 if a label
holds. The names of classes, numbers or labels are beside it, in this order. Knows nothing of files, devices or
models.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mdl.bounds import MAX_NUMBERS
from mdl.errors import DataError
from mdl.task import Targets

Floats: TypeAlias = NDArray[np.float32]
Integers: TypeAlias = NDArray[np.int64]


# The highest rate of any sampling; a higher one is a mistake in a unit.
FASTEST_HZ = 1e6
# Windows processed together: 512 of 9 x 128 in float32 are 2.4 MB.
_BLOCK = 512
# Bytes of windows processed together: images are larger.
_BLOCK_BYTES = 16 << 20
# The mean of the numbers is averaged with the model's values, and refused beyond this (`mdl.protocol.delta`).
LARGEST_NUMBER = 1e6


@dataclass(frozen=True)
class Windows:
    """x: float32 (n, channels, time), or images (n, channels, height, width) in float32, or in uint8 as stored pixels;
    C-contiguous, possibly memory-mapped. y: classes, numbers or labels. subject, group: int64
    (n,).

    Mapped arrays are copy-on-write: writing to one never reaches the file.
    """

    x: Floats
    y: NDArray[Any]
    subject: Integers
    group: Integers

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class DataSet:
    """Training windows, test windows, and the meaning of their numbers.

    held_out names the way in which the test windows were kept apart: "subject", "recording", "time" or "given".
    subject_names[id] names a subject if the source names them; otherwise it is empty. channels: names of the rows of a
    window in their order; empty if the source does not name them. rate_hz: samples a second in a window; None if the
    source does not know. classes: their names, or those of the numbers or labels. units: of the numbers, if the source
    names them. channel_units: of the channels, as `find_unit` writes them, "" for an unknown one, () if none is known.
    is_converted: a channel's values were written in another unit. notes: facts that reading found out and the user
    did not give; the last one says what was read. warnings: likely mistakes. left_out: samples of rows left out, with
    the reason. All three are for the user, a line each.
    """

    name: str
    train: Windows
    test: Windows
    classes: tuple[str, ...]
    held_out: str
    synthetic: bool = False
    description: str = ""
    subject_names: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    rate_hz: float | None = None
    units: tuple[str, ...] = ()
    channel_units: tuple[str, ...] = ()
    is_converted: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def targets(self) -> Targets:
        """The kind of things that `classes` names."""
        return targets_of(self.train.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape (channels, time) of every window, or (channels, height, width) of every image."""
        return tuple(self.train.x.shape[1:])

    @property
    def is_of_images(self) -> bool:
        return len(self.shape) == 3


def take_windows(windows: Windows, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Windows:
    """Return the windows at these rows, copied."""
    return Windows(np.ascontiguousarray(windows.x[rows]), windows.y[rows], windows.subject[rows], windows.group[rows])


def make_windows(x: NDArray[np.generic], y: NDArray[Any], subject: Integers, group: Integers) -> Windows:
    """Return windows with the standard types and memory layout; x: (n, channels, time), or images."""
    return Windows(
        np.ascontiguousarray(x, dtype=np.uint8 if x.ndim == 4 and x.dtype == np.uint8 else np.float32),
        as_targets(y),
        np.ascontiguousarray(subject, dtype=np.int64),
        np.ascontiguousarray(group, dtype=np.int64),
    )


def to_input(x: NDArray[np.generic]) -> Floats:
    """Return windows as a model takes them, copied: float32, pixels from 0 to 1."""
    return np.divide(x, 255, dtype=np.float32) if x.dtype == np.uint8 else np.array(x, np.float32)


def check_data(data: DataSet, where: str) -> DataSet:
    """Return `data`, or raise DataError if it could not be trained on; `where` names its source in the message."""
    for side, windows in (("training", data.train), ("test", data.test)):
        _check_side(windows, f"{where}: {side} windows", len(data.classes))
    if data.train.x.shape[1:] != data.test.x.shape[1:]:
        raise DataError(f"{where}: training windows are {data.train.x.shape[1:]}, test windows {data.test.x.shape[1:]}")
    if data.channels and len(data.channels) != data.shape[0]:
        raise DataError(f"{where}: {len(data.channels)} channel names for {data.shape[0]} channels")
    if data.train.y.dtype != data.test.y.dtype:
        raise DataError(f"{where}: training windows have {data.targets}, test windows {targets_of(data.test.y)}")
    if data.units and len(data.units) != len(data.classes):
        raise DataError(f"{where}: {len(data.units)} units for {len(data.classes)} numbers")
    if data.channel_units and len(data.channel_units) != data.shape[0]:
        raise DataError(f"{where}: {len(data.channel_units)} units for {data.shape[0]} channels")
    if data.rate_hz is not None and not 0 < data.rate_hz <= FASTEST_HZ:
        raise DataError(f"{where}: a rate of {data.rate_hz} Hz; expected one above 0, at most {FASTEST_HZ:,.0f}")
    if shared := np.intersect1d(data.train.group, data.test.group).tolist():
        raise DataError(f"{where}: group {shared[0]} is on both sides of the split; a group is training or test")
    return data


def _check_side(windows: Windows, where: str, class_count: int) -> None:
    if windows.x.ndim not in (3, 4):
        raise DataError(
            f"{where}: x has shape {windows.x.shape}, expected (n, channels, time), or (n, channels, height, width)"
        )
    if not len(windows):
        raise DataError(f"{where}: there are none")
    for name in ("x", "subject", "group"):
        if len(getattr(windows, name)) != len(windows):
            raise DataError(f"{where}: {name} has {len(getattr(windows, name))} rows, y has {len(windows)}")
    if (row := first_bad_row(windows.x)) is not None:
        raise DataError(f"{where}: row {row} holds NaN or infinity; remove or repair it")
    pairs = np.unique(np.stack([windows.group, windows.subject]), axis=1)
    if len(torn := pairs[0, 1:][pairs[0, 1:] == pairs[0, :-1]]):
        raise DataError(f"{where}: group {torn[0]} holds windows of several subjects; a group belongs to one subject")
    check_targets(windows.y, class_count, where)


def iterate_blocks(x: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield windows in order, some hundred at a time; no page of a mapped file stays in memory behind them."""
    row_bytes = x.nbytes // max(1, len(x))
    name = x.filename if isinstance(x, np.memmap) and isinstance(x.base, mmap.mmap) and x.flags.c_contiguous else None
    mapped = name is not None and Path(name).exists()
    step = max(1, min(_BLOCK, _BLOCK_BYTES // max(1, row_bytes)))
    for start in range(0, len(x), step):
        stop = min(len(x), start + step)
        if mapped and isinstance(x, np.memmap):
            shape = (stop - start, *x.shape[1:])
            offset = x.offset + start * row_bytes
            yield np.memmap(str(name), dtype=x.dtype, mode="r", offset=offset, shape=shape)
        else:
            yield x[start:stop]


def first_bad_row(x: NDArray[Any]) -> int | None:
    """Return the first row with NaN or infinity, or None. A sum carries both along, so a good array costs one pass."""
    if x.dtype.kind != "f":
        return None
    done = 0
    for block in iterate_blocks(x):
        with np.errstate(invalid="ignore", over="ignore"):
            sums = block.reshape(len(block), -1).sum(axis=1, dtype=np.float64)
        bad = np.flatnonzero(~np.isfinite(sums))
        if bad.size:
            return done + int(bad[0])
        done += len(block)
    return None


def number_runs(*keys: NDArray[np.generic]) -> Integers:
    """Assign numbers, from 0, to the runs of rows in which no key changes; int64 (n,)."""
    changed = np.zeros(len(keys[0]), dtype=bool)
    for key in keys:
        changed[1:] |= key[1:] != key[:-1]
    return np.cumsum(changed, dtype=np.int64)


def targets_of(y: NDArray[Any]) -> Targets:
    """Return the kind of an array of targets."""
    kind: Targets = "numbers" if y.dtype.kind == "f" else "labels" if y.ndim == 2 else "classes"
    return kind


def as_targets(y: NDArray[Any]) -> NDArray[Any]:
    """Return the targets in the standard type of their kind."""
    return np.ascontiguousarray(
        y, dtype={"classes": np.int64, "numbers": np.float32, "labels": np.uint8}[targets_of(y)]
    )


def strata_of(y: NDArray[Any]) -> NDArray[np.int64]:
    """Return the strata that each part of a split should have: the classes; numbers and labels are all one."""
    return np.asarray(y, np.int64) if targets_of(y) == "classes" else np.zeros(len(y), np.int64)


def check_targets(y: NDArray[Any], names: int, where: str) -> None:
    """Raise DataError unless the targets fit so many names. y: not empty."""
    kind = targets_of(y)
    if kind == "classes":
        if y.min() < 0 or y.max() >= names:
            raise DataError(f"{where}: labels {y.min()}..{y.max()}, expected 0..{names - 1}")
        return
    if y.shape != (len(y), names):
        raise DataError(f"{where}: y has shape {y.shape} for {names} {kind}; expected (n, {names})")
    if kind == "labels" and y.max() > 1:
        raise DataError(f"{where}: y holds {y.max()}, where 1 is a label that holds and 0 one that does not")
    if kind == "numbers":
        _check_numbers(y, names, where)


def _check_numbers(y: NDArray[Any], names: int, where: str) -> None:
    if names > MAX_NUMBERS:
        raise DataError(f"{where}: {names} numbers are to be learned; at most {MAX_NUMBERS}")
    bad = np.flatnonzero(~(np.abs(y) <= LARGEST_NUMBER).all(axis=1))
    if len(bad):
        row = bad[0]
        told = ", ".join(f"{value:g}" for value in y[row].tolist())
        raise DataError(
            f"{where}: row {row} is {told}; expected finite numbers of at most {LARGEST_NUMBER:,.0f}, in another unit "
            "if need be"
        )
