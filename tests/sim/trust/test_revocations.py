"""Devices are revoked in the middle of faults: nobody who knows hears them, everybody learns it, nothing is lost."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from mdl.peers.trials.campaign import Campaign, Totals, run_campaign, silent_machines
from mdl.peers.trials.run_plan import run_plan, tell_plan
from mdl.protocol.machine import Finish, Received
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.invariants import RunVerdict
from mdl.sim.plans.draw_plan import with_revocations
from mdl.sim.plans.fault_plan import OFFICE, AnyFault, Crash, FaultPlan, Restart, Revoke, Split, dump_plan, load_plan
from tests.portions import in_portions

_OUT = Revoke(at_s=2.0, peer="p4", by="p1")


def _failures(totals: Totals) -> list[str]:
    return [f"seed {verdict.seed}: {verdict.kind}: {verdict.problem}" for verdict in totals.failing]


def _run(*faults: AnyFault, peers: int = 5, rounds: int = 5, **options: object) -> tuple[RunVerdict, SimMesh]:
    with silent_machines():
        verdict, mesh = tell_plan(FaultPlan(1, peers, rounds, faults=faults, **options))  # type: ignore[arg-type]
    assert not verdict.problem
    return verdict, mesh


def _rounds(mesh: SimMesh) -> dict[str, int]:
    return {peer_id: node.holder.round_id for peer_id, node in mesh.nodes.items() if node.holder}


@pytest.mark.parametrize("seeds", in_portions(range(40), 4))
@pytest.mark.parametrize("peers", [3, 5, 9])
def test_hard_plans_with_revocations_break_nothing(peers: int, seeds: list[int]) -> None:
    totals = run_campaign(Campaign(peers=peers, revocations=True), seeds, processes=1)
    assert _failures(totals) == []
    assert totals.revoked > len(seeds) / 2


@pytest.mark.slow
@pytest.mark.parametrize("seeds", in_portions(range(0, 288, 9), 3))
def test_wide_plans_have_them_too(seeds: list[int]) -> None:
    totals = run_campaign(Campaign(wide=True, exchange="any", revocations=True), seeds, processes=1)
    assert _failures(totals) == []
    assert totals.revoked > len(seeds) / 3


@pytest.mark.parametrize("has_agent", [True, False])
def test_the_others_go_on_without_it(has_agent: bool) -> None:
    verdict, mesh = _run(_OUT, has_agent=has_agent)
    assert (verdict.revoked, verdict.without_quorum) == (1, False)
    assert min(count for peer_id, count in _rounds(mesh).items() if peer_id != "p4") >= 5
    last = max(mesh.accounts.closed.values(), key=lambda entry: (entry.round_id, len(entry.contributors)))
    assert {who.peer_id for who in last.contributors} == {"p0", "p1", "p2", "p3"}


def test_who_leads_is_locked_out_like_any_other() -> None:
    verdict, mesh = _run(Revoke(at_s=3.5, peer=OFFICE, by="p1"), has_agent=False)
    assert verdict.revoked == 1
    (out,) = mesh.gate.known_out() if mesh.gate else ()
    assert min(count for peer_id, count in _rounds(mesh).items() if peer_id != out) >= 5


def test_nobody_who_knows_hears_it_again_whatever_starts_anew() -> None:
    anew = [Restart(at_s=3.0 + number / 5, peer=f"p{number}") for number in range(5)]
    _, mesh = _run(_OUT, *anew)
    heard = [
        step
        for step in mesh.story or []
        if isinstance(step.event, Received) and step.event.sender.peer_id == "p4" and step.who and step.at_s > 2.2
    ]
    assert {step.who.peer_id for step in heard if step.who} <= {"p4"}


def test_a_group_that_was_cut_off_learns_it_when_the_cut_heals() -> None:
    """Till then the revoked device takes part there, rightly."""
    cut = Split(at_s=1.5, group=("p3", "p4"), for_s=8.0)
    verdict, mesh = _run(cut, _OUT, on_partition="continue", rounds=8)
    assert verdict.revoked == 1
    together = [entry for entry in mesh.accounts.closed.values() if len(entry.contributors) == 2]
    assert {who.peer_id for entry in together for who in entry.contributors} == {"p3", "p4"}


def test_who_was_away_learns_it_before_it_hears_anything_else() -> None:
    """p4 has stayed away itself; p3 comes back to it and to the others at the same time."""
    away = (Crash(at_s=1.0, peer="p3"), Restart(at_s=6.0, peer="p3"), Crash(at_s=1.0, peer="p4"))
    verdict, mesh = _run(*away, _OUT, Restart(at_s=6.0, peer="p4"), rounds=10)
    assert verdict.revoked == 1
    after = [step for step in mesh.story or [] if step.who and step.who.peer_id == "p3" and step.at_s > 6.0]
    assert not [step for step in after if isinstance(step.event, Received) and step.event.sender.peer_id == "p4"]


def test_a_device_that_heeds_it_leaves_and_cannot_come_back() -> None:
    out = Revoke(at_s=2.0, peer="p4", by="p1", heeds=True)
    verdict, mesh = _run(out, Restart(at_s=4.0, peer="p4"), rounds=8)
    assert verdict.revoked == 1
    left = [effect for step in mesh.story or [] for effect in step.effects if isinstance(effect, Finish)]
    assert [effect.exit_code for effect in left] == [2, 2]
    assert not mesh.nodes["p4"].running


def test_two_owners_who_lock_each_other_out_are_both_out() -> None:
    """On both sides of a cut: nobody can tell who was first."""
    cut = Split(at_s=1.5, group=("p3", "p4"), for_s=3.0)
    verdict, mesh = _run(cut, _OUT, Revoke(at_s=2.0, peer="p1", by="p4"), rounds=8)
    assert verdict.revoked == 2
    assert {peer_id for peer_id, count in _rounds(mesh).items() if count >= 8} >= {"p0", "p2", "p3"}


def test_a_mesh_that_locks_out_its_majority_waits_or_goes_on_as_a_fork() -> None:
    """Of p0, p1 and p2 only p0 is in w(r), so that it alone decides on the next round, when it is locked out."""
    plan = Campaign(peers=3, revocations=True).plan(6)
    with silent_machines():
        waits, _ = run_plan(plan)
        goes_on, mesh = run_plan(replace(plan, on_partition="continue"))
    assert (waits.kind, waits.without_quorum, waits.revoked) == ("", True, 1)
    assert (goes_on.kind, goes_on.without_quorum, goes_on.revoked) == ("", False, 1)
    assert all(mesh.nodes[peer_id].holder.lineage[1:] for peer_id in ("p1", "p2"))  # type: ignore[union-attr]


def test_plans_keep_what_they_were_but_for_revocations() -> None:
    plans = [Campaign(peers=6, revocations=True).plan(seed) for seed in range(400)]
    bare = [Campaign(peers=6).plan(seed) for seed in range(400)]
    assert all(set(one.faults) <= set(other.faults) for one, other in zip(bare, plans, strict=True))
    assert all(load_plan(dump_plan(plan)) == plan for plan in plans[:100])
    revoked = [[each for each in plan.faults if isinstance(each, Revoke)] for plan in plans]
    assert Counter(map(len, revoked)).keys() == {0, 1, 2}
    assert all(len(each) + len(plan.stays_away()) <= 2 for each, plan in zip(revoked, plans, strict=True))
    assert {each.heeds for some in revoked for each in some} == {True, False}
    assert 0.15 < sum(not plan.loss for plan in plans) / len(plans) < 0.35
    assert with_revocations(bare[0]) == plans[0]
