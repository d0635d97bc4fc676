"""sEMG gestures ("EMG data for gestures", Sensors 2018 18(4):1122): the .npz of codes, or the original text files.

Preparation, chosen once and used for every figure: the logger repeats each sample of the bracelet until the next one
arrives (about nine rows in ten are repeats). So rows equal to the row before in all eight channels are dropped; about
100 samples a second remain. The signal is centred on zero and its sign carries little, so its magnitude is taken
(`signal=raw` keeps the sign). Unit: 160 microvolts, which brings the deviation near 1. Windows of 64 samples, stepping
by 16, lie inside one hold of one gesture; a hold is a group. Unmarked rows and the seventh gesture, which not everybody
made, are left out.

`level=recording` divides each channel by its mean magnitude over the recording, over all gestures. Signals differ in
strength from arm to arm more than from gesture to gesture, and the strength takes no label (docs/results.md).

`split=subject` (default) tests with every fifth subject (5, 10, 15, ...); `split=series` trains on each subject's first
series and tests on the second, leaving out subjects that lack one of the two.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.data.readers.archive import check_numbers, load_arrays, open_members, parse_table, unpack_text
from mdl.data.windows import DataSet, Floats, Integers, cut_runs, make_windows, number_runs, take_rows, take_windows
from mdl.errors import DataError

CLASSES = ("rest", "fist", "wrist flexion", "wrist extension", "radial deviation", "ulnar deviation")
CHANNELS = 8
# The rate without repeats, about.
RATE_HZ = 100.0
VOLT_PER_CODE = 1e-5
_CODES_PER_UNIT = 16.0
_TEST_EVERY = 5
_ARRAYS = ("codes", "label", "subject", "series")
# .../07/1_raw_data_18-48_24.04.16.txt: subject 7, series 1.
_FILE = re.compile(r"(?:(?:^|.*/)(\d+)/|(?:^|.*/))([12])_raw_data_[^/]*\.txt(?:\.gz)?")

Codes = NDArray[np.int8]


class SemgOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """window and step count distinct samples."""

    window: Annotated[int, msgspec.Meta(ge=4, le=1000)] = 64
    step: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 16
    split: Literal["subject", "series"] = "subject"
    signal: Literal["magnitude", "raw"] = "magnitude"
    level: Literal["fixed", "recording"] = "fixed"


def read_semg(path: Path, options: SemgOptions) -> DataSet:
    """Read the data set at `path`. Raises DataError naming the file and line that is missing or wrong."""
    codes, label, subject, series = _read_npz(path) if path.suffix == ".npz" else _read_text(path)
    recording = number_runs(subject, series)
    keep = np.ones(len(codes), dtype=bool)
    keep[1:] = (codes[1:] != codes[:-1]).any(axis=1) | (recording[1:] != recording[:-1]) | (label[1:] != label[:-1])
    holds = number_runs(recording, label)
    codes, label, subject, series, holds = codes[keep], label[keep], subject[keep], series[keep], holds[keep]
    recording = recording[keep]
    starts, group = cut_runs(holds, options.window, options.step)
    marked = (label[starts] >= 1) & (label[starts] <= len(CLASSES))
    starts, group = starts[marked], group[marked]
    stream = codes.astype(np.float32) / np.float32(_CODES_PER_UNIT)
    if options.signal == "magnitude":
        np.abs(stream, out=stream)
    if options.level == "recording":
        _level(stream, recording)
    x = take_rows(stream, starts, options.window)
    windows = make_windows(x, label[starts] - 1, subject[starts], group)
    train, test = _divide(windows.subject, series[starts], options.split)
    if not train.any() or not test.any():
        raise DataError(
            f"{path}: split={options.split} leaves no windows for {'testing' if train.any() else 'training'}; "
            f"it holds subjects {sorted(set(subject.tolist()))}, series {sorted(set(series.tolist()))}"
        )
    return DataSet(
        "semg", take_windows(windows, train), take_windows(windows, test), CLASSES,
        "subject" if options.split == "subject" else "recording",
        description="sEMG gestures: 8-channel forearm bracelet, repeats removed",
        channels=tuple(f"emg {number} {options.signal}" for number in range(1, CHANNELS + 1)),
        rate_hz=RATE_HZ,
    )  # fmt: skip


def _level(stream: Floats, recording: Integers) -> None:
    """Level the stream in place; a channel of zeros stays as it is."""
    for start, stop in pairwise([0, *(np.flatnonzero(np.diff(recording)) + 1).tolist(), len(recording)]):
        mean = np.abs(stream[start:stop]).mean(axis=0)
        stream[start:stop] /= np.where(mean > 0.0, mean, 1.0)


def _divide(subject: Integers, series: Integers, split: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    if split == "subject":
        test = subject % _TEST_EVERY == 0
        return ~test, test
    both = np.intersect1d(subject[series == 1], subject[series == 2])
    known = np.isin(subject, both)
    return known & (series == 1), known & (series == 2)


def _read_npz(path: Path) -> tuple[Codes, Integers, Integers, Integers]:
    codes, label, subject, series = load_arrays(path, _ARRAYS).values()
    check_numbers(path, {"label": label, "subject": subject, "series": series})
    if codes.dtype != np.int8 or codes.ndim != 2 or codes.shape[1] != CHANNELS or not len(codes):
        raise DataError(f"{path}: codes are {codes.dtype} of shape {codes.shape}; expected int8 (rows, {CHANNELS})")
    if not len(codes) == len(label) == len(subject) == len(series):
        raise DataError(f"{path}: {len(codes)} codes, {len(label)} labels, {len(subject)} subjects; expected as many")
    return codes, label.astype(np.int64), subject.astype(np.int64), series.astype(np.int64)


def _read_text(path: Path) -> tuple[Codes, Integers, Integers, Integers]:
    parts: list[tuple[Codes, Integers, Integers, Integers]] = []
    with open_members(path) as members:
        for name in members.names():
            if match := _FILE.fullmatch(name):
                codes, label = _parse(unpack_text(f"{path}: {name}", members.read(name)), f"{path}: {name}")
                rows = len(label)
                subject, series = int(match[1] or 1), int(match[2])
                parts.append((codes, label, np.full(rows, subject, np.int64), np.full(rows, series, np.int64)))
    if not parts:
        raise DataError(f"{path}: no file like 01/1_raw_data_*.txt; expected the original folder, its zip or the .npz")
    return (
        np.concatenate([part[0] for part in parts]),
        np.concatenate([part[1] for part in parts]),
        np.concatenate([part[2] for part in parts]),
        np.concatenate([part[3] for part in parts]),
    )


def _parse(text: bytes, where: str) -> tuple[Codes, Integers]:
    """Parse one original file into codes and labels: a header, then time, eight channels in volt, and the class."""
    header, _, body = text.partition(b"\n")
    if not header.startswith(b"time"):
        raise DataError(f"{where}: the first line is {header[:60].decode('latin-1')!r}; expected time, channel1, ...")
    # One original file ends in the middle of its last line: that line has no label, and nothing can be learned from it.
    lines = body.rstrip().rsplit(b"\n", 1)
    if len(lines) == 2 and len(lines[1].split()) != CHANNELS + 2:
        body = lines[0]
    table = parse_table(body.rstrip() + b"\n", CHANNELS + 2, where, first_line=2)
    codes = np.rint(table[:, 1 : CHANNELS + 1] / VOLT_PER_CODE)
    if codes.min() < -128 or codes.max() > 127:
        raise DataError(
            f"{where}: a channel reaches {abs(table[:, 1 : CHANNELS + 1]).max():g} V; expected volts up to 0.00128"
        )
    return codes.astype(np.int8), table[:, -1].astype(np.int64)
