"""`mdl scheduler train --variant dqn`: what it starts from, what it keeps and says, what it refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mdl.peers.cli.main import main
from mdl.scheduler.training.qnet_torch import QNetwork, load_policy, save_policy

pytest.importorskip("stable_baselines3")

from mdl.scheduler.study import judging
from mdl.scheduler.training import dqn


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[QNetwork]:
    """Stands in for training: tells one checkpoint, ends with another network. Holds what it was started from."""
    starts: list[QNetwork] = []

    def train(start: QNetwork, steps: int, seed: int, *, every: int, on_network: Any) -> tuple[QNetwork, int]:
        starts.append(start)
        on_network(steps // 2, QNetwork(1))
        return QNetwork(2), steps

    monkeypatch.setattr(dqn, "train_chain_dqn", train)
    monkeypatch.setattr(judging, "compare_networks", lambda one, other, count: {"paper 9": (-2.0, 1.0)})
    return starts


def _train(out: Path, *more: str, variant: str = "dqn") -> int:
    """The exit code of the command."""
    arguments = ["scheduler", "train", "--variant", variant, "--steps", "100", "--out", str(out), *more]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["mdl", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


def test_it_starts_from_a_file_and_the_result_says_how_it_came_about(
    tmp_path: Path, trained: list[QNetwork], capsys: pytest.CaptureFixture[str]
) -> None:
    save_policy(tmp_path / "start.safetensors", QNetwork(7), {})
    out = tmp_path / "new.safetensors"
    assert _train(out, "--start", str(tmp_path / "start.safetensors"), "--json") == 0
    assert np.array_equal(trained[0].weights()["encode1.weight"], QNetwork(7).weights()["encode1.weight"])
    network, told = load_policy(out)
    assert np.array_equal(network.weights()["encode1.weight"], QNetwork(2).weights()["encode1.weight"])
    assert "stable-baselines3" in str(told["trained_by"])
    assert (told["steps"], told["seed"]) == (100, 0)
    assert told["less_than_start"] == {"paper 9": [-2.0, 1.0]}
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["worse_on"] == ["paper 9"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--resume"], "--start FILE goes on"),
        (["--minutes", "3"], "give --steps"),
        (["--start", "none.safetensors"], "none.safetensors"),
    ],
)
def test_what_it_cannot_do_is_one_line(
    tmp_path: Path, trained: list[QNetwork], capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    assert _train(tmp_path / "new.safetensors", *more) == 2
    told = capsys.readouterr().err
    assert says in told
    assert "Traceback" not in told
    assert not trained


def test_a_start_without_the_variant_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new.safetensors"
    assert _train(out, "--start", "a.safetensors", variant="chain") == 2
    assert "--start is for --variant dqn" in capsys.readouterr().err


def test_intervals_decide_what_is_worse() -> None:
    one = judging.JudgedPolicy("one", (1.0, 2.0, 3.0, 4.0))
    other = judging.JudgedPolicy("other", (1.1, 2.1, 3.1, 4.1))
    gain, half = judging.less_time(one, other)
    assert gain == pytest.approx(100.0 * 0.1 / 2.6, abs=0.01)
    assert half == 0.0
    assert judging.worse_cells({"a": (-1.0, 0.5), "b": (-1.0, 1.5), "c": (2.0, 0.1)}) == ["a"]
