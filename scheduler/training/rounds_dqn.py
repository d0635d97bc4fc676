"""A participation rule learned by stable-baselines3's DQN on `mdl/Rounds-v0` (`mdl[train]`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.vec_env import DummyVecEnv

from mdl.scheduler.rounds.env import ROUNDS_ENV_ID, RoundsEnv
from mdl.scheduler.rounds.learned import Layer
from mdl.scheduler.rounds.observation import valid_choices
from mdl.scheduler.training.dqn import FollowSteps, MaskedDQN

# Environments side by side, so that a batch holds several worlds.
_AT_ONCE = 8
_SETTINGS: dict[str, Any] = {
    "buffer_size": 50_000,
    "learning_rate": 5e-4,
    # A round takes five to ten decisions: rewards of about ten rounds count.
    "gamma": 0.98,
    "batch_size": 128,
    "target_update_interval": 2_000,
    "train_freq": 1,
    "policy_kwargs": {"net_arch": [64, 64]},
    "device": "cpu",
}
# Decisions before the first gradient step.
_BLIND = 2_000
# The share of decisions that explore: from the first to the last over the first half of the training.
_FIRST_RATE, _LAST_RATE = 1.0, 0.05


def describe_rounds_training(steps: int, seed: int) -> dict[str, object]:
    """Describe the training for a policy file."""
    told = f"stable-baselines3 {stable_baselines3.__version__} DQN, on {ROUNDS_ENV_ID}"
    return {"trained_by": told, "steps": steps, "seed": seed}


def train_rounds(
    n: int, steps: int, seed: int, *, on_step: Callable[[int], bool | None] = lambda step: None
) -> tuple[list[Layer], int]:
    """Train for `steps` decisions on meshes of n devices; return the network's layers and the decisions made.

    on_step gets the decisions so far, and ends training by returning True. The same n, steps and seed give the same
    network on the same machine.
    """
    torch.set_num_threads(1)
    vector = DummyVecEnv([lambda: RoundsEnv(n=n) for _ in range(_AT_ONCE)])
    starts = min(_BLIND, steps // 4)
    model = MaskedDQN("MlpPolicy", vector, valid=valid_choices, seed=seed, learning_starts=starts, **_SETTINGS)
    model.explore_by(lambda: max(_LAST_RATE, _FIRST_RATE - 2.0 * model.num_timesteps / max(1, steps)))
    model.learn(steps, callback=FollowSteps(on_step))
    values = [array.detach().numpy().astype(np.float32) for array in model.q_net.q_net.parameters()]
    return list(zip(values[::2], values[1::2], strict=True)), model.num_timesteps
