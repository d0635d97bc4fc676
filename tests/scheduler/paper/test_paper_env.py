"""The paper's problem (3.3.1): its rules, the batch against the plain reference, and the Gymnasium environment."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.chain.optimum import PaperOptimum
from mdl.scheduler.paper.policy import PaperBatch, PaperChain, PaperRules, draw_busy, observe_paper
from mdl.scheduler.policies.fixed import FollowOrder
from mdl.scheduler.study.play import play
from mdl.sim.timing.scenario import draw_scenario

gymnasium = pytest.importorskip("gymnasium")


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(2, 9),
    printed=st.booleans(),
    limit=st.one_of(st.none(), st.integers(1, 16)),
)
@settings(max_examples=75, deadline=None)
def test_the_batch_does_what_the_plain_reference_does(seed: int, n: int, printed: bool, limit: int | None) -> None:
    rng = np.random.default_rng(seed)
    rules = PaperRules(printed_sign=printed, step_limit=limit)
    batch = PaperBatch(n, 8, rules, np.random.default_rng(seed))
    drawn = draw_busy(n, 8, rng)
    batch.reset(drawn)
    chains = [PaperChain(tuple(row.tolist()), rules) for row in drawn]
    running = np.ones(8, bool)
    for _ in range(2 * (n - 1)):
        picks = np.array([rng.choice(np.flatnonzero(chain.legal())) for chain in chains])
        picks = np.where(rng.random(8) < 0.05, rng.integers(0, n, 8), picks)
        rewards, ended, failed = batch.step(picks)
        for row in np.flatnonzero(running):
            assert rewards[row] == pytest.approx(chains[row].step(int(picks[row])), abs=1e-6)
            assert ended[row] == chains[row].ended
            assert failed[row] == (chains[row].end not in ("", "goal"))
            if not ended[row]:
                assert batch.state[row].tolist() == chains[row].state
                assert batch.n_agg[row].tolist() == chains[row].n_agg
        running &= ~ended


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 9))
@settings(max_examples=50, deadline=None)
def test_legal_picks_end_after_exactly_two_for_each_hop(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    chain = PaperChain(draw_busy(n, 1, rng)[0].tolist(), PaperRules())
    picks = 0
    while not chain.ended:
        chain.step(int(rng.choice(np.flatnonzero(chain.legal()))))
        picks += 1
    assert picks == 2 * (n - 1)
    assert sum(chain.n_agg) == n - 1
    assert chain.end == "goal"


def test_at_most_half_of_the_devices_are_busy_at_the_start() -> None:
    busy = draw_busy(9, 2000, np.random.default_rng(0))
    assert set(busy.sum(axis=1).tolist()) == {0, 1, 2, 3, 4}


def test_an_order_is_played_to_its_end_on_the_mesh() -> None:
    optimum = PaperOptimum(6, PaperRules(), may_quit=False)
    for seed in range(20):
        played = play(draw_scenario("paper", 6, seed), FollowOrder("eq7", optimum.best_order))
        assert len(played.ordered) == 5


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("counts", [False, True])
def test_the_environment_passes_the_checks_of_gymnasium(counts: bool) -> None:
    from gymnasium.utils.env_checker import check_env

    import mdl.scheduler.paper.env

    env = gymnasium.make(mdl.scheduler.paper.env.PAPER_ENV_ID, n=5, counts=counts)
    check_env(env.unwrapped, skip_render_check=True)


def test_two_rollouts_of_one_seed_are_equal() -> None:
    from mdl.scheduler.paper.env import ChainPaperEnv

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


def test_the_environment_shows_the_states_and_who_may_be_picked() -> None:
    from mdl.scheduler.paper.env import ChainPaperEnv, legal_picks

    env = ChainPaperEnv(3, counts=True)
    env.reset(options={"busy": [0, 1, 0]})
    seen, _, _, _, info = env.step(np.int64(2))
    expected = observe_paper(np.array([[0, 1, 2]], np.int8), np.zeros((1, 3), np.int64))
    assert seen.tolist() == expected[0].tolist()
    assert seen.tolist() == [1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    assert info["legal"].tolist() == legal_picks(seen[None], 3)[0].tolist() == [True, True, False]


def test_the_environment_can_be_that_of_one_resource_condition() -> None:
    from mdl.scheduler.paper.env import ChainPaperEnv

    env = ChainPaperEnv(4, busy=[0, 1, 0, 1])
    for seed in range(3):
        seen, _ = env.reset(seed=seed)
        assert seen.reshape(4, 5)[:, 1].tolist() == [0, 1, 0, 1]
