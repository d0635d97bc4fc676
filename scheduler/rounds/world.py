"""Worlds for whole rounds: drawn by a seed, from recorded phones, or from a mesh's own rounds. Pure.

A world has training times, links that drift, and hours of busy periods.

- dynamic: classes, stragglers and kinds of use of the family `dynamic` (`mdl.sim.timing.scenario`), and its gaps.
- varied: each world draws its own way of drawing (`mdl.sim.timing.scenario`): shares of classes and kinds, lengths and
  gaps of busy periods, stragglers, speeds. A rule that is tuned on one way of drawing shows it here.
- recorded: busy periods, battery and heat of recorded phones, the rest as dynamic.

In all of them the fastest class trains 1 to 8 s for a local period, and slower ones longer, as they merge slower.

The file of recorded phones is a table with a row a reading: `device`, `Timestamp` (ms), `usage` (CPU, %),
`isInteractive`, `level`, `status` (2: charging), `temperature`. A phone is busy while its CPU is above half of the
headroom that it usually has in use (docs/device-models-use.md). Every second phone, by name, is held out: rules are
tuned on the others alone.

A mesh's own log has its devices' training times, links and busy times, as its agent recorded them. It is cut into parts
by time: rules learn from the first one and are judged on later ones (`split_log`). A world replays a part from a drawn
moment on, around, until the horizon. Training times and links vary by a drawn factor.
"""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from mdl.data.readers.archive import open_text
from mdl.devices.scenario import MOST_DEVICES, ScenarioDevice
from mdl.devices.usage import Periods, UsageKind, active_s, draw_busy_periods, periods_begun
from mdl.errors import ConfigError, DataError, did_you_mean
from mdl.protocol.status_messages import DeviceRecord, RoundSummary
from mdl.sim.timing.scenario import MERGE_RANGES_MB_S, draw_scenario, draw_varied

Floats = npt.NDArray[np.float64]

FAMILIES = ("dynamic", "varied")
# Worlds last two hours: the slowest rule needs less for the judge's levels, but for meshes with the slowest classes.
HORIZON_S = 7200.0
# The gaps of the family dynamic, a busy hour (`mdl.sim.timing.scenario`).
_GAP_SCALE = 0.5
# Seconds of a local period on the fastest class: uniform in the logarithm over worlds.
_PERIOD_S = (1.0, 8.0)
_FASTEST_MERGE_MB_S = sum(MERGE_RANGES_MB_S[0]) / 2.0
# Links are measured anew every few seconds. They drift around their mean: log-normal, correlated from slot to slot.
SLOT_S = 5.0
_DRIFT_DEVIATION = 0.35
_DRIFT_KEPT = 0.95
_LINK_LIMITS_MB_S = (0.5, 40.0)
# `DeviceSeen.link_spread` looks back on so many measurements.
_SPREAD_SLOTS = 10
_CHARGING = 0.3
_LEAST_BATTERY_PERCENT = 20.0


@dataclass(frozen=True)
class Condition:
    """A recorded phone's condition from a time on. in_use: its screen is on. celsius: of its battery."""

    at_s: float
    in_use: bool
    battery_percent: float
    charging: bool
    celsius: float | None = None


@dataclass(frozen=True)
class WorldDevice:
    """One device. period_s: of work for one local period. busy: work and transfers stand still.

    links_mb_s: its link in each slot of `SLOT_S`. recorded: its conditions, sorted by time; () for a drawn device.
    """

    period_s: float
    merge_mb_s: float
    links_mb_s: Floats
    kind: UsageKind
    busy: Periods
    battery_percent: float
    charging: bool
    recorded: tuple[Condition, ...] = ()

    def link_at(self, at_s: float) -> float:
        return float(self.links_mb_s[min(int(at_s / SLOT_S), len(self.links_mb_s) - 1)])

    def measured_at(self, at_s: float) -> tuple[float, float]:
        """Return the link as it was last measured, one slot ago, and the spread of the measurements before."""
        last = min(max(0, int(at_s / SLOT_S) - 1), len(self.links_mb_s) - 1)
        return float(self.links_mb_s[last]), float(self._spreads[last])

    @cached_property
    def _spreads(self) -> Floats:
        """The spread of the last measurements up to each slot; before the first there were others like it."""
        padded = np.concatenate([np.full(_SPREAD_SLOTS - 1, self.links_mb_s[0]), self.links_mb_s])
        recent = np.lib.stride_tricks.sliding_window_view(padded, _SPREAD_SLOTS)
        return np.asarray(recent.std(axis=1) / recent.mean(axis=1))

    def busy_for_s(self, at_s: float) -> float:
        """Return for how long it has been busy; 0.0 if it is not."""
        place = periods_begun(self.busy, at_s)
        if not place or self.busy[place - 1][1] <= at_s:
            return 0.0
        return max(at_s - self.busy[place - 1][0], 1e-6)

    def condition_at(self, at_s: float) -> Condition:
        if not self.recorded:
            return Condition(at_s, self.kind is not UsageKind.IDLE, self.battery_percent, self.charging)
        return self.recorded[max(0, bisect_right(self.recorded, at_s, key=lambda each: each.at_s) - 1)]

    def kind_at(self, at_s: float) -> UsageKind:
        """Return the kind of use: of a recorded phone interactive while its screen is on, else sync."""
        if not self.recorded:
            return self.kind
        return UsageKind.INTERACTIVE if self.condition_at(at_s).in_use else UsageKind.SYNC


@dataclass(frozen=True)
class World:
    """A mesh for many rounds. size_mb: of a delta. latency_s: of a message."""

    world_id: str
    size_mb: float
    latency_s: float
    devices: tuple[WorldDevice, ...]


def draw_world(family: str, n: int, size_mb: float, seed: int) -> World:
    """Draw a world, the same for the same arguments. Raises ConfigError for an unknown family or an impossible n."""
    if family not in FAMILIES:
        hint = did_you_mean(family, FAMILIES)
        raise ConfigError(f"unknown family of worlds {family!r}{hint} (valid: {', '.join(FAMILIES)})")
    check_size(n, size_mb)
    # The size is no part of the seed: the same mesh is judged under several sizes.
    rng = np.random.default_rng([1, FAMILIES.index(family), n, seed])
    latency_s, drawn = _draw_devices(family, n, seed, rng)
    period_s = draw_period_s(rng)
    devices = tuple(make_device(device, period_s, rng) for device in drawn)
    return World(f"{family}-{n}-{size_mb:g}MB-{seed}", size_mb, latency_s, devices)


def check_size(n: int, size_mb: float) -> None:
    """Raise ConfigError for a number of devices, or a size, that no world has."""
    if not 2 <= n <= MOST_DEVICES:
        raise ConfigError(f"{n} devices: a world has 2 to {MOST_DEVICES}")
    if not 1e-3 <= size_mb <= 1e4:
        raise ConfigError(f"a size of {size_mb:g} MB: expected 0.001 to 10000")


def draw_period_s(rng: np.random.Generator) -> float:
    """Draw the seconds of a local period on the fastest class."""
    return float(np.exp(rng.uniform(*np.log(_PERIOD_S))))


def make_device(
    drawn: ScenarioDevice, period_s: float, rng: np.random.Generator, recorded: tuple[Condition, ...] = ()
) -> WorldDevice:
    """Make a device of a world from one of a scenario: its link drifts, and its training takes as long as its class."""
    return WorldDevice(
        # The time until a scenario's device is ready is what its training takes beyond that of its class.
        period_s=period_s * _FASTEST_MERGE_MB_S / drawn.merge_mb_s + drawn.ready_s,
        merge_mb_s=drawn.merge_mb_s,
        links_mb_s=_drift(drawn.link_mb_s, rng),
        kind=drawn.kind,
        busy=drawn.busy,
        battery_percent=drawn.battery_percent,
        charging=drawn.charging,
        recorded=recorded,
    )


def _draw_devices(family: str, n: int, seed: int, rng: np.random.Generator) -> tuple[float, tuple[ScenarioDevice, ...]]:
    if family == "varied":
        _, latency_s, devices = draw_varied(n, HORIZON_S, rng)
        return latency_s, devices
    scenario = draw_scenario("dynamic", n, seed)
    return scenario.latency_s, tuple(_use_for_hours(device, rng) for device in scenario.devices)


def _use_for_hours(device: ScenarioDevice, rng: np.random.Generator) -> ScenarioDevice:
    return msgspec.structs.replace(
        device,
        busy=draw_busy_periods(device.kind, HORIZON_S, rng, gap_scale=_GAP_SCALE),
        battery_percent=float(rng.uniform(_LEAST_BATTERY_PERCENT, 100.0)),
        charging=bool(rng.random() < _CHARGING),
    )


def _drift(link_mb_s: float, rng: np.random.Generator) -> Floats:
    slots = int(HORIZON_S / SLOT_S) + 1
    steps = rng.normal(0.0, _DRIFT_DEVIATION * (1.0 - _DRIFT_KEPT**2) ** 0.5, slots)
    logs = np.empty(slots)
    logs[0] = rng.normal(0.0, _DRIFT_DEVIATION)
    for slot in range(1, slots):
        logs[slot] = _DRIFT_KEPT * logs[slot - 1] + steps[slot]
    return np.clip(link_mb_s * np.exp(logs), *_LINK_LIMITS_MB_S)


Part = Literal["tuning", "held-out"]
PARTS: tuple[Part, ...] = ("tuning", "held-out")
_COLUMNS = ("device", "Timestamp", "usage", "isInteractive", "level", "status", "temperature")
_STATUS_CHARGING = 2
# A longer silence ends a session. The replay goes on with the phone's next session.
_SESSION_GAP_S = 30.0
_MOST_READINGS = 2_000_000
# A phone with less than this many seconds of readings would repeat itself too soon.
_SHORTEST_READ_S = 600.0


@dataclass(frozen=True)
class PhoneReading:
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
    readings: tuple[PhoneReading, ...]
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
    phones = [phone for phone in phones if phone.recorded_s >= _SHORTEST_READ_S]
    if len(phones) < len(PARTS):
        raise DataError(f"{path}: {len(phones)} phones with {_SHORTEST_READ_S:g} s of readings; expected two or more")
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
        busy, conditions = _replay_phone(phone, int(rng.integers(len(phone.readings))))
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


def _replay_phone(phone: Phone, start: int) -> tuple[tuple[tuple[float, float], ...], tuple[Condition, ...]]:
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
    readings = tuple(PhoneReading(row[0], seconds, *row[1:]) for row, seconds in zip(rows, lasting, strict=True))
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
    return at_ms / 1e3, usage / 100.0, row["isInteractive"] == "true", level, status == _STATUS_CHARGING, celsius


# Two rounds for each of the two last parts, and four to learn from.
LEAST_ROUNDS = 8
# The ends of the parts, in shares of the rounds: to learn from, to watch meanwhile, to judge by at the end.
_ENDS = (0.5, 0.75, 1.0)
_SHORTEST_LOGGED_S = 1e-2
# Stands for merges that nobody has measured: they take no time.
_FAST_MERGE_MB_S = 10_000.0
# The standard deviation of the logarithm of a device's training time and link, from world to world.
_VARIES = 0.1


@dataclass(frozen=True)
class Logged:
    """A part of a log. starts_s: of its rounds. seconds: of the whole part. devices: peer id -> its record by round."""

    starts_s: tuple[float, ...]
    seconds: float
    size_mb: float
    devices: dict[str, tuple[DeviceRecord | None, ...]]
    known: dict[str, _Known]


@dataclass(frozen=True)
class _Known:
    """A device's medians over the whole log, for parts that do not tell them."""

    period_s: float
    link_mb_s: float
    merge_mb_s: float


def split_log(rounds: Sequence[RoundSummary], where: str) -> tuple[Logged, Logged, Logged]:
    """Cut a log into the parts to learn from, to watch, and to judge by.

    Raises DataError for a log with too few rounds or devices, or one that tells no links or no size of the model.
    """
    told = [each for each in rounds if each.devices and each.total_s > 0.0]
    if len(told) < LEAST_ROUNDS:
        raise DataError(f"{where}: {len(told)} rounds that tell their devices; expected {LEAST_ROUNDS} or more")
    sizes = [each.size for each in told if each.size]
    if not sizes:
        raise DataError(f"{where}: its rounds tell no size of the model: an older version recorded them")
    known = _find_known(told, where)
    ends = [0, *(round(len(told) * share) for share in _ENDS)]
    size_mb = 4e-6 * median(sizes)
    parts = (told[begin:end] for begin, end in pairwise(ends))
    learned, watched, judged = (_make_part(part, size_mb, known) for part in parts)
    return learned, watched, judged


def draw_logged_world(log: Logged, rng: np.random.Generator) -> World:
    """Draw a world with all devices of the log."""
    offset_s = float(rng.uniform(0.0, log.seconds))
    devices = tuple(_replay_log(log, name, offset_s, rng) for name in log.devices)
    return World(f"recorded-{len(devices)}-{offset_s:.1f}s", log.size_mb, 0.0, devices)


def _find_known(rounds: Sequence[RoundSummary], where: str) -> dict[str, _Known]:
    records: dict[str, list[DeviceRecord]] = {}
    for each in rounds:
        for device in each.devices:
            records.setdefault(device.peer_id, []).append(device)
    links = [device.link_mb_s for found in records.values() for device in found if device.link_mb_s]
    if not links:
        raise DataError(f"{where}: its rounds tell no speed of any link")
    known = {}
    for name, found in records.items():
        # A device that was ready at once had trained before the round opened.
        periods = [spent for device in found if device.ready_s and (spent := _worked_s(device)) > _SHORTEST_LOGGED_S]
        if not periods:
            continue
        own = [device.link_mb_s for device in found if device.link_mb_s]
        merges = [device.merge_mb_s for device in found if device.merge_mb_s]
        known[name] = _Known(median(periods), median(own or links), median(merges) if merges else _FAST_MERGE_MB_S)
    if len(known) < 2:
        raise DataError(f"{where}: {len(known)} devices that trained; expected two or more")
    return known


def _worked_s(device: DeviceRecord) -> float:
    """Return the seconds of its training, without those in which it was busy."""
    assert device.ready_s is not None
    return active_s((_closed(device, device.ready_s),), 0.0, device.ready_s)


def _closed(device: DeviceRecord, end_s: float) -> Periods:
    closed = ((start, end_s if end is None else min(end, end_s)) for start, end in device.busy)
    return tuple((start, end) for start, end in closed if end > start)


def _make_part(rounds: Sequence[RoundSummary], size_mb: float, known: dict[str, _Known]) -> Logged:
    ends_s = list(accumulate(each.total_s for each in rounds))
    by_round = [{device.peer_id: device for device in each.devices} for each in rounds]
    devices = {name: tuple(found.get(name) for found in by_round) for name in known}
    return Logged((0.0, *ends_s[:-1]), ends_s[-1], size_mb, devices, known)


def _replay_log(log: Logged, name: str, offset_s: float, rng: np.random.Generator) -> WorldDevice:
    records, known = log.devices[name], log.known[name]
    slower, faster = (float(np.exp(rng.normal(0.0, _VARIES))) for _ in range(2))
    slots = np.arange(int(HORIZON_S / SLOT_S) + 1) * SLOT_S
    links = [(record.link_mb_s if record else None) or known.link_mb_s for record in records]
    played = [links[bisect_right(log.starts_s, (offset_s + at_s) % log.seconds) - 1] for at_s in slots.tolist()]
    last = next((record for record in reversed(records) if record), None)
    battery = last.battery_percent if last else None
    busy = _busy(log, records, offset_s)
    kind = UsageKind(last.kind) if last and last.kind < len(UsageKind) else UsageKind.IDLE
    return WorldDevice(
        period_s=known.period_s * slower,
        merge_mb_s=known.merge_mb_s,
        links_mb_s=np.array(played) * faster,
        kind=UsageKind.INTERACTIVE if busy and kind is UsageKind.IDLE else kind,
        busy=busy,
        battery_percent=100.0 if battery is None else battery,
        charging=battery is None or bool(last and last.charging),
    )


def _busy(log: Logged, records: Sequence[DeviceRecord | None], offset_s: float) -> Periods:
    """Return its busy periods from that moment on, again and again until the horizon."""
    ends_s = (*log.starts_s[1:], log.seconds)
    once = [
        (starts_s + start, starts_s + end)
        for starts_s, ends, record in zip(log.starts_s, ends_s, records, strict=True)
        if record
        for start, end in _closed(record, ends - starts_s)
    ]
    found: list[tuple[float, float]] = []
    begin_s = -offset_s
    while once and begin_s < HORIZON_S:
        for start, end in once:
            start_s, end_s = max(0.0, begin_s + start), begin_s + end
            if end_s <= start_s or start_s >= HORIZON_S:
                continue
            goes_on = bool(found) and start_s <= found[-1][1]
            found.append((found.pop()[0] if goes_on else start_s, end_s))
        begin_s += log.seconds
    return tuple(found)
