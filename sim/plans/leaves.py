"""Leaves, drawn into fault plans: users end their devices. Pure; other faults of a seed stay as they were."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from mdl.sim.plans.draw_plan import STEPS_OF_OFFICE, steps_of
from mdl.sim.plans.fault_plan import (
    ANYBODY,
    ITSELF,
    OFFICE,
    AnyFault,
    Burst,
    FaultPlan,
    Leave,
    Restart,
    ordered,
    round_s,
)

# The share of plans in which all devices are ended at once.
_ALL = 0.1
_MOST, _LONGEST_S = 3, 4.0


def with_leaves(plan: FaultPlan) -> FaultPlan:
    """Add leaves to a plan: users end devices, at any moment or at a step of a decision; sometimes all at once.

    Most are back soon. The others, together with those that stay away anyhow, are a minority.
    """
    rng = np.random.default_rng([plan.seed, 0x1EA7E])
    faults = list(plan.faults)
    for number in rng.permutation(plan.peers)[: int(rng.integers(1, _MOST + 1))]:
        peer, stays = plan.peer_ids()[number], replace(plan, faults=tuple(faults)).stays_away()
        may_stay = len(stays | {peer}) <= (plan.peers - 1) // 2
        faults += _at_a_step(rng, plan) if rng.random() < 0.5 else _at_some_time(rng, plan, peer, may_stay)
    if rng.random() < _ALL:
        faults += _all(rng, plan)
    return replace(plan, faults=ordered(faults))


def _at_some_time(rng: np.random.Generator, plan: FaultPlan, peer: str, may_stay: bool) -> list[AnyFault]:
    at_s = round_s(rng.uniform(0.05, 0.8 * plan.rounds + 3.0))
    leave, back = Leave(at_s=at_s, peer=peer), Restart(at_s=round_s(at_s + _away_s(rng)), peer=peer)
    return [leave] if may_stay and rng.random() < 0.3 else [leave, back]


def _at_a_step(rng: np.random.Generator, plan: FaultPlan) -> list[AnyFault]:
    steps = steps_of(plan.exchange)
    step = steps[int(rng.integers(len(steps)))]
    round_id, nth = (int(rng.integers(1, most + 1)) for most in (plan.rounds, plan.peers))
    at_s = 0.0 if rng.random() < 0.5 else round_s(rng.uniform(0.01, 0.6))
    ends = Leave(at_s=at_s, peer=ITSELF), Restart(at_s=round_s(at_s + _away_s(rng)), peer=ITSELF)
    peer, before = OFFICE if step in STEPS_OF_OFFICE else ANYBODY, bool(rng.random() < 0.5)
    return [Burst(at_s=0.0, peer=peer, round_id=round_id, step=step, nth=nth, before=before, faults=ends)]


def _all(rng: np.random.Generator, plan: FaultPlan) -> list[AnyFault]:
    at_s = rng.uniform(0.05, 0.8 * plan.rounds + 3.0)
    ends: list[AnyFault] = [Leave(at_s=round_s(at_s + rng.uniform(0.0, 0.15)), peer=peer) for peer in plan.peer_ids()]
    return [*ends, *(Restart(at_s=round_s(at_s + 0.2 + _away_s(rng)), peer=peer) for peer in plan.peer_ids())]


def _away_s(rng: np.random.Generator) -> float:
    return float(0.1 + _LONGEST_S * rng.random() ** 2)
