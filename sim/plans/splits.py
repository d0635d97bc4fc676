"""Long splits of a mesh, drawn into fault plans: groups go on as forks, and meet again. Pure."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from mdl.sim.plans.fault_plan import Cut, CutOneWay, FaultPlan, Split, Suspend, TimedFault, ordered, round_s

# Groups apart from the beginning are two meshes, which do not add up (docs/faults.md): round 1 has begun by then.
_FROM_S = 4.0
_FEWEST, _MOST = 2, 7
# A group goes on without its majority after 4 s of a simulated mesh.
_SHORTEST_S, _LONGEST_S = 2.0, 14.0


def with_splits(plan: FaultPlan) -> FaultPlan:
    """Add splits to a plan: groups, pairs or single devices are apart 2 to 7 times, for 2 to 14 s each."""
    rng = np.random.default_rng([plan.seed, 0x5A117])
    last_s = _FROM_S + 2.0 * plan.rounds
    apart = [_apart(rng, plan, round_s(rng.uniform(_FROM_S, last_s))) for _ in range(rng.integers(_FEWEST, _MOST + 1))]
    return replace(plan, faults=ordered([*plan.faults, *apart]))


def _apart(rng: np.random.Generator, plan: FaultPlan, at_s: float) -> TimedFault:
    ids, for_s, kind = plan.node_ids(), round_s(rng.uniform(_SHORTEST_S, _LONGEST_S)), rng.random()
    some = [ids[number] for number in rng.permutation(len(ids))]
    if kind < 0.2 or len(ids) < 2:
        return Suspend(at_s=at_s, peer=some[0], for_s=for_s)
    if kind < 0.3:
        return Cut(at_s=at_s, a=some[0], b=some[1], for_s=for_s)
    if kind < 0.4:
        return CutOneWay(at_s=at_s, a=some[0], b=some[1], for_s=for_s)
    return Split(at_s=at_s, group=tuple(sorted(some[: int(rng.integers(1, len(ids)))])), for_s=for_s)
