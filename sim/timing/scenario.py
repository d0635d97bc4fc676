"""Scenarios for the scheduler: one iteration of N devices, drawn from a family with a seed, kept as JSON lines. Pure.

A scenario knows everything, also what a policy must not see: when a device is busy, and when its battery gives out.

- paper: equal devices, all ready at 0, up to half of them busy at the start for 0.5 to 4 transfers (MDLdroid 4.4);
- hetero: four device classes, ready |N(0, 0.7 s)|, one in ten a straggler of 1 to 4 s more;
- dynamic: hetero, and busy periods that come and go by the kind of usage: kinds are visible, lengths are not;
- dying: dynamic, and devices with less than 5 % of battery left, which fail the sooner the less they have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from mdl.devices.busy_periods import Periods
from mdl.devices.usage import UsageKind, draw_busy_periods
from mdl.errors import ConfigError, DataError
from mdl.hints import did_you_mean
from mdl.reading import decode_json, read_lines
from mdl.writing import write_whole
from sim.timing.device_models import draw_class, draw_link_mb_s, draw_merge_mb_s

# Ten thousand scenarios of nine devices; no chart or policy takes more devices.
_LARGEST_FILE_BYTES, MOST_DEVICES = 64 << 20, 256
# Far beyond what could be measured, and no sum or quotient of it is infinite.
_LEAST, _MOST = 1e-9, 1e12
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
# How links and training times of one device vary from round to round (log-normal).
_VARIATION = 0.2
# Of the dying family: how many devices are on their last percents, and the mean life of one percent (assumed).
_DYING = 0.25
_LOW_BATTERY_PERCENT = 5.0
_LIFE_S_PER_PERCENT = 5.0


class ScenarioDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device. busy: its busy periods (start, end), disjoint and sorted. dies_at_s: its battery gives out then."""

    ready_s: float
    link_mb_s: float
    merge_mb_s: float
    kind: UsageKind = UsageKind.IDLE
    device_class: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    battery_percent: float = 100.0
    charging: bool = False
    busy: Periods = ()
    dies_at_s: float | None = None
    energy_j: float = 0.0


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One iteration of N devices. energy_j of a device: what it has spent in earlier rounds."""

    scenario_id: str
    family: str
    size_mb: float
    latency_s: float
    devices: tuple[ScenarioDevice, ...]


def draw_scenario(family: str, n: int, seed: int) -> Scenario:
    """The same family, n and seed give the same scenario. Raises ConfigError for an unknown family or n < 2."""
    if family not in FAMILIES:
        hint = did_you_mean(family, FAMILIES)
        raise ConfigError(f"unknown family {family!r}{hint} (valid: {', '.join(FAMILIES)})")
    if n < 2:
        raise ConfigError(f"a scenario needs at least 2 devices, not {n}")
    rng = np.random.default_rng([list(FAMILIES).index(family), n, seed])
    return Scenario(f"{family}-{n}-{seed}", family, _SIZE_MB, _LATENCY_S, FAMILIES[family](n, rng))


def vary_scenario(scenario: Scenario, rng: np.random.Generator) -> Scenario:
    """The same devices as they may be another time: links and training vary, who is used is busy at other times."""
    return msgspec.structs.replace(scenario, devices=tuple(_vary(device, scenario, rng) for device in scenario.devices))


def save_scenarios(scenarios: Iterable[Scenario], path: Path) -> None:
    """Raises MdlError if the disk refuses."""
    write_whole(path, lambda file: file.writelines(msgspec.json.encode(scenario) + b"\n" for scenario in scenarios))


def load_scenarios(path: Path) -> list[Scenario]:
    """Raises DataError with the file and the line that is no scenario."""
    scenarios = []
    for number, line in read_lines(path, _LARGEST_FILE_BYTES, "scenarios, one JSON object a line"):
        scenario = decode_json(line, Scenario, f"{path}, line {number}: no scenario")
        _check(scenario, f"{path}, line {number}")
        scenarios.append(scenario)
    if not scenarios:
        raise DataError(f"{path}: holds no scenario (one JSON object a line)")
    return scenarios


def _check(scenario: Scenario, where: str) -> None:
    if len(scenario.devices) < 2:
        raise DataError(f"{where}: a scenario needs at least 2 devices, not {len(scenario.devices)}")
    if len(scenario.devices) > MOST_DEVICES:
        raise DataError(f"{where}: {len(scenario.devices)} devices; at most {MOST_DEVICES} are played")
    _check_numbers(scenario, where)
    if not scenario.size_mb > 0 or scenario.latency_s < 0:
        raise DataError(f"{where}: size_mb must be above 0 and latency_s not below")
    for index, device in enumerate(scenario.devices):
        if not (device.link_mb_s > 0 and device.merge_mb_s > 0 and device.ready_s >= 0):
            raise DataError(f"{where}: device {index}: speeds must be above 0, ready_s not below")
        edges = [edge for period in device.busy for edge in period]
        if any(later < earlier for earlier, later in pairwise(edges)):
            raise DataError(f"{where}: device {index}: busy periods must be sorted and disjoint")


def _check_numbers(scenario: Scenario, where: str) -> None:
    """Raises DataError for a number that no device could have."""
    rates = [scenario.size_mb, *(rate for each in scenario.devices for rate in (each.link_mb_s, each.merge_mb_s))]
    numbers = [scenario.latency_s, *rates]
    for device in scenario.devices:
        numbers += [device.ready_s, device.battery_percent, device.energy_j, device.dies_at_s or 0.0]
        numbers += [edge for period in device.busy for edge in period]
    if wrong := [number for number in numbers if abs(number) > _MOST] + [rate for rate in rates if 0 < rate < _LEAST]:
        raise DataError(f"{where}: {wrong[0]:g} is no number of a device; expected at most {_MOST:g}, rates {_LEAST:g}")


def _paper(n: int, rng: np.random.Generator) -> tuple[ScenarioDevice, ...]:
    transfer_s = _LATENCY_S + _SIZE_MB / _PAPER_LINK_MB_S
    busy = set(rng.permutation(n)[: rng.integers(0, n // 2 + 1)].tolist())
    devices = []
    for index in range(n):
        ends_s = float(rng.uniform(0.5, 4.0)) * transfer_s
        kind, periods = (UsageKind.ONCE, ((0.0, ends_s),)) if index in busy else (UsageKind.IDLE, ())
        devices.append(ScenarioDevice(0.0, _PAPER_LINK_MB_S, _PAPER_MERGE_MB_S, kind, busy=periods))
    return tuple(devices)


def _hetero(n: int, rng: np.random.Generator) -> tuple[ScenarioDevice, ...]:
    return tuple(_draw_device(rng) for _ in range(n))


def _dynamic(n: int, rng: np.random.Generator) -> tuple[ScenarioDevice, ...]:
    return tuple(_make_used(_draw_device(rng), n, rng) for _ in range(n))


def _dying(n: int, rng: np.random.Generator) -> tuple[ScenarioDevice, ...]:
    return tuple(_make_dying(device, rng) for device in _dynamic(n, rng))


FAMILIES: dict[str, Callable[[int, np.random.Generator], tuple[ScenarioDevice, ...]]] = {
    "paper": _paper,
    "hetero": _hetero,
    "dynamic": _dynamic,
    "dying": _dying,
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
