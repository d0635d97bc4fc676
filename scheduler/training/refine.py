"""Training by DQN: refines a labelled network on the true objective, and trains the paper's variant (`mdl[train]`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from stable_baselines3.common.callbacks import BaseCallback, CallbackList

from scheduler.paper.env import ChainPaperEnv, legal_picks
from scheduler.paper.mlp_numpy import MlpQ
from scheduler.paper.problem import PaperRules
from scheduler.training.dqn import ChainPolicy, MaskedDQN, TellExploration, valid_actions
from scheduler.training.env import ChainEnv
from scheduler.training.exploration import PHI, Exploration, threshold
from scheduler.training.qnet_torch import QNetwork

# Refinement: sizes of mesh, families, and energy spent before (joules, mean).
_SIZES = (3, 16)
_FAMILIES = ("paper", "hetero", "dynamic", "dynamic")
_PRIOR_ENERGY_J = 3.0
_FIRST_RATE = 0.1
# Of both kinds of training; all else is the paper's variant's own.
_ALIKE: dict[str, Any] = {"buffer_size": 50_000, "train_freq": 4, "device": "cpu"}
# The paper names DQN and gives none of its settings.
_PAPER_DQN: dict[str, Any] = {
    **_ALIKE,
    "learning_rate": 1e-3,
    "gamma": 0.99,
    "learning_starts": 200,
    "batch_size": 64,
    "target_update_interval": 500,
    "policy_kwargs": {"net_arch": [64, 64]},
}


@dataclass(frozen=True)
class PaperRun:
    """A DQN of the paper's variant after training. returns: of its episodes, in order."""

    model: MaskedDQN
    returns: list[float]
    exploration: Exploration

    @property
    def steps(self) -> int:
        return self.model.num_timesteps

    def network(self) -> MlpQ:
        """What was learned, without torch."""
        env = self.model.get_env().get_attr("unwrapped")[0]  # type: ignore[union-attr]
        return plain_mlp(self.model, env.n, env.rules, counts=env.counts)


def plain_mlp(model: MaskedDQN, n: int, rules: PaperRules, *, counts: bool = False) -> MlpQ:
    """The MLP of a model as plain arrays."""
    values = [array.detach().numpy().copy() for array in model.q_net.q_net.parameters()]
    return MlpQ(list(zip(values[::2], values[1::2], strict=True)), n, rules, counts=counts)


class _Follow(BaseCallback):
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
        **_ALIKE,
    )
    assert isinstance(model.policy, ChainPolicy)
    model.policy.load(network)
    model.explore_by(lambda: _FIRST_RATE * (1.0 - model.num_timesteps / max(1, steps)))
    model.learn(steps, callback=_Follow(on_step))
    return model.policy.network()


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
    decay_episodes: float | None = None,
    start: MaskedDQN | None = None,
    on_step: Callable[[int], bool | None] = lambda step: None,
    on_model: Callable[[MaskedDQN], None] = lambda model: None,
    on_episode: Callable[[int], None] = lambda episodes: None,
    **options: Any,
) -> PaperRun:
    """The paper's DQN: an MLP on its five states, exploring valid picks by TDGE, DGE or TGE (Algorithm 2).

    What it does not explore it picks by its Q-values, and then an invalid pick is an answer like others.

    busy: learn for this resource condition alone; None draws one for each episode. phi: of the threshold (Eq. 8).
    start: a model to go on from (its weights are copied). on_step (steps so far) ends it early by returning True;
    on_model is handed the model before it learns; on_episode hears how many episodes have ended. decay_episodes: of
    DGE and TDGE; a third of the episodes that fit by default. options: of stable-baselines3's DQN.
    """
    torch.set_num_threads(1)
    rules = rules or PaperRules()
    env = ChainPaperEnv(n, rules, counts=counts, busy=busy)
    model = MaskedDQN(
        "MlpPolicy",
        env,
        valid=lambda seen: legal_picks(seen, n),
        double=False,
        seed=seed,
        **(_PAPER_DQN | options),
    )
    if start is not None:
        model.policy.load_state_dict(start.policy.state_dict())
    episodes = steps / (2 * (n - 1))
    strategy = Exploration(exploration, threshold(n, rules, phi), decay_episodes or episodes / 3.0)
    model.explore_by(lambda: strategy.rate)
    on_model(model)
    told = TellExploration(strategy, on_episode)
    model.learn(steps, callback=CallbackList([told, _Follow(on_step)]))
    return PaperRun(model, told.returns, strategy)
