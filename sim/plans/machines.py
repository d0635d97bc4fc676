"""Draw faults of machines and disks into plans: power cuts, backups, cloned cards, starved processors.

Pure; other faults of a seed stay as they were.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from mdl.sim.plans.draw_plan import STEPS_OF_OFFICE, steps_of
from mdl.sim.plans.fault_plan import (
    ANYBODY,
    DISK_FORGETS_S,
    ITSELF,
    OFFICE,
    Burst,
    Clone,
    FaultPlan,
    PowerCut,
    Restart,
    Restore,
    Starve,
    TimedFault,
    ordered,
    round_s,
)

_MOST = 3
# The share of power cuts that hit all devices of a home; the others hit some devices.
_OF_ALL = 0.5
# The share of disks that keep what they call safe; and the share of the others that lose writes of only one file.
_HONEST, _UNORDERED = 0.2, 0.3
# A machine is back after some seconds; a simulated mesh goes on without a majority after 4.
_SHORTEST_AWAY_S, _LONGEST_AWAY_S = 0.2, 5.0
_OLDEST_S = 8.0
_STARVED_S = (8.0, 12.0)


def with_power_cuts(plan: FaultPlan) -> FaultPlan:
    """Add power cuts to a plan: power goes once to three times, at any moment or at a step of a decision.

    All devices lose it at once, or some; each disk loses its last 0 to 2 s. All are back soon.
    """
    rng = np.random.default_rng([plan.seed, 0xB1AC])
    faults = list(plan.faults)
    for _ in range(int(rng.integers(1, _MOST + 1))):
        is_all, at_a_step = rng.random() < _OF_ALL, rng.random() < 0.5
        peers = plan.peer_ids() if is_all else _some(rng, plan)
        if at_a_step:
            faults.append(_at_a_step(rng, plan, peers))
        else:
            faults += _power_cuts(rng, peers, _some_time(rng, plan))
    return replace(plan, faults=ordered(faults))


def with_copies(plan: FaultPlan) -> FaultPlan:
    """Add copies to a plan: backups are put back, and copies of cards are used in a device's place."""
    rng = np.random.default_rng([plan.seed, 0xC0B1])
    faults = list(plan.faults)
    for peer in _some(rng, plan)[:_MOST]:
        at_s, age_s = _some_time(rng, plan), round_s(rng.uniform(0.1, _OLDEST_S))
        if rng.random() < 0.5:
            faults.append(Restore(at_s=at_s, peer=peer, age_s=age_s))
        else:
            faults.append(Clone(at_s=at_s, peer=peer, age_s=age_s, for_s=round_s(rng.uniform(0.5, 6.0))))
    return replace(plan, faults=ordered(faults))


def with_starved(plan: FaultPlan) -> FaultPlan:
    """Add starvation to a plan: devices get hardly any or no processor for about 10 s; in some plans all at once."""
    rng = np.random.default_rng([plan.seed, 0x57A8])
    faults = list(plan.faults)
    at_s, is_at_once = _some_time(rng, plan), rng.random() < 0.5
    for peer in plan.peer_ids() if rng.random() < 0.2 else _some(rng, plan)[:_MOST]:
        every_s = 0.0 if rng.random() < 0.5 else round_s(rng.uniform(0.5, 4.0))
        begins_s, for_s = at_s if is_at_once else _some_time(rng, plan), round_s(rng.uniform(*_STARVED_S))
        faults.append(Starve(at_s=begins_s, peer=peer, for_s=for_s, every_s=every_s))
    return replace(plan, faults=ordered(faults))


def _some(rng: np.random.Generator, plan: FaultPlan) -> list[str]:
    """Pick some devices, at least one."""
    return [plan.peer_ids()[number] for number in rng.permutation(plan.peers)[: int(rng.integers(1, plan.peers + 1))]]


def _some_time(rng: np.random.Generator, plan: FaultPlan) -> float:
    return round_s(rng.uniform(0.05, 0.8 * plan.rounds + 3.0))


def _power_cuts(rng: np.random.Generator, peers: list[str], at_s: float) -> list[TimedFault]:
    """Cut the power of each peer and restart it: in the same order, or each in its own time."""
    faults: list[TimedFault] = []
    for peer in peers:
        loses_s = 0.0 if rng.random() < _HONEST else round_s(rng.uniform(0.0, DISK_FORGETS_S))
        other_s = round_s(rng.uniform(0.0, DISK_FORGETS_S)) if rng.random() < _UNORDERED else loses_s
        away_s = _SHORTEST_AWAY_S + (_LONGEST_AWAY_S - _SHORTEST_AWAY_S) * rng.random() ** 2
        faults.append(PowerCut(at_s=at_s, peer=peer, loses_s=loses_s, ballot_loses_s=other_s))
        faults.append(Restart(at_s=round_s(at_s + away_s), peer=peer))
    return faults


def _at_a_step(rng: np.random.Generator, plan: FaultPlan, peers: list[str]) -> Burst:
    """Cut the power of the device that takes the step, and of the others, at once or within the next second."""
    steps = steps_of(plan.exchange)
    step = steps[int(rng.integers(len(steps)))]
    round_id, nth = (int(rng.integers(1, most + 1)) for most in (plan.rounds, plan.peers))
    peer, before = OFFICE if step in STEPS_OF_OFFICE else ANYBODY, bool(rng.random() < 0.5)
    at_s = 0.0 if rng.random() < 0.5 else round_s(rng.uniform(0.01, 1.0))
    faults = ordered(_power_cuts(rng, [ITSELF, *peers[1:]], at_s))
    return Burst(at_s=0.0, peer=peer, round_id=round_id, step=step, nth=nth, before=before, faults=faults)
