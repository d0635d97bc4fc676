"""Windows of sensor data or images, their learning targets, and a data set made of training and test windows.

Windows that must stay together share a group id: windows that overlap, or that come from one uninterrupted stretch. So
no sample is ever on both sides of a split. A stream is cut into windows; one run of rows with one label, one recording
and no gap in time is one group.

The target of a window is its class, numbers (regression), or several labels that may hold (multi-label). The type of
the array tells the kind: int64 (n,) are classes, float32 (n, k) are k numbers, uint8 (n, k) are k labels, 1 if a label
holds. The names of classes, numbers or labels are beside it, in this order. Knows nothing of files, devices or
models.

`assemble` names the labels, numbers the groups, and keeps the test windows apart. If the source makes no choice of test
windows, it is made here, and none overlaps a training window. The choice depends on the data and on the source's own
`seed` option alone, never on the seed of a run. So every peer and every run of a mesh keep the same windows apart; else
one peer would train on another's test windows.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
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


# A hundred times UCI HAR. Overlapping windows repeat their rows, so a small file can make any number.
LARGEST_WINDOWS_BYTES = 4 << 30


def cut_runs(run: Integers, window: int, step: int) -> tuple[Integers, Integers]:
    """Return (starts, run of each): first row of every window that lies wholly inside one run of equal numbers.

    run: int64 (rows,), numbered so that neighbouring runs differ. Windows start at a run's first row.
    """
    edges = np.flatnonzero(np.diff(run)) + 1
    first = np.concatenate([[0], edges])
    last = np.concatenate([edges, [len(run)]])
    starts = [np.arange(a, b - window + 1, step, dtype=np.int64) for a, b in zip(first, last, strict=True)]
    joined = np.concatenate(starts) if starts else np.zeros(0, np.int64)
    return joined, run[joined]


def take_rows(stream: NDArray[np.floating], starts: Integers, window: int) -> Floats:
    """Return windows (n, channels, window), float32, of a stream (rows, channels). Raises DataError if too many."""
    size_bytes = 4 * len(starts) * stream.shape[1] * window
    if size_bytes > LARGEST_WINDOWS_BYTES:
        raise DataError(
            f"{len(starts)} windows of {window} rows would take {size_bytes / 2**30:.0f} GB of memory, at most "
            f"{LARGEST_WINDOWS_BYTES >> 30} are taken: a larger step, or shorter windows"
        )
    view = np.lib.stride_tricks.sliding_window_view(stream, window, axis=0)
    return np.ascontiguousarray(view[starts], dtype=np.float32)


def overlap_gap(window: int, step: int) -> int:
    """Return the number of windows to drop between two windows of one run so that these share no row."""
    return -(-window // step) - 1


TEST_SHARE = 0.2
# Permutations tried for one that leaves every class on both sides; a data set that defeats 100 has no such split.
_TRIES = 100

Mask = NDArray[np.bool_]


def number_names(values: NDArray[np.generic]) -> tuple[tuple[str, ...], Integers]:
    """Return the distinct values in order, as text, and each row's index among them."""
    distinct, inverse = np.unique(values, return_inverse=True)
    return tuple(str(value) for value in distinct.tolist()), inverse.reshape(-1).astype(np.int64)


def assemble_data(
    name: str,
    take: Callable[[Mask, str], NDArray[np.generic]],
    labels: tuple[tuple[str, ...], NDArray[Any]],
    subject: NDArray[np.generic] | None,
    recording: Integers | None,
    group: Integers,
    *,
    how: str = "auto",
    given: Mask | None = None,
    gap: int = 0,
    seed: int = 0,
    description: str = "",
    channels: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    warnings: tuple[str, ...] = (),
    rate_hz: float | None = None,
    units: tuple[str, ...] = (),
    channel_units: tuple[str, ...] = (),
    is_converted: bool = False,
    left_out: tuple[str, ...] = (),
) -> DataSet:
    """Make a data set from rows (n, channels, time) in recording order; keep a fifth for testing (`hold_out`).

    take: returns the chosen rows of a side, "train" or "test"; all else has a value for each row. A class may have no
    rows. labels: the names and the values of classes, numbers or labels. units: of the numbers. given: the rows to test
    on, if the source names them and `how` is "auto".
    """
    classes, y = labels
    subject_names, subject_ids = ((), np.zeros(len(y), np.int64)) if subject is None else number_names(subject)
    if given is not None and how == "auto":
        held_out, test, dropped = "given", given, np.zeros(len(y), np.bool_)
    else:
        held_out, test, dropped = hold_out(
            strata_of(y), None if subject is None else subject_ids, recording, group, how=how, gap=gap, seed=seed
        )
    # A stretch with a cut in time becomes two groups: the gap between them has been dropped.
    apart = group * 2 + test if held_out == "time" else group
    sides = (("train", ~test & ~dropped), ("test", test))
    train, tested = (make_windows(take(rows, side), y[rows], subject_ids[rows], apart[rows]) for side, rows in sides)
    return DataSet(
        name,
        train,
        tested,
        classes,
        held_out,
        description=description,
        subject_names=subject_names,
        channels=channels,
        notes=notes,
        warnings=warnings,
        rate_hz=rate_hz,
        units=units,
        channel_units=channel_units,
        is_converted=is_converted,
        left_out=left_out,
    )


def hold_out_keys(key: Integers, y: Integers, seed: int) -> Mask | None:
    """Return True for test rows: a fifth of the distinct keys (subjects or recordings), at least one.

    None if there is one key only, or if any choice would leave a class without training rows.
    """
    keys, inverse = np.unique(key, return_inverse=True)
    if len(keys) < 2:
        return None
    count = max(1, round(TEST_SHARE * len(keys)))
    rng = np.random.default_rng(seed)
    classes = len(np.unique(y))
    best: Mask | None = None
    for _ in range(_TRIES):
        chosen = np.zeros(len(keys), dtype=bool)
        chosen[rng.permutation(len(keys))[:count]] = True
        test = chosen[inverse]
        if len(np.unique(y[~test])) == classes:
            best = test if best is None else best
            if len(np.unique(y[test])) == classes:
                return test
    return best


def hold_out_time(y: Integers, group: Integers, gap: int) -> tuple[Mask, Mask]:
    """Return (test, dropped): the last fifth in time of each class is for testing, `gap` rows before it are dropped.

    Rows must be in recording order. A group with the cut in it gets the gap; `gap` rows must suffice that the rows on
    its two sides do not overlap. Raises DataError if a class has too few rows to be cut.
    """
    test = np.zeros(len(y), dtype=bool)
    dropped = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        cut = len(rows) - max(1, round(TEST_SHARE * len(rows)))
        test[rows[cut:]] = True
        near = rows[max(0, cut - gap) : cut]
        near = near[group[near] == group[rows[cut]]]
        dropped[near] = True
        if cut - len(near) < 1:
            raise DataError(f"class {label} has {len(rows)} windows in one stretch: too few to keep some for testing")
    return test, dropped


def hold_out(
    y: Integers, subject: Integers | None, recording: Integers | None, group: Integers, *, how: str, gap: int, seed: int
) -> tuple[str, Mask, Mask]:
    """Return (how, test, dropped) by subject, else by recording, else by time; `how` forces one unless it is "auto".

    Raises DataError if the forced way cannot leave every class with training rows.
    """
    for name, key in (("subject", subject), ("recording", recording)):
        if how not in ("auto", name):
            continue
        test = None if key is None else hold_out_keys(key, y, seed)
        if test is not None:
            return name, test, np.zeros(len(y), dtype=bool)
        if how == name:
            raise DataError(f"split={name}: no {name} can be kept for testing without losing a class for training")
    test, dropped = hold_out_time(y, group, gap)
    return "time", test, dropped
