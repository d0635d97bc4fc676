"""The judge of participation rules, and its command."""

from __future__ import annotations

import json
from math import log
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mdl.errors import ConfigError
from mdl.peers.cli.schedule import app
from mdl.peers.view.compare import parse_rules, parse_wanted
from mdl.scheduler.rounds.judge import LEVELS, describe_cell, judge_cell, over_reference
from mdl.scheduler.rounds.learned import make_rule
from mdl.scheduler.rounds.world import HORIZON_S, draw_world
from tests.scheduler.rounds.test_worlds import _phones
from tests.scheduler.rounds.worlds import device, world


def test_times_are_compared_world_by_world_and_by_their_ratio() -> None:
    """Twice as long in each world is +100 % without spread, however different the worlds are."""
    mean, low, high = over_reference([2.0, 200.0, 20.0], [1.0, 100.0, 10.0])
    assert (mean, low, high) == pytest.approx((100.0, 100.0, 100.0))
    mean, low, high = over_reference([2.0, 0.5], [1.0, 1.0])
    assert mean == pytest.approx(0.0)
    half = 1.96 * log(2.0)  # of two values, each log 2 from their mean
    assert (log(1 + low / 100), log(1 + high / 100)) == pytest.approx((-half, half))


def test_a_rule_is_judged_by_the_times_of_its_rounds() -> None:
    given = world(device(2.0), device(2.0), device(2.0), size_mb=1.0)
    cell = judge_cell("by hand", ["all", "third"], [given], make_rule)
    told = describe_cell(cell)
    assert (told["worlds_of"], told["worlds"]) == ("by hand", 1)
    rules = {row["rule"]: row for row in told["rules"]}
    assert rules["all"]["over_percent"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    # All three are ready at once, so that both rules play the same rounds.
    assert rules["third"]["levels"] == rules["all"]["levels"]
    assert [level["level"] for level in rules["all"]["levels"]] == list(LEVELS)
    times = [level["mean_s"] for level in rules["all"]["levels"]]
    assert times == pytest.approx([level / 5.0 * times[0] for level in LEVELS], rel=1e-3)
    assert rules["all"]["rounds"] == 30


def test_a_world_that_is_never_done_counts_whole_and_is_told() -> None:
    given = world(device(2.0), device(600.0), size_mb=1.0)
    row = describe_cell(judge_cell("by hand", ["all"], [given], make_rule))["rules"][0]
    assert row["unreached"] == 1
    assert row["levels"][-1]["mean_s"] == HORIZON_S
    assert row["levels"][0]["mean_s"] < HORIZON_S


def test_leaving_out_is_worth_a_factor_on_unequal_devices() -> None:
    """The trial behind these rules: waiting for all takes more than twice as long as the rule `third`."""
    worlds = [draw_world("dynamic", 9, 10.0, seed) for seed in range(700_000, 700_003)]
    rows = describe_cell(judge_cell("dynamic", ["third", "all"], worlds, make_rule))["rules"]
    assert rows[1]["over_percent"]["low"] > 80.0
    assert rows[1]["least_share"] == 1.0
    assert 0.0 < rows[0]["least_share"] < 0.5
    assert 0 < rows[0]["longest_gap"] <= 9


def _run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["rounds", *words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


def test_the_command_prints_a_table_or_json(tmp_path: Path) -> None:
    words = ["--count", "1", "--n", "3,4", "--size", "1", "--rules", "third,k-of-n"]
    code, said = _run(*words, "--json")
    told = json.loads(said.splitlines()[-1])
    assert (code, told["reference"], told["interrupted"]) == (0, "third", False)
    assert [cell["worlds_of"] for cell in told["cells"]] == [
        "dynamic, 3 devices, 1 MB, seeds 0 to 0",
        "dynamic, 4 devices, 1 MB, seeds 0 to 0",
    ]
    assert all(len(cell["rules"]) == 2 and cell["worlds"] == 1 for cell in told["cells"])
    code, said = _run(*words)
    assert code == 0
    assert "over third" in said
    assert "dynamic, 4 devices, 1 MB, seeds 0 to 0: 1 worlds" in said


def test_the_command_replays_recorded_phones(tmp_path: Path) -> None:
    phones = _phones(tmp_path / "phones.csv.gz")
    words = ["--family", "recorded-held-out", "--recordings", str(phones), "--count", "1", "--n", "3", "--json"]
    code, said = _run(*words, "--rules", "third")
    assert code == 0
    assert json.loads(said.splitlines()[-1])["cells"][0]["worlds_of"].startswith("recorded-held-out, 3 devices")


@pytest.mark.parametrize(
    ("family", "n", "size", "complaint"),
    [
        ("dynamical", "3", "1", "did you mean 'dynamic'"),
        ("recorded-tuning", "3", "1", "give --recordings FILE"),
        ("dynamic", "3,x", "1", "--n '3,x': expected numbers"),
        ("dynamic", "", "1", "--n ''"),
        ("dynamic", "1", "1", "2 to 256"),
        ("dynamic", "3", "nan", "a size of nan MB"),
        ("dynamic", ",".join(["3"] * 65), "1", "at most 64 combinations"),
    ],
)
def test_wrong_worlds_are_told(family: str, n: str, size: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_wanted(family, n, size, 1, 0, with_phones=False)


def test_a_rule_that_comes_twice_is_told() -> None:
    with pytest.raises(ConfigError, match="each once"):
        parse_rules("third,third")
