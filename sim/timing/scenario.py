"""Scenarios for the scheduler (`mdl.devices.scenario`), drawn from a family with a seed. Pure.

- paper: equal devices, all ready at 0, up to half of them busy at the start for 0.5 to 4 transfers (MDLdroid 4.4).
- hetero: four device classes, ready |N(0, 0.7 s)|, one in ten a straggler of 1 to 4 s more.
- dynamic: hetero, and busy periods that come and go by the kind of usage: kinds are visible, lengths are not.
- dying: dynamic, and devices with less than 5 % of battery left, which fail sooner the less they have.
- varied: like dynamic, but each scenario draws its own way of drawing (`draw_varied`).

Devices have models: classes of link and merge speed, battery, heat; kinds of use come from mdl.devices.usage. Each
number is given by the scheduling study, fitted to recordings of real phones, or assumed: docs/device-models.md names
its source, and the quality of each fit. Pure: a seeded generator is passed in, no files, no clock.

A network that is trained on one way of drawing fits to it. In `varied`, shares of classes and kinds of use, speeds,
latency, size, stragglers, and lengths and rates of busy periods differ from scenario to scenario. So a network can
learn only rules that hold for all of them. The assumptions on a kind of use (`mdl.devices.usage`) are then wrong by up
to the factors below, as they will be on phones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from mdl.devices.energy import MERGE_W
from mdl.devices.scenario import Scenario, ScenarioDevice
from mdl.devices.usage import Periods, UsageKind, draw_busy_periods
from mdl.errors import ConfigError, did_you_mean

# Class 0 is the fastest. Shares and links are given, and so are the outer two merge ranges; the two between follow
# the ratio of CPU benchmark medians of phones cut into the same shares (CPU float test: 1 : 0.53 : 0.14 : 0.08).
CLASS_SHARES = (0.35, 0.35, 0.20, 0.10)
LINK_RANGES_MB_S = ((10.0, 20.0), (5.0, 10.0), (2.0, 4.0), (1.0, 2.0))
MERGE_RANGES_MB_S = ((600.0, 1200.0), (300.0, 600.0), (100.0, 200.0), (50.0, 100.0))

# Assumed: 4,000 mAh at 3.85 V, usual for phones of the recordings' years.
BATTERY_J = 4.0 * 3600.0 * 3.85
JOULES_A_PERCENT = BATTERY_J / 100.0
# Fitted within sessions, in percent of a full battery an hour. "Idle" is a phone with its screen off and a recorder
# that wakes it every few seconds; a phone that sleeps drains less.
IDLE_PERCENT_AN_HOUR = 2.7
IN_USE_PERCENT_AN_HOUR = 10.5
CHARGING_PERCENT_AN_HOUR = 54.0
# Given powers in the same unit. The slope of the recorded CPU (12) is near, but does not carry over phones.
CPU_PERCENT_AN_HOUR = MERGE_W * 3600.0 / JOULES_A_PERCENT

# Fitted: battery temperature follows CPU and use as a first-order system.
HEAT_MINUTES = 24.0
HEAT_CPU_CELSIUS = 11.0
HEAT_USE_CELSIUS = 4.6
REST_CELSIUS = 28.0
# Assumed: the recordings show no clock speed, so they do not tell when a phone slows down.
HEAT_LIMIT_CELSIUS = 40.0


def draw_class(rng: np.random.Generator) -> int:
    """Draw a device class 0 (fastest) to 3, by CLASS_SHARES."""
    return int(np.searchsorted(np.cumsum(CLASS_SHARES[:-1]), rng.random(), side="right"))


def draw_link_mb_s(device_class: int, rng: np.random.Generator) -> float:
    """Draw a link speed in MB/s, uniform over the range of the class."""
    return float(rng.uniform(*LINK_RANGES_MB_S[device_class]))


def draw_merge_mb_s(device_class: int, rng: np.random.Generator) -> float:
    """Draw a merge speed in MB/s, uniform over the range of the class."""
    return float(rng.uniform(*MERGE_RANGES_MB_S[device_class]))


def energy_percent(joules: float) -> float:
    """Convert joules to percent of a full battery."""
    return joules / JOULES_A_PERCENT


Floats = npt.NDArray[np.float64]

# Ranges over scenarios (uniform in the logarithm): the fixed families fit well inside the span from quick to slow.
# Sizes and latencies are those between a small model on a LAN and a large one over several radio hops.
_SIZES_MB = (1.0, 50.0)
_LATENCIES_S = (0.002, 0.3)
_LINK_FACTOR = (0.4, 2.5)
_MERGE_FACTOR = (0.1, 3.0)
_READY_DEVIATIONS_S = (0.1, 3.0)
# Factors on the lengths of busy periods, and on the gaps between them, of the kind of use.
_LENGTH_FACTOR = (1.0 / 3.0, 3.0)
_GAP_FACTOR = (0.25, 2.0)
# Uniform over scenarios: the share of stragglers, the delay of the last one, and the spread (log-normal deviation) of
# each single busy period.
_STRAGGLER_SHARES = (0.0, 0.4)
_LATEST_S = (1.0, 12.0)
_SPREAD = (0.0, 0.8)
# Dirichlet: classes vary around the fixed shares, kinds of use from one kind alone to all alike.
_CLASS_WEIGHT = 4.0
_KIND_WEIGHT = 0.7
_KINDS = (UsageKind.IDLE, UsageKind.SYNC, UsageKind.INTERACTIVE, UsageKind.CALL, UsageKind.BIMODAL)
_LEAST_BATTERY_PERCENT = 20.0
_CHARGING = 0.3


@dataclass(frozen=True)
class _Way:
    """One way of drawing devices. lengths, gaps: factors by kind of use."""

    classes: Floats
    kinds: Floats
    link: float
    merge: float
    ready_s: float
    stragglers: float
    latest_s: float
    lengths: Floats
    gaps: Floats
    spread: float


def draw_varied(n: int, horizon_s: float, rng: np.random.Generator) -> tuple[float, float, tuple[ScenarioDevice, ...]]:
    """Draw the size in MB, the latency in seconds, and n devices with busy periods that begin before `horizon_s`."""
    way = _Way(
        classes=rng.dirichlet(_CLASS_WEIGHT * np.array(CLASS_SHARES)),
        kinds=rng.dirichlet(np.full(len(_KINDS), _KIND_WEIGHT)),
        link=_log_uniform(_LINK_FACTOR, rng),
        merge=_log_uniform(_MERGE_FACTOR, rng),
        ready_s=_log_uniform(_READY_DEVIATIONS_S, rng),
        stragglers=float(rng.uniform(*_STRAGGLER_SHARES)),
        latest_s=float(rng.uniform(*_LATEST_S)),
        lengths=np.array([_log_uniform(_LENGTH_FACTOR, rng) for _ in _KINDS]),
        gaps=np.array([_log_uniform(_GAP_FACTOR, rng) for _ in _KINDS]),
        spread=float(rng.uniform(*_SPREAD)),
    )
    size_mb, latency_s = _log_uniform(_SIZES_MB, rng), _log_uniform(_LATENCIES_S, rng)
    return size_mb, latency_s, tuple(_draw_varied_device(way, horizon_s, rng) for _ in range(n))


def stretch_periods(periods: Periods, factor: float, spread: float, rng: np.random.Generator) -> Periods:
    """Keep the gaps between periods; make the periods `factor` times as long, each varied by log-normal `spread`."""
    if not periods:
        return ()
    gaps = [later[0] - earlier[1] for earlier, later in pairwise(periods)]
    stretched, at_s = [], min(0.0, periods[0][0]) * factor + max(0.0, periods[0][0])
    for (begin_s, end_s), gap_s in zip(periods, [*gaps, 0.0], strict=True):
        length_s = (end_s - begin_s) * factor * math.exp(spread * float(rng.standard_normal()))
        stretched.append((at_s, at_s + length_s))
        at_s += length_s + gap_s
    return tuple(stretched)


def _draw_varied_device(way: _Way, horizon_s: float, rng: np.random.Generator) -> ScenarioDevice:
    device_class = int(rng.choice(len(way.classes), p=way.classes))
    place = int(rng.choice(len(_KINDS), p=way.kinds))
    ready_s = abs(float(rng.normal(0.0, way.ready_s)))
    if rng.random() < way.stragglers:
        ready_s += float(rng.uniform(1.0, 1.0 + way.latest_s))
    factor = float(way.lengths[place])
    # Gaps grow with the lengths: so the length of a busy period and the busy share of the time vary independently.
    periods = draw_busy_periods(_KINDS[place], horizon_s, rng, gap_scale=float(way.gaps[place]) * factor)
    return ScenarioDevice(
        ready_s,
        way.link * draw_link_mb_s(device_class, rng),
        way.merge * draw_merge_mb_s(device_class, rng),
        _KINDS[place],
        device_class,
        battery_percent=float(rng.uniform(_LEAST_BATTERY_PERCENT, 100.0)),
        charging=bool(rng.random() < _CHARGING),
        busy=stretch_periods(periods, factor, way.spread, rng),
    )


def _log_uniform(bounds: tuple[float, float], rng: np.random.Generator) -> float:
    return float(np.exp(rng.uniform(*np.log(bounds))))


_SIZE_MB = 10.0
_LATENCY_S = 0.02
# The equal devices of the paper's family: a transfer takes one second, a merge a hundredth.
_PAPER_LINK_MB_S = 10.0
_PAPER_MERGE_MB_S = 1000.0
_READY_DEVIATION_S = 0.7
_STRAGGLERS = 0.1
# The dynamic family is a busy hour: all kinds of use are as frequent, and come twice as often as over a whole day.
_GAP_SCALE = 0.5
# Busy periods are drawn this far: the slowest policy ends long before, in a mesh of this many devices.
_HORIZON_S_PER_DEVICE = 60.0
# Spread of one device's link and training time from round to round (log-normal).
_VARIATION = 0.2
# In the dying family, the share of devices on their last percents, and the mean life of one percent (assumed).
_DYING = 0.25
_LOW_BATTERY_PERCENT = 5.0
_LIFE_S_PER_PERCENT = 5.0


class Drawn(NamedTuple):
    """The draw of a family: devices, the size of a delta in MB, the latency of a transfer in seconds."""

    devices: tuple[ScenarioDevice, ...]
    size_mb: float = _SIZE_MB
    latency_s: float = _LATENCY_S


def draw_scenario(family: str, n: int, seed: int) -> Scenario:
    """Draw a scenario, the same for the same family, n and seed. Raises ConfigError for an unknown family or n < 2."""
    if family not in FAMILIES:
        hint = did_you_mean(family, FAMILIES)
        raise ConfigError(f"unknown family {family!r}{hint} (valid: {', '.join(FAMILIES)})")
    if n < 2:
        raise ConfigError(f"a scenario needs at least 2 devices, not {n}")
    rng = np.random.default_rng([list(FAMILIES).index(family), n, seed])
    drawn = FAMILIES[family](n, rng)
    return Scenario(f"{family}-{n}-{seed}", family, drawn.size_mb, drawn.latency_s, drawn.devices)


def vary_scenario(scenario: Scenario, rng: np.random.Generator) -> Scenario:
    """Vary the same devices as at another time: other links and training times, and other busy periods."""
    return msgspec.structs.replace(scenario, devices=tuple(_vary(device, scenario, rng) for device in scenario.devices))


def _paper(n: int, rng: np.random.Generator) -> Drawn:
    transfer_s = _LATENCY_S + _SIZE_MB / _PAPER_LINK_MB_S
    busy = set(rng.permutation(n)[: rng.integers(0, n // 2 + 1)].tolist())
    devices = []
    for index in range(n):
        ends_s = float(rng.uniform(0.5, 4.0)) * transfer_s
        kind, periods = (UsageKind.ONCE, ((0.0, ends_s),)) if index in busy else (UsageKind.IDLE, ())
        devices.append(ScenarioDevice(0.0, _PAPER_LINK_MB_S, _PAPER_MERGE_MB_S, kind, busy=periods))
    return Drawn(tuple(devices))


def _hetero(n: int, rng: np.random.Generator) -> Drawn:
    return Drawn(tuple(_draw_device(rng) for _ in range(n)))


def _dynamic(n: int, rng: np.random.Generator) -> Drawn:
    return Drawn(tuple(_make_used(_draw_device(rng), n, rng) for _ in range(n)))


def _dying(n: int, rng: np.random.Generator) -> Drawn:
    return Drawn(tuple(_make_dying(device, rng) for device in _dynamic(n, rng).devices))


def _varied(n: int, rng: np.random.Generator) -> Drawn:
    size_mb, latency_s, devices = draw_varied(n, _HORIZON_S_PER_DEVICE * n, rng)
    return Drawn(devices, size_mb, latency_s)


FAMILIES: dict[str, Callable[[int, np.random.Generator], Drawn]] = {
    "paper": _paper,
    "hetero": _hetero,
    "dynamic": _dynamic,
    "dying": _dying,
    "varied": _varied,
}


def _draw_device(rng: np.random.Generator) -> ScenarioDevice:
    device_class = draw_class(rng)
    ready_s = abs(float(rng.normal(0.0, _READY_DEVIATION_S)))
    if rng.random() < _STRAGGLERS:
        ready_s += float(rng.uniform(1.0, 4.0))
    return ScenarioDevice(
        ready_s, draw_link_mb_s(device_class, rng), draw_merge_mb_s(device_class, rng), device_class=device_class
    )


def _vary(device: ScenarioDevice, scenario: Scenario, rng: np.random.Generator) -> ScenarioDevice:
    busy: Periods = ()
    if device.kind is not UsageKind.IDLE:
        busy = draw_busy_periods(device.kind, _HORIZON_S_PER_DEVICE * len(scenario.devices), rng)
    return msgspec.structs.replace(
        device,
        ready_s=device.ready_s * float(np.exp(rng.normal(0.0, _VARIATION))),
        link_mb_s=device.link_mb_s * float(np.exp(rng.normal(0.0, _VARIATION))),
        busy=busy,
    )


def _make_used(device: ScenarioDevice, n: int, rng: np.random.Generator) -> ScenarioDevice:
    kind = _KINDS[int(rng.integers(len(_KINDS)))]
    periods = draw_busy_periods(kind, _HORIZON_S_PER_DEVICE * n, rng, gap_scale=_GAP_SCALE)
    return msgspec.structs.replace(device, kind=kind, busy=periods)


def _make_dying(device: ScenarioDevice, rng: np.random.Generator) -> ScenarioDevice:
    if rng.random() >= _DYING:
        return msgspec.structs.replace(device, battery_percent=float(rng.uniform(20.0, 100.0)))
    percent = float(rng.uniform(0.2, _LOW_BATTERY_PERCENT))
    dies_at_s = float(rng.exponential(_LIFE_S_PER_PERCENT * percent))
    return msgspec.structs.replace(device, battery_percent=percent, dies_at_s=dies_at_s)
