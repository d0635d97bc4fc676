"""Learned participation rules: their decisions, their file, and the training that makes them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save
from typer.testing import CliRunner

from mdl.errors import DataError
from mdl.scheduler.rounds.learned import (
    COLUMNS,
    LONGEST_WAIT_S,
    LearnedRule,
    load_rounds_policy,
    make_rule,
    observe,
    save_rounds_policy,
    valid_choices,
)
from mdl.scheduler.rounds.participation import Bounds, Close, DeviceSeen, RoundSeen, WaitFor
from mdl.scheduler.rounds.simulate import RoundsMesh
from mdl.scheduler.rounds.world import draw_world

MAX_N = 4


def _prefers(choice: int, max_n: int = MAX_N) -> LearnedRule:
    """A network that values one choice above all others, whatever it sees."""
    width = max_n * len(COLUMNS)
    weight, bias = np.zeros((max_n + 2, width), np.float32), np.zeros(max_n + 2, np.float32)
    bias[choice] = 1.0
    return LearnedRule("test", [(weight, bias)], max_n, Bounds())


def _seen(*ready_in_s: float, **changes: object) -> RoundSeen:
    devices = tuple(
        DeviceSeen(device_id=str(at), progress=float(not ready), ready_in_s=ready, link_mb_s=10.0 - at)
        for at, ready in enumerate(ready_in_s)
    )
    return RoundSeen(number=1, open_s=3.0, size_mb=1.0, latency_s=0.0, devices=devices)


def test_it_makes_the_choice_that_its_network_values_most() -> None:
    closed = _prefers(2).decide(_seen(0.0, 0.0, 0.0, 9.0))
    assert isinstance(closed, Close)
    assert closed.devices == ("0", "1")
    waits = _prefers(0).decide(_seen(0.0, 0.0, 0.0, 9.0))
    assert isinstance(waits, WaitFor)
    assert (waits.until_s, waits.devices) == (3.0 + LONGEST_WAIT_S, ("3",))


def test_it_never_makes_a_choice_that_is_not_possible() -> None:
    closed = _prefers(4).decide(_seen(0.0, 0.0, 0.0, 9.0))
    assert isinstance(closed, WaitFor)  # the others are worth the same; waiting comes first
    assert isinstance(_prefers(2).decide(_seen(0.0, 1.0, 9.0)), WaitFor)


def test_it_does_not_wait_when_there_is_nothing_to_wait_for() -> None:
    assert isinstance(_prefers(0).decide(_seen(0.0, 0.0, 0.0)), Close)


def test_a_larger_mesh_follows_the_rule_third() -> None:
    seen = _seen(0.0, 0.0, 0.0, 0.0, 5.0, 5.0)
    decision, third = _prefers(0).decide(seen), make_rule("third").decide(seen)
    assert decision == third


def test_a_file_gives_the_same_rule_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = [MAX_N * len(COLUMNS), 8, MAX_N + 2]
    layers = [
        (rng.normal(size=(out, into)).astype(np.float32), rng.normal(size=out).astype(np.float32))
        for into, out in pairwise(sizes)
    ]
    path = tmp_path / "rounds.safetensors"
    save_rounds_policy(path, layers, MAX_N, {"seed": 3})
    rule = make_rule(str(path))
    assert isinstance(rule, LearnedRule)
    mesh = RoundsMesh(draw_world("dynamic", MAX_N, 1.0, 700_000))
    for _ in range(5):
        mesh.wait(1.0)
    seen = observe(mesh.see(), Bounds(), MAX_N).observation
    expected = np.maximum(layers[0][0] @ seen + layers[0][1], 0.0)
    assert rule.values(seen) == pytest.approx(layers[1][0] @ expected + layers[1][1], rel=1e-5)


def _file(path: Path, arrays: dict[str, object], **kept: object) -> Path:
    told = {"kind": "rounds-dqn", "max_n": MAX_N, "columns": list(COLUMNS)} | kept
    path.write_bytes(save(arrays, {"mdl": json.dumps(told)}))  # type: ignore[arg-type]
    return path


def _layer(outputs: int, inputs: int, name: str = "layer0") -> dict[str, object]:
    return {f"{name}.weight": np.zeros((outputs, inputs), np.float32), f"{name}.bias": np.zeros(outputs, np.float32)}


WIDTH = MAX_N * len(COLUMNS)


@pytest.mark.parametrize(
    ("arrays", "kept", "complaint"),
    [
        (_layer(6, WIDTH), {"kind": "paper-dqn"}, "no policy of rounds"),
        (_layer(6, WIDTH), {"max_n": 10**9}, "no policy of rounds"),
        (_layer(6, WIDTH), {"columns": ["exists"]}, "sees other columns"),
        (_layer(6, WIDTH + 1), {}, "layer 0 is not of float32 numbers with"),
        (_layer(5, WIDTH), {}, "5 values; expected 6"),
        ({}, {}, "0 arrays"),
        (_layer(6, WIDTH, "layer1"), {}, "2 arrays; expected weight and bias"),
        ({k: v + np.float32(np.nan) for k, v in _layer(6, WIDTH).items()}, {}, "not finite"),
        ({k: v.astype(np.float64) for k, v in _layer(6, WIDTH).items()}, {}, "layer 0 is not of float32"),
    ],
)
def test_a_file_that_is_none_is_told_in_one_line(
    tmp_path: Path, arrays: dict[str, object], kept: dict[str, object], complaint: str
) -> None:
    path = _file(tmp_path / "rounds.safetensors", arrays, **kept)
    with pytest.raises(DataError, match=complaint) as told:
        load_rounds_policy(path, Bounds())
    assert "\n" not in str(told.value)


def test_a_missing_file_is_told() -> None:
    with pytest.raises(DataError, match="gone"):
        make_rule("gone.safetensors")


def test_choices_that_are_possible_can_be_read_from_observations() -> None:
    for seen in (_seen(0.0, 0.0, 0.0, 9.0), _seen(0.0, 9.0, 9.0), _seen(0.0, 0.0)):
        choices = observe(seen, Bounds(), MAX_N)
        assert valid_choices(choices.observation[None])[0].tolist() == choices.valid.tolist()


def test_a_variant_of_rounds_does_not_resume() -> None:
    from mdl.errors import ConfigError
    from mdl.peers.cli import scheduler

    with pytest.raises(ConfigError, match="--variant rounds: give either --steps"):
        raise _problem(scheduler.app, ["train", "--variant", "rounds"])
    with pytest.raises(ConfigError, match="begins anew"):
        raise _problem(scheduler.app, ["train", "--variant", "rounds", "--resume", "--steps", "9"])


def _problem(app: object, words: list[str]) -> BaseException:
    done = CliRunner().invoke(app, words)  # type: ignore[arg-type]
    assert done.exception is not None
    return done.exception
