"""The column of times of a table: its unit, its rate, and its cells as seconds.

Times are numbers of a unit to be found, ISO dates, dates with dots or slashes, or clock times. Their steps give unit
and rate. A wrong unit is a factor of 1,000, and nothing else about the data looks wrong then: rows are torn apart at
every step, or a thousand rows are made of one. So the reader reports what it found, and refuses contradictions, never
repairs them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mdl.data.tables.dialect import CsvOptions, Dialect, is_nothing, words_of
from mdl.data.tables.recordings import read_table
from mdl.data.tables.rows import TIME_EXAMPLES, Cells, Floats64, TableRows, read_instants, to_numbers
from mdl.errors import DataError
from mdl.reading import shorten
from mdl.task import describe_rate

UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# Rates of sensors with windows worth training on. Less than two units lie a factor of 4,000 apart: at a step of 1 both
# s (1 Hz) and ms (1,000 Hz) are possible, and the user is asked.
_USUAL_HZ = (0.5, 2000.0)
# A UNIX time tells its unit by its size, unless that would be less than a row an hour: then it is a time since start.
_SLOWEST_HZ = 1 / 3600
# No sensor here is faster; a unit that makes it so is a wrong one.
_FASTEST_HZ = 100_000.0
# The years 2001 to 2103 in seconds.
EARLIEST_S, LATEST_S = 1e9, 4.2e9
# A stream may have lost a third of its rows and still be called by its nominal rate. More would be invented.
RATE_TOLERANCE = 1.5
# Nobody keeps less than a hundredth of the rows: a rate so far below the steps' means a wrong unit (a thousandth).
_MOST_THINNED = 100.0
# A step so many times the usual one is a gap, and says nothing about the rate.
_GAP_STEPS = 10.0
# If most steps are one but for rounding (9 and 10 ms), the others are lost rows, and no part of the rate.
_ALIKE, _MOST_ALIKE = 0.12, 0.8
_NAMES = {
    "s": ("s", "sec", "secs", "second", "seconds"),
    "ms": ("ms", "msec", "msecs", "milli", "millis", "millisecond", "milliseconds"),
    "us": ("us", "µs", "usec", "usecs", "micro", "micros", "microsecond", "microseconds"),
    "ns": ("ns", "nsec", "nsecs", "nano", "nanos", "nanosecond", "nanoseconds"),
}
Times = NDArray[np.float64]


@dataclass(frozen=True)
class Clock:
    """unit: of UNITS_S. rate_hz: rows a second, gaps left out."""

    unit: str
    rate_hz: float


def find_clock(
    times: Times, column: str, where: str, *, unit: str | None = None, rate: float | None = None, max_gap_s: float = 1.0
) -> Clock:
    """Find the clock of one recording. unit: the user's; rate: wanted Hz; max_gap_s: a longer step ends a stretch.

    times: float64 (rows,). Raises DataError that names the column's steps and what they contradict, or the possible
    units if its name, its size and its steps do not tell.
    """
    step = _usual_step(times, column, where)
    rates = {name: 1 / (step * seconds) for name, seconds in UNITS_S.items()}
    said = f"{where}: the steps of column {column!r} ({step:g} on average)"
    found = unit or _name_unit(column)
    if found is None:
        possible = list(_possible_units(float(np.median(times)), rates, rate))
        if not possible:
            raise DataError(f"{said} fit {f'rate={rate:g}' if rate else 'no usual rate'} in no unit; {_list(rates)}")
        if len(possible) > 1:
            raise DataError(f"{said}: {_list({name: rates[name] for name in possible})}; say which with ?time_unit=")
        found = possible[0]
    clock = Clock(found, rates[found])
    if problem := _contradiction(clock, rate, max_gap_s):
        fits = [name for name in UNITS_S if not _contradiction(Clock(name, rates[name]), rate, max_gap_s)]
        hint = f"; time_unit={fits[0]} would make it {describe_rate(rates[fits[0]])}" if fits else ""
        raise DataError(f"{said} are {describe_rate(clock.rate_hz)} with time_unit={found}: {problem}{hint}")
    return clock


def unix_unit(time: float) -> str | None:
    """Return the unit in which this is a UNIX time of the years 2001 to 2103; None if there is none."""
    return next((name for name, seconds in UNITS_S.items() if EARLIEST_S <= time * seconds <= LATEST_S), None)


def _possible_units(middle: float, rates: dict[str, float], rate: float | None) -> Iterator[str]:
    """Yield the units by the wanted rate; else by the size of UNIX times; else by the usual rates of sensors."""
    if rate is not None:
        # Thinned from a usual rate, or not at all: 50 rows a second are no 50,000 to be thinned to hundreds.
        most = min(rate * _MOST_THINNED, max(_USUAL_HZ[1], rate * RATE_TOLERANCE))
        yield from (name for name in rates if rate / RATE_TOLERANCE <= rates[name] <= most)
        return
    usual = [name for name in rates if _USUAL_HZ[0] <= rates[name] <= _USUAL_HZ[1]]
    unix = unix_unit(middle)
    if unix is None or rates[unix] < _SLOWEST_HZ:
        yield from usual
    elif unix in usual:
        yield unix
    else:
        yield from (unix, *usual)


def _contradiction(clock: Clock, rate: float | None, max_gap_s: float) -> str:
    if rate is not None and clock.rate_hz * RATE_TOLERANCE < rate:
        return f"rate={rate:g} would invent what lies between them"
    if rate is not None and clock.rate_hz > rate * _MOST_THINNED:
        return f"rate={rate:g} would leave less than one row in {_MOST_THINNED:g}"
    if clock.rate_hz > _FASTEST_HZ:
        return "no sensor is so fast"
    if 1 / clock.rate_hz > max_gap_s:
        return f"every step is a gap (max_gap={max_gap_s:g} s)"
    return ""


def _usual_step(times: Times, column: str, where: str) -> float:
    """Return the time from row to row without gaps and jumps back; a logger may write several rows under one time."""
    steps = np.diff(times)
    forward = steps[steps > 0]
    if not len(forward):
        raise DataError(f"{where}: column {column!r} never advances; expected times in the order of the rows")
    middle = float(np.median(forward))
    alike = np.abs(forward - middle) <= _ALIKE * middle
    if alike.mean() >= _MOST_ALIKE and (steps > 0).mean() >= _MOST_ALIKE:
        return float(forward[alike].mean())
    even = steps[(steps >= 0) & (steps <= _GAP_STEPS * middle)]
    return float(even.mean())


def _name_unit(column: str) -> str | None:
    words = words_of(column)
    return next((unit for unit, names in _NAMES.items() if not words.isdisjoint(names)), None)


def _list(rates: dict[str, float]) -> str:
    return ", ".join(f"{describe_rate(rate)} if they are {unit}" for unit, rate in rates.items())


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
