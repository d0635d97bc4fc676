"""A mesh that falls apart for long: groups go on as forks, meet again, and everybody's work counts once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from benchmarks.forks import watched
from mdl.peers.trials.campaign import Campaign, silent_machines
from mdl.peers.trials.run_plan import run_guarded
from mdl.sim.plans.draw_plan import draw_plan, draw_wide, with_splits
from mdl.sim.plans.fault_plan import Cut, FaultPlan, Split, Suspend
from tests.portions import in_portions

# Of each size as many; a third each by hops, in segments, and as `auto` has it.
_SEEDS = in_portions(range(0, 288, 7), 5)


@pytest.mark.parametrize("seeds", _SEEDS)
def test_whoever_is_apart_for_long_goes_on_and_nothing_is_lost_or_counted_twice(seeds: list[int]) -> None:
    campaign, rounds = Campaign(wide=True, splits=True, on_partition="continue", exchange="any"), 0
    for seed in seeds:
        plan = campaign.plan(seed)
        verdict = run_guarded(plan)
        assert (seed, verdict.kind, verdict.lost, verdict.double) == (seed, "", 0, 0)
        rounds += verdict.rounds_closed - plan.rounds
    assert rounds > 20 * len(seeds)  # forks have rounds of their own


def test_drawn_splits_change_nothing_else_and_begin_when_the_mesh_is_one() -> None:
    longest = 0.0
    for seed in range(200):
        for plan in (draw_wide(seed, "hard"), draw_plan(seed, 1, 4, "mild", has_agent=False)):
            drawn = with_splits(plan)
            kept = tuple(fault for fault in drawn.faults if fault in plan.faults)
            assert (replace(drawn, faults=kept), drawn) == (plan, with_splits(plan))
            added = [fault for fault in drawn.faults if fault not in plan.faults]
            assert 2 <= len(added) <= 7
            assert all(fault.at_s >= 4.0 for fault in added)
            longest = max(longest, drawn.apart_s(0.0) - plan.apart_s(0.0))
    assert longest > 40.0


def test_time_apart_is_counted_beyond_the_first_seconds_of_each_time() -> None:
    apart = Split(at_s=1.0, group=("p0",), for_s=10.0), Suspend(at_s=2.0, peer="p1", for_s=5.5)
    plan = FaultPlan(0, 3, 3, faults=(*apart, Cut(at_s=3.0, a="p0", b="p1", for_s=3.0)))
    assert plan.apart_s(5.0) == 5.5


def test_a_group_that_is_to_wait_goes_on_without_a_majority_never() -> None:
    """It may begin a fork all the same: most are here, and too many of them have forgotten what they voted for."""
    here: list[bool] = []
    campaign = Campaign(peers=3, rounds=6, on_partition="wait")
    with silent_machines(), watched(here):
        assert not [verdict for seed in range(40) if (verdict := run_guarded(campaign.plan(seed))).kind]
    assert here
    assert all(here)
