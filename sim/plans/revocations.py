"""Revocations and liars drawn into fault plans. Pure; other faults of a seed stay as they were."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from mdl.sim.plans.fault_plan import (
    OFFICE,
    AnyFault,
    Cut,
    FaultPlan,
    Lie,
    Restart,
    Revoke,
    Split,
    Suspend,
    ordered,
    round_s,
)

# The share of plans with a network that loses nothing, so that every device that can be reached knows in time.
_SOUND = 0.25
_LIES = (1000.0, -1000.0)


def with_revocations(plan: FaultPlan) -> FaultPlan:
    """Add revocations to a plan; the revoked devices and those that stay away are together a minority.

    Half of them come with another fault at about that time: a cut, a split, a restart, a suspension.
    """
    rng = np.random.default_rng([plan.seed, 0x0FF])
    most = (plan.peers - 1) // 2 - len(plan.stays_away())
    if most < 1:
        return plan
    if rng.random() < _SOUND:
        plan = replace(plan, loss=0.0, duplication=0.0, late=0.0)
    faults = list(plan.faults)
    for number in rng.permutation(len(plan.node_ids()))[: int(rng.integers(1, most + 1))]:
        peer = OFFICE if rng.random() < 0.25 else plan.node_ids()[number]
        faults += _revocation(rng, plan, peer)
    return replace(plan, faults=ordered(faults))


def with_liars(plan: FaultPlan, count: int) -> FaultPlan:
    """Add liars to a plan: so many devices give a thousand times their true values, as long as its rounds may take.

    They are less than half: others must be left to judge. The vectors share no value, so only lengths expose a lie.
    """
    rng = np.random.default_rng([plan.seed, 0x11A5])
    liars = rng.permutation(plan.peers)[: min(count, (plan.peers - 1) // 2)]
    lies = [
        Lie(at_s=0.0, peer=f"p{number}", times=float(rng.choice(_LIES)), for_s=2.0 * plan.rounds) for number in liars
    ]
    return replace(plan, faults=(*lies, *plan.faults))


def _revocation(rng: np.random.Generator, plan: FaultPlan, peer: str) -> list[AnyFault]:
    at_s = round_s(rng.uniform(0.05, 0.8 * plan.rounds + 3.0))
    others = [each for each in plan.node_ids() if each != peer]
    by, third = (others[int(rng.integers(len(others)))] for _ in range(2))
    revoke = Revoke(at_s=at_s, peer=peer, by=by, heeds=bool(rng.random() < 1 / 3))
    if rng.random() < 0.5:
        return [revoke]
    return [revoke, _beside(rng, plan, revoke, third)]


def _beside(rng: np.random.Generator, plan: FaultPlan, revoke: Revoke, third: str) -> AnyFault:
    """Draw a fault near the moment of a revocation. third: a device, perhaps the one that revokes."""
    at_s, for_s = round_s(max(0.0, revoke.at_s - rng.uniform(0.0, 1.0))), round_s(rng.uniform(0.3, 5.0))
    match int(rng.integers(5)):
        case 0:
            return Restart(at_s=round_s(revoke.at_s + rng.uniform(0.0, 2.0)), peer=(revoke.by, third)[rng.integers(2)])
        case 1:
            return Restart(at_s=round_s(revoke.at_s + rng.uniform(0.0, 2.0)), peer=revoke.peer)
        case 2:
            return Suspend(at_s=at_s, peer=third, for_s=for_s)
        case 3:
            return Cut(at_s=at_s, a=revoke.by, b=third, for_s=for_s) if third != revoke.by else _split(rng, plan, at_s)
        case _:
            return replace(_split(rng, plan, at_s), for_s=for_s)


def _split(rng: np.random.Generator, plan: FaultPlan, at_s: float) -> Split:
    ids = plan.node_ids()
    some = rng.permutation(len(ids))[: int(rng.integers(1, len(ids)))]
    return Split(at_s=at_s, group=tuple(sorted(ids[number] for number in some)), for_s=round_s(rng.uniform(0.3, 5.0)))
