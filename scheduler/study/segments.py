"""Plays a scenario as a round in segments, by the plan that an agent would make. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from mdl.config import Compress
from mdl.devices.device_state import DeviceState
from mdl.devices.scenario import Scenario
from mdl.protocol.coding import coded_size
from mdl.scheduler.plans.segment_plan import SegmentPlan, plan_segments
from mdl.scheduler.policies.chain import ChainView
from mdl.scheduler.study.play import Played, view_of
from mdl.sim.timing.iteration import Iteration, exchange_end_s

# Bytes of a float32.
_BYTES = 4


class PlayedSegments(NamedTuple):
    """played: its makespan_s lasts until every live device has the result. start_s: the time of the plan.

    plan: the last one; None if no device may own anything, or fewer than two live.
    """

    played: Played
    plan: SegmentPlan | None
    start_s: float


def play_segments(scenario: Scenario, names: Sequence[str] = (), compress: Compress = "none") -> PlayedSegments:
    """Play a round in segments, from the moment when all live devices are ready.

    The segments of a device that dies on the way begin anew at other owners. Energy is not modelled: that of each
    device stays as it was. names: of the devices, by index; else their numbers. compress: see `round.compress`.
    """
    iteration = Iteration(scenario)
    names = names or [str(index) for index in range(len(scenario.devices))]
    size = max(1, round(scenario.size_mb * 1e6 / _BYTES))
    while True:
        while _trains(iteration) and iteration.advance():
            pass
        start_s, members = iteration.now_s, _living(iteration)
        view = _named(view_of(iteration), names)
        plan = plan_segments(view, size, coding=compress) if len(members) > 1 else None
        if plan is None:
            end_s = start_s
            break
        segments = sum(plan.owns.values())
        shares = [plan.owns.get(name, 0) / segments for name in names]
        coded = coded_size(plan.values, plan.coding) / plan.values
        end_s, left = _exchange(scenario, shares, members, start_s, coded)
        while iteration.now_s < end_s and iteration.advance():
            pass
        if left:
            members = left
            break
    energy_j = tuple(device.energy_j for device in scenario.devices)
    lost = tuple(index for index in range(len(scenario.devices)) if index not in members)
    return PlayedSegments(Played(end_s, energy_j, (), lost, 0.0, 1, end_s), plan, start_s)


def _exchange(
    scenario: Scenario, shares: Sequence[float], members: Sequence[int], start_s: float, coded: float
) -> tuple[float, list[int]]:
    """Return the time at which all that are left have the result, and these devices.

    If no owner is left, return the time of that and no devices. Pieces given by a device that dies stay merged; its own
    share follows, on the same links. Noticing takes no time.
    """
    begun_s, end_s = start_s, exchange_end_s(scenario, shares, members, start_s, coded)
    size_mb, owned, left = scenario.size_mb, list(shares), list(members)
    deaths = sorted((dies_s, index) for index in members if (dies_s := scenario.devices[index].dies_at_s) is not None)
    for dies_s, index in deaths:
        if dies_s >= end_s:
            break
        left.remove(index)
        lost, owned[index] = owned[index], 0.0
        if not any(owned):
            return dies_s, []
        owned = [share / sum(owned) for share in owned]
        size_mb *= lost + (1.0 - lost) * (end_s - dies_s) / (end_s - begun_s)
        rest = msgspec.structs.replace(scenario, size_mb=size_mb)
        begun_s, end_s = dies_s, exchange_end_s(rest, owned, left, dies_s, coded)
    return end_s, left


def _named(view: ChainView, names: Sequence[str]) -> ChainView:
    devices = [msgspec.structs.replace(each, peer_id=name) for each, name in zip(view.devices, names, strict=True)]
    return msgspec.structs.replace(view, devices=tuple(devices))


def _trains(iteration: Iteration) -> bool:
    return any(iteration.state(index) is DeviceState.TRAINING for index in _living(iteration))


def _living(iteration: Iteration) -> list[int]:
    count = len(iteration.scenario.devices)
    return [index for index in range(count) if iteration.state(index) is not DeviceState.DEAD]
