"""Eq. 7 case by case, by hand from the text of 3.3.1, and the exact optimum of it against brute force."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from benchmarks.chain.optimum import PaperOptimum
from mdl.scheduler.paper.policy import PaperChain, PaperRules, PaperState

ALPHA, BETA, RHO = -0.04, 0.1, -0.8


def _play(chain: PaperChain, picks: Sequence[int]) -> list[float]:
    return [chain.step(pick) for pick in picks]


def test_a_free_device_that_sends_earns_more_the_more_it_has_got() -> None:
    # 1 and 2 send before they got anything, 0 sends after it has got twice.
    rewards = _play(PaperChain([0, 0, 0, 0], PaperRules()), [1, 0, 2, 0, 0, 3])
    assert rewards[0::2] == pytest.approx([ALPHA, ALPHA, ALPHA + 2 * BETA])


def test_a_free_device_that_gets_earns_less_the_more_it_has_got() -> None:
    rewards = _play(PaperChain([0, 0, 0, 0], PaperRules()), [1, 0, 2, 0])
    assert rewards[1::2] == pytest.approx([ALPHA, ALPHA - BETA])


def test_what_a_device_has_got_counts_and_not_what_it_has_sent_or_others_got() -> None:
    chain = PaperChain([0, 0, 0, 0], PaperRules())
    _play(chain, [0, 1])
    assert chain.n_agg == [0, 1, 0, 0]
    assert chain.step(2) == pytest.approx(ALPHA)


def test_the_busy_penalty_replaces_the_reward_of_a_free_device_and_decays_with_t() -> None:
    # n = 4: 2(N-1) = 6. 1 is busy: it gets at t = 1, gets at t = 3, sends at t = 4.
    rewards = _play(PaperChain([0, 1, 0, 0], PaperRules()), [0, 1, 2, 1, 1])
    assert [rewards[1], rewards[3], rewards[4]] == pytest.approx([RHO * 5 / 6, RHO * 3 / 6, RHO * 2 / 6])


def test_at_the_first_step_the_busy_penalty_is_rho_itself() -> None:
    for rules in (PaperRules(), PaperRules(printed_sign=True)):
        assert PaperChain([1, 0, 0], rules).step(0) == pytest.approx(RHO)


def test_a_later_busy_pick_costs_less_the_more_devices_there_are_before_it_too() -> None:
    """The text: with N and with t the penalty gets smaller; at one share of the way it is the same."""
    rules = PaperRules()
    assert rules.busy_reward(8, 9) == pytest.approx(RHO / 2)
    assert [rules.busy_reward(t, 9) for t in range(16)] == sorted(rules.busy_reward(t, 9) for t in range(16))


def test_with_the_printed_sign_the_penalty_grows_with_t() -> None:
    rewards = _play(PaperChain([0, 1, 0], PaperRules(printed_sign=True)), [0, 1, 1])
    assert rewards[1:] == pytest.approx([RHO + RHO / 4, RHO + 2 * RHO / 4])


@pytest.mark.parametrize("busy", [[0, 0, 0], [0, 0, 1]])
def test_the_last_pick_earns_one_and_nothing_else_whoever_gets(busy: list[int]) -> None:
    chain = PaperChain(busy, PaperRules())
    assert _play(chain, [0, 1, 1, 2])[-1] == 1.0
    assert chain.end == "goal"


@pytest.mark.parametrize(
    ("picks", "why"),
    [
        ([0, 0], "a device cannot send to itself"),
        ([0, 1, 0], "who has sent is done"),
        ([0, 1, 2, 0], "done cannot get"),
    ],
)
def test_an_invalid_pick_earns_minus_one_and_ends_the_episode(picks: list[int], why: str) -> None:
    chain = PaperChain([0, 0, 0], PaperRules())
    assert _play(chain, picks)[-1] == -1.0, why
    assert chain.end == "illegal"


def test_a_step_beyond_the_limit_earns_minus_one_and_ends_the_episode() -> None:
    chain = PaperChain([0, 0, 0], PaperRules(step_limit=3))
    rewards = _play(chain, [0, 1, 2])
    assert chain.end == ""
    assert chain.step(1) == -1.0
    assert chain.end == "limit"
    assert rewards == pytest.approx([ALPHA, ALPHA, ALPHA])


def test_a_busy_device_stays_busy_whether_it_sends_or_gets() -> None:
    chain = PaperChain([0, 1, 0, 0], PaperRules())
    _play(chain, [0, 1])
    assert chain.state == [PaperState.DONE, PaperState.BUSY, PaperState.FREE, PaperState.FREE]


def test_a_whole_episode_by_hand() -> None:
    """N = 5, device 4 is busy, t counts steps from 0 and 2(N-1) = 8."""
    rewards = _play(PaperChain([0, 0, 0, 0, 1], PaperRules()), [0, 1, 2, 3, 1, 3, 3, 4])
    by_hand = [ALPHA, ALPHA, ALPHA, ALPHA, ALPHA + BETA, ALPHA - BETA, ALPHA + 2 * BETA, 1.0]
    assert rewards == pytest.approx(by_hand)


def _brute_force(start: tuple[int, ...], rules: PaperRules, picks: list[int]) -> float:
    """The best return over every sequence of picks, invalid ones too."""
    chain = PaperChain(start, rules)
    total = sum(_play(chain, picks))
    if chain.ended:
        return total
    return max(_brute_force(start, rules, [*picks, pick]) for pick in range(len(start)))


STARTS = [*itertools.product((0, 1), repeat=3), (0, 0, 0, 0), (0, 1, 0, 0), (1, 0, 0, 1), (1, 1, 1, 0), (1, 1, 1, 1)]


@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize("start", STARTS)
def test_the_optimum_is_the_best_of_all_sequences_also_of_those_that_quit(
    start: tuple[int, ...], printed: bool
) -> None:
    rules = PaperRules(printed_sign=printed)
    optimum, best = PaperOptimum(len(start), rules), _brute_force(start, rules, [])
    assert optimum.best_return(start) == pytest.approx(best)
    order = optimum.best_order(start)
    if order is not None:
        assert sum(_play(PaperChain(start, rules), list(itertools.chain(*order)))) == pytest.approx(best)


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_the_optimum_knows_the_limit_of_steps(limit: int) -> None:
    rules = PaperRules(step_limit=limit)
    optimum = PaperOptimum(4, rules)
    assert optimum.best_return((0, 1, 0, 0)) == pytest.approx(_brute_force((0, 1, 0, 0), rules, []))
    assert optimum.best_order((0, 1, 0, 0)) is None


@pytest.mark.parametrize("n", range(3, 10))
def test_quitting_is_never_best_with_the_sign_of_the_text(n: int) -> None:
    optimum = PaperOptimum(n, PaperRules())
    for count in range(n // 2 + 1):
        assert optimum.best_order((1,) * count + (0,) * (n - count)) is not None


def test_on_free_devices_the_best_order_is_a_path_so_that_each_gets_once() -> None:
    optimum = PaperOptimum(9, PaperRules())
    order = optimum.best_order((0,) * 9)
    assert order is not None
    assert sorted(receiver for _, receiver in order) == sorted({receiver for _, receiver in order})
    assert optimum.best_return((0,) * 9) == pytest.approx(1.0 + 15 * ALPHA + 7 * BETA)


@pytest.mark.parametrize("counted", [(0, 1.10), (4, -0.09)])
def test_the_optimum_of_nine(counted: tuple[int, float]) -> None:
    busy, best = counted
    assert PaperOptimum(9, PaperRules()).best_return((1,) * busy + (0,) * (9 - busy)) == pytest.approx(best)
