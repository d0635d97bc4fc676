"""Plays a scenario of the timing model under a policy: its views, its decisions, and their outcome."""

from __future__ import annotations

import msgspec

from mdl.devices.device_state import DeviceState
from mdl.devices.scenario import Scenario
from mdl.errors import LocalProtocolError
from mdl.scheduler.policies.chain import ChainView, DeviceView, Policy, Wait
from mdl.scheduler.policies.detour import go_around
from mdl.sim.timing.iteration import Iteration, TimedHop, broadcast_end_s


class Ordered(msgspec.Struct, frozen=True):
    """A decision that was carried out: the hop and the policy's reason."""

    hop: TimedHop
    reason: str


class Played(msgspec.Struct, frozen=True):
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


def play(scenario: Scenario, policy: Policy) -> Played:
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
    return Played(iteration.makespan_s, energy_j, tuple(ordered), lost, *ends_s)


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
