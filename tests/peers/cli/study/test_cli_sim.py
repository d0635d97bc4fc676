"""`mdl sim run` and `mdl replay` as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mdl.errors import UnfinishedError
from mdl.peers.cli import sim as cli_sim
from mdl.peers.trials import campaign as campaign_module
from mdl.peers.trials.campaign import Campaign, run_campaign
from mdl.protocol.coding import CODINGS
from mdl.sim.mesh.invariants import RunVerdict
from mdl.sim.plans.fault_plan import FaultPlan, dump_plan, load_plan

ROOT = Path(__file__).resolve().parents[4]


def _mdl(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mdl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)


@pytest.mark.slow
def test_a_run_over_processes_ends_with_one_object() -> None:
    done = _mdl("sim", "run", "--faults", "mild", "--seeds", 60, "--processes", 2, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["seeds"] == 60
    assert (result["lost"], result["double"], result["stuck"], result["failing_seeds"]) == (0, 0, 0, [])
    assert result["rounds_closed"] >= 180
    assert {"messages", "lost_with_owner", "seeds_per_s", "violations"} <= result.keys()


@pytest.mark.slow
def test_coded_segments_are_judged_and_what_cannot_be_coded_is_told() -> None:
    done = _mdl("sim", "run", "--exchange", "shares", "--compress", "any", "--seeds", 8, "--processes", 1, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["failing_seeds"] == []
    assert [Campaign(exchange="shares", compress="any").plan(seed).compress for seed in range(3)] == list(CODINGS)
    refused = _mdl("sim", "run", "--compress", "int4", "--seeds", 1)
    assert refused.returncode == 2
    assert "--compress int4: only segments are rounded; add --exchange shares" in refused.stderr


@pytest.mark.slow
def test_seeds_give_the_same_totals_in_any_number_of_processes() -> None:
    one, two = (run_campaign(Campaign(level="mild"), range(100, 130), processes) for processes in (1, 2))
    assert one == two


@pytest.mark.slow
def test_a_wide_run_tells_by_size() -> None:
    done = _mdl("sim", "run", "--wide", "--faults", "none", "--seeds", 9, "--processes", 2, "--json")
    assert done.returncode == 0, done.stderr
    sizes = json.loads(done.stdout.splitlines()[-1])["sizes"]
    assert [(size["peers"], size["rounds"]) for size in sizes] == [
        (2, 1),
        (2, 2),
        *((peers, 1) for peers in range(3, 10)),
    ]
    assert {(size["seeds"], size["failed"], size["without_quorum"]) for size in sizes} == {(1, 0, 0)}
    told = _mdl("sim", "run", "--wide", "--faults", "none", "--seeds", 9, "--processes", 1).stdout
    assert "failed/seeds by peers and rounds\npeers      1    2\n    2    0/1  0/1\n    3    0/1    -\n" in told


def test_every_failing_seed_has_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign_module, "run_guarded", lambda plan, limit_s=0.0: RunVerdict(plan.seed, kind="lost"))
    with pytest.raises(UnfinishedError) as end:
        cli_sim.run(
            None,
            None,
            True,
            "hard",
            5,
            0,
            "greedy",
            "any",
            "any",
            "chain",
            "none",
            0.0,
            shrink=False,
            processes=1,
            out=tmp_path,
            as_json=True,
        )
    assert [size["violations"] for size in end.value.result["sizes"]] == [{"lost": 1}] * 5
    for seed in range(5):
        assert load_plan((tmp_path / f"plan-{seed}.json").read_bytes()) == Campaign(wide=True).plan(seed)


def test_a_saved_plan_is_run_and_its_stories_are_replayed(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(dump_plan(FaultPlan(5, 3, 1)))
    told = _mdl("sim", "run", "--plan", plan, "--out", tmp_path / "out")
    assert told.returncode == 0, told.stderr
    assert "hears RoundOpened (round 1" in told.stdout
    assert "nothing lost, nothing counted twice" in told.stderr
    replayed = _mdl("replay", tmp_path / "out" / "story-p0-1.jsonl", "--json")
    assert replayed.returncode == 0, replayed.stderr
    assert json.loads(replayed.stdout.splitlines()[-1])["replayed"] is True


def test_a_failing_seed_is_saved_shrunk_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(plan: FaultPlan, limit_s: float = 0.0) -> RunVerdict:
        return (
            RunVerdict(plan.seed, kind="lost", lost=1, problem="p0's training") if plan.loss else RunVerdict(plan.seed)
        )

    monkeypatch.setattr(campaign_module, "run_guarded", fails)
    monkeypatch.setattr("mdl.peers.trials.run_plan.run_guarded", fails)
    with pytest.raises(UnfinishedError) as end:
        cli_sim.run(
            6,
            3,
            False,
            "hard",
            1,
            7,
            "greedy",
            "any",
            "any",
            "chain",
            "none",
            0.0,
            processes=1,
            out=tmp_path,
            as_json=True,
        )
    assert end.value.exit_code == 4
    err, result = capsys.readouterr().err, end.value.result
    assert [(failure["seed"], failure["problem"]) for failure in result["failures"]] == [(7, "p0's training")]
    assert (result["failing_seeds"], result["lost"], result["violations"]) == ([7], 1, {"lost": 1})
    assert load_plan((tmp_path / "plan-7.json").read_bytes()) == Campaign().plan(7)
    assert f"seed 7: lost; again: mdl sim run --plan {tmp_path / 'plan-7.json'}" in err
    shortest = json.loads((tmp_path / "shortest-7.json").read_text())
    assert (shortest["faults"], shortest["peers"], shortest["rounds"]) == ([], 2, 1)
    assert shortest["loss"] > 0
    assert "hears RoundOpened" in err
    assert (tmp_path / "story-7.txt").exists()
    assert list((tmp_path / "seed-7").glob("story-*.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sim", "run", "--faults", "hardest"), "--faults 'hardest': expected one of none, mild, hard"),
        (
            ("sim", "run", "--wide", "--peers", 3),
            "--wide draws sizes and lengths from the seeds: leave --peers and --rounds out",
        ),
        (("sim", "run", "--policy", "best"), "--policy 'best': expected one of dqn, greedy, "),
        (("sim", "run", "--plan", "missing.json"), "missing.json: No such file or directory; expected a plan"),
        (("replay", "missing.jsonl"), "missing.jsonl: No such file or directory; expected a story"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    done = _mdl(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"mdl: {said}")
    assert done.stderr.count("\n") == 1
