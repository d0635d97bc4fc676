"""Machines lose power, disks their last writes, backups are put back: no round has two results, and all agree again."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from mdl.peers.roles.trainer.model_state import ModelState
from mdl.peers.trials.campaign import Campaign, Totals, run_campaign, silent_machines
from mdl.peers.trials.run_plan import build_mesh, run_guarded, tell_plan
from mdl.peers.trials.story_file import tell_story
from mdl.protocol.vocabulary import KeptBallot
from mdl.sim.plans.draw_plan import draw_plan, draw_wide, with_copies, with_power_cuts, with_starved
from mdl.sim.plans.fault_plan import (
    Burst,
    Clone,
    Crash,
    FaultPlan,
    Leave,
    PowerCut,
    Restart,
    Restore,
    Starve,
    TimedFault,
    dump_plan,
    load_plan,
    shrink_plan,
)
from tests.portions import in_portions

# Of the wide family, of all sizes and of each exchange.
_SEEDS = in_portions(range(0, 288, 13), 3)
_KINDS = {
    "power_cuts": (with_power_cuts, {PowerCut, Restart, Burst}),
    "copies": (with_copies, {Restore, Clone}),
    "starved": (with_starved, {Starve}),
}


def _run(campaign: Campaign, seeds: list[int]) -> Totals:
    with silent_machines():
        return run_campaign(campaign, seeds, processes=1)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", _SEEDS)
@pytest.mark.parametrize("kind", _KINDS)
def test_whatever_happens_to_machines_nothing_is_lost_or_counted_twice(kind: str, seeds: list[int]) -> None:
    totals = _run(Campaign(wide=True, exchange="any", **{kind: True}), seeds)
    assert [(verdict.seed, verdict.kind, verdict.problem) for verdict in totals.failing] == []
    assert totals.seeds == len(seeds)


@pytest.mark.slow
@pytest.mark.parametrize(("peers", "rounds"), [(3, 6), (2, 8)])
def test_a_small_mesh_that_loses_power_has_one_result_a_round(
    peers: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each ballot is trusted two results come in one round."""
    plans = [with_power_cuts(draw_plan(seed, peers, rounds, "none", has_agent=False)) for seed in range(40)]
    with silent_machines():
        assert Counter(run_guarded(plan).kind for plan in plans) == {"": len(plans)}
        monkeypatch.setattr(KeptBallot, "why_doubted", lambda self, boot, changed_s: "")
        kinds = Counter(run_guarded(plan).kind for plan in plans)
    assert kinds["digest"] >= 3
    assert set(kinds) == {"", "digest"}


@pytest.mark.parametrize("kind", _KINDS)
def test_drawn_faults_of_machines_change_nothing_else(kind: str) -> None:
    draw, kinds = _KINDS[kind]
    drawn_kinds = set[type]()
    for seed in range(200):
        for plan in (draw_wide(seed, "hard"), draw_plan(seed, 1, 4, "mild", has_agent=False)):
            drawn = draw(plan)
            added = [fault for fault in drawn.faults if fault not in plan.faults]
            kept = tuple(fault for fault in drawn.faults if fault in plan.faults)
            assert (replace(drawn, faults=kept), drawn) == (plan, draw(plan))
            assert load_plan(dump_plan(drawn)) == drawn
            assert drawn.stays_away() <= plan.stays_away()
            drawn_kinds |= {type(fault) for fault in added}
    assert drawn_kinds == kinds


def _told(*faults: TimedFault, peers: int = 3, rounds: int = 4) -> tuple[str, list[str]]:
    with silent_machines():
        verdict, mesh = tell_plan(FaultPlan(1, peers, rounds, has_agent=False, faults=faults))
    return verdict.problem, [line.partition("**  ")[2] for line in tell_story(mesh.story or []) if "**" in line]


def test_the_story_tells_what_happened_to_a_machine() -> None:
    problem, told = _told(
        PowerCut(at_s=4.0, peer="p0", loses_s=1.5, ballot_loses_s=0.5),
        Restart(at_s=5.0, peer="p0"),
        Restore(at_s=5.5, peer="p1", age_s=2.0),
        Clone(at_s=6.0, peer="p2", age_s=3.0, for_s=2.0),
        Starve(at_s=7.0, peer="p0", for_s=10.0, every_s=0.5),
        Starve(at_s=7.0, peer="p1", for_s=8.0),
    )
    assert (problem, told) == (
        "",
        [
            "p0 loses power, its disk the models of the last 1.5 s and the ballots of the last 0.5 s",
            "p0 starts again",
            "p1 starts again with its files of 2 s ago",
            "a copy of p2's card of 3 s ago runs in its place for 2 s",
            "p0 gets the processor once in 0.5 s for 10 s",
            "p1 gets no processor for 8 s",
            "p2 goes on with its own card",
        ],
    )


def _is_trusted_after(*faults: TimedFault) -> bool:
    """Return True if the last start of p0, which has just begun, relies on all of its ballot."""
    ends_s = max(fault.at_s for fault in faults)
    mesh, _ = build_mesh(FaultPlan(1, 3, 100, has_agent=False, faults=faults))
    with silent_machines():
        mesh.run(ends_s - 1e-3)
        before = mesh.disk("p0").models[-1].round_id
        mesh.run(ends_s)
    standing = mesh.nodes["p0"].machine.trainer.model_state  # type: ignore[attr-defined]
    assert isinstance(standing, ModelState)
    assert before > 2
    return bool(standing.starts[:-1])


def test_a_start_after_a_power_cut_is_told_from_a_start_of_the_process() -> None:
    again = Restart(at_s=9.0, peer="p0")
    assert _is_trusted_after(Crash(at_s=8.0, peer="p0"), again)
    assert not _is_trusted_after(PowerCut(at_s=8.0, peer="p0"), again)
    assert _is_trusted_after(Leave(at_s=7.5, peer="p0"), PowerCut(at_s=8.0, peer="p0"), again)
    # Its disk has lost that the process ended.
    assert not _is_trusted_after(
        Leave(at_s=7.5, peer="p0"), PowerCut(at_s=8.0, peer="p0", loses_s=1.0, ballot_loses_s=1.0), again
    )
    assert not _is_trusted_after(Restore(at_s=9.0, peer="p0", age_s=1.0))
    assert not _is_trusted_after(Clone(at_s=9.0, peer="p0", age_s=1.0, for_s=1.0))


def test_a_power_cut_takes_the_last_writes_and_no_others() -> None:
    cut = PowerCut(at_s=9.0, peer="p0", loses_s=2.0, ballot_loses_s=0.0)
    mesh, _ = build_mesh(FaultPlan(1, 3, 100, has_agent=False, faults=(cut,)))
    with silent_machines():
        mesh.run(6.99)
        models = list(mesh.disk("p0").models)
        mesh.run(8.999)
        disk = mesh.disk("p0")
        kept = disk.kept
        assert disk.models[-1].round_id > models[-1].round_id
        mesh.run(9.0)
    assert (disk.models, disk.kept) == (models, kept)


def test_a_starved_device_has_the_processor_for_a_moment_now_and_then() -> None:
    moments: dict[float, int] = Counter()
    mesh, _ = build_mesh(
        FaultPlan(1, 3, 100, has_agent=False, faults=(Starve(at_s=5.0, peer="p0", for_s=10.0, every_s=2.0),)),
        record=True,
    )
    with silent_machines():
        mesh.run(16.0)
    for step in mesh.story or []:
        if step.who is not None and step.who.peer_id == "p0" and 5.0 < step.at_s < 14.9:
            moments[round(step.at_s, 1)] += 1
    assert sorted(moments) == [7.0, 9.0, 11.0, 13.0]


def test_a_power_cut_is_shrunk_together_with_its_restart() -> None:
    cut, back = PowerCut(at_s=1.0, peer="p1", loses_s=1.0), Restart(at_s=3.0, peer="p1")
    seen: list[FaultPlan] = []

    def fails(plan: FaultPlan) -> bool:
        seen.append(plan)
        return len(plan.faults) == 2

    shrink_plan(FaultPlan(1, 4, 2, faults=(cut, back)), fails)
    assert all(plan.faults in ((), (cut, back)) for plan in seen)
    assert FaultPlan(1, 4, 2, faults=(cut,)).stays_away() == {"p1"}
