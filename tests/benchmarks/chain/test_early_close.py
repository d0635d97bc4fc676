"""A round with a quorum ends no later, holds at least the quorum, and is complete where everybody is in time."""

from __future__ import annotations

import pytest

from benchmarks.chain.early_close import play_with_quorum
from mdl.devices.scenario import Scenario, ScenarioDevice
from mdl.errors import ConfigError
from mdl.scheduler.policies.greedy import Greedy
from mdl.scheduler.study.play import play
from mdl.sim.timing.scenario import draw_scenario


@pytest.mark.parametrize("family", ["paper", "hetero", "dynamic"])
@pytest.mark.parametrize("patience", [0.0, 0.3])
def test_a_round_with_a_quorum_ends_no_later_and_holds_it(family: str, patience: float) -> None:
    for seed in range(500_000, 500_015):
        scenario = draw_scenario(family, 9, seed)
        closed = play_with_quorum(scenario, Greedy(), 7 / 9, patience)
        assert closed.ended_s <= play(scenario, Greedy()).makespan_s
        assert 7 <= closed.contributions <= 9


def test_a_straggler_is_left_out_after_the_deadline_alone() -> None:
    quick = ScenarioDevice(0.0, 10.0, 1000.0)
    devices = (quick, quick, quick, ScenarioDevice(100.0, 10.0, 1000.0))
    scenario = Scenario("late", "late", 10.0, 0.0, devices)
    closed = play_with_quorum(scenario, Greedy(), 0.75, 0.5)
    assert closed.ended_s == pytest.approx(1.5 * 2.02)
    assert closed.contributions == 3
    assert play_with_quorum(scenario, Greedy(), 0.75, 60.0).contributions == 4
    assert play_with_quorum(scenario, Greedy(), 1.0, 0.0).contributions == 4


def test_a_quorum_of_less_than_half_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"quorum 0\.4 and patience 0\.0: expected above 0\.5 to 1"):
        play_with_quorum(draw_scenario("paper", 3, 0), Greedy(), 0.4, 0.0)
