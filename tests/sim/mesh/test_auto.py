"""`round.exchange = "auto"`: hops of small models show the links; then, or where a model is large, rounds go in segments."""

from __future__ import annotations

from mdl.peers.trials.run_plan import build_mesh
from mdl.protocol.status_messages import RoundSummary
from mdl.sim.plans.fault_plan import FaultPlan, Restart


def _play(plan: FaultPlan) -> list[RoundSummary]:
    mesh, _ = build_mesh(plan)
    mesh.run(120.0, lambda: len(mesh.accounts.closed) > plan.rounds)
    return sorted(mesh.rounds, key=lambda summary: summary.round)


def test_auto_goes_in_segments_from_the_second_round_on() -> None:
    for peers in (2, 3, 6, 9):
        rounds = _play(FaultPlan(seed=2, peers=peers, rounds=4, exchange="auto"))
        assert len(rounds) >= 3
        assert [bool(summary.shares) for summary in rounds] == [False, *[True] * (len(rounds) - 1)], peers
        assert "links of 12.5 MB/s, as none is measured yet" in rounds[0].plan


def test_a_device_that_is_started_anew_is_still_known() -> None:
    rounds = _play(FaultPlan(seed=2, peers=4, rounds=8, exchange="auto", faults=(Restart(at_s=3.5, peer="p1"),)))
    assert all(summary.shares for summary in rounds[-3:])
