"""Plays a scenario as a round in segments, by the plan that an agent would make. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from mdl.config import Compress
from mdl.devices.device_state import DeviceState
from mdl.devices.scenario import Scenario
from mdl.protocol.coding import coded_size
from scheduler.plans.segment_plan import SegmentPlan, plan_segments
from scheduler.policies.chain import ChainView
from scheduler.study.play import Played, view_of
from sim.timing.exchange import exchange_end_s
from sim.timing.iteration import Iteration

# float32.
_BYTES = 4


class PlayedSegments(NamedTuple):
    """played: its makespan_s is when everybody alive has the result. start_s: when the plan was made.

    plan: the last one; None if nobody may own anything, or fewer than two live.
    """

    played: Played
    plan: SegmentPlan | None
    start_s: float


def play_segments(scenario: Scenario, names: Sequence[str] = (), compress: Compress = "none") -> PlayedSegments:
    """It begins when all who live are ready; if one of them dies on the way, the others begin again without it.

    Energy is not modelled: that of each device stays as it was. names: of the devices, by index; else their numbers.
    compress: as `round.compress`.
    """
    iteration = Iteration(scenario)
    names = names or [str(index) for index in range(len(scenario.devices))]
    size = max(1, round(scenario.size_mb * 1e6 / _BYTES))
    while True:
        while _trains(iteration) and iteration.advance():
            pass
        members = _living(iteration)
        view = _named(view_of(iteration), names)
        plan = plan_segments(view, size, coding=compress) if len(members) > 1 else None
        if plan is None:
            end_s = iteration.now_s
            break
        segments = sum(plan.owns.values())
        shares = [plan.owns.get(name, 0) / segments for name in names]
        coded = coded_size(plan.values, plan.coding) / plan.values
        end_s = exchange_end_s(scenario, shares, members, iteration.now_s, coded)
        deaths = [dies_s for index in members if (dies_s := scenario.devices[index].dies_at_s) is not None]
        first_s = min((dies_s for dies_s in deaths if dies_s < end_s), default=None)
        if first_s is None:
            break
        while iteration.now_s < first_s and iteration.advance():
            pass
    energy_j = tuple(device.energy_j for device in scenario.devices)
    lost = tuple(index for index in range(len(scenario.devices)) if index not in members)
    return PlayedSegments(Played(end_s, energy_j, (), lost, 0.0, 1, end_s), plan, iteration.now_s)


def _named(view: ChainView, names: Sequence[str]) -> ChainView:
    devices = [msgspec.structs.replace(each, peer_id=name) for each, name in zip(view.devices, names, strict=True)]
    return msgspec.structs.replace(view, devices=tuple(devices))


def _trains(iteration: Iteration) -> bool:
    return any(iteration.state(index) is DeviceState.TRAINING for index in _living(iteration))


def _living(iteration: Iteration) -> list[int]:
    count = len(iteration.scenario.devices)
    return [index for index in range(count) if iteration.state(index) is not DeviceState.DEAD]
