"""The Chain-scheduler's network by stable-baselines3: its environments side by side, its targets, what it keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mdl.scheduler.policies.features import FEATURES, observe_receivers, observe_senders
from mdl.scheduler.policies.qnet_numpy import MARGIN, NumpyQ, Picks, Weights
from mdl.scheduler.training.qnet_torch import QNetwork

pytest.importorskip("stable_baselines3")

from mdl.scheduler.training.dqn import (
    ChainVecEnv,
    DqnSettings,
    describe_training,
    margin_pick,
    planned_picks,
    train_chain_dqn,
    valid_actions,
)
from mdl.scheduler.training.env import ChainVectorEnv

SMALL = DqnSettings(groups=(((3, 4), 3), ((5, 6), 2)))


def _network(seed: int) -> QNetwork:
    """With opinions: a fresh one has none."""
    rng = np.random.default_rng(seed)
    drawn: Weights = {
        name: rng.normal(0.0, 0.1, values.shape).astype(np.float32) for name, values in QNetwork(seed).weights().items()
    }
    return QNetwork(weights=drawn)


def _envs() -> ChainVecEnv:
    return ChainVecEnv(
        [
            ChainVectorEnv(3, family="varied", n=(3, 4), reward="laid-out", pool=6),
            ChainVectorEnv(2, family="dying", n=6, reward="laid-out", pool=6),
        ]
    )


def test_groups_of_different_sizes_are_one_environment() -> None:
    envs = _envs()
    envs.seed(5)
    seen: Any = envs.reset()
    ends = 0
    rng = np.random.default_rng(0)
    for _ in range(60):
        assert seen.shape == (5, 6, 2 + len(FEATURES))
        assert not seen[:3, 4:].any(), "devices that a small mesh does not have"
        valid = valid_actions(seen)
        assert valid.any(axis=1).all()
        seen, rewards, ended, told = envs.step(np.where(valid, rng.random(valid.shape), -1.0).argmax(axis=1))
        assert rewards.dtype == np.float32
        assert len(told) == 5
        ends += int(ended.sum())
        assert (rewards > -20.0).all(), "nothing that is valid was taken for illegal"
    assert ends > 5


def test_the_same_seed_gives_the_same_start() -> None:
    seen: list[Any] = []
    for _ in range(2):
        envs = _envs()
        envs.seed(5)
        seen.append(envs.reset())
    assert np.array_equal(seen[0], seen[1])


def test_the_pick_with_a_margin_is_the_one_that_is_really_made() -> None:
    network = _network(3)
    env = ChainVectorEnv(12, family="dynamic", n=(4, 7), reward="laid-out")
    seen, info = env.reset(seed=2)
    rng, picks = np.random.default_rng(1), Picks(NumpyQ(network.weights()), MARGIN)
    for _ in range(25):
        look, senders = env._look, env._senders
        first, second = np.flatnonzero(senders < 0), np.flatnonzero(senders >= 0)
        observed = torch.from_numpy(seen)
        with torch.no_grad():
            values = network(observed[:, :, 2:], observed[:, :, 0] > 0, torch.from_numpy(info["valid"]))
        made = margin_pick(values, observed, MARGIN)[:, 0].numpy()
        assert np.array_equal(made[first], picks.pick_senders(look.take(first)).positions)
        assert np.array_equal(made[second], picks.pick_receivers(look.take(second), senders[second]).positions)
        planned = planned_picks(observed)[:, 0].numpy()
        assert np.array_equal(planned[first], observe_senders(look.take(first))[2])
        assert np.array_equal(planned[second], observe_receivers(look.take(second), senders[second])[2])
        seen, _, _, _, info = env.step(np.where(info["valid"], rng.random(info["valid"].shape), -1.0).argmax(axis=1))


def test_the_same_seed_gives_the_same_network_and_it_has_learned() -> None:
    one, other = (train_chain_dqn(_network(4), 60, 1, settings=SMALL)[0].weights() for _ in range(2))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert not np.array_equal(one["encode1.weight"], _network(4).weights()["encode1.weight"])


def test_training_tells_its_networks_and_ends_where_it_is_asked_to() -> None:
    told: list[int] = []

    def tell(step: int, network: QNetwork) -> bool:
        told.append(step)
        return len(told) == 2

    _, done = train_chain_dqn(_network(4), 500, 1, settings=SMALL, every=40, on_network=tell)
    assert told == [40, 80]
    assert done == 80


def test_a_file_says_how_it_was_trained() -> None:
    told = describe_training(120, 7)
    assert "stable-baselines3" in str(told["trained_by"])
    assert (told["steps"], told["seed"]) == (120, 7)
    assert "varied" in told["settings"]["families"]  # type: ignore[index]
