"""The Chain-scheduler's environment: its spaces, rewards and ends, and what always holds in it."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import as_file, files
from typing import Any, Literal, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mdl.devices.scenario import Scenario
from mdl.errors import ConfigError
from mdl.scheduler.policies.chain import stand_of
from mdl.scheduler.policies.features import look_at, observe_receivers, observe_senders
from mdl.scheduler.policies.learned import SHIPPED
from mdl.scheduler.policies.qnet_numpy import NumpyQ, load_weights
from mdl.scheduler.study.play import everywhere_s, play_segments, view_of
from mdl.scheduler.training.env import (
    Objective,
    finish,
    finish_batch,
    finish_batch_by_layout,
    finish_by_layout,
    rollout_costs,
    unit_of,
)
from mdl.sim.timing.batch import Batch, pack
from mdl.sim.timing.iteration import Iteration
from mdl.sim.timing.scenario import FAMILIES, draw_scenario
from tests.scheduler.one_view import observe

gymnasium = pytest.importorskip("gymnasium")

from mdl.scheduler.training.env import (  # noqa: E402
    CHAIN_ENV_ID,
    ILLEGAL_COST,
    ChainEnv,
    ChainVectorEnv,
    ExchangeChoice,
    Reward,
    split_observation,
)

_TUNING = 500_000


def _play(env: ChainEnv, rng: np.random.Generator, seed: int | None = None, **options: Any) -> list[tuple[Any, ...]]:
    """Random valid actions to the end: (observation, reward, info) of every step."""
    seen, info = env.reset(seed=seed, options=options)
    story: list[tuple[Any, ...]] = [(seen, 0.0, info)]
    while not info["end"]:
        seen, reward, ended, truncated, info = env.step(rng.choice(np.flatnonzero(env.valid)))
        assert ended == bool(info["end"])
        assert not truncated
        story.append((seen, reward, info))
    return story


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("reward", ["raw", "shaped"])
def test_the_environment_passes_the_checks_of_gymnasium(reward: str) -> None:
    from gymnasium.utils.env_checker import check_env

    check_env(gymnasium.make(CHAIN_ENV_ID, n=(3, 5), reward=reward).unwrapped, skip_render_check=True)


@pytest.mark.filterwarnings("error")
def test_an_environment_with_segments_passes_them_too() -> None:
    from gymnasium.utils.env_checker import check_env

    check_env(gymnasium.make(CHAIN_ENV_ID, n=(3, 5), exchange="any").unwrapped, skip_render_check=True)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("reward", ["raw", "shaped", "laid-out"])
def test_a_round_in_segments_is_one_action_and_is_worth_what_the_timing_model_says(family: str, reward: Reward) -> None:
    objective = Objective(energy_weight=0.0)
    for seed in range(4):
        scenario = draw_scenario(family, 6, _TUNING + seed)
        env = ChainEnv(family, 6, max_n=8, reward=reward, objective=objective, exchange="any")
        env.reset(options={"scenario": scenario})
        start_s = env.iteration.now_s
        assert env.valid[9]
        _, got, ended, _, info = env.step(np.int64(9))
        played, plan, _ = play_segments(scenario)
        assert (ended, info["end"], info["makespan_s"], info["lost"]) == (True, "goal", played.makespan_s, played.lost)
        assert plan
        assert info["plan"] == plan.reason
        unit_s = unit_of(scenario)
        worth = played.makespan_s / unit_s + objective.lost_weight * len(played.lost)
        otherwise = Iteration(scenario)
        if reward == "raw":
            assert got == pytest.approx(start_s / unit_s - worth)
            continue
        finish(otherwise, rollout_costs(scenario)) if reward == "shaped" else finish_by_layout(otherwise)
        chain = everywhere_s(otherwise) / unit_s + objective.lost_weight * len(otherwise.lost)
        assert got == pytest.approx(chain - worth)


@pytest.mark.parametrize("reward", ["raw", "shaped"])
def test_beside_segments_hops_are_worth_the_time_until_everybody_has_the_result(
    reward: Literal["raw", "shaped"],
) -> None:
    objective = Objective(energy_weight=0.0)
    for seed in range(5):
        scenario = draw_scenario("dynamic", 6, _TUNING + seed)
        env = ChainEnv("dynamic", 6, reward=reward, objective=objective, exchange="any")
        env.reset(options={"scenario": scenario})
        begun_s = everywhere_s(_by_greedy(scenario)) if reward == "shaped" else env.iteration.now_s
        rng, total, ended = np.random.default_rng(seed), 0.0, False
        while not ended:
            valid = np.flatnonzero(env.valid)
            _, got, ended, _, _ = env.step(rng.choice(valid[valid <= env.max_n]))
            total += got
        assert total == pytest.approx((begun_s - everywhere_s(env.iteration)) / unit_of(scenario))


def _by_greedy(scenario: Scenario) -> Iteration:
    iteration = Iteration(scenario)
    finish(iteration, rollout_costs(scenario))
    return iteration


def test_segments_are_the_first_action_or_none_and_need_somebody_who_may_receive() -> None:
    env = ChainEnv("hetero", 4, exchange="any")
    env.reset(seed=1)
    env.step(np.flatnonzero(env.valid)[0])
    assert not env.valid[-1]
    _, reward, ended, _, info = env.step(np.int64(5))
    assert (reward, ended, info["end"]) == (-4 * ILLEGAL_COST, True, "illegal")
    assert info["reason"] == "segments: only the first action of a round, and only if anybody may receive"
    scenario = draw_scenario("hetero", 4, _TUNING)
    devices = tuple(replace(device, may_receive=False) for device in scenario.devices)
    env.reset(options={"scenario": replace(scenario, devices=devices)})
    assert not env.valid[-1]


def test_the_shipped_network_picks_the_same_hops_where_segments_are_offered() -> None:
    with as_file(files("mdl.scheduler") / "data" / SHIPPED) as path:
        network = NumpyQ(load_weights(path)[0])
    for seed in range(3):
        stories = []
        for exchange in get_args(ExchangeChoice):
            env = ChainEnv("dynamic", 7, reward="raw", exchange=exchange)
            seen, info = env.reset(seed=seed)
            story = [seen.tolist()]
            while not info["end"]:
                q = network(*split_observation(seen[None]))
                seen, _, _, _, info = env.step(q[0].argmax())
                story.append(seen.tolist())
            stories.append(story)
        assert stories[0] == stories[1]


def test_what_may_be_chosen_is_named_and_a_batch_has_hops_alone() -> None:
    with pytest.raises(ConfigError, match="exchange 'shares': expected one of chain, any"):
        ChainEnv(exchange="shares")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="one by one only"):
        ChainVectorEnv(2, exchange="any")


@pytest.mark.parametrize("family", FAMILIES)
def test_two_rollouts_of_one_seed_are_equal(family: str) -> None:
    stories = [_play(ChainEnv(family, (3, 7), prior_energy_j=3.0), np.random.default_rng(1), seed=5) for _ in range(2)]
    assert len(stories[0]) == len(stories[1])
    for one, other in zip(*stories, strict=True):
        assert one[0].tolist() == other[0].tolist()
        assert one[1:] == other[1:]


@given(seed=st.integers(0, 2**31 - 1), family=st.sampled_from(list(FAMILIES)), n=st.integers(2, 8))
@settings(max_examples=40)
def test_whatever_is_picked_nothing_is_lost_and_time_goes_on(seed: int, family: str, n: int) -> None:
    env = ChainEnv(family, n, max_n=8, reward="raw")
    rng = np.random.default_rng(seed)
    _, info = env.reset(seed=seed)
    iteration, before_s, picks, waits = env.iteration, 0.0, 0, 0
    while not info["end"]:
        action = rng.choice(np.flatnonzero(env.valid))
        waits += action == env.max_n
        picks += action != env.max_n
        _, _, _, _, info = env.step(action)
        assert iteration.now_s >= before_s
        before_s = iteration.now_s
        partners = [
            device for hop in iteration.hops if hop.merged_s > before_s for device in (hop.sender, hop.receiver)
        ]
        receivers = [hop.receiver for hop in iteration.hops if hop.merged_s > before_s]
        assert len(receivers) == len(set(receivers))
        assert len(partners) <= n
        under_way = [hop for hop in iteration.hops if hop.sent_s > before_s]
        held = sum(iteration.theta(device) for device in iteration.holders)
        assert held == len(iteration.scenario.devices) - len(info["lost"])
        assert all(iteration.state(hop.sender).value == "send" for hop in under_way)
    if not info["lost"] and family != "dying":
        assert picks == 2 * (n - 1)


@pytest.mark.parametrize("family", ["hetero", "dynamic"])
@pytest.mark.parametrize("reward", ["raw", "shaped"])
def test_rewards_add_up_to_the_objective(family: str, reward: Literal["raw", "shaped"]) -> None:
    objective = Objective(energy_weight=0.1)
    for seed in range(5):
        scenario = draw_scenario(family, 6, _TUNING + seed)
        env = ChainEnv(family, 6, reward=reward, objective=objective)
        total = sum(step[1] for step in _play(env, np.random.default_rng(seed), scenario=scenario))
        reached = objective.value(env.iteration, unit_of(scenario))
        greedy = Iteration(scenario)
        if reward == "shaped":
            finish(greedy, rollout_costs(scenario))
        else:
            while len(greedy.idle()) < 2:
                greedy.advance()
        assert total == pytest.approx(objective.value(greedy, unit_of(scenario)) - reached)


@pytest.mark.parametrize("laid_out", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_rollout_of_a_batch_is_the_plain_one(family: str, laid_out: bool) -> None:
    scenarios = [draw_scenario(family, n, _TUNING + n) for n in (3, 5, 9, 12)]
    batch = Batch(pack(scenarios))
    (finish_batch_by_layout if laid_out else finish_batch)(batch)
    values = []
    for scenario in scenarios:
        iteration = Iteration(scenario)
        if laid_out:
            finish_by_layout(iteration)
        else:
            finish(iteration, rollout_costs(scenario))
        values.append(Objective().value(iteration, unit_of(scenario)))
    assert Objective().values(batch).tolist() == pytest.approx(values, abs=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pick_of_the_layouts_is_worth_nothing(family: str) -> None:
    env = ChainEnv(family, 7, reward="laid-out")
    _, info = env.reset(seed=3)
    while not info["end"]:
        look = look_at(stand_of(view_of(env.iteration)))
        sender = env._sender
        planned = (observe_senders(look) if sender is None else observe_receivers(look, np.array([sender])))[2]
        _, reward, _, _, info = env.step(np.int64(planned[0]))
        assert reward == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("picks", "reason"),
    [
        ([0, 0], "device 0 is the sender of this pair"),
        ([0, 1, 0], "device 0 is send"),
        ([7], "device 7 does not exist"),
        ([0, 8], "waiting: a receiver is to be picked"),
    ],
)
def test_an_illegal_action_ends_the_episode_and_says_why(picks: list[int], reason: str) -> None:
    env = ChainEnv("paper", 6, max_n=8)
    everybody_free = next(
        scenario
        for scenario in (draw_scenario("paper", 6, _TUNING + seed) for seed in range(100))
        if not any(device.busy for device in scenario.devices)
    )
    env.reset(options={"scenario": everybody_free})
    for pick in picks[:-1]:
        assert not env.step(np.int64(pick))[2]
    _, reward, ended, _, info = env.step(np.int64(picks[-1]))
    assert ended
    assert reward == -ILLEGAL_COST * 6
    assert (info["end"], info["reason"]) == ("illegal", reason)


def test_an_observation_tells_apart_who_exists_and_what_is_valid() -> None:
    env = ChainEnv("hetero", 4, max_n=6)
    seen, _ = env.reset(seed=3)
    features, exists, valid = split_observation(seen[None])
    assert exists[0].tolist() == [True] * 4 + [False] * 2
    assert valid[0].tolist() == env.valid.tolist()
    assert features.shape[1:] == (6, seen.shape[1] - 2)
    assert not features[0, 4:].any()


def test_what_was_seen_before_a_pick_is_not_shown_after_it() -> None:
    env, rng = ChainEnv("dynamic", 7), np.random.default_rng(3)
    seen, over = env.reset(seed=11)[0], False
    picked: int | None = None
    while not over:
        afresh = observe(view_of(env.iteration), picked)
        assert np.array_equal(seen[:, 2:], afresh.features)
        assert np.array_equal(env.valid, afresh.valid)
        action = int(rng.choice(np.flatnonzero(env.valid)))
        picked = action if picked is None and action < env.max_n else None
        seen, _, over, _, _ = env.step(np.int64(action))


def test_training_never_draws_a_scenario_that_judges() -> None:
    env = ChainEnv(("paper", "hetero"), (3, 5))
    numbers = [int(env.reset(seed=seed)[1]["scenario_id"].rsplit("-", 1)[1]) for seed in range(50)]
    assert min(numbers) >= 1_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"family": "nowhere"}, "expected some of paper"),
        ({"n": 1}, "expected 2 <= least"),
        ({"n": (3, 9), "max_n": 8}, "expected 2 <= least"),
        ({"reward": "gold"}, "expected one of shaped, raw, laid-out"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ChainEnv(**options)


@pytest.mark.slow
@pytest.mark.parametrize("reward", get_args(Reward))
@pytest.mark.parametrize("family", FAMILIES)
def test_the_vector_environment_does_what_single_ones_do(family: str, reward: Reward) -> None:
    from gymnasium.utils import seeding

    count = 6
    vector = ChainVectorEnv(count, family=family, n=(3, 6), reward=reward, pool=30)
    seen, info = vector.reset(seed=7)
    single = ChainEnv(family, (3, 6), reward=reward)
    drawn = seeding.np_random(7)[0]
    singles = [ChainEnv(family, (3, 6), reward=reward) for _ in range(count)]
    compared = []
    for env, row in zip(singles, seen, strict=True):
        try:
            compared.append(np.array_equal(env.reset(options={"scenario": single.draw(drawn)})[0], row))
        except ConfigError:  # nothing to decide in it: the vector took another one
            compared.append(False)
    assert sum(compared) >= count - 1
    rng, running = np.random.default_rng(0), np.array(compared)
    while running.any():
        draws = np.where(info["valid"], rng.random(info["valid"].shape), -1.0)
        draws[:, :-1] -= 2.0 * (rng.random(draws[:, :-1].shape) < 0.02)  # now and then something illegal
        actions = draws.argmax(axis=1)
        seen, rewards, ended, _, info = vector.step(actions)
        for row in np.flatnonzero(running):
            alone, reward_alone, over, _, _ = singles[row].step(actions[row])
            assert rewards[row] == pytest.approx(reward_alone, abs=1e-6)
            assert ended[row] == over
            if not over:
                assert seen[row] == pytest.approx(alone, abs=1e-5)
        running &= ~ended


def test_a_vector_of_environments_goes_on_and_on() -> None:
    vector = ChainVectorEnv(4, family=("paper", "dying"), n=4, pool=9)
    _, info = vector.reset(seed=1)
    rng, ends = np.random.default_rng(0), 0
    for _ in range(80):
        actions = np.where(info["valid"], rng.random(info["valid"].shape), -1.0).argmax(axis=1)
        seen, _, ended, _, info = vector.step(actions)
        ends += int(ended.sum())
        assert vector.observation_space.contains(seen)
        assert info["valid"].any(axis=1).all()
    assert ends > 10


def test_an_environment_needs_no_import_before() -> None:
    """Gymnasium imports what stands before the colon; of installed packages it looks for none since 1.0."""
    made = "import gymnasium; env = gymnasium.make('mdl.gym:mdl/Chain-v0', n=(3, 4)); "
    made += "print(type(env.unwrapped).__name__)"
    run = subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "ChainEnv", run.stderr
