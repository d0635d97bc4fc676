"""`mdl scheduler train`: what it says of a policy at the end, and what its exit code says of it."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdl.peers.cli.main import main
from mdl.peers.cli.study import scheduler
from mdl.scheduler.policies.qnet_numpy import draw_weights
from mdl.scheduler.study import judging
from mdl.scheduler.training import train as train_module
from mdl.scheduler.training.train import Trained


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(steps: int, *given: Any, **more: Any) -> Trained:
        return Trained(draw_weights(np.random.default_rng(0)), steps, True)

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
        (["--require", "better", "--variant", "paper"], "are for --variant chain"),
        (["--from-scratch", "--resume"], "give one of them"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _train(tmp_path, *words) == 2
    assert told in capsys.readouterr().err


def _train(folder: Path, *words: str, as_json: bool = True) -> int:
    arguments = ["scheduler", "train", "--steps", "9", "--out", str(folder / "p.safetensors"), *words]
    arguments += ["--json"] if as_json else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["mdl", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)
