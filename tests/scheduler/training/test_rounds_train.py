"""The training of a participation rule: where it begins, what it keeps, and that a seed gives one network."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from mdl.scheduler.rounds import judge
from mdl.scheduler.rounds.judge import drawn_cells, less_time_than, play_rule
from mdl.scheduler.rounds.learned import Layer, LearnedRule, best_ratio_choices, make_rule, observe
from mdl.scheduler.rounds.participation import Bounds
from mdl.scheduler.rounds.simulate import RoundsMesh
from mdl.scheduler.rounds.world import draw_world
from mdl.scheduler.training import rounds_train
from mdl.scheduler.training.rounds_train import MARGIN, rule_layers, train_rounds, train_rounds_policy, with_margin
from mdl.scheduler.training.train import Report

N = 4


def test_it_begins_with_the_choices_of_best_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "LEVEL", 5.0)
    cells = drawn_cells(N, 4, 700_000)
    less = less_time_than(play_rule(cells, "best-ratio"), rule_layers(N), N, cells)
    assert all(abs(gain) < 1.0 for gain, _ in less.values()), less


def test_the_margin_favours_the_rules_choice_by_so_much() -> None:
    rng = np.random.default_rng(0)
    sizes = [rule_layers(N)[0][0].shape[1], 6, 5, N + 2]
    layers = [
        (rng.normal(size=(out, into)).astype(np.float32), rng.normal(size=out).astype(np.float32))
        for into, out in pairwise(sizes)
    ]
    plain, favours = (LearnedRule("test", each, N, Bounds()) for each in (layers, with_margin(layers, N, MARGIN)))
    mesh, chosen = RoundsMesh(draw_world("dynamic", N, 10.0, 700_000)), set()
    for _ in range(40):
        seen = observe(mesh.see(), Bounds(), N).observation
        choice = int(best_ratio_choices(seen[None])[0])
        chosen.add(choice)
        added = favours.values(seen) - plain.values(seen)
        other = N + 1 if choice == 0 else 0
        assert added[choice] - added[other] == pytest.approx(MARGIN, abs=1e-4)
        assert added[1 : N + 1] == pytest.approx(0.0, abs=1e-4)
        mesh.wait(mesh.now_s + 1.0)
    assert chosen == {0, N + 1}
    assert with_margin(layers, N, 0.0) == layers


def test_the_same_seed_gives_the_same_network_and_it_learns() -> None:
    one, steps = train_rounds(3, 160, 5)
    other, _ = train_rounds(3, 160, 5)
    assert steps == 160
    assert all(
        np.array_equal(a, b)
        for first, second in zip(one, other, strict=True)
        for a, b in zip(first, second, strict=True)
    )
    untrained, _ = train_rounds(3, 8, 5)
    assert not np.array_equal(untrained[0][0], one[0][0])
    scratch, _ = train_rounds(3, 8, 5, from_scratch=True)
    assert len(scratch[0][0]) == len(one[0][0]) - 1  # it has no margin


def _arrays(layers: list[Layer]) -> list[Any]:
    return [array for layer in layers for array in layer]


def test_worlds_to_train_on_may_come_from_elsewhere() -> None:
    drawn: list[int] = []

    def draw(rng: np.random.Generator) -> Any:
        drawn.append(int(rng.integers(1000)))
        return draw_world("dynamic", 3, 1.0, 700_000 + drawn[-1])

    train_rounds(3, 16, 0, draw=draw)
    assert len(set(drawn)) > 1


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float]], None]:
    """Stands in for training and comparing: networks in turn, whose first bias is their gain over the rule."""

    def prepare(gains: list[float]) -> None:
        def train(n: int, steps: int, seed: int, *, on_network: Any, **more: Any) -> tuple[list[Layer], int]:
            for at, gain in enumerate(gains, 1):
                if on_network(at * steps // len(gains), _network(gain)):
                    return _network(gain), at * steps // len(gains)
            return _network(gains[-1]), steps

        def less(reference: Any, layers: list[Layer], n: int, cells: Any) -> dict[str, tuple[float, float]]:
            return {"dynamic": (float(layers[-1][1][0]) if len(layers) == 1 else 0.0, 1.0)}

        monkeypatch.setattr(rounds_train, "train_rounds", train)
        monkeypatch.setattr(rounds_train, "less_time_than", less)
        monkeypatch.setattr(judge, "LEVEL", 0.5)

    return prepare


def _network(gain: float) -> list[Layer]:
    layers = rule_layers(N)
    bias = np.zeros(N + 2, np.float32)
    bias[0] = gain
    return [(np.zeros((N + 2, layers[0][0].shape[1]), np.float32), bias)]


def _train(out: Path, **more: Any) -> tuple[rounds_train.TrainedRounds, list[Report]]:
    told: list[Report] = []
    given: dict[str, Any] = {"watched": drawn_cells(N, 1, 700_000), "processes": 0, "on_report": told.append} | more
    return train_rounds_policy(N, 600, 0, out, "a command", **given), [each for each in told if each.figures]


def test_the_best_network_is_kept_not_the_last_one(tmp_path: Path, trained: Callable[[list[float]], None]) -> None:
    trained([-3.0, 4.0, 1.0])
    done, told = _train(tmp_path / "p.safetensors")
    assert [each.figures for each in told if each.figures] == [{"dynamic": gain} for gain in (0.0, -3.0, 4.0, 1.0, 1.0)]
    assert {each.rule for each in told} == {f"the rule {done.rule}"}
    assert done.learned
    assert (done.steps, done.ended) == (600, True)
    assert done.layers[-1][1][0] == 4.0
    rule = make_rule(str(tmp_path / "p.safetensors"))
    assert isinstance(rule, LearnedRule)
    assert rule.layers[-1][1][0] == 4.0


def test_what_is_never_better_leaves_the_rule_that_it_began_with(
    tmp_path: Path, trained: Callable[[list[float]], None]
) -> None:
    trained([-3.0, -1.0])
    done, _ = _train(tmp_path / "p.safetensors")
    assert not done.learned
    trained([-3.0, -1.0])
    from_scratch, told = _train(tmp_path / "q.safetensors", from_scratch=True)
    assert from_scratch.layers[-1][1][0] == -1.0
    assert told[0].figures == {"dynamic": -3.0}


def test_one_who_stops_keeps_the_best_so_far(tmp_path: Path, trained: Callable[[list[float]], None]) -> None:
    trained([2.0, 5.0])
    done, _ = _train(tmp_path / "p.safetensors", should_stop=lambda: True)
    assert (done.steps, done.ended) == (300, False)
    assert done.layers[-1][1][0] == 2.0


def test_a_helper_process_compares_as_this_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = drawn_cells(3, 1, 700_000)
    one = train_rounds_policy(3, 64, 0, tmp_path / "a.safetensors", "", watched=watched, processes=0)
    other = train_rounds_policy(3, 64, 0, tmp_path / "b.safetensors", "", watched=watched, processes=1)
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(one.layers, other.layers, strict=True))
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
