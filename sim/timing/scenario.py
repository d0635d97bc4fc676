"""Scenarios for the scheduler (`mdl.devices.scenario`), drawn from a family with a seed. Pure.

- paper: equal devices, all ready at 0, up to half of them busy at the start for 0.5 to 4 transfers (MDLdroid 4.4).
- hetero: four device classes, ready |N(0, 0.7 s)|, one in ten a straggler of 1 to 4 s more.
- dynamic: hetero, and busy periods that come and go by the kind of usage: kinds are visible, lengths are not.
- dying: dynamic, and devices with less than 5 % of battery left, which fail sooner the less they have.
- varied: like dynamic, but each scenario draws its own way of drawing (`mdl.sim.timing.varied`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from mdl.devices.busy_periods import Periods
from mdl.devices.scenario import Scenario, ScenarioDevice
from mdl.devices.usage import UsageKind, draw_busy_periods
from mdl.errors import ConfigError
from mdl.hints import did_you_mean
from mdl.sim.timing.device_models import draw_class, draw_link_mb_s, draw_merge_mb_s
from mdl.sim.timing.varied import draw_varied

_SIZE_MB = 10.0
_LATENCY_S = 0.02
# The equal devices of the paper's family: a transfer takes one second, a merge a hundredth.
_PAPER_LINK_MB_S = 10.0
_PAPER_MERGE_MB_S = 1000.0
_READY_DEVIATION_S = 0.7
_STRAGGLERS = 0.1
# The dynamic family is a busy hour: all kinds of use are as frequent, and come twice as often as over a whole day.
_KINDS = (UsageKind.IDLE, UsageKind.SYNC, UsageKind.INTERACTIVE, UsageKind.CALL, UsageKind.BIMODAL)
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
