"""`--csv` of what judges schedulers, and `mdl schedule scenarios`: other programs read the same figures."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from typer.testing import CliRunner

from mdl.devices.scenario import load_scenarios
from mdl.errors import DataError, MdlError
from mdl.peers.cli import scheduler
from mdl.sim.timing.scenario import draw_scenario
from tests.peers.cli.study.test_cli_schedule import _mdl, _run, _summary


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_compare_writes_a_row_for_each_scenario_and_policy(tmp_path: Path) -> None:
    told = _mdl("compare", "--policies", "fifo,tree,shares", "--n", 4, "--count", 3, "--csv", tmp_path / "c.csv")
    rows = read(tmp_path / "c.csv")
    assert [(row["scenario"], row["policy"]) for row in rows[:4]] == [
        ("dynamic-4-0", "fifo"), ("dynamic-4-0", "tree"), ("dynamic-4-0", "shares"), ("dynamic-4-1", "fifo"),
    ]  # fmt: skip
    assert len(rows) == 9
    for described in told["policies"]:
        own = [row for row in rows if row["policy"] == described["policy"]]
        assert fmean(float(row["everywhere_s"]) for row in own) == pytest.approx(described["everywhere_s"], abs=1e-5)
    assert {row["makespan_s"] for row in rows if row["policy"] == "shares"} == {""}
    assert all(float(row["objective_eq4"]) >= 0.0 for row in rows if row["policy"] != "shares")


def test_replay_writes_a_row_for_each_round_and_policy(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", _summary(1), _summary(2))
    told = _mdl("replay", run, "--policies", "fifo", "--csv", tmp_path / "r.csv")
    rows = read(tmp_path / "r.csv")
    assert [(row["round"], row["policy"]) for row in rows] == [
        ("1", "recorded"), ("1", "fifo"), ("2", "recorded"), ("2", "fifo"),
    ]  # fmt: skip
    assert float(rows[1]["makespan_s"]) == told["rounds"][0]["makespan_s"]["fifo"]


def test_eval_writes_what_each_scenario_took(tmp_path: Path) -> None:
    words = ["eval", "tree", "--n", "3", "--count", "2", "--csv", str(tmp_path / "e.csv")]
    done = CliRunner().invoke(scheduler.app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    rows = read(tmp_path / "e.csv")
    assert [row["policy"] for row in rows] == ["tree", "greedy", "optimal"] * 2
    taken = {(row["policy"], row["scenario"]): float(row["everywhere_s"]) for row in rows}
    assert taken["optimal", "dynamic-3-1"] <= taken["tree", "dynamic-3-1"] + 1e-6


def test_scenarios_are_written_as_compare_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    told = _mdl("scenarios", "--family", "hetero", "-n", 4, "--count", 3, "--seed-from", 5, "--out", path)
    assert (told["written"], told["out"]) == (3, str(path))
    assert load_scenarios(path) == [draw_scenario("hetero", 4, seed) for seed in (5, 6, 7)]
    drawn = _mdl("compare", "--policies", "fifo", "--family", "hetero", "-n", 4, "--count", 3, "--seed-from", 5)
    again = _mdl("compare", "--policies", "fifo", "--scenarios", path)
    assert again["policies"][0]["makespan_s"] == drawn["policies"][0]["makespan_s"]


def test_the_rounds_of_a_run_are_scenarios(tmp_path: Path) -> None:
    run, path = _run(tmp_path / "run", _summary(1), _summary(2)), tmp_path / "s.jsonl"
    assert _mdl("scenarios", run, "--out", path)["written"] == 2
    replayed = _mdl("replay", run, "--policies", "fifo")["rounds"][0]["makespan_s"]["fifo"]
    csv_path = tmp_path / "c.csv"
    _mdl("compare", "--policies", "fifo", "--scenarios", path, "--csv", csv_path)
    assert float(read(csv_path)[0]["makespan_s"]) == pytest.approx(replayed)


def test_a_run_in_segments_has_no_scenario(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", _summary(1, schedule=(), shares={"a": 3}))
    with pytest.raises(DataError, match="in segments"):
        _mdl("scenarios", run, "--out", tmp_path / "s.jsonl")


@pytest.mark.parametrize(
    "words", [["compare", "--csv", "file/c.csv"], ["scenarios", "--out", "file/s.jsonl"]], ids=" ".join
)
def test_a_file_that_cannot_be_written_is_told_before_anything_is_played(
    words: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(MdlError, match="file"):
        _mdl(*words)
