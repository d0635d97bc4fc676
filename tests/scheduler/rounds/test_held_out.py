"""A learned rule beside the best shipped one, on the same worlds."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.scheduler.rounds import judge
from mdl.scheduler.rounds.judge import (
    Reference,
    drawn_cells,
    find_best_rule,
    less_time_than,
    logged_cells,
    play_rule,
)
from mdl.scheduler.rounds.learned import COLUMNS, Layer
from mdl.scheduler.rounds.world import split_log
from tests.scheduler.rounds.test_own_log import log
from tests.scheduler.rounds.worlds import device, world

N = 3


def _waits_for_all() -> list[Layer]:
    """A network that values waiting above all."""
    bias = np.zeros(N + 2, np.float32)
    bias[0] = 1.0
    return [(np.zeros((N + 2, N * len(COLUMNS)), np.float32), bias)]


def test_the_best_rule_is_the_one_with_the_least_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {"by hand": [world(device(2.0), device(2.0), device(40.0), size_mb=1.0)]}
    monkeypatch.setattr(judge, "RULES", ("all", "third"))
    assert find_best_rule(cells).rule == "third"
    monkeypatch.setattr(judge, "RULES", ("third", "all"))
    best = find_best_rule(cells)
    assert best.rule == "third"
    assert best == play_rule(cells, "third")


def test_a_network_that_waits_for_all_takes_longer_and_by_how_much() -> None:
    given = world(device(2.0), device(2.0), device(8.0), size_mb=0.01)
    cells = {"by hand": [given, given]}
    third = play_rule(cells, "third")
    gain, half = less_time_than(third, _waits_for_all(), N, cells)["by hand"]
    assert gain < -10.0
    assert half == 0.0
    twice = Reference("slower", {"by hand": [2.0 * each for each in third.times_s["by hand"]]})
    beside, _ = less_time_than(twice, _waits_for_all(), N, cells)["by hand"]
    assert 100.0 - beside == pytest.approx((100.0 - gain) / 2.0, abs=0.02)


def test_cells_are_drawn_by_their_seeds() -> None:
    cells, others = drawn_cells(N, 3, 500_000), drawn_cells(N, 3, 600_000)
    assert list(cells) == ["dynamic", "varied"]
    assert [each.size_mb for each in cells["dynamic"]] == [1.0, 10.0, 40.0]
    assert [each.world_id for each in cells["varied"]] != [each.world_id for each in others["varied"]]
    _, watched, _ = split_log(log(), "here")
    recorded = logged_cells(watched, 2, 0)["recorded"]
    assert [len(each.devices) for each in recorded] == [2, 2]
    assert recorded[0].devices[0].period_s != recorded[1].devices[0].period_s
