"""Rounds in segments beside chains: the same scenarios, and when everybody has the result."""

from __future__ import annotations

import json

import msgspec
import pytest
from typer.testing import CliRunner

from mdl.devices.scenario import Scenario, ScenarioDevice
from mdl.errors import ConfigError
from mdl.peers.cli.schedule import app
from mdl.peers.view.compare import compare, describe_comparison
from mdl.scheduler.policies.registry import SHARES, SHARES_BY, make_policy
from mdl.scheduler.study.play import play, play_segments
from mdl.sim.timing.iteration import broadcast_end_s
from mdl.sim.timing.scenario import FAMILIES, draw_scenario


def _scenario(*rates: float, **changes: object) -> Scenario:
    devices = [ScenarioDevice(0.5 * number, rate, 1e6) for number, rate in enumerate(rates)]
    devices[0] = msgspec.structs.replace(devices[0], **changes)
    return Scenario("s", "test", 10.0, 0.0, tuple(devices))


def test_it_begins_when_the_last_one_is_ready_and_ends_everywhere_at_once() -> None:
    played, plan, start_s = play_segments(_scenario(10.0, 10.0, 10.0))
    assert start_s == 1.0
    assert plan is not None
    assert played.makespan_s == played.everywhere_s > start_s + 4 / 3
    assert (played.ordered, played.lost) == ((), ())


def test_who_is_busy_at_the_start_owns_nothing_and_names_are_told() -> None:
    _, plan, _ = play_segments(_scenario(10.0, 10.0, 10.0, 10.0, busy=((0.0, 3.0),)), ("ann", "bob", "eve", "joe"))
    assert plan is not None
    assert plan.owns["ann"] == 0
    assert "bob" in plan.reason


def test_if_one_dies_on_the_way_the_others_go_on_and_only_what_it_owned_begins_anew() -> None:
    three = play_segments(_scenario(10.0, 10.0, 10.0))
    three_s = three.played.makespan_s - three.start_s
    played, plan, start_s = play_segments(_scenario(10.0, 10.0, 10.0, 10.0, dies_at_s=start_of_all() + 0.5))
    assert played.lost == (0,)
    assert start_s == start_of_all()
    assert plan is not None
    assert plan.owns["0"]
    assert 0.6 * three_s < played.makespan_s - (start_s + 0.5) < 0.9 * three_s  # of all of it, begun anew
    before = play_segments(_scenario(10.0, 10.0, 10.0, dies_at_s=0.2))
    assert before.played.lost == (0,)
    assert before.plan is not None
    assert "0" not in before.plan.owns


def test_without_an_owner_that_lives_the_round_begins_anew() -> None:
    played, plan, start_s = play_segments(_scenario(1000.0, 0.1, 0.1, 0.1, dies_at_s=start_of_all() + 5.0))
    assert played.lost == (0,)
    assert start_s == start_of_all() + 5.0
    assert plan is not None
    assert "0" not in plan.owns


def start_of_all() -> float:
    return play_segments(_scenario(10.0, 10.0, 10.0, 10.0)).start_s


def test_without_anybody_who_may_own_there_is_no_plan() -> None:
    scenario = _scenario(1.0, 1.0)
    alone = msgspec.structs.replace(
        scenario, devices=tuple(msgspec.structs.replace(each, may_receive=False) for each in scenario.devices)
    )
    assert play_segments(alone).plan is None


def test_a_chain_is_everywhere_after_its_broadcast() -> None:
    scenario = _scenario(10.0, 10.0, 10.0, 10.0)
    played = play(scenario, make_policy("greedy"))
    root = played.ordered[-1].hop.receiver
    assert played.everywhere_s == broadcast_end_s(scenario, root, range(4), played.makespan_s) > played.makespan_s


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_can_be_played(family: str) -> None:
    for seed in range(5):
        played = play_segments(draw_scenario(family, 6, seed)).played
        assert played.makespan_s > 0.0


def test_a_comparison_has_them_as_a_row_that_changes_no_other() -> None:
    scenarios = [draw_scenario("hetero", 5, seed) for seed in range(4)]
    told = describe_comparison(compare(("greedy", "tree", SHARES), "x", scenarios, 4, lambda *_: None))
    without = describe_comparison(compare(("greedy", "tree"), "x", scenarios, 4, lambda *_: None))
    row = told["policies"][2]
    assert row["policy"] == SHARES
    assert row["makespan_s"] is None
    assert row["over_percent"] < 0.0  # all have it sooner than by the best order of hops
    assert 0.0 < row["everywhere_s"] < told["policies"][0]["everywhere_s"]
    rows = [{key: value for key, value in each.items() if key != "decision_ms_median"} for each in told["policies"][:2]]
    assert rows == [
        {key: value for key, value in each.items() if key != "decision_ms_median"} for each in without["policies"]
    ]
    alone = describe_comparison(compare((SHARES,), "x", scenarios, 4, lambda *_: None))
    assert alone["reference"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compare", "--count", "2", "--n", "4", "--policies", "greedy,shares"], "shares"),
        (["compare", "--count", "2", "--n", "4", "--policies", "shares"], "shares"),
        (["what-if", "hetero:5:1", "--set", "2.link=1"], "in segments: no hops"),
        (["show", "hetero:5:1", "--policy", "shares"], "owns"),
        (["compare", "--count", "2", "--n", "4", "--policies", "shares,shares-int8,shares-auto"], "shares-int8"),
        (["what-if", "hetero:5:1", "--set", "2.link=1", "--policies", "shares-int4"], "in segments: no hops"),
        (["show", "hetero:5:1", "--policy", "shares-int8"], "in int8"),
    ],
)
def test_the_commands_know_them(words: list[str], said: str) -> None:
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0
    assert said in ended.output
    as_json = CliRunner().invoke(app, [*words, "--json"])
    assert "shares" in json.dumps(json.loads(as_json.output.splitlines()[-1]))


def test_fewer_bytes_take_less_time_and_links_alone_scale_by_them() -> None:
    plain = play_segments(_scenario(1.0, 1.0, 1.0, 1.0)).played.makespan_s
    for compress, factor in (("int8", 0.277), ("int4", 0.1516)):
        played, plan, start_s = play_segments(_scenario(1.0, 1.0, 1.0, 1.0), compress=compress)  # type: ignore[arg-type]
        assert plan
        assert plan.coding == compress
        assert (played.makespan_s - start_s) / (plain - start_s) == pytest.approx(factor, rel=0.01)
    slow_merges = [ScenarioDevice(0.0, 1e3, 10.0) for _ in range(3)]
    scenario = Scenario("s", "test", 10.0, 0.0, tuple(slow_merges))
    merging_s = play_segments(scenario).played.makespan_s
    assert play_segments(scenario, compress="int8").played.makespan_s == pytest.approx(merging_s, rel=0.05)


def test_auto_rounds_what_takes_long_and_nothing_else() -> None:
    for rate, coding in ((100.0, "none"), (1.0, "int4")):
        plan = play_segments(_scenario(rate, rate, rate), compress="auto").plan
        assert plan
        assert plan.coding == coding


def test_no_agent_can_follow_them_as_a_policy() -> None:
    for name in SHARES_BY:
        with pytest.raises(ConfigError, match=f"'{name}' is no policy.*--exchange shares"):
            make_policy(name)
