"""The timing model: what a hop takes, who is idle when, and what a dead battery undoes."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl.devices.scenario import Scenario, ScenarioDevice, load_scenarios, save_scenarios
from mdl.devices.usage import DeviceState, active_end_s, active_s
from mdl.errors import ConfigError, DataError, LocalProtocolError
from mdl.scheduler.policies.chain import ChainView, Decision, Pair, Wait
from mdl.scheduler.policies.registry import make_policy
from mdl.scheduler.study.play import play
from mdl.sim.timing.iteration import Iteration
from mdl.sim.timing.scenario import FAMILIES, draw_scenario


def scenario(*devices: ScenarioDevice, size_mb: float = 10.0, latency_s: float = 0.5) -> Scenario:
    return Scenario("test", "test", size_mb, latency_s, devices)


def device(ready_s: float = 0.0, link: float = 10.0, merge: float = 10.0, **more: object) -> ScenarioDevice:
    return msgspec.structs.replace(ScenarioDevice(ready_s, link, merge), **more)


class AnyPair:
    """Pairs or waits at random, within the rules."""

    name = "any"

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def decide(self, view: ChainView) -> Decision:
        if view.may_wait() and self.rng.random() < 0.3:
            return Wait("by lot")
        first, second = self.rng.permutation([one.peer_id for one in view.free()])[:2]
        return Pair(str(first), str(second), "by lot")


def test_a_hop_takes_latency_and_the_slower_link_then_the_receiver_merges() -> None:
    iteration = Iteration(scenario(device(link=5.0), device(link=20.0, merge=40.0)))
    hop = iteration.start(0, 1)
    assert (hop.sent_s, hop.merged_s) == (2.5, 2.75)
    assert iteration.advance()
    assert iteration.now_s == 2.5
    assert (iteration.state(0), iteration.state(1)) == (DeviceState.DONE, DeviceState.GET)
    assert iteration.advance()
    assert iteration.ended
    assert iteration.makespan_s == 2.75
    assert iteration.theta(1) == 2.0


def test_energy_is_one_watt_to_send_0_8_to_receive_and_1_5_to_merge() -> None:
    played = play(scenario(device(), device(), latency_s=0.0), make_policy("fifo"))
    hop = played.ordered[0].hop
    assert played.energy_j[hop.sender] == pytest.approx(1.0)
    assert played.energy_j[hop.receiver] == pytest.approx(0.8 + 1.5)


def test_a_transfer_stands_still_while_either_end_is_busy() -> None:
    iteration = Iteration(scenario(device(busy=((1.0, 3.0),)), device(busy=((2.0, 4.0),))))
    hop = iteration.start(0, 1)
    assert hop.sent_s == 4.5  # 1.5 s of work: one before the break, the rest after both breaks
    for _ in range(3):
        iteration.advance()
    assert iteration.now_s == 3.0
    assert iteration.op_left_s(0) == pytest.approx(0.5)
    assert iteration.op_left_s(1) == pytest.approx(1.5)


def test_only_the_receiver_holds_up_the_merge() -> None:
    iteration = Iteration(scenario(device(busy=((1.5, 9.0),)), device(busy=((2.0, 2.5),))))
    assert iteration.start(0, 1).merged_s == 3.0


def test_who_trains_is_busy_or_aggregates_is_not_idle() -> None:
    iteration = Iteration(scenario(device(ready_s=1.0), device(busy=((0.0, 2.0),)), device(), device(), device()))
    assert iteration.idle() == [2, 3, 4]
    iteration.start(2, 3)
    assert iteration.idle() == [4]
    assert iteration.busy_for_s(1) == 0.0
    assert iteration.advance()
    assert iteration.idle() == [0, 4]
    assert iteration.busy_for_s(1) == 1.0
    with pytest.raises(LocalProtocolError, match="both must be idle"):
        iteration.start(1, 4)


def test_a_load_whose_carrier_dies_is_with_its_givers_again() -> None:
    iteration = Iteration(scenario(device(), device(dies_at_s=3.0), device(ready_s=2.9)))
    iteration.start(0, 1)
    while iteration.now_s < 3.0:
        iteration.advance()
    assert iteration.state(1) is DeviceState.DEAD
    assert iteration.idle() == [0, 2]
    assert iteration.lost == [1]
    assert iteration.wasted_s == pytest.approx(2.5)


def test_who_has_sent_its_load_may_die_and_loses_nothing() -> None:
    iteration = Iteration(scenario(device(dies_at_s=2.0), device()))
    iteration.start(0, 1)
    while not iteration.ended:
        assert iteration.advance()
    assert iteration.lost == []
    assert iteration.theta(1) == 2.0


def test_a_giver_that_died_after_giving_is_lost_with_its_carrier() -> None:
    iteration = Iteration(scenario(device(dies_at_s=2.0), device(dies_at_s=4.0), device()))
    iteration.start(0, 1)
    while iteration.advance():
        pass
    assert sorted(iteration.lost) == [0, 1]
    assert iteration.holders == [2]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(FAMILIES)), st.integers(2, 10), st.integers(0, 10_000))
def test_whatever_a_policy_does_everything_ends_with_one_holder(family: str, n: int, seed: int) -> None:
    given_scenario = draw_scenario(family, n, seed)
    iteration = Iteration(given_scenario)
    policy = AnyPair(seed)
    played = play(given_scenario, policy)
    assert len(played.ordered) >= n - 1 - len(played.lost)
    assert not iteration.lost or family == "dying"
    if family != "dying":
        assert len(played.ordered) == n - 1
        assert sum(played.energy_j) == pytest.approx(
            sum(1.8 * one.hop.transfer_s + 1.5 * one.hop.merge_s for one in played.ordered)
        )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.01, 3.0), min_size=2, max_size=12), st.floats(0.0, 10.0), st.floats(0.0, 8.0))
def test_active_time_until_the_end_of_work_is_the_work(gaps: list[float], start_s: float, work_s: float) -> None:
    edges = np.cumsum(gaps[: len(gaps) // 2 * 2]).tolist()
    periods = tuple(zip(edges[::2], edges[1::2], strict=True))
    end_s = active_end_s((periods,), start_s, work_s)
    assert active_s((periods,), start_s, end_s) == pytest.approx(work_s, abs=1e-9)


def test_more_haste_is_never_less_speed() -> None:
    """Work that starts earlier never ends later: the exact optimum rests on it."""
    busy = draw_scenario("dynamic", 9, 3).devices
    pair = (busy[0].busy, busy[1].busy)
    ends = [active_end_s(pair, start_s, 2.0) for start_s in np.linspace(0.0, 60.0, 400)]
    assert ends == sorted(ends)


def test_the_same_seed_draws_the_same_scenario_and_json_lines_keep_it(tmp_path) -> None:  # type: ignore[no-untyped-def]
    drawn = [draw_scenario(family, 5, 7) for family in FAMILIES]
    assert drawn == [draw_scenario(family, 5, 7) for family in FAMILIES]
    assert drawn[1] != draw_scenario("hetero", 5, 8)
    save_scenarios(drawn, tmp_path / "scenarios.jsonl")
    assert load_scenarios(tmp_path / "scenarios.jsonl") == drawn


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"{}", "line 1"),
        (b"", "holds no scenario"),
        (
            b'{"scenario_id":"a","family":"x","size_mb":1,"latency_s":0,"devices":[{"ready_s":0,"link_mb_s":0,"merge_mb_s":1},'
            b'{"ready_s":0,"link_mb_s":1,"merge_mb_s":1}]}',
            "device 0: speeds must be above 0",
        ),
    ],
)
def test_a_file_that_is_no_scenario_is_named_with_its_line(tmp_path, text: bytes, says: str) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "bad.jsonl"
    path.write_bytes(text)
    with pytest.raises(DataError, match=says):
        load_scenarios(path)


def test_an_unknown_family_is_told_with_the_closest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'hetero'"):
        draw_scenario("heterro", 3, 0)
