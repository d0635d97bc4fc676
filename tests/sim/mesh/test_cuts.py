"""A cut between two devices costs one round, not every one."""

from __future__ import annotations

import pytest

from mdl.config import Exchange
from mdl.peers.roles import build
from mdl.peers.roles.membership.members import AVOID_S
from mdl.peers.trials.run_plan import build_mesh
from mdl.protocol.status_messages import RoundSummary
from mdl.sim.plans.fault_plan import AGENT_NODE, Burst, Cut, CutOneWay, FaultPlan, Step

ROUNDS = 12
# Of a round without faults: 0.9 to 1.1 s here. To find out about a cut takes the simulated mesh 2 to 3 s.
NORMAL_S = 1.5


@pytest.fixture(autouse=True)
def lasting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What did not get through is avoided for as long as in a real mesh: campaigns try it again within the run."""
    monkeypatch.setattr(build, "_AVOID_S", AVOID_S)


def play(
    policy: str, peers: int, kind: type[Cut] | type[CutOneWay], exchange: Exchange = "chain"
) -> list[RoundSummary]:
    fault = kind(at_s=0.0, a="p1", b="p2", for_s=1000.0)
    plan = FaultPlan(seed=1, peers=peers, rounds=ROUNDS, policy=policy, exchange=exchange, faults=(fault,))
    mesh, _ = build_mesh(plan)
    mesh.run(300.0, lambda: len(mesh.accounts.closed) > ROUNDS)
    machine = mesh.nodes[AGENT_NODE].machine
    assert machine is not None
    assert machine.agent is not None
    return list(machine.agent._records.finished)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Cut, CutOneWay])
@pytest.mark.parametrize("peers", [3, 6])
@pytest.mark.parametrize("policy", ["greedy", "fifo", "tree", "ring", "dp", "dqn"])
def test_a_lasting_cut_between_two_devices_costs_once(policy: str, peers: int, kind: type[Cut]) -> None:
    rounds = play(policy, peers, kind)
    assert len(rounds) >= ROUNDS - 1
    slow = [summary for summary in rounds if summary.seconds["total"] > NORMAL_S]
    assert len(slow) <= 1, [summary.seconds["total"] for summary in rounds]
    after = rounds[rounds.index(slow[0]) + 1 :] if slow else rounds
    assert all(len(summary.contributors) == peers for summary in after)
    if slow:
        assert all(summary.cuts for summary in after)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Cut, CutOneWay])
@pytest.mark.parametrize("peers", [3, 6])
@pytest.mark.parametrize("policy", ["greedy", "tree", "ring"])
def test_a_lasting_cut_costs_segments_one_standstill_and_hops_find_the_way(
    policy: str, peers: int, kind: type[Cut]
) -> None:
    rounds = play(policy, peers, kind, "shares")
    assert len(rounds) >= ROUNDS - 1
    slow = [summary for summary in rounds if summary.seconds["total"] > NORMAL_S]
    assert len(slow) <= 2, [summary.seconds["total"] for summary in rounds]  # the standstill, and a hop in vain
    assert all(len(summary.contributors) == peers for summary in rounds[rounds.index(slow[-1]) + 1 :])


@pytest.mark.parametrize(("peers", "root"), [(4, "p0"), (5, "p2"), (6, "p3")])
def test_a_majority_goes_on_without_who_has_the_result_and_reaches_the_agent_alone(peers: int, root: str) -> None:
    """Who merged all is cut off from the other trainers for good as the result is ordered; the agent hears all."""
    others = [f"p{number}" for number in range(peers) if f"p{number}" != root]
    cuts = tuple(Cut(at_s=0.0, a=root, b=other, for_s=1000.0) for other in others)
    burst = Burst(at_s=0.0, peer=AGENT_NODE, round_id=2, step=Step.PROPOSED, nth=1, before=False, faults=cuts)
    mesh, _ = build_mesh(FaultPlan(7, peers, 3, on_partition="continue", faults=(burst,)))
    mesh.run(90.0, lambda: mesh.accounts.rounds_closed() >= 5)
    assert mesh.accounts.rounds_closed() >= 5
