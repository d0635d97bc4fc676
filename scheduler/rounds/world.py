"""Worlds for whole rounds, drawn by a seed: training times, links that drift, and hours of busy periods. Pure.

- dynamic: classes, stragglers and kinds of use of the family `dynamic` (`mdl.sim.timing.scenario`), and its gaps.
- varied: each world draws its own way of drawing (`mdl.sim.timing.scenario`): shares of classes and kinds, lengths and
  gaps of busy periods, stragglers, speeds. A rule that is tuned on one way of drawing shows it here.
- recorded: busy periods, battery and heat of recorded phones (`scheduler/rounds/recorded.py`), the rest as dynamic.

In all of them the fastest class trains 1 to 8 s for a local period, and slower ones longer, as they merge slower.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from mdl.devices.busy_periods import Periods, periods_begun
from mdl.devices.scenario import MOST_DEVICES, ScenarioDevice
from mdl.devices.usage import UsageKind, draw_busy_periods
from mdl.errors import ConfigError
from mdl.hints import did_you_mean
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
