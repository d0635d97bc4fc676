"""Refines a labelled network by Double-DQN on the true objective (`mdl[train]`). The paper's own DQN is another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from stable_baselines3.common.callbacks import BaseCallback

from scheduler.training.dqn import ChainPolicy, MaskedDQN, valid_actions
from scheduler.training.env import ChainEnv
from scheduler.training.qnet_torch import QNetwork

# Refinement: sizes of mesh, families, and energy spent before (joules, mean).
_SIZES = (3, 16)
_FAMILIES = ("paper", "hetero", "dynamic", "dynamic")
_PRIOR_ENERGY_J = 3.0
_FIRST_RATE = 0.1


class FollowSteps(BaseCallback):
    """Calls a function after each step; training ends where it returns True."""

    def __init__(self, on_step: Callable[[int], bool | None]) -> None:
        super().__init__()
        self._tell = on_step

    def _on_step(self) -> bool:
        return not self._tell(self.num_timesteps)


def refine(
    network: QNetwork,
    steps: int,
    seed: int,
    *,
    on_step: Callable[[int], bool | None] = lambda step: None,
    reward: Literal["shaped", "raw"] = "shaped",
) -> QNetwork:
    """Double-DQN from a network's weights on `ChainEnv`; on_step (steps so far) ends it early by returning True."""
    torch.set_num_threads(1)
    env = ChainEnv(_FAMILIES, _SIZES, reward=reward, prior_energy_j=_PRIOR_ENERGY_J)
    model = MaskedDQN(
        ChainPolicy,
        env,
        valid=valid_actions,
        seed=seed,
        learning_rate=2e-4,
        gamma=1.0,
        learning_starts=min(1000, steps // 4),
        batch_size=128,
        target_update_interval=1000,
        buffer_size=50_000,
        train_freq=4,
        device="cpu",
    )
    assert isinstance(model.policy, ChainPolicy)
    model.policy.load(network)
    model.explore_by(lambda: _FIRST_RATE * (1.0 - model.num_timesteps / max(1, steps)))
    model.learn(steps, callback=FollowSteps(on_step))
    return model.policy.network()
