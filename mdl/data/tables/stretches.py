"""Stretches of rows of one label, person and recording without a gap; and the names of those labels and people.

Stretches are on disk as they come, on an even grid if asked. Those too short for a window are dropped. Values that are
missing in a stream of rows are filled before, block by block, if their neighbours are near. Memory holds no more than a
block of rows and a few numbers a stretch.

Names of classes and people come from cells or folders, and become small numbers. Several labels of a row stand in
columns of 0 and 1, or their names in the cells of one column.
"""

from __future__ import annotations

import glob
import re
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mdl.data.spec import describe_choices, split_names
from mdl.data.tables.dialect import CsvOptions, is_nothing
from mdl.data.tables.rows import ROWS_AT_ONCE, Floats64, distinct
from mdl.data.windows import Integers
from mdl.errors import ConfigError, DataError
from mdl.reading import shorten

# The most samples made of a row at a high rate: beyond, nearly all of a filled stretch would be invented.
MOST_SAMPLES_A_ROW = 100
# Label of rows that belong to no class.
UNLABELLED = -1
# Without times: rows that may lie between two values of a channel. Sensors of one device, logged in turns, need a few.
MOST_ROWS_BETWEEN = 10
# Rows that wait for a channel's next value; a channel that is silent for so long is missing.
_MOST_WAITING = 4 * ROWS_AT_ONCE

# (values, times, extra)
Settled: TypeAlias = tuple[Floats64, Floats64, NDArray[np.int64]]


class StretchWriter:
    """Takes rows in their order, writes float32 rows (channels,) one after the other, and notes the stretches.

    found: five numbers each, in order: first row in the file, rows, label, subject, recording. began: the start of
    each, in seconds since the recording's first row, or in rows without times. too_short: input rows of stretches that
    were too short.
    """

    def __init__(self, file: IO[bytes], channels: int, window: int) -> None:
        self._file, self._row_bytes, self._window = file, 4 * channels, window
        self.found, self.began, self.longest = array("q"), array("d"), 0
        self._rows, self._start, self._taken, self._made = 0, 0, 0, 0
        self._key: tuple[int, int, int] | None = None
        self._rate: float | None = None
        self._gap_s = np.inf
        self._last: tuple[float, Floats64] | None = None
        self._first_s, self._grid = 0.0, 0
        self._origin_s, self._seen = np.nan, 0
        self.too_short, self._source = 0, 0

    def begin(self, rate: float | None, gap_s: float) -> None:
        """Begin a recording. rate: Hz of the grid, None to take rows as they are. gap_s: a longer step is a gap."""
        self.end()
        self._rate, self._gap_s = rate, gap_s
        self._origin_s, self._seen = np.nan, 0

    def add(self, values: Floats64, times: Floats64 | None, label: Integers, subject: Integers, recording: int) -> None:
        """Add rows. values: (rows, channels), NaN if missing: there, and at a missing label, a stretch ends."""
        self._taken += len(values)
        good = np.isfinite(values).all(axis=1) & (label != UNLABELLED)
        cut = np.ones(len(values), np.bool_)
        cut[1:] = ~good[:-1] | (label[1:] != label[:-1]) | (subject[1:] != subject[:-1])
        if times is None:
            self._origin_s = 0.0
        else:
            good &= np.isfinite(times)
            if np.isnan(self._origin_s) and np.isfinite(times).any():
                self._origin_s = float(times[np.isfinite(times)][0])
            with np.errstate(invalid="ignore"):
                step = np.diff(times)
                cut[1:] |= ~good[:-1] | (step < 0) | (step > self._gap_s)
        starts = np.flatnonzero(good & (cut | ~np.concatenate([[False], good[:-1]])))
        ends = np.flatnonzero(good & np.concatenate([cut[1:] | ~good[1:], [True]])) + 1
        if len(good) and not good[0]:
            self.end()
        for first, last in zip(starts.tolist(), ends.tolist(), strict=True):
            key = (int(label[first]), int(subject[first]), recording)
            if first or key != self._key or self._steps_away(times):
                self.end()
            if self._key is None:
                self._first_s = float(self._seen + first if times is None else times[first])
            self._extend(key, values[first:last], None if times is None else times[first:last])
        if len(good) and not good[-1]:
            self.end()
        self._seen += len(good)

    def end(self) -> None:
        """End the stretch; take it back if it is too short."""
        length = self._rows - self._start
        self.longest = max(self.longest, length)
        if self._key is not None and length >= self._window:
            self.found.extend((self._start, length, *self._key))
            self.began.append(self._first_s - self._origin_s)
        elif length:
            self._file.seek(self._start * self._row_bytes)
            self._file.truncate()
            self._rows = self._start
            self.too_short += self._source
        self._start, self._key, self._last, self._source = self._rows, None, None, 0

    def _steps_away(self, times: Floats64 | None) -> bool:
        """Return True if the first row of a block is a gap away from the last row of the block before."""
        if times is None or self._last is None:
            return False
        return not 0 <= times[0] - self._last[0] <= self._gap_s

    def _extend(self, key: tuple[int, int, int], values: Floats64, times: Floats64 | None) -> None:
        if self._key is None:
            self._grid = 0
        self._key = key
        self._source += len(values)
        if times is not None:
            last = self._last
            self._last = (float(times[-1]), values[-1].copy())
            if self._rate is not None:
                values = self._resample(self._rate, last, values, times)
        with np.errstate(over="ignore"):
            self._file.write(np.ascontiguousarray(values, np.float32).tobytes())
        self._rows += len(values)

    def _resample(
        self, rate: float, last: tuple[float, Floats64] | None, values: Floats64, times: Floats64
    ) -> Floats64:
        """Resample linearly on the stretch's own grid, which goes on from block to block."""
        if last is not None:
            times, values = np.append(last[0], times), np.concatenate([last[1][None], values])
        since_s = times - self._first_s
        count = int(since_s[-1] * rate) + 1 - self._grid
        self._made += count
        if not self._made <= MOST_SAMPLES_A_ROW * self._taken:
            raise DataError(
                f"rate={rate:g} would make more than {MOST_SAMPLES_A_ROW} samples of a row: a gap is filled in"
            )
        grid_s = (self._grid + np.arange(max(0, count))) / rate
        self._grid += len(grid_s)
        made: Floats64 = np.stack([np.interp(grid_s, since_s, column) for column in values.T], axis=1)
        return made


def list_stretches(writer: StretchWriter) -> NDArray[np.int64]:
    """Return the stretches, int64 (stretches, 5): first row, rows, label, subject, recording."""
    return np.frombuffer(writer.found, np.int64).reshape(-1, 5) if writer.found else np.zeros((0, 5), np.int64)


class Filler:
    """Fills linearly in time, or in rows without times; nothing is invented beyond a stretch's first and last value."""

    def __init__(self, channels: int, longest_s: float) -> None:
        """Begin. longest_s: the most seconds between two values of a channel, if rows have times."""
        self._channels = channels
        self._longest_s = longest_s
        self.filled = 0
        self._longest, self._given, self._next = 0.0, 0, 0
        self._values: Floats64 = np.zeros((0, channels))
        self._times: Floats64 = np.zeros(0)
        self._extra: NDArray[np.int64] = np.zeros((0, 2), np.int64)

    def add(self, values: Floats64, times: Floats64 | None, extra: NDArray[np.int64]) -> Settled:
        """Return (values, times, extra) of the rows settled now. values: (rows, channels); extra: int64 (rows, 2)."""
        at = np.arange(self._next, self._next + len(values), dtype=np.float64)
        self._next += len(values)
        self._values = np.concatenate([self._values, values])
        self._times = np.concatenate([self._times, at if times is None else times])
        self._extra = np.concatenate([self._extra, extra])
        self._longest = float(MOST_ROWS_BETWEEN) if times is None else self._longest_s
        known = np.isfinite(self._values)
        last = np.where(known.any(axis=0), len(known) - 1 - np.argmax(known[::-1], axis=0), -1)
        settled = int(last.min()) + 1 if len(known) < _MOST_WAITING else len(known)
        return self._take(settled)

    def finish(self) -> Settled:
        """Return the rows that still wait; the next ones belong to another recording."""
        rest = self._take(len(self._values))
        self._begin()
        return rest

    def _begin(self) -> None:
        # The first `_given` rows have been returned, and stay as neighbours of later ones.
        self._values, self._times = self._values[:0], self._times[:0]
        self._extra = self._extra[:0]
        self._given = self._next = 0

    def _take(self, settled: int) -> Settled:
        settled = max(settled, self._given)
        filled = self._values[:settled].copy()
        for column in range(self._channels):
            self._fill(filled[:, column], self._values[:, column])
        given = slice(self._given, settled)
        made = (filled[given], self._times[given], self._extra[given])
        known = np.isfinite(self._values[:settled])
        self.filled += int((np.isfinite(made[0]) & ~known[given]).sum())
        # Each channel's last value stays, as a neighbour of later ones.
        lasts = settled - 1 - np.argmax(known[::-1], axis=0) if settled else np.zeros(0, np.int64)
        keep = max(int(lasts[known.any(axis=0)].min(initial=settled)), settled - _MOST_WAITING) if settled else 0
        self._values, self._times = self._values[keep:], self._times[keep:]
        self._extra = self._extra[keep:]
        self._given = settled - keep
        return made

    def _fill(self, into: Floats64, values: Floats64) -> None:
        known = np.flatnonzero(np.isfinite(values) & np.isfinite(self._times))
        wanted = np.flatnonzero(~np.isfinite(into))
        if not len(known) or not len(wanted):
            return
        after = np.searchsorted(known, wanted)
        inside = (after > 0) & (after < len(known))
        wanted, after = wanted[inside], after[inside]
        left, right = known[after - 1], known[after]
        span = self._times[right] - self._times[left]
        near = (span <= self._longest) & (span >= 0)
        wanted, left, right, span = wanted[near], left[near], right[near], span[near]
        share = np.divide(self._times[wanted] - self._times[left], span, out=np.zeros_like(span), where=span > 0)
        into[wanted] = values[left] + share * (values[right] - values[left])


# Longest name of a class or a person; a longer text is none.
LONGEST_NAME = 256
# The most distinct values: a column of more holds measurements, or texts, and no classes.
_MOST_NAMES = 10_000
_WHOLE = re.compile(r"([+-]?\d+)\.0*")


# Names of folders that tell the side of a split.
_TRAINED, _TESTED = ("train", "training"), ("val", "valid", "validation", "test", "testing")
_FLAGS = {"1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0, "true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0}


class Numbering:
    """Numbers names in the order in which they come. An empty name, and one to be skipped, is UNLABELLED."""

    def __init__(self, what: str, skip: Sequence[str] = (), declared: Sequence[str] = ()) -> None:
        """Begin. The errors call a name one of a `what`. declared: all valid names, in their order."""
        self._what = what
        self._skip = frozenset(each.casefold() for each in skip)
        self._declared = {each.casefold(): each for each in declared}
        self._number: dict[str, int] = {name: place for place, name in enumerate(declared)}
        self._of_cell: dict[str, int] = {}
        self._nothing: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """The names, by number."""
        return tuple(self._number)

    def number(self, cells: Sequence[str], file: Path, first: int, column: str) -> Integers:
        """Return int64, one a cell. Raises DataError naming the row of a text that is no name, or not declared."""
        known = self._of_cell
        words, places = distinct(cells)
        for word in words:
            if word not in known:
                known[word] = self._learn(word, f"{file}: data row {first + cells.index(word)}: column {column!r}")
        return np.array([known[word] for word in words], np.int64)[places]

    def is_nothing(self, cell: str) -> bool:
        """Return True for a cell that names none, among those that `number` took."""
        return cell in self._nothing

    def _learn(self, cell: str, where: str) -> int:
        text = cell.strip()
        if len(text) > LONGEST_NAME:
            raise DataError(f"{where} has {len(text)} characters; expected a name")
        if is_nothing(text) or text.casefold() in self._skip:
            if text.casefold() not in self._skip:
                self._nothing.add(cell)
            return UNLABELLED
        # A spreadsheet, or a program that met an empty cell in the column, writes 3 as 3.0.
        name = match[1] if (match := _WHOLE.fullmatch(text)) else text
        if self._declared and name.casefold() not in self._declared:
            names = ", ".join(self._declared.values())
            raise DataError(f"{where} is {name!r}, none of classes={names}; add it there, or leave it out with ?skip=")
        name = self._declared.get(name.casefold(), name)
        if len(self._number) >= _MOST_NAMES:
            raise DataError(f"{where}: more than {_MOST_NAMES} different values; expected names of a {self._what}")
        return self._number.setdefault(name, len(self._number))


def number_classes(options: CsvOptions) -> Numbering:
    """Return the numbering of the labels. Raises ConfigError if two declared classes are one."""
    declared = split_names(options.classes)
    if twice := [name for name in declared if [each.casefold() for each in declared].count(name.casefold()) > 1]:
        raise ConfigError(f"classes={options.classes[:100]}: {twice[0]!r} is there twice")
    return Numbering("class", split_names(options.skip), declared)


def refuse_one_class_by_two_names(names: Sequence[str], where: str) -> None:
    """Raise DataError if two classes differ by case or spaces alone, as "Walking" and "walking" do."""
    seen: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[\s_-]+", " ", name).casefold()
        if plain in seen:
            raise DataError(
                f"{where}: are {seen[plain]!r} and {name!r} one class? Write it alike, or say ?classes=NAME,NAME,..."
            )
        seen[plain] = name


def find_sides(path: str, files: Sequence[Path]) -> tuple[NDArray[np.bool_] | None, str]:
    """Return (True for each test file, a note) if the folders below a path are the sides of a split.

    They are called train, and val or test. (None, "") if a file is in another folder, or all are on one side.
    """
    try:
        folders = [name_from_path("path", path, file) for file in files]
    except ConfigError:
        return None, ""
    sides = np.array([folder.casefold() in _TESTED for folder in folders])
    if sides.all() or not sides.any() or not {each.casefold() for each in folders} <= {*_TRAINED, *_TESTED}:
        return None, ""
    train, test = (
        sorted({folder for folder, side in zip(folders, sides, strict=True) if side == tested})
        for tested in (False, True)
    )
    return sides, f"{'/, '.join(train)}/ is trained on, {'/, '.join(test)}/ is tested on (by the folders' names)"


def below_sides(said: str) -> str:
    """Return the meaning of `path` if the first folders are sides of a split: the second one."""
    return "path:2" if said == "path" else said


def name_from_path(said: str, path: str, file: Path) -> str:
    """Return the name of `path`, `path:N` or `file` for this file of csv:PATH. Raises ConfigError if it has none."""
    word, _, number = said.partition(":")
    if word == "file":
        return file.name.partition(".")[0]
    root = Path(path)
    if glob.has_magic(path) and not root.exists():
        parts = root.parts
        root = Path(*parts[: next(place for place, part in enumerate(parts) if glob.has_magic(part))])
    folders = file.parent.relative_to(root).parts if file.is_relative_to(root) and file != root else ()
    place = int(number) if number.isascii() and number.isdigit() and len(number) < 4 else 0 if number else 1
    if not 1 <= place <= len(folders):
        raise ConfigError(
            f"{file}: {said!r} is the name of a folder between {root} and the file; there are {len(folders)} "
            f"({'file would be its own name' if not folders else 'path:1 is the first'})"
        )
    return folders[place - 1]


def read_flags(cells: Sequence[str], file: Path, first: int, column: str) -> Floats64:
    """Return float64, 1 if the label holds, NaN for an empty cell. Raises DataError naming the row and the column."""
    return np.array([_read_flag(cell, file, first + row, column) for row, cell in enumerate(cells)])


def part_labels(
    cells: Sequence[str], names: Sequence[str], separator: str, file: Path, first: int, column: str
) -> list[Floats64]:
    """Return for each name float64, 1 in rows with it in their cell, 0 for "none" or "-", NaN for an empty cell.

    Raises DataError naming the row of a label that is none of `names`.
    """
    places = {name.casefold(): place for place, name in enumerate(names)}
    known: dict[str, Floats64] = {}
    for row, cell in enumerate(cells):
        if cell not in known:
            known[cell] = _part(cell, places, names, separator, f"{file}: data row {first + row}: column {column!r}")
    return list(np.stack([known[cell] for cell in cells], axis=1))


def _read_flag(cell: str, file: Path, row: int, column: str) -> float:
    value = np.nan if is_nothing(cell) else _FLAGS.get(cell.strip().casefold())
    if value is None:
        told = shorten(repr(cell.strip()))
        raise DataError(
            f"{file}: data row {row}: column {column!r} is {told}; expected 0 or 1 (?target= takes numbers)"
        )
    return value


def _part(cell: str, places: dict[str, int], names: Sequence[str], separator: str, where: str) -> Floats64:
    if not cell.strip():
        return np.full(len(names), np.nan)
    flags = np.zeros(len(names))
    for part in () if is_nothing(cell) else cell.split(separator):
        if not part.strip():
            continue
        if (place := places.get(part.strip().casefold())) is None:
            choices = describe_choices(part.strip()[:40], names)
            raise DataError(f"{where} has the label {shorten(repr(part.strip()))}, none of classes=; {choices}")
        flags[place] = 1.0
    return flags
