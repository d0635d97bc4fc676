"""Worlds from recorded phones: the use, battery and heat of real phones, replayed; links and speeds are drawn. Pure.

The file is a table with a row a reading: `device`, `Timestamp` (ms), `usage` (CPU, %), `isInteractive`, `level`,
`status` (2: charging), `temperature`. A phone is busy while its CPU is above half of the headroom that it usually has
in use (docs/device-models-use.md). Every second phone, by name, is held out: rules are tuned on the others alone.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec
import numpy as np

from mdl.data.readers.archive import open_text
from mdl.devices.usage import UsageKind
from mdl.errors import ConfigError, DataError
from mdl.scheduler.rounds.world import HORIZON_S, Condition, World, check_size, draw_period_s, make_device
from mdl.sim.timing.scenario import draw_scenario

Part = Literal["tuning", "held-out"]
PARTS: tuple[Part, ...] = ("tuning", "held-out")
_COLUMNS = ("device", "Timestamp", "usage", "isInteractive", "level", "status", "temperature")
_CHARGING = 2
# A longer silence ends a session. The replay goes on with the phone's next session.
_SESSION_GAP_S = 30.0
_MOST_READINGS = 2_000_000
# A phone with less than this many seconds of readings would repeat itself too soon.
_SHORTEST_S = 600.0


@dataclass(frozen=True)
class Reading:
    """One reading of a phone. seconds: until the next one, without silences."""

    at_s: float
    seconds: float
    cpu: float
    in_use: bool
    level: float
    charging: bool
    celsius: float


@dataclass(frozen=True)
class Phone:
    """A recorded phone. busy_above: the CPU, 0 to 1, above which it is busy."""

    name: str
    readings: tuple[Reading, ...]
    busy_above: float

    @property
    def recorded_s(self) -> float:
        return sum(reading.seconds for reading in self.readings)


def read_phones(path: Path) -> list[Phone]:
    """Read all phones, sorted by name. Raises DataError for a file without such a table."""
    rows: dict[str, list[tuple[float, float, bool, float, bool, float]]] = defaultdict(list)
    with open_text(path) as lines:
        table = csv.DictReader(lines)
        if missing := [name for name in _COLUMNS if name not in (table.fieldnames or ())]:
            raise DataError(f"{path}: no column {missing[0]!r}; expected a table of phones with {', '.join(_COLUMNS)}")
        for number, row in enumerate(table, 2):
            if number > _MOST_READINGS:
                raise DataError(f"{path}: more than {_MOST_READINGS} readings")
            rows[row["device"]].append(_parse(row, f"{path}, line {number}"))
    phones = [_make_phone(name, sorted(found)) for name, found in sorted(rows.items())]
    phones = [phone for phone in phones if phone.recorded_s >= _SHORTEST_S]
    if len(phones) < len(PARTS):
        raise DataError(f"{path}: {len(phones)} phones with {_SHORTEST_S:g} s of readings; expected two or more")
    return phones


def of_part(phones: Sequence[Phone], part: Part) -> list[Phone]:
    """Return the phones for tuning, or those that are held out."""
    return list(phones[PARTS.index(part) :: len(PARTS)])


def draw_recorded_world(phones: Sequence[Phone], n: int, size_mb: float, seed: int) -> World:
    """Draw a world of n devices, each of which replays a phone from a drawn moment on; phones may come twice."""
    if not phones:
        raise ConfigError("no phones to draw a world from")
    check_size(n, size_mb)
    rng = np.random.default_rng([2, n, seed])
    scenario = draw_scenario("dynamic", n, seed)
    period_s = draw_period_s(rng)
    devices = []
    for drawn in scenario.devices:
        phone = phones[int(rng.integers(len(phones)))]
        busy, conditions = _replay(phone, int(rng.integers(len(phone.readings))))
        first = conditions[0]
        used = msgspec.structs.replace(
            drawn,
            kind=UsageKind.INTERACTIVE,
            busy=busy,
            battery_percent=first.battery_percent,
            charging=first.charging,
        )
        devices.append(make_device(used, period_s, rng, conditions))
    return World(f"recorded-{n}-{size_mb:g}MB-{seed}", size_mb, scenario.latency_s, tuple(devices))


def _replay(phone: Phone, start: int) -> tuple[tuple[tuple[float, float], ...], tuple[Condition, ...]]:
    """Replay readings from one on, around, until the horizon: busy periods, and the conditions that change."""
    busy: list[tuple[float, float]] = []
    conditions: list[Condition] = []
    at_s, place = 0.0, start
    while at_s < HORIZON_S:
        reading = phone.readings[place % len(phone.readings)]
        place += 1
        told = Condition(at_s, reading.in_use, reading.level, reading.charging, reading.celsius)
        if not conditions or _differs(conditions[-1], told):
            conditions.append(told)
        end_s = at_s + reading.seconds
        if reading.cpu >= phone.busy_above and reading.seconds > 0.0:
            goes_on = bool(busy) and busy[-1][1] == at_s
            busy.append((busy.pop()[0] if goes_on else at_s, end_s))
        at_s = end_s
    return tuple(busy), tuple(conditions)


def _differs(one: Condition, other: Condition) -> bool:
    return (one.in_use, one.battery_percent, one.charging, one.celsius) != (
        other.in_use,
        other.battery_percent,
        other.charging,
        other.celsius,
    )


def _make_phone(name: str, rows: list[tuple[float, float, bool, float, bool, float]]) -> Phone:
    gaps = [later[0] - row[0] for row, later in pairwise(rows)]
    usual_s = median(gaps) if gaps else 0.0
    lasting = [gap if gap <= _SESSION_GAP_S else min(usual_s, _SESSION_GAP_S) for gap in [*gaps, usual_s]]
    readings = tuple(Reading(row[0], seconds, *row[1:]) for row, seconds in zip(rows, lasting, strict=True))
    used = [reading.cpu for reading in readings if reading.in_use] or [reading.cpu for reading in readings]
    return Phone(name, readings, (1.0 + median(used)) / 2.0)


def _parse(row: dict[str, str], where: str) -> tuple[float, float, bool, float, bool, float]:
    try:
        at_ms, usage, level, celsius = (float(row[name]) for name in ("Timestamp", "usage", "level", "temperature"))
        status = int(row["status"])
    except (TypeError, ValueError):
        raise DataError(f"{where}: no reading of a phone; expected numbers in {', '.join(_COLUMNS[1:])}") from None
    if not all(isfinite(each) for each in (at_ms, usage, level, celsius)):
        raise DataError(f"{where}: no reading of a phone; a number is not finite")
    return at_ms / 1e3, usage / 100.0, row["isInteractive"] == "true", level, status == _CHARGING, celsius
