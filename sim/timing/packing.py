"""Scenarios as arrays, for `mdl.sim.timing.batch`: S scenarios of up to N devices, busy timelines padded. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import chain
from math import inf
from statistics import median

import numpy as np
import numpy.typing as npt

from mdl.devices.busy_periods import Periods
from mdl.devices.scenario import Scenario

Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Packed:
    """Shape (S, N) unless said; a missing device of a row does not exist and takes no part.

    starts: (S, N, K + 1), the start of busy period k, infinite beyond the last. ends: the end of period k - 1. So with
    k periods begun, ends[k] is the end of the last of them and starts[k] the start of the next. dies_s: infinite if
    never. unit_s (S,): transfer time of the median link.
    """

    exists: Bools
    ready_s: Doubles
    link_mb_s: Doubles
    merge_mb_s: Doubles
    kind: Integers
    battery_percent: Doubles
    charging: Bools
    dies_s: Doubles
    energy_j: Doubles
    may_receive: Bools
    starts: Doubles
    ends: Doubles
    size_mb: Doubles
    latency_s: Doubles
    unit_s: Doubles

    def take(self, rows: Integers) -> Packed:
        """Copy these scenarios. rows: positions."""
        return Packed(*(getattr(self, field.name)[rows] for field in fields(self)))


def pack(scenarios: Sequence[Scenario], *, horizon_s: float = inf) -> Packed:
    """Pack scenarios. Periods that start after `horizon_s` are left out: exact if an iteration ends before."""
    rows, count = len(scenarios), max(len(scenario.devices) for scenario in scenarios)
    exists = np.zeros((rows, count), dtype=np.bool_)
    numbers = np.ones((9, rows, count))
    numbers[6] = inf
    timelines: list[tuple[int, int, Periods]] = []
    for row, scenario in enumerate(scenarios):
        exists[row, : len(scenario.devices)] = True
        numbers[:, row, : len(scenario.devices)] = np.array(
            [
                (
                    device.ready_s,
                    device.link_mb_s,
                    device.merge_mb_s,
                    device.kind,
                    device.battery_percent,
                    device.charging,
                    inf if device.dies_at_s is None else device.dies_at_s,
                    device.energy_j,
                    device.may_receive,
                )
                for device in scenario.devices
            ]
        ).T
        timelines += [(row, index, device.busy) for index, device in enumerate(scenario.devices) if device.busy]
    numbers[[0, 3, 7]] *= exists
    starts, ends = _pad(timelines, rows, count, horizon_s)
    ready_s, link, merge, kind, battery, charging, dies_s, energy_j, may_receive = numbers
    size_mb = np.array([scenario.size_mb for scenario in scenarios])
    latency_s = np.array([scenario.latency_s for scenario in scenarios])
    middle = np.array([median(device.link_mb_s for device in scenario.devices) for scenario in scenarios])
    return Packed(
        exists,
        ready_s,
        link,
        merge,
        kind.astype(np.int64),
        battery,
        (charging > 0) & exists,
        dies_s,
        energy_j,
        may_receive > 0,
        starts,
        ends,
        size_mb,
        latency_s,
        latency_s + size_mb / middle,
    )


def _pad(timelines: list[tuple[int, int, Periods]], rows: int, count: int, horizon_s: float) -> tuple[Doubles, Doubles]:
    arrays = []
    for row, index, periods in timelines:
        edges = np.fromiter(chain.from_iterable(periods), dtype=np.float64).reshape(-1, 2)
        arrays.append((row, index, edges[edges[:, 0] <= horizon_s]))
    longest = max((len(edges) for _, _, edges in arrays), default=0)
    starts = np.full((rows, count, longest + 1), inf)
    ends = np.full((rows, count, longest + 1), -inf)
    for row, index, edges in arrays:
        starts[row, index, : len(edges)] = edges[:, 0]
        ends[row, index, 1 : len(edges) + 1] = edges[:, 1]
    return starts, ends
