"""The paper's own DQN by stable-baselines3: an MLP on five states a device, trained on Eq. 7 (`mdl[train]`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import CallbackList

from mdl.scheduler.paper.env import legal_picks
from mdl.scheduler.paper.policy import MlpQ
from mdl.scheduler.paper.problem import PaperBatch, PaperRules
from mdl.scheduler.training.dqn import PHI, BatchVecEnv, Exploration, FollowSteps, MaskedDQN, TellExploration, threshold

# The paper names DQN and gives none of its settings.
_SETTINGS: dict[str, Any] = {
    "buffer_size": 50_000,
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "learning_starts": 200,
    "batch_size": 64,
    "target_update_interval": 500,
    "train_freq": 4,
    "policy_kwargs": {"net_arch": [64, 64]},
    "device": "cpu",
}


class PaperVecEnv(BatchVecEnv):
    """Many `ChainPaperEnv` at once, without a dictionary a step; that class describes the episodes."""

    def __init__(
        self, n: int, count: int, rules: PaperRules, *, counts: bool = False, busy: Sequence[int] | None = None
    ) -> None:
        self._n, self._rules, self._counts, self._busy = n, rules, counts, busy
        width = 6 * n if counts else 5 * n
        super().__init__(count, spaces.Box(0.0, 1.0, (width,), np.float32), spaces.Discrete(n))
        self._batch = self._make(0)

    def _make(self, seed: int) -> PaperBatch:
        return PaperBatch(self._n, self.num_envs, self._rules, np.random.default_rng(seed), busy=self._busy)

    def reset(self) -> Any:
        """Return the observations of fresh episodes, drawn by the given seed, or by 0."""
        self._batch = self._make(self._seeds[0] or 0)
        return self._batch.observe(self._counts)

    def step_wait(self) -> Any:
        rewards, ended, _ = self._batch.step(self._actions)
        return self._batch.observe(self._counts), rewards, ended, [{} for _ in ended]


@dataclass(frozen=True)
class PaperRun:
    """A DQN of the paper's variant after training. returns: of its episodes, in the order of their ends."""

    model: MaskedDQN
    returns: list[float]
    exploration: Exploration
    network: MlpQ

    @property
    def steps(self) -> int:
        return self.model.num_timesteps


def plain_mlp(model: MaskedDQN, n: int, rules: PaperRules, *, counts: bool = False) -> MlpQ:
    """Return the MLP of a model as plain arrays."""
    values = [array.detach().numpy().copy() for array in model.q_net.q_net.parameters()]
    return MlpQ(list(zip(values[::2], values[1::2], strict=True)), n, rules, counts=counts)


def train_paper(
    n: int,
    steps: int,
    seed: int,
    *,
    rules: PaperRules | None = None,
    exploration: str = "tdge",
    phi: float = PHI,
    counts: bool = False,
    busy: Sequence[int] | None = None,
    at_once: int = 16,
    decay_episodes: float | None = None,
    start: MaskedDQN | None = None,
    on_step: Callable[[int], bool | None] = lambda step: None,
    on_model: Callable[[MaskedDQN], None] = lambda model: None,
    on_episode: Callable[[int, float], bool | None] = lambda episodes, last: None,
) -> PaperRun:
    """Train the paper's DQN: an MLP on its five states, exploring valid picks by TDGE, DGE or TGE (Algorithm 2).

    Picks that do not explore follow the Q-values, and there an invalid pick is an answer like others.

    steps: picks. busy: learn for this resource condition alone; None draws one for each episode. at_once: episodes side
    by side; a gradient step follows every 8 picks (4 if it is 1). phi: of the threshold (Eq. 8). start: a model to go
    on from (its weights are copied). on_step (picks so far) and on_episode (the number of ended episodes, the last
    return) end it early by returning True; on_model gets the model before it learns. decay_episodes: of DGE and TDGE;
    by default a third of the episodes that fit.
    """
    torch.set_num_threads(1)
    rules = rules or PaperRules()
    model = MaskedDQN(
        "MlpPolicy",
        PaperVecEnv(n, at_once, rules, counts=counts, busy=busy),
        valid=lambda seen: legal_picks(seen, n),
        double=False,
        seed=seed,
        gradient_steps=max(1, at_once // 2),
        **_SETTINGS,
    )
    if start is not None:
        model.policy.load_state_dict(start.policy.state_dict())
    episodes = steps / (2 * (n - 1))
    strategy = Exploration(exploration, threshold(n, rules, phi), decay_episodes or episodes / 3.0)
    model.explore_by(lambda: strategy.rate)
    on_model(model)
    told = TellExploration(strategy, on_episode)
    model.learn(steps, callback=CallbackList([told, FollowSteps(on_step)]))
    return PaperRun(model, told.returns, strategy, plain_mlp(model, n, rules, counts=counts))
