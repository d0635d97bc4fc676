"""The paper's problem (3.3.1): its rules, the batch against the plain reference, and the Gymnasium environment."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl.errors import ConfigError
from scheduler.paper.optimum import FollowOrder, PaperOptimum
from scheduler.paper.problem import PaperBatch, PaperChain, PaperRules, PaperState, draw_busy, observe_paper
from scheduler.study.play import play
from sim.timing.scenario import draw_scenario

gymnasium = pytest.importorskip("gymnasium")

Reading = Literal["fades", "stays", "rounds"]
READINGS: tuple[Reading, ...] = ("fades", "stays", "rounds")


def _play(chain: PaperChain, picks: list[int]) -> list[float]:
    return [chain.step(pick) for pick in picks]


def test_a_pick_costs_the_initial_reward_and_the_battery_of_each_hop_before() -> None:
    rewards = _play(PaperChain((0, 0, 0), PaperRules()), [0, 1, 2, 1])
    assert rewards == pytest.approx([-0.04, -0.04, -0.04, -0.04 - 0.1 + 1.0])


def test_the_busy_penalty_is_an_initial_one_and_fades_over_the_picks() -> None:
    rewards = _play(PaperChain((1, 0, 1), PaperRules()), [0, 1, 2, 1])
    assert rewards[0] == pytest.approx(-0.04 - 0.8)
    assert rewards[2] == pytest.approx(-0.04 - 0.8 / 2)


def test_the_printed_sign_rewards_what_the_text_punishes() -> None:
    assert PaperChain((1, 0), PaperRules(printed_sign=True)).step(0) == pytest.approx(-0.04 + 0.8)


def test_in_rounds_nobody_aggregates_twice_in_one_and_busy_times_end() -> None:
    chain = PaperChain((0, 0, 0, 0, 1), PaperRules(busy="rounds"))
    _play(chain, [0, 1])
    assert chain.state[:2] == [PaperState.SEND, PaperState.GET]
    _play(chain, [2, 3])
    assert chain.state == [PaperState.DONE, PaperState.FREE, PaperState.DONE, PaperState.FREE, PaperState.FREE]


def test_an_illegal_pick_ends_the_episode_with_minus_one() -> None:
    chain = PaperChain((0, 0, 0), PaperRules())
    assert _play(chain, [0, 0]) == [pytest.approx(-0.04), -1.0]
    assert chain.ended
    assert chain.illegal


@pytest.mark.parametrize("busy", READINGS)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 9), printed=st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_batch_does_what_the_plain_reference_does(busy: Reading, seed: int, n: int, printed: bool) -> None:
    rng = np.random.default_rng(seed)
    rules = PaperRules(busy=busy, printed_sign=printed)
    batch = PaperBatch(n, 8, rules, np.random.default_rng(seed))
    drawn = draw_busy(n, 8, rng)
    batch.reset(drawn)
    chains = [PaperChain(tuple(row.tolist()), rules) for row in drawn]
    running = np.ones(8, bool)
    for _ in range(2 * (n - 1)):
        picks = np.array([rng.choice(np.flatnonzero(chain.legal())) for chain in chains])
        picks = np.where(rng.random(8) < 0.05, rng.integers(0, n, 8), picks)
        rewards, ended, illegal = batch.step(picks)
        for row in np.flatnonzero(running):
            assert rewards[row] == pytest.approx(chains[row].step(int(picks[row])), abs=1e-6)
            assert ended[row] == chains[row].ended
            assert illegal[row] == chains[row].illegal
            if not ended[row]:
                assert batch.state[row].tolist() == chains[row].state
                assert batch.n_agg[row].tolist() == chains[row].n_agg
        running &= ~ended


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 9), busy=st.sampled_from(READINGS))
@settings(max_examples=50, deadline=None)
def test_legal_picks_end_after_exactly_two_for_each_hop(seed: int, n: int, busy: Reading) -> None:
    rng = np.random.default_rng(seed)
    chain = PaperChain(tuple(draw_busy(n, 1, rng)[0].tolist()), PaperRules(busy=busy))
    picks = 0
    while not chain.ended:
        chain.step(int(rng.choice(np.flatnonzero(chain.legal()))))
        picks += 1
    assert picks == 2 * (n - 1)
    assert sum(chain.n_agg) == 2 * (n - 1)
    assert not chain.illegal


def test_at_most_half_of_the_devices_are_busy_at_the_start() -> None:
    busy = draw_busy(9, 2000, np.random.default_rng(0))
    assert set((busy > 0).sum(axis=1).tolist()) == {0, 1, 2, 3, 4}
    assert set(busy[busy > 0].tolist()) == {1, 2, 3, 4}


@pytest.mark.parametrize("busy", READINGS)
@pytest.mark.parametrize("start", [(0, 0, 0, 0), (2, 0, 0, 1)])
def test_the_optimum_of_the_reward_is_the_best_of_all_sequences(busy: Reading, start: tuple[int, ...]) -> None:
    rules = PaperRules(busy=busy)

    def best(picks: list[int]) -> float:
        chain = PaperChain(start, rules)
        total = sum(_play(chain, picks))
        if chain.ended:
            return total
        return max(best([*picks, pick]) for pick in np.flatnonzero(chain.legal()).tolist())

    optimum = PaperOptimum(4, rules, may_quit=False)
    assert optimum.best_return(start) == pytest.approx(best([]))
    order = optimum.best_order(start)
    assert order is not None
    assert sum(_play(PaperChain(start, rules), list(itertools.chain(*order)))) == pytest.approx(best([]))


def test_with_many_busy_devices_quitting_is_the_best_action_of_the_reward() -> None:
    optimum = PaperOptimum(9, PaperRules())
    assert optimum.best_order((1,) * 4 + (0,) * 5) is None
    assert optimum.best_return((1,) * 4 + (0,) * 5) == -1.0
    assert optimum.best_order((0,) * 9) is not None


def test_an_order_is_played_to_its_end_on_the_mesh() -> None:
    optimum = PaperOptimum(6, PaperRules(), may_quit=False)
    for seed in range(20):
        played = play(draw_scenario("paper", 6, seed), FollowOrder("eq7", optimum.best_order))
        assert len(played.ordered) == 5


def test_an_unknown_reading_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="expected one of fades, stays, rounds"):
        PaperRules(busy="sometimes")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("counts", [False, True])
def test_the_environment_passes_the_checks_of_gymnasium(counts: bool) -> None:
    from gymnasium.utils.env_checker import check_env

    import scheduler.paper.env

    env = gymnasium.make(scheduler.paper.env.PAPER_ENV_ID, n=5, counts=counts)
    check_env(env.unwrapped, skip_render_check=True)


def test_two_rollouts_of_one_seed_are_equal() -> None:
    from scheduler.paper.env import ChainPaperEnv

    stories = []
    for _ in range(2):
        env = ChainPaperEnv(7)
        seen, info = env.reset(seed=11)
        story = [seen.tolist()]
        rng = np.random.default_rng(3)
        while not info["end"]:
            seen, reward, _, _, info = env.step(rng.choice(np.flatnonzero(info["legal"])))
            story.append([reward, *seen.tolist()])
        stories.append(story)
    assert stories[0] == stories[1]


def test_the_environment_shows_the_states_and_the_phase() -> None:
    from scheduler.paper.env import ChainPaperEnv

    env = ChainPaperEnv(3, counts=True)
    env.reset(options={"busy": [0, 2, 0]})
    seen, _, _, _, info = env.step(np.int64(2))
    expected = observe_paper(np.array([[0, 1, 2]], np.int8), np.array([1]), np.zeros((1, 3), np.int64))
    assert seen.tolist() == expected[0].tolist()
    assert info["legal"].tolist() == [True, True, False]
