"""An option of the timing model: a round that ends without its slowest, by a deadline and a quorum. Pure."""

from __future__ import annotations

from math import inf

import msgspec

from mdl.devices.scenario import Scenario
from mdl.devices.usage import DeviceState
from mdl.errors import ConfigError
from mdl.scheduler.policies.chain import Policy, Wait
from mdl.scheduler.study.play import view_of
from mdl.sim.timing.iteration import Iteration

_HOLDS = (DeviceState.FREE, DeviceState.BUSY)


class Closed(msgspec.Struct, frozen=True):
    """ended_s: the time at which the round's result stands. contributions: the number of devices in it."""

    ended_s: float
    contributions: int


def play_with_quorum(scenario: Scenario, policy: Policy, quorum: float, patience: float) -> Closed:
    """Play until one holder has everything, or until a deadline that is set once the quorum is reached.

    quorum: share of the devices, above 0.5 to 1, that one holder must have merged. The deadline then follows after
    `patience` times the time taken so far. Hops under way at the deadline are dropped. That costs nothing that was
    merged, since a holder keeps its own load until the round closes. Raises ConfigError for another quorum or patience.
    """
    if not 0.5 < quorum <= 1.0 or patience < 0.0:
        raise ConfigError(f"quorum {quorum} and patience {patience}: expected above 0.5 to 1, and at least 0")
    iteration = Iteration(scenario)
    enough, held, deadline_s = quorum * len(scenario.devices) - 1e-9, 0.0, inf
    while not iteration.ended:
        _start_hops(iteration, policy)
        if not iteration.advance():
            break
        if iteration.now_s > deadline_s:
            return Closed(deadline_s, round(held))
        held = max([held, *(iteration.theta(one) for one in iteration.holders if iteration.state(one) in _HOLDS)])
        if held >= enough and deadline_s == inf:
            deadline_s = iteration.now_s * (1.0 + patience)
    return Closed(iteration.makespan_s, len(scenario.devices) - len(iteration.lost))


def _start_hops(iteration: Iteration, policy: Policy) -> None:
    while len(iteration.idle()) >= 2:
        decision = policy.decide(view_of(iteration))
        if isinstance(decision, Wait):
            return
        iteration.start(int(decision.sender), int(decision.receiver))
