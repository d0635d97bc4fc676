"""A group without a majority goes on as a fork after `partition_s`, however often it changes its agent meanwhile."""

from __future__ import annotations

import itertools

from mdl.peers.trials.run_plan import build_mesh
from mdl.sim.plans.fault_plan import OFFICE, Burst, Crash, FaultPlan, Restart, Step

PEERS, ROUNDS = 4, 3
# Nobody leads for as long as `partition_s`, 4 s here, which begin with the office; the last of these dies after 86 s.
EVERY_S, TIMES = 4.0, 20


def test_the_patience_for_a_majority_is_the_meshs_and_not_each_agents() -> None:
    """All stage round 2 and are started anew before it is closed: nobody who decides knows what must be proposed."""
    names = [f"p{number}" for number in range(PEERS)]
    die = [(Crash(at_s=0.0, peer=name), Restart(at_s=0.3, peer=name)) for name in names]
    forget = Burst(
        at_s=0.0, peer=OFFICE, round_id=2, step=Step.CLOSING, nth=1, before=True, faults=tuple(itertools.chain(*die))
    )
    times_s = [10.0 + number * EVERY_S for number in range(TIMES)]
    fall = [(Crash(at_s=at_s, peer=OFFICE), Restart(at_s=at_s + 0.5, peer=OFFICE)) for at_s in times_s]
    faults = (forget, *itertools.chain(*fall))
    mesh, _ = build_mesh(FaultPlan(seed=1, peers=PEERS, rounds=ROUNDS, policy="greedy", has_agent=False, faults=faults))
    mesh.run(200.0, lambda: len(mesh.accounts.closed) > ROUNDS)
    assert len(mesh.accounts.closed) > ROUNDS
    assert mesh.now < 40.0
