"""A column of times as seconds: numbers of a unit to be found, ISO dates, dates with dots or slashes, clock times.

A file's times are read once before all else: their steps give unit and rate, and no row can be placed before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from mdl.data.readers.clock import UNITS_S, Clock, find_clock
from mdl.data.tables.blocks import Cells, read_instants
from mdl.data.tables.dialect import Dialect, is_nothing
from mdl.data.tables.options import CsvOptions
from mdl.data.tables.recordings import read_table
from mdl.data.tables.rows import TIME_EXAMPLES, Floats64, TableRows, to_numbers
from mdl.errors import DataError
from mdl.reading import shorten

# Rows that suffice for the rate: the first ones and, in longer files, blocks of rows from all over.
_ENOUGH_ROWS = 1 << 20
# The most steps back in time. Rows in any order are no stream; a logger that sorts its sensors badly leaves fewer.
_MOST_BACKWARDS = 0.1
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:[.,:]\d{1,9})?))?\s*([AaPp][Mm])?")
_DATE = re.compile(r"(\d{1,4})[./-](\d{1,2})[./-](\d{2,4})(?:[T ,]+(.+))?")
_DOTTED_CLOCK = re.compile(r"T(\d{2})[.-](\d{2})[.-](\d{2})")
_DAY_S, _HALF_DAY_S = 86_400.0, 43_200.0

# Turns a text into seconds; None if it is no time.
_Parser = Callable[[str], "float | None"]


class UnsortedError(DataError):
    """The column holds times, but the rows are in another order."""


@dataclass(frozen=True)
class TimeColumn:
    """A column of times. clock: of this file. parser: reads a cell that is no number; None for numbers."""

    name: str
    place: int
    clock: Clock
    parser: _Parser | None

    @property
    def wraps(self) -> bool:
        """True if the times are of a day, and begin again at midnight: `unwrap`."""
        return self.parser is _clock_seconds

    def read(self, cells: Sequence[str], file: Path, first: int, dialect: Dialect) -> Floats64:
        """Return seconds, float64; NaN for an empty cell. Clock times count from their midnight."""
        if self.parser is None:
            return to_numbers(cells, file, first, self.name, dialect, as_times=True) * UNITS_S[self.clock.unit]
        return _parse(self.parser, cells, file, first, self.name)


def find_time(
    file: Path, dialect: Dialect, place: int, options: CsvOptions, read: Iterable[TableRows] | None = None
) -> TimeColumn:
    """Read the column to its end; return it with its unit and its rate. Raises DataError if it holds no times.

    read: gives the rows of the column; by default the file is read.
    """
    name, parser = dialect.header[place], None
    parts: list[Floats64] = []
    stride, backwards, steps, seen = 1, 0, 0, 0
    last = np.nan
    for number, rows in enumerate(read or read_table(file, dialect, [place], numbers=[place])):
        if number == 0:
            parser = _choose_parser(rows.columns[0])
        if parser is None:
            times = to_numbers(rows.columns[0], file, rows.first, name, dialect, as_times=True)
        else:
            times = _parse(parser, rows.columns[0], file, rows.first, name)
        times = times[np.isfinite(times)]
        if parser is _clock_seconds:
            times = unwrap(times, last)
        ahead = np.diff(times)
        backwards, steps = backwards + int((ahead < 0).sum()), steps + len(ahead)
        last = times[-1] if len(times) else last
        if number % stride == 0:
            parts.append(times)
            seen += len(times)
        if seen > _ENOUGH_ROWS:
            parts, stride = parts[::2], 2 * stride
            seen = sum(map(len, parts))
    where = str(file)
    if backwards > _MOST_BACKWARDS * max(1, steps):
        raise UnsortedError(
            f"{file}: column {name!r} goes back {backwards} times in {steps + 1} rows; sort the rows by time, each "
            f"recording or person in a file of its own"
        )
    unit: str | None = options.time_unit
    if parser is not None:
        if unit not in (None, "s"):
            raise DataError(f"{file}: time_unit={unit}, but column {name!r} holds dates; leave time_unit out")
        unit = "s"
    elif unit is None:
        unit = _said_unit(dialect.units[place])
    longest = options.fill_s or options.max_gap or np.inf
    clock = find_clock(np.concatenate(parts), name, where, unit=unit, rate=options.rate, max_gap_s=longest)
    return TimeColumn(name, place, clock, parser)


def unwrap(times: Floats64, before: float) -> Floats64:
    """Let clock times go on past midnight: a fall by more than half a day begins the next one.

    times: float64 (rows,), seconds of a day. before: the last one of the rows before, unwrapped; NaN if there is none.
    """
    begun = 0.0 if np.isnan(before) else before - before % _DAY_S
    first = times[:1] if np.isnan(before) else np.array([before % _DAY_S])
    unwrapped: Floats64 = times + begun + np.cumsum(np.diff(times, prepend=first) < -_HALF_DAY_S) * _DAY_S
    return unwrapped


def _said_unit(unit: str) -> str | None:
    """Return the "ms" of a header such as "Time (ms)", if it is a unit of time."""
    return unit.casefold().replace("µ", "u") if unit.casefold().replace("µ", "u") in UNITS_S else None


def _choose_parser(cells: Sequence[str]) -> _Parser | None:
    """Return a parser, None for numbers. If day or month may come first, the shorter span of times decides."""
    if isinstance(cells, Cells) and cells.values is not None:
        return None
    full = [cell.strip() for cell in cells if not is_nothing(cell)]
    if not full or not re.search(r"\d\D?[:/.-]\d+[:/.-]\d|:", full[0]):
        return None
    if _CLOCK.fullmatch(full[0]):
        return _clock_seconds
    if _iso_seconds(full[0]) is not None:
        return _iso_seconds
    spans = []
    for order, parser in enumerate((_day_first, _month_first)):
        times = [parser(cell) for cell in full]
        if all(time is not None for time in times):
            good = [time for time in times if time is not None]
            spans.append((max(good) - min(good), order, parser))
    return min(spans)[2] if spans else _day_first if _day_first(full[0]) is not None else None


def _parse(parser: _Parser, cells: Sequence[str], file: Path, first: int, name: str) -> Floats64:
    strings = cells.strings if parser is _iso_seconds and isinstance(cells, Cells) else None
    if strings is not None and (instants := read_instants(strings)) is not None:
        return instants
    times = np.empty(len(cells), np.float64)
    for row, cell in enumerate(cells):
        time = np.nan if is_nothing(cell) else parser(cell.strip())
        if time is None:
            raise DataError(
                f"{file}: data row {first + row}: column {name!r} is {shorten(repr(cell.strip()))}; "
                f"expected a time as the others, such as {TIME_EXAMPLES}"
            )
        times[row] = time
    return times


def _iso_seconds(text: str) -> float | None:
    # Some loggers write 09.30.00 and 09-30-00 after the date, and a space before the zone.
    text = _DOTTED_CLOCK.sub(r"T\1:\2:\3", text.replace(",", "."), count=1).replace(" +", "+")
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _clock_seconds(text: str) -> float | None:
    match = _CLOCK.fullmatch(text)
    if not match or int(match[1]) > 24 or int(match[2]) > 59:
        return None
    hour = int(match[1]) % 12 + 12 * (match[4].lower() == "pm") if match[4] else int(match[1])
    # Some loggers write milliseconds as 12:00:00:250.
    return 3600.0 * hour + 60 * int(match[2]) + float((match[3] or "0").replace(",", ".").replace(":", "."))


def _day_first(text: str) -> float | None:
    return _date_seconds(text, day=1, month=2)


def _month_first(text: str) -> float | None:
    return _date_seconds(text, day=2, month=1)


def _date_seconds(text: str, day: int, month: int) -> float | None:
    match = _DATE.fullmatch(text)
    if not match:
        return None
    year, days, months = int(match[3]), int(match[day]), int(match[month])
    if len(match[1]) == 4:
        year, months, days = int(match[1]), int(match[2]), int(match[3])
    clock = _clock_seconds(match[4].strip()) if match[4] else 0.0
    if clock is None:
        return None
    try:
        return datetime(year + 2000 * (year < 100), months, days, tzinfo=UTC).timestamp() + clock
    except ValueError:
        return None
