"""The family that is drawn another way for each scenario, and the ways of drawing that are held out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.chain.held_out import draw_held_out
from benchmarks.phones.traces import Phone
from mdl.devices.scenario import Scenario, load_scenarios, save_scenarios
from mdl.errors import ConfigError
from mdl.scheduler.policies.greedy import Greedy
from mdl.scheduler.study.play import play
from mdl.sim.timing.scenario import draw_scenario, stretch_periods


def _phone() -> Phone:
    """An hour of readings every five seconds, loaded for two of each ten, with an hour's gap after."""
    at_s = np.append(np.arange(0.0, 3600.0, 5.0), 7200.0 + np.arange(0.0, 3600.0, 5.0))
    count = len(at_s)
    cpu = np.where(np.arange(count) % 10 < 2, 1.0, 0.1)
    full = np.full(count, 50.0)
    return Phone(at_s, cpu, np.arange(count) % 2 == 0, full, np.full(count, 3), full)


def _check(scenario: Scenario, folder: Path) -> None:
    """What a file of scenarios is held to holds, and it can be played."""
    save_scenarios([scenario], folder / "drawn.jsonl")
    assert load_scenarios(folder / "drawn.jsonl") == [scenario]
    assert play(scenario, Greedy()).makespan_s > 0.0


def test_each_scenario_is_drawn_another_way(tmp_path: Path) -> None:
    drawn = [draw_scenario("varied", 8, seed) for seed in range(40)]
    assert drawn[3] == draw_scenario("varied", 8, 3)
    for scenario in drawn[:10]:
        _check(scenario, tmp_path)
    sizes = [scenario.size_mb for scenario in drawn]
    assert min(sizes) < 3.0 < 20.0 < max(sizes)
    assert min(each.latency_s for each in drawn) < 0.01 < 0.1 < max(each.latency_s for each in drawn)
    kinds = [{device.kind for device in scenario.devices} for scenario in drawn]
    assert any(len(kind) <= 2 for kind in kinds)
    assert any(len(kind) >= 4 for kind in kinds)


def test_stretched_periods_keep_their_gaps() -> None:
    rng = np.random.default_rng(0)
    assert stretch_periods((), 2.0, 0.5, rng) == ()
    plain = stretch_periods(((-1.0, 1.0), (4.0, 5.0)), 3.0, 0.0, rng)
    assert plain == ((-3.0, 3.0), (6.0, 9.0))
    assert stretch_periods(((2.0, 3.0),), 3.0, 0.0, rng) == ((2.0, 5.0),)
    periods = tuple((3.0 * start, 3.0 * start + 1.0) for start in range(50))
    spread = stretch_periods(periods, 0.5, 0.8, rng)
    assert [later[0] - earlier[1] for earlier, later in pairwise(spread)] == pytest.approx([2.0] * 49)
    assert np.std(np.log([end - start for start, end in spread])) == pytest.approx(0.8, abs=0.3)


@pytest.mark.parametrize("way", ["heavy", "together", "recorded"])
def test_ways_that_are_held_out_are_meshes_too(way: str, tmp_path: Path) -> None:
    drawn = [draw_held_out(way, 6, seed, [_phone()]) for seed in range(8)]
    assert drawn[2] == draw_held_out(way, 6, 2, [_phone()])
    assert any(device.busy for scenario in drawn for device in scenario.devices)
    for scenario in drawn:
        _check(scenario, tmp_path)


def test_devices_of_one_owner_are_busy_together() -> None:
    devices = draw_held_out("together", 3, 1).devices
    at_s = np.arange(0.0, 180.0, 0.25)
    busy = [[any(start <= at < end for start, end in device.busy) for at in at_s] for device in devices]
    assert np.corrcoef(busy[0], busy[1]).min() > 0.3


def test_an_unknown_way_is_named() -> None:
    with pytest.raises(ConfigError, match="valid: heavy, together, recorded"):
        draw_held_out("heavier", 6, 1)
    with pytest.raises(ConfigError, match="no recordings"):
        draw_held_out("recorded", 6, 1)
