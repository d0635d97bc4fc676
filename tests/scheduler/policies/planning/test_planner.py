"""The planner is exact where nothing is hidden, and tries its first step on drawn futures where something is."""

from __future__ import annotations

from statistics import fmean, pvariance

import numpy as np
import pytest

from benchmarks.chain.many_rounds import draw_rounds, play_rounds
from mdl.devices.usage import UsageKind, expected_rest_s
from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView, Pair, Wait
from mdl.scheduler.policies.greedy import Greedy
from mdl.scheduler.policies.planner import Future, HopTimes, Planner, draw_rest_s, roll_out
from mdl.scheduler.policies.registry import make_policy
from mdl.scheduler.study.optimal import solve
from mdl.scheduler.study.play import play, view_of
from mdl.sim.timing.iteration import Iteration
from mdl.sim.timing.scenario import draw_scenario

TUNING = 500_000


@pytest.mark.parametrize("n", [3, 6, 9])
def test_the_plan_is_the_optimum_where_nothing_is_hidden(n: int) -> None:
    for seed in range(TUNING, TUNING + 8):
        scenario = draw_scenario("hetero", n, seed)
        typical_s = scenario.size_mb / sorted(device.link_mb_s for device in scenario.devices)[n // 2]
        best_s = solve(scenario).makespan_s
        assert best_s - 1e-9 <= play(scenario, Planner()).makespan_s <= best_s + 0.02 * n * typical_s


@pytest.mark.parametrize("n", [3, 5, 9])
def test_4_4_on_equal_devices_the_planner_is_the_optimum(n: int) -> None:
    scenarios = [draw_scenario("paper", n, seed) for seed in range(TUNING, TUNING + 8)]
    best_s = fmean(solve(scenario).makespan_s for scenario in scenarios)
    assert fmean(play(scenario, Planner(futures=16)).makespan_s for scenario in scenarios) <= 1.005 * best_s


def test_small_meshes_in_use_end_earlier_than_under_greedy() -> None:
    scenarios = [draw_scenario("dynamic", 4, seed) for seed in range(TUNING, TUNING + 60)]
    planned_s = sum(play(scenario, Planner(futures=24)).makespan_s for scenario in scenarios)
    assert planned_s < sum(play(scenario, make_policy("greedy-risk")).makespan_s for scenario in scenarios)


@pytest.mark.parametrize("family", ["hetero", "dynamic"])
def test_a_large_mesh_is_planned_once_few_are_left(family: str) -> None:
    scenario = draw_scenario(family, 24, TUNING)
    reasons = [one.reason for one in play(scenario, Planner(futures=4)).ordered]
    assert len(reasons) == 23
    assert reasons[0].startswith("greedy:")


def test_what_costs_no_time_is_left_to_the_balance_of_energy() -> None:
    rounds = draw_rounds("paper", 5, 30_000, 12)
    planned, tree = (play_rounds(rounds, policy)[-1] for policy in (Planner(futures=8), make_policy("tree")))
    assert pvariance(planned.energy_j) <= 0.02 * pvariance(tree.energy_j)


def test_the_same_view_gives_the_same_decision() -> None:
    for seed in range(TUNING, TUNING + 5):
        view = view_of(Iteration(draw_scenario("dynamic", 7, seed)))
        assert Planner().decide(view) == Planner().decide(view)


def test_without_a_plan_that_starts_now_it_waits_for_the_better_partner() -> None:
    slow = [DeviceView(name, DeviceState.FREE, link_mb_s=1.0, merge_mb_s=100.0) for name in ("a", "b")]
    fast = DeviceView("c", DeviceState.TRAINING, link_mb_s=20.0, merge_mb_s=100.0, eta_ready_s=0.1)
    fast_too = DeviceView("d", DeviceState.TRAINING, link_mb_s=20.0, merge_mb_s=100.0, eta_ready_s=0.1)
    assert isinstance(Planner().decide(ChainView(0.0, 10.0, (*slow, fast, fast_too))), Wait)
    assert isinstance(Planner().decide(ChainView(0.0, 10.0, tuple(slow))), Pair)


def test_unknown_speeds_and_ends_leave_a_legal_decision() -> None:
    free = [DeviceView(name, DeviceState.FREE) for name in "abc"]
    assert isinstance(Planner().decide(ChainView(0.0, 1.0, (*free, DeviceView("d", DeviceState.TRAINING)))), Pair)


def test_a_rollout_of_two_hops_takes_what_they_take() -> None:
    hops = HopTimes([[1.0] * 3, [1.0] * 3, [1.0] * 3], [0.5] * 3, [3.0, 2.0, 1.0])
    quiet = Future(((), (), ()), (0.0, 0.0, 0.0))
    assert roll_out(quiet, hops, (0, 2)) == pytest.approx(3.0)
    one_comes_late = Future(((), (), ()), (0.0, 0.0, 4.0))
    assert roll_out(one_comes_late, hops, (0, 1)) == pytest.approx(5.5)
    assert roll_out(one_comes_late, hops, None) == pytest.approx(7.0)
    in_use = Future(((), (), ((0.25, 2.25),)), (0.0, 0.0, 0.0))
    assert roll_out(in_use, hops, (0, 2)) == pytest.approx(5.0)


@pytest.mark.parametrize("kind", [kind for kind in UsageKind if kind is not UsageKind.IDLE])
@pytest.mark.parametrize("age_s", [0.0, 0.25, 1.0])
def test_drawn_rests_have_the_mean_that_is_expected(kind: UsageKind, age_s: float) -> None:
    expected_s = expected_rest_s(kind, age_s)
    if not expected_s:
        return
    rng = np.random.default_rng(3)
    drawn = [draw_rest_s(kind, age_s, 1.0, rng) for _ in range(4000)]
    assert fmean(drawn) == pytest.approx(expected_s, rel=0.1)


def test_greedy_decides_alike_whatever_the_planner_did() -> None:
    view = view_of(Iteration(draw_scenario("hetero", 24, TUNING)))
    assert Planner().decide(view) == Greedy().decide(view)
