"""The optimum is what trying everything finds, and playing its plan takes exactly as long as it says."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl.devices.scenario import Scenario, ScenarioDevice
from mdl.devices.usage import Periods
from mdl.errors import ConfigError
from mdl.scheduler.policies.chain import ChainView, Decision, DeviceState, Pair, Wait
from mdl.scheduler.policies.fixed import Fifo
from mdl.scheduler.study.optimal import MAX_DEVICES, Optimal, solve
from mdl.scheduler.study.play import play
from mdl.sim.timing.iteration import Iteration
from mdl.sim.timing.scenario import draw_scenario

SECONDS = st.floats(0.0, 8.0, allow_subnormal=False)


@st.composite
def busy_periods(draw: st.DrawFn) -> Periods:
    edges = sorted(draw(st.lists(SECONDS, max_size=6)))
    return tuple((start, end) for start, end in list(pairwise(edges))[::2])


@st.composite
def scenarios(draw: st.DrawFn, most: int = 4) -> Scenario:
    devices = [
        ScenarioDevice(
            ready_s=draw(SECONDS),
            link_mb_s=draw(st.floats(1.0, 20.0)),
            merge_mb_s=draw(st.floats(5.0, 1000.0)),
            busy=draw(busy_periods()),
        )
        for _ in range(draw(st.integers(2, most)))
    ]
    return Scenario("drawn", "drawn", 10.0, 0.02, tuple(devices))


class _InOrder:
    """Starts hops in a given order; one that shares no device with those before it may overtake them."""

    name = "in order"

    def __init__(self, pairs: tuple[tuple[int, int], ...]) -> None:
        self.pairs = pairs

    def decide(self, view: ChainView) -> Decision:
        taken: set[int] = set()
        for sender, receiver in self.pairs:
            states = [view.devices[index].state for index in (sender, receiver)]
            if states[0] in (DeviceState.SEND, DeviceState.DONE):
                continue
            if not {sender, receiver} & taken and states == [DeviceState.FREE] * 2:
                return Pair(str(sender), str(receiver), "next")
            taken |= {sender, receiver}
        return Wait("not yet")


def _orders(left: tuple[int, ...]) -> list[tuple[tuple[int, int], ...]]:
    if len(left) == 1:
        return [()]
    return [
        ((sender, receiver), *rest)
        for sender in left
        for rest in _orders(tuple(index for index in left if index != sender))
        for receiver in left
        if receiver != sender
    ]


def _least_by_any_action(scenario: Scenario, actions: tuple[tuple[int, int] | None, ...] = ()) -> float:
    """Tries every pair and every wait at every moment."""
    iteration = Iteration(scenario)
    for action in actions:
        if action is None:
            iteration.advance()
        else:
            iteration.start(*action)
    if iteration.ended:
        return iteration.makespan_s
    idle = iteration.idle()
    found = [
        _least_by_any_action(scenario, (*actions, (sender, receiver)))
        for sender in idle
        for receiver in idle
        if sender != receiver
    ]
    if iteration.may_wait() and iteration.advance():
        found.append(_least_by_any_action(scenario, (*actions, None)))
    return min(found, default=float("inf"))


@settings(max_examples=15, deadline=None)
@given(scenario=scenarios(most=3))
def test_no_sequence_of_pairs_and_waits_is_faster(scenario: Scenario) -> None:
    assert solve(scenario).makespan_s == pytest.approx(_least_by_any_action(scenario), abs=1e-9)


@settings(max_examples=12, deadline=None)
@given(scenario=scenarios())
def test_no_order_of_hops_is_faster(scenario: Scenario) -> None:
    orders = _orders(tuple(range(len(scenario.devices))))
    least_s = min(play(scenario, _InOrder(order)).makespan_s for order in orders)
    assert solve(scenario).makespan_s == pytest.approx(least_s, abs=1e-9)


@settings(max_examples=12, deadline=None)
@given(scenario=scenarios())
def test_no_order_of_hops_gives_the_result_to_all_sooner(scenario: Scenario) -> None:
    orders = _orders(tuple(range(len(scenario.devices))))
    least_s = min(play(scenario, _InOrder(order)).everywhere_s for order in orders)
    assert solve(scenario, for_all=True).everywhere_s == pytest.approx(least_s, abs=1e-9)


def test_the_holder_is_one_that_can_pass_the_result_on() -> None:
    """Device 1 merges fast, so it has everything first; by its slow link the result takes long to the others."""
    strong, slow = ScenarioDevice(0.0, 10.0, 5.0), ScenarioDevice(0.0, 1.0, 1000.0)
    scenario = Scenario("slow link", "by hand", 10.0, 0.0, (strong, slow, strong))
    one, everybody = solve(scenario), solve(scenario, for_all=True)
    assert one.hops[-1].receiver == 1
    assert everybody.hops[-1].receiver in (0, 2)
    assert one.makespan_s < everybody.makespan_s
    assert one.everywhere_s > everybody.everywhere_s


@settings(max_examples=40, deadline=None)
@given(scenario=scenarios(most=6))
def test_playing_the_plan_takes_exactly_its_time(scenario: Scenario) -> None:
    optimal = Optimal(scenario)
    played = play(scenario, optimal)
    assert (played.makespan_s, played.everywhere_s) == (optimal.plan.makespan_s, optimal.plan.everywhere_s)
    assert sorted((one.hop for one in played.ordered), key=lambda hop: hop.sender) == sorted(
        optimal.plan.hops, key=lambda hop: hop.sender
    )


@pytest.mark.parametrize("family", ["hetero", "dynamic"])
def test_playing_the_plan_of_a_drawn_scenario_takes_exactly_its_time(family: str) -> None:
    for seed in range(500_000, 500_005):
        scenario = draw_scenario(family, 9, seed)
        planned = solve(scenario, for_all=True)
        assert play(scenario, Optimal(scenario)).everywhere_s == planned.everywhere_s
        assert planned.everywhere_s <= solve(scenario).everywhere_s


@pytest.mark.parametrize("n", range(3, 10))
def test_4_4_on_equal_devices_fifo_is_the_optimum(n: int) -> None:
    for seed in range(50):
        scenario = draw_scenario("paper", n, seed)
        assert play(scenario, Fifo()).makespan_s == pytest.approx(solve(scenario).makespan_s, abs=1e-9)


def test_what_the_optimum_is_not_defined_for_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'hetero-13-0': optimal plans at most 12 devices, not 13"):
        solve(draw_scenario("hetero", MAX_DEVICES + 1, 0))
    dying = draw_scenario("dying", 9, 1)
    assert any(device.dies_at_s is not None for device in dying.devices)
    with pytest.raises(ConfigError, match=r"'dying-9-1': optimal is not defined where device \d dies"):
        solve(dying)
