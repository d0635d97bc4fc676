"""A scenario: one iteration of N devices as the scheduler is judged on it, kept as JSON lines. Pure.

A scenario knows everything, also what a policy must not see: a device's busy periods, and the end of its battery.
Scenarios are drawn (`mdl.sim.timing.scenario`), or rebuilt from a recorded round
(`mdl.scheduler.explain.recorded_round`).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from mdl.devices.usage import Periods, UsageKind
from mdl.errors import DataError
from mdl.reading import decode_json, read_lines
from mdl.writing import write_whole

# Bytes of ten thousand scenarios of nine devices; no chart or policy takes more devices.
_LARGEST_FILE_BYTES, MOST_DEVICES = 64 << 20, 256
# Far beyond any measurable value, and no sum or quotient of it is infinite.
_LEAST, _MOST = 1e-9, 1e12


class ScenarioDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device.

    busy: its busy periods (start, end), disjoint and sorted.
    dies_at_s: the time at which its battery gives out.
    may_receive: its owner's limits leave room for one more delta (Eq. 4).
    """

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
    may_receive: bool = True


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One iteration of N devices. energy_j of a device: its use in earlier rounds."""

    scenario_id: str
    family: str
    size_mb: float
    latency_s: float
    devices: tuple[ScenarioDevice, ...]


def save_scenarios(scenarios: Iterable[Scenario], path: Path) -> None:
    """Write scenarios as JSON lines. Raises MdlError if the disk refuses."""
    write_whole(path, lambda file: file.writelines(msgspec.json.encode(scenario) + b"\n" for scenario in scenarios))


def load_scenarios(path: Path) -> list[Scenario]:
    """Read scenarios. Raises DataError with the file and the malformed line."""
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
    """Raise DataError for a number that no device could have."""
    rates = [scenario.size_mb, *(rate for each in scenario.devices for rate in (each.link_mb_s, each.merge_mb_s))]
    numbers = [scenario.latency_s, *rates]
    for device in scenario.devices:
        numbers += [device.ready_s, device.battery_percent, device.energy_j, device.dies_at_s or 0.0]
        numbers += [edge for period in device.busy for edge in period]
    if wrong := [number for number in numbers if abs(number) > _MOST] + [rate for rate in rates if 0 < rate < _LEAST]:
        raise DataError(f"{where}: {wrong[0]:g} is no number of a device; expected at most {_MOST:g}, rates {_LEAST:g}")
