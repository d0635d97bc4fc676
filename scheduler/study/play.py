"""Plays a scenario of the timing model under a policy, or as a round in segments by the plan of an agent. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from mdl.config import Compress
from mdl.devices.scenario import Scenario
from mdl.devices.usage import DeviceState
from mdl.errors import LocalProtocolError
from mdl.scheduler.policies.chain import ChainView, DeviceView, Policy, Wait, go_around
from mdl.scheduler.policies.segment_plan import SegmentPlan, choose_coding, packed_part, plan_segments
from mdl.sim.timing.iteration import Iteration, TimedHop, broadcast_end_s, exchange_end_s


class Ordered(msgspec.Struct, frozen=True):
    """A decision that was carried out: the hop and the policy's reason."""

    hop: TimedHop
    reason: str


class PlayedScenario(msgspec.Struct, frozen=True):
    """makespan_s: the time at which one holder has everything. energy_j: of each device, earlier spending included.

    lost: devices with no contribution of their own in the result; wasted_s: active seconds of hops that a death undid.
    everywhere_s: the time at which every live device has the result.
    """

    makespan_s: float
    energy_j: tuple[float, ...]
    ordered: tuple[Ordered, ...]
    lost: tuple[int, ...]
    wasted_s: float
    decisions: int
    everywhere_s: float = 0.0


def play(scenario: Scenario, policy: Policy) -> PlayedScenario:
    """Play a scenario. Raises LocalProtocolError if the policy pairs a device that is not idle, or waits in vain."""
    iteration = Iteration(scenario)
    ordered, decisions = [], 0
    while not iteration.ended:
        while len(iteration.idle()) >= 2:
            decisions += 1
            view = view_of(iteration)
            decision = go_around(view, policy.decide(view))
            if isinstance(decision, Wait):
                if not iteration.may_wait():
                    raise LocalProtocolError(f"{policy.name} waits for nobody: {decision.reason}")
                break
            hop = iteration.start(int(decision.sender), int(decision.receiver))
            ordered.append(Ordered(hop, decision.reason))
        if not iteration.advance():
            break
    energy_j = tuple(iteration.energy_j(index) for index in range(len(scenario.devices)))
    lost = tuple(iteration.lost)
    ends_s = (iteration.wasted_s, decisions, everywhere_s(iteration))
    return PlayedScenario(iteration.makespan_s, energy_j, tuple(ordered), lost, *ends_s)


def everywhere_s(iteration: Iteration) -> float:
    """Return when every live device has the result of an ended iteration: its holder broadcasts it."""
    count = len(iteration.scenario.devices)
    living = [index for index in range(count) if iteration.state(index) is not DeviceState.DEAD]
    if not iteration.holders:
        return iteration.makespan_s
    return broadcast_end_s(iteration.scenario, iteration.holders[0], living, iteration.makespan_s)


def view_of(iteration: Iteration) -> ChainView:
    """Return the agent's view at this moment; a device is named by its index."""
    scenario = iteration.scenario
    devices = tuple(_view_device(iteration, index) for index in range(len(scenario.devices)))
    return ChainView(iteration.now_s, scenario.size_mb, devices, scenario.latency_s)


def _view_device(iteration: Iteration, index: int) -> DeviceView:
    given = iteration.scenario.devices[index]
    state = iteration.state(index)
    return DeviceView(
        str(index),
        state,
        link_mb_s=given.link_mb_s,
        merge_mb_s=given.merge_mb_s,
        free_since_s=iteration.free_since_s(index),
        n_agg=iteration.n_agg(index),
        received=iteration.received(index),
        theta=iteration.theta(index),
        energy_j=iteration.energy_j(index),
        battery_percent=given.battery_percent,
        charging=given.charging,
        may_receive=given.may_receive,
        kind=given.kind,
        device_class=given.device_class,
        busy_for_s=iteration.busy_for_s(index),
        eta_ready_s=max(0.0, given.ready_s - iteration.now_s) if state is DeviceState.TRAINING else 0.0,
        op_left_s=iteration.op_left_s(index),
    )


# Bytes of a float32.
_BYTES = 4


class PlayedSegments(NamedTuple):
    """played: its makespan_s lasts until every live device has the result. start_s: the time of the plan.

    plan: the last one; None if no device may own anything, or fewer than two live.
    """

    played: PlayedScenario
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
        links = [device.link_mb_s for device in view.devices if device.state is not DeviceState.DEAD]
        plan = plan_segments(view, size, coding=choose_coding(links, size, compress)) if len(members) > 1 else None
        if plan is None:
            end_s = start_s
            break
        segments = sum(plan.owns.values())
        shares = [plan.owns.get(name, 0) / segments for name in names]
        coded = packed_part(plan.coding, len(plan.owns))
        end_s, left = _exchange(scenario, shares, members, start_s, coded)
        while iteration.now_s < end_s and iteration.advance():
            pass
        if left:
            members = left
            break
    energy_j = tuple(device.energy_j for device in scenario.devices)
    lost = tuple(index for index in range(len(scenario.devices)) if index not in members)
    return PlayedSegments(PlayedScenario(end_s, energy_j, (), lost, 0.0, 1, end_s), plan, start_s)


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
