"""Long logs of sensors in text: whitespace between numbers, a label in one column, NaN if a sensor has no value.

They are read in pieces, since a log may be larger than memory should hold; only the wanted columns are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.data.readers.archive import open_members
from mdl.data.readers.streams import cut_runs, take_rows
from mdl.data.windows import Floats, Integers, Windows, make_windows, number_runs, take_windows
from mdl.errors import DataError

_PIECE_BYTES = 4 << 20
# No row of these sets is longer; bytes without an end of line for so long are none of them.
_LONGEST_ROW_BYTES = 1 << 16
_TEST_EVERY = 5
Rows: TypeAlias = Annotated[int, msgspec.Meta(ge=4, le=10_000)]
Step: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=10_000)]


@dataclass(frozen=True)
class Log:
    """One recording. values: float32 (rows, channels), NaN if unknown. label: int64 (rows,), as written."""

    values: Floats
    label: Integers
    subject: int


def read_log(file: BinaryIO, width: int, channels: Sequence[int], label: int, subject: int, where: str) -> Log:
    """Read one log. width: columns of each row; channels, label: the wanted columns, from 0.

    Raises DataError naming the line that holds something else than numbers, or another count of them.
    """
    parts: list[NDArray[np.float32]] = []
    wanted, rest, line = [*channels, label], b"", 1
    while piece := file.read(_PIECE_BYTES):
        whole, newline, rest = (rest + piece).rpartition(b"\n")
        if not newline and len(rest) > _LONGEST_ROW_BYTES:
            raise DataError(f"{where}, line {line}: more than {_LONGEST_ROW_BYTES} bytes; expected {width} numbers")
        parts.append(_parse(whole, width, wanted, where, line))
        line += whole.count(b"\n") + len(newline)
    parts.append(_parse(rest, width, wanted, where, line))
    table = np.concatenate(parts)
    if not len(table):
        raise DataError(f"{where}: empty; expected lines of {width} numbers")
    named = table[:, -1]
    if not (np.isfinite(named).all() and (named == np.floor(named)).all()):
        raise DataError(f"{where}: column {label + 1} holds {named[~np.isfinite(named) | (named % 1 != 0)][0]:g}; "
                        "expected the number of an activity")  # fmt: skip
    return Log(np.ascontiguousarray(table[:, :-1]), named.astype(np.int64), subject)


def read_logs(
    path: Path, file: re.Pattern[str], width: int, columns: Sequence[int], label: int, scale: Floats, expected: str
) -> list[Log]:
    """Read all logs of a folder or a zip with names that fit `file`; its group "subject" is the person.

    scale: the divisor of each channel. expected: for the error if there is no log. Raises DataError.
    """
    logs = []
    with open_members(path) as members:
        for name in members.names():
            if match := file.fullmatch(name):
                with members.open(name) as opened:
                    log = read_log(opened, width, columns, label, int(match["subject"]), f"{path}: {name}")
                np.divide(log.values, scale, out=log.values)
                logs.append(log)
    if not logs:
        raise DataError(f"{path}: no file like {expected}, or its zip")
    return logs


def hold_out(windows: Windows) -> tuple[Windows, Windows]:
    """Return (to train, to test): people with a number that is a multiple of five test."""
    test = windows.subject % _TEST_EVERY == 0
    return take_windows(windows, ~test), take_windows(windows, test)


def cut_windows(logs: Sequence[Log], classes: Mapping[int, int], window: int, step: int, most_missing: int) -> Windows:
    """Cut windows of rows with one label, one recording and no gap; a run of such rows is a group.

    classes: the class of each label; other labels are left out. most_missing: missing rows of a channel in a row to
    fill in linearly; windows never cross a longer gap.
    """
    values = np.concatenate([fill_gaps(log.values, most_missing) for log in logs])
    label = np.concatenate([log.label for log in logs])
    subject = np.repeat([log.subject for log in logs], [len(log.label) for log in logs])
    recording = np.repeat(np.arange(len(logs)), [len(log.label) for log in logs])
    known = np.isfinite(values).all(axis=1)
    run = number_runs(recording, label, known)
    starts, group = cut_runs(run, window, step)
    kept = known[starts] & np.isin(label[starts], list(classes))
    starts, group = starts[kept], group[kept]
    y = np.array([classes[each] for each in label[starts].tolist()], np.int64)
    return make_windows(take_rows(values, starts, window), y, subject[starts], group)


def fill_gaps(values: Floats, most: int) -> Floats:
    """Return a copy with up to `most` missing rows between two known ones of a channel filled in linearly."""
    filled = values.copy()
    for column in filled.T:
        missing = ~np.isfinite(column)
        column[missing] = np.nan  # infinity is no measurement either
        if not missing.any() or missing.all():
            continue
        edges = np.diff(np.concatenate([[0], missing.view(np.int8), [0]]))
        for start, stop in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
            if start > 0 and stop < len(column) and stop - start <= most:
                column[start:stop] = np.linspace(column[start - 1], column[stop], stop - start + 2)[1:-1]
    return filled


def _parse(text: bytes, width: int, wanted: list[int], where: str, line: int) -> NDArray[np.float32]:
    """Return the wanted columns of these whole lines; empty lines at the end count for nothing."""
    fields = text.split()
    rows = text.count(b"\n") + 1 if fields else 0
    if len(fields) != rows * width:
        raise _blame(text, width, where, line)
    table = np.array(fields).reshape(-1, width)[:, wanted] if fields else np.zeros((0, len(wanted)), "S1")
    try:
        return table.astype(np.float32)
    except ValueError:
        raise _blame(text, width, where, line) from None


def _blame(text: bytes, width: int, where: str, first_line: int) -> DataError:
    for number, line in enumerate(text.split(b"\n"), start=first_line):
        fields = line.split()
        if len(fields) != width:
            return DataError(f"{where}, line {number}: {len(fields)} values; expected {width}")
        for field in fields:
            try:
                float(field)
            except ValueError:
                return DataError(f"{where}, line {number}: {field[:40].decode('latin-1')!r}; expected a number")
    return DataError(f"{where}: expected lines of {width} numbers")
