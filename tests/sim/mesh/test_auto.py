"""`round.exchange = "auto"`: hops show the links, then rounds go in segments; large models begin with these."""

from __future__ import annotations

import pytest

from mdl.peers.roles.trainer import exchange
from mdl.peers.trials.run_plan import build_mesh
from mdl.protocol.status_messages import RoundSummary
from mdl.sim.plans.fault_plan import OFFICE, FaultPlan, Restart


def _play(plan: FaultPlan) -> list[RoundSummary]:
    mesh, _ = build_mesh(plan)
    mesh.run(120.0, lambda: len(mesh.accounts.closed) > plan.rounds)
    return sorted(mesh.rounds, key=lambda summary: summary.round)


def test_auto_goes_in_segments_from_the_second_round_on() -> None:
    for peers in (2, 3, 6, 9):
        rounds = _play(FaultPlan(seed=2, peers=peers, rounds=4, exchange="auto"))
        assert len(rounds) >= 3
        assert [bool(summary.shares) for summary in rounds] == [False, *[True] * (len(rounds) - 1)], peers
        assert "links of 50 MB/s, as none is measured yet" in rounds[0].plan


def test_a_device_that_is_started_anew_is_still_known() -> None:
    rounds = _play(FaultPlan(seed=2, peers=4, rounds=8, exchange="auto", faults=(Restart(at_s=3.5, peer="p1"),)))
    assert all(summary.shares for summary in rounds[-3:])


def test_an_agent_that_is_started_anew_knows_the_links_as_devices_tell_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_SEEN_BYTES", 1)  # simulated values are few
    plan = FaultPlan(seed=2, peers=4, rounds=12, exchange="auto", faults=(Restart(at_s=8.0, peer=OFFICE),))
    mesh, _ = build_mesh(plan)
    mesh.run(120.0, lambda: len(mesh.accounts.closed) > plan.rounds)
    begun = [summary.round for summary in mesh.rounds if not summary.shares and summary.plan]
    assert begun == [1]  # the first round, and no other, found no link known
    assert all(disk.models[-1].link_mb_s > 0.0 for disk in mesh.disks.values() if disk.models)
