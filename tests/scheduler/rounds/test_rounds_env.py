"""`mdl/Rounds-v0`: the checks of Gymnasium and stable-baselines3, and that it plays what the simulator plays."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from mdl.errors import ConfigError
from mdl.scheduler.rounds.learned import make_rule
from mdl.scheduler.rounds.participation import Close
from mdl.scheduler.rounds.simulate import RoundsMesh, play_world
from mdl.scheduler.rounds.world import draw_world
from tests.scheduler.rounds.worlds import device, world

gymnasium = pytest.importorskip("gymnasium")

from mdl.scheduler.rounds.env import COLUMNS, ROUNDS_ENV_ID, RoundsEnv, unit_of  # noqa: E402

AT = {name: place for place, name in enumerate(COLUMNS)}


@pytest.mark.filterwarnings("error")
def test_the_environment_passes_the_checks_of_gymnasium() -> None:
    from gymnasium.utils.env_checker import check_env

    check_env(gymnasium.make(ROUNDS_ENV_ID, n=(3, 5), level=3.0).unwrapped, skip_render_check=True)


def test_it_passes_the_checks_of_stable_baselines3() -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    checker.check_env(RoundsEnv(n=(3, 5), level=3.0), warn=True)


def test_it_needs_no_import_before() -> None:
    made = "import gymnasium; print(type(gymnasium.make('mdl.gym:mdl/Rounds-v0', n=3).unwrapped).__name__)"
    run = subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "RoundsEnv", run.stderr


def test_rewards_add_up_to_progress_minus_time() -> None:
    env = RoundsEnv("dynamic", 5, size_mb=5.0, level=4.0)
    env.reset(options={"world": draw_world("dynamic", 5, 5.0, 700_000)})
    rng, total, done = np.random.default_rng(0), 0.0, False
    while not done:
        action = rng.choice(np.flatnonzero(env.valid))
        _, reward, done, truncated, info = env.step(action)
        assert not truncated
        total += reward
    assert info["progress"] >= 4.0
    assert total == pytest.approx(info["progress"] - info["now_s"] / env.unit_s)
    assert sum(each.worth for each in env.mesh.rounds) == pytest.approx(info["progress"])


def test_the_exact_plans_action_plays_the_devices_that_the_rule_would() -> None:
    """Whenever `best-ratio` closes now, the last action closes with the same devices, to the end of a world."""
    given = draw_world("varied", 6, 5.0, 700_001)
    env, rule = RoundsEnv(n=6, level=5.0), make_rule("best-ratio")
    env.reset(options={"world": given})
    done = False
    while not done:
        decision = rule.decide(env.mesh.see())
        number = len(env.mesh.rounds)
        if isinstance(decision, Close):
            _, _, done, _, info = env.step(np.int64(7))
            assert info["reason"] == decision.reason
            assert len(env.mesh.rounds) == number or set(env.mesh.rounds[-1].members) | set(
                env.mesh.rounds[-1].dropped
            ) == set(map(int, decision.devices))
        else:
            env.mesh.wait(decision.until_s)  # the rule's own waits are longer than an action's
            env._observe()
    assert tuple(env.mesh.rounds) == play_world(given, rule, 5.0).rounds


def test_rows_are_in_the_plans_order_and_tell_what_is_possible() -> None:
    env = RoundsEnv(n=4, max_n=6)
    seen, info = env.reset(options={"world": world(device(2.0, 4.0), device(2.0, 8.0), device(90.0), device(50.0))})
    seen = seen.reshape(6, -1)
    assert seen[:, AT["exists"]].tolist() == [1, 1, 1, 1, 0, 0]
    assert np.flatnonzero(info["valid"]).tolist() == [0]
    seen, _, _, _, info = env.step(np.int64(0))
    assert env.mesh.now_s == pytest.approx(2.0)
    assert np.flatnonzero(info["valid"]).tolist() == [0, 2, 7]
    seen = seen.reshape(6, -1)
    assert seen[:, AT["can_give"]].tolist() == [1, 1, 0, 0, 0, 0]
    assert seen[:, AT["closes"]].tolist() == [0, 1, 0, 0, 0, 0]
    assert np.exp(seen[:4, AT["link"]]) == pytest.approx([8.0, 4.0, 10.0, 10.0])
    assert np.expm1(seen[2:4, AT["ready_in_s"]]) == pytest.approx([48.0, 88.0])
    env.step(np.int64(2))
    assert set(env.mesh.rounds[0].members) == {0, 1}


@pytest.mark.parametrize("action", [1, 3, 4, 5])
def test_what_is_not_possible_waits(action: int) -> None:
    env = RoundsEnv(n=3, max_n=4)
    env.reset(options={"world": world(device(2.0), device(90.0), device(90.0))})
    env.step(np.int64(0))
    assert env.valid.tolist() == [True, *[False] * 5]
    _, reward, done, _, info = env.step(np.int64(action))
    assert (env.mesh.rounds, done, info["reason"]) == ([], False, "")
    assert env.mesh.now_s == pytest.approx(4.0)
    assert reward == pytest.approx(-2.0 / env.unit_s)


def test_a_device_at_the_bound_has_to_be_in_every_close() -> None:
    env = RoundsEnv(n=3)
    env.reset(options={"world": world(device(2.0), device(2.0), device(400.0))})
    while len(env.mesh.rounds) < 9:
        env.step(np.int64(2 if env.valid[2] else 0))
    for _ in range(20):
        assert not env.valid[1:].any()
        env.step(np.int64(2))
    assert len(env.mesh.rounds) == 9


def test_a_world_that_never_gets_there_is_truncated() -> None:
    env = RoundsEnv(n=2)
    env.reset(options={"world": world(device(2.0), device(1e6))})
    truncated = False
    for _ in range(4000):
        _, _, done, truncated, _ = env.step(np.int64(0))
        assert not done
        if truncated:
            break
    assert truncated


def test_the_unit_is_a_period_and_an_exchange_of_the_whole_mesh() -> None:
    given = world(device(2.0), device(4.0), device(9.0))
    assert unit_of(given) == pytest.approx(4.0 + 1.15 * 10.0 * 4.0 / 30.0)
    assert RoundsMesh(given).now_s == 0.0


@pytest.mark.parametrize(
    "options",
    [{"family": "paper"}, {"n": (1, 3)}, {"n": 5, "max_n": 4}, {"size_mb": (5.0, 1.0)}, {"level": 0.0}, {"size_mb": 0}],
)
def test_wrong_options_are_told(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        RoundsEnv(**options)  # type: ignore[arg-type]
