"""Eq. 8 to 10 and Algorithm 2 (3.3.2): the threshold, and when each strategy explores."""

from __future__ import annotations

from math import log2

import numpy as np
import pytest

from mdl.errors import ConfigError
from mdl.scheduler.paper.policy import PaperBatch, PaperRules
from mdl.scheduler.training.dqn import (
    FIRST,
    LAST,
    STRATEGIES,
    Exploration,
    balance_reward,
    decay_rate,
    latency_reward,
    threshold,
)


@pytest.mark.parametrize(
    ("n", "expected"),
    [(0, 0.0), (1, 0.0), (2, 0.0), (3, 0.1), (4, 0.0), (5, 0.1), (6, 0.1), (7, 0.2), (8, 0.0), (9, 0.1)],
)
def test_eq_9_balance_counts_the_odd_halves(n: int, expected: float) -> None:
    """f(7) = beta (7 mod 2) + f(3) = beta + beta (3 mod 2) + f(1) = 2 beta."""
    assert balance_reward(n, 0.1) == pytest.approx(expected)


def test_eq_10_latency_is_that_of_a_tree() -> None:
    assert [latency_reward(n, 0.1) for n in (2, 4, 8)] == pytest.approx([0.1, 0.2, 0.3])


def test_eq_8_the_threshold_of_eight_and_nine() -> None:
    rules = PaperRules()
    assert threshold(8, rules, phi=0.0) == pytest.approx(0.3)
    assert threshold(9, rules, phi=0.0) == pytest.approx(0.417, abs=5e-4)
    assert threshold(9, rules, phi=0.25) == pytest.approx(0.1 + 0.1 * log2(9) - 0.25)


def _rates(name: str, returns: list[float]) -> list[float]:
    strategy = Exploration(name, threshold=0.4, decay_episodes=10.0)
    rates = [strategy.rate]
    for each in returns:
        strategy.end_episode(each)
        rates.append(strategy.rate)
    return rates


def test_tdge_explores_fully_until_an_episode_passes_the_threshold_and_then_decays() -> None:
    rates = _rates("tdge", [-1.0, 0.4, 0.41, -1.0, -1.0])
    assert rates[:4] == [FIRST] * 4  # 0.4 is not above 0.4; from 0.41 on it decays
    assert rates[4:] == pytest.approx([decay_rate(1, 10.0), decay_rate(2, 10.0)])


def test_dge_decays_from_the_first_episode_whatever_was_learned() -> None:
    assert _rates("dge", [-1.0, -1.0]) == pytest.approx([FIRST, decay_rate(1, 10.0), decay_rate(2, 10.0)])


def test_tge_depends_on_the_threshold_alone() -> None:
    assert _rates("tge", [-1.0, -1.0, 0.5, -1.0]) == [FIRST, FIRST, FIRST, LAST, LAST]


def test_tdge_never_explores_less_than_dge() -> None:
    returns = [0.1 * (step % 7) - 0.2 for step in range(60)]
    assert all(
        with_it >= without for with_it, without in zip(*map(_rates, ("tdge", "dge"), [returns] * 2), strict=True)
    )


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_starts_at_the_first_rate_and_ends_at_the_last(name: str) -> None:
    rates = _rates(name, [1.0] * 400)
    assert rates[0] == FIRST
    assert rates[-1] == pytest.approx(LAST)


def test_a_wrong_strategy_is_named() -> None:
    with pytest.raises(ConfigError, match="expected one of tdge, dge, tge"):
        Exploration("boltzmann", 1.0)


def test_phi_lets_exploration_pass_where_half_of_nine_are_busy() -> None:
    """One random episode in a hundred, as `benchmarks/chain/paper.py` has it for Eq. 8, with fewer episodes."""
    rng, busy = np.random.default_rng(0), [1, 1, 1, 1, 0, 0, 0, 0, 0]
    batch, total = PaperBatch(9, 4000, PaperRules(), rng, busy=busy), np.zeros(4000)
    for _ in range(16):
        total += batch.step(np.where(batch.legal, rng.random(batch.state.shape), -1.0).argmax(axis=1))[0]
    assert float((total > threshold(9, PaperRules())).mean()) == pytest.approx(0.01, abs=0.005)
