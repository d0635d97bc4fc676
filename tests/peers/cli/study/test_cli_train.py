"""`mdl scheduler train`: what it says of a policy at the end, and what its exit code says of it."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mdl.peers.cli import scheduler
from mdl.peers.cli.main import main
from mdl.protocol.status_messages import DeviceRecord, RoundSummary
from mdl.scheduler.policies.qnet_numpy import draw_weights
from mdl.scheduler.rounds import judge
from mdl.scheduler.study import judging
from mdl.scheduler.training import train as train_module
from mdl.scheduler.training.train import TrainedNetwork

pytest.importorskip("stable_baselines3")

from mdl.scheduler.training import rounds_train
from mdl.scheduler.training.rounds_train import TrainedRounds, rule_layers


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(steps: int, *given: Any, **more: Any) -> TrainedNetwork:
        return TrainedNetwork(draw_weights(np.random.default_rng(0)), steps, True)

    monkeypatch.setattr(train_module, "train_policy", train)


@pytest.mark.parametrize(
    ("gain", "require", "code", "told"),
    [
        (3.0, None, 0, "use it"),
        (0.0, None, 0, "no reason to use it"),
        (-3.0, None, 0, "do not use it"),
        (3.0, "better", 0, "use it"),
        (0.0, "better", 4, "no reason to use it"),
        (0.0, "level", 0, "no reason to use it"),
        (-3.0, "level", 4, "do not use it"),
    ],
)
def test_the_end_says_whether_to_use_it(
    gain: float,
    require: str | None,
    code: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(judging, "compare_networks", lambda one, other, *seeds: {"paper 9": (gain, 1.0)})
    assert _train(tmp_path, *(["--require", require] if require else [])) == code
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told in result["told"]
    assert (result["verdict"], result["less_than_greedy_percent"]) == (
        {3.0: "better", 0.0: "level", -3.0: "worse"}[gain],
        {"paper 9": [gain, 1.0]},
    )


def test_an_unmet_requirement_does_not_repeat_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(judging, "compare_networks", lambda one, other, *seeds: {"paper 9": (-3.0, 1.0)})
    assert _train(tmp_path, "--require", "level", as_json=False) == 4
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("do not use it") == 1
    assert printed.err.endswith("mdl: --require level: compared with the greedy rule, the policy is worse\n")


def test_an_interrupted_training_compares_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scheduler, "_stopping", lambda: nullcontext(lambda: True))
    assert _train(tmp_path) == 130
    assert not {"less_than_greedy_percent", "verdict"} & set(json.loads(capsys.readouterr().out.splitlines()[-1]))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--require", "best"], "expected better or level"),
        (["--require", "better", "--variant", "paper"], "are for --variant chain and rounds"),
        (["--from-scratch", "--resume"], "give one of them"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _train(tmp_path, *words) == 2
    assert told in capsys.readouterr().err


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A run's metrics.jsonl: 12 rounds of three devices, of which one needs longer from round to round."""
    rounds = []
    for number in range(1, 13):
        devices = [DeviceRecord(name, 1.0 + number / 10.0, 4.0, merge_mb_s=90.0) for name in "abc"]
        shares = dict.fromkeys("abc", 4)
        seconds = {"train": 1.0, "broadcast": 0.5, "total": 3.0}
        rounds.append(
            RoundSummary(
                number, 3.0, ("a", "b", "c"), (), seconds, 0, None, devices=tuple(devices), shares=shares, size=250_000
            )
        )
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in rounds))
    return path


def test_a_meshs_own_log_gives_rounds_to_learn_from_and_others_to_judge_by(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {}

    def train(steps: int, *other: Any, **more: Any) -> TrainedNetwork:
        given.update(more)
        return TrainedNetwork(draw_weights(np.random.default_rng(0)), steps, True)

    def compare_on(one: Any, other: Any, cells: judging.Cells) -> dict[str, tuple[float, float]]:
        given["judged"] = cells
        return compared_on(one, other, cells)

    compared_on = judging.compare_on
    monkeypatch.setattr(judging, "compare_on", compare_on)
    monkeypatch.setattr(train_module, "train_policy", train)
    assert _train(tmp_path, "--scenarios", f"recorded:{log}") == 0
    seen = [scenario.devices[0].ready_s for scenario in given["seen"]]
    assert seen == pytest.approx([1.0 + number / 10.0 for number in (2, 3, 5, 6, 8, 9, 11, 12)])
    assert [len(each) for each in given["watched"].values()] == [60]
    held_out = [{each.scenario_id for each in given[part]["recorded"]} for part in ("watched", "judged")]
    assert held_out == [{"round-1", "round-7"}, {"round-4", "round-10"}]
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(result["less_than_greedy_percent"]) == ["recorded"]
    assert result["verdict"] in ("better", "level", "worse")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("metrics.jsonl", "expected recorded:FILE"),
        ("recorded:", "expected recorded:FILE"),
        ("recorded:nowhere", "no such file or directory"),
    ],
)
def test_scenarios_that_are_none_are_refused(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for variant in ("chain", "rounds"):
        assert _train(tmp_path, "--scenarios", text, "--variant", variant) == 2
        assert told in capsys.readouterr().err


def test_a_log_with_too_few_rounds_is_refused(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_bytes(b"\n".join(log.read_bytes().split(b"\n")[:3]) + b"\n")
    assert _train(tmp_path, "--scenarios", f"recorded:{log}") == 2
    assert "expected 4 rounds or more" in capsys.readouterr().err
    assert _train(tmp_path, "--scenarios", f"recorded:{log}", "--variant", "rounds") == 2
    assert "expected 8 or more" in capsys.readouterr().err


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for the training of a participation rule; holds what it was given, and the gain to tell."""
    given: dict[str, Any] = {"gain": 0.0}

    def train(n: int, steps: int, seed: int, out: Path, command: str, **more: Any) -> TrainedRounds:
        given.update(more, n=n, command=command)
        return TrainedRounds(rule_layers(n), "third", steps, True, True)

    monkeypatch.setattr(rounds_train, "train_rounds_policy", train)
    monkeypatch.setattr(judge, "less_time_than", lambda *given_to: {"dynamic": (given["gain"], 1.0)})
    monkeypatch.setattr(judge, "LEVEL", 0.5)
    monkeypatch.setattr(scheduler, "_ROUNDS_WATCHED", 1)
    monkeypatch.setattr(scheduler, "_ROUNDS_JUDGED", 1)
    return given


@pytest.mark.parametrize(
    ("gain", "require", "code", "told"),
    [
        (3.0, "better", 0, "use it: rounds take 3.0 +- 1.0 % less time than by the rule third"),
        (0.0, "better", 4, "it is level with the rule third (+0.0 +- 1.0 % less time): no reason to use it"),
        (0.0, "level", 0, "it is level with the rule third (+0.0 +- 1.0 % less time): no reason to use it"),
        (-3.0, "level", 4, "do not use it: on dynamic rounds take 3.0 % longer than by the rule third"),
    ],
)
def test_the_end_says_whether_to_use_a_rule_of_rounds(
    gain: float,
    require: str,
    code: int,
    told: str,
    tmp_path: Path,
    rounds: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    rounds["gain"] = gain
    assert _train(tmp_path, "--variant", "rounds", "--n", "3", "--require", require) == code
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["told"], result["rule"]) == (told, "third")
    assert not rounds["from_scratch"]
    assert rounds["draw"] is rounds["share"] is None


def test_a_rule_of_rounds_learns_from_a_meshs_own_log(
    tmp_path: Path, log: Path, rounds: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--variant", "rounds", "--n", "9", "--from-scratch", "--scenarios", f"recorded:{log}"]
    assert _train(tmp_path, *words) == 0
    assert (rounds["n"], rounds["from_scratch"]) == (3, True)
    assert f"--from-scratch --scenarios recorded:{log}" in rounds["command"]
    learned = rounds["draw"](np.random.default_rng(0))
    (kept,) = rounds["watched"]["recorded"]
    assert [len(world.devices) for world in (learned, kept)] == [3, 3]


def _train(folder: Path, *words: str, as_json: bool = True) -> int:
    arguments = ["scheduler", "train", "--steps", "9", "--out", str(folder / "p.safetensors"), *words]
    arguments += ["--json"] if as_json else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["mdl", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)
