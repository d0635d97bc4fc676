"""The unit and the sampling rate of a column of times, found in its steps; or why it contradicts the user's options.

A wrong unit is a factor of 1,000, and nothing else about the data looks wrong then: rows are torn apart at every step,
or a thousand rows are made of one. So the reader reports what it found, and refuses contradictions, never repairs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mdl.errors import DataError
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
_TIME_WORDS = frozenset(
    (
        *("time", "timestamp", "datetime", "date", "epoch", "epoc", "elapsed", "clock"),
        # Names in other languages' spreadsheets and loggers.
        *("zeit", "uhrzeit", "zeitstempel", "datum", "temps", "heure", "tiempo", "hora", "tempo", "tijd", "czas"),
        *("čas", "время", "χρόνος", "zaman", "時間", "时间"),
    )
)

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


def is_time_name(column: str) -> bool:
    """Return True if a column's name is one of times: time, timestamp_ms, Seconds elapsed."""
    return not _TIME_WORDS.isdisjoint(_words(column))


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
    words = _words(column)
    return next((unit for unit, names in _NAMES.items() if not words.isdisjoint(names)), None)


def _words(column: str) -> set[str]:
    """Split timeStamp_MS into time, stamp, timestamp, ms."""
    parts = re.split(r"[\W_]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column))
    return {part.lower() for part in (*parts, *re.split(r"[\W_]+", column))}


def _list(rates: dict[str, float]) -> str:
    return ", ".join(f"{describe_rate(rate)} if they are {unit}" for unit, rate in rates.items())
