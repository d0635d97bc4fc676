"""The Chain-scheduler's network trained by stable-baselines3's DQN, starting from a network that learned from labels.

Three things keep bootstrapping from undoing what labels taught if ends of busy times are hidden.
- Rewards compare with the layout's result for the rest of the round (`ChainEnv`, "laid-out"). Each is a whole
  episode's return, and luck, which both continuations share, cancels out. The network has little left to add up, so
  `gamma` may be below 1, which makes distant rewards count less.
- The next pick in a target is the one that would really be made: the layout's has the margin (`Picks`).
- Values are kept near those that training starts from (`keep`).

The network's values remain minus the seconds that are left. While it learns, the start's value of the layout's pick
is subtracted from its values, since rewards count from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback

from mdl.scheduler.policies.qnet_numpy import MARGIN
from mdl.scheduler.training.dqn import (
    Actions,
    ChainPolicy,
    ChainVecEnv,
    MaskedDQN,
    margin_pick,
    planned_picks,
    valid_actions,
)
from mdl.scheduler.training.env import ChainVectorEnv
from mdl.scheduler.training.qnet_torch import QNetwork

# Groups of environments: least and greatest N, number. Larger meshes cost more by pick than they teach.
GROUPS = (((3, 9), 24), ((8, 16), 16))
# `varied` comes most often, since it has to carry over; the start solves `paper`, which only has to stay so.
FAMILIES = ("paper", "hetero", "dynamic", "dynamic", "dying", "varied", "varied", "varied")
# Episodes until a scenario comes again.
_POOL = 8
_PRIOR_ENERGY_J = 3.0
# The share of picks that explore, at first and at last; half go by value (Boltzmann, in transfers), half by chance.
_FIRST_RATE, _LAST_RATE = 0.3, 0.1
_TEMPERATURE = 0.5
# Targets beyond this many transfers are cut, like labels: rare long calls would drown the rest.
_CUT = 5.0
# Invalid picks are valued far below this.
_NEVER = -1e6
_BATCH = 256
_BUFFER = 12_000


@dataclass(frozen=True)
class DqnSettings:
    """gamma: discount. keep: weight of staying near the values of the start. rate: of learning, falls to a tenth."""

    gamma: float = 0.9
    keep: float = 0.05
    rate: float = 3e-4
    margin: float = MARGIN
    families: tuple[str, ...] = FAMILIES
    groups: tuple[tuple[tuple[int, int], int], ...] = GROUPS


class ChainDQN(MaskedDQN):
    """`MaskedDQN` on "laid-out" rewards: see the module. start: the network from which values are counted."""

    def __init__(self, *args: Any, start: QNetwork, settings: DqnSettings, **kwargs: Any) -> None:
        self._settings = settings
        super().__init__(*args, valid=valid_actions, gamma=settings.gamma, **kwargs)
        assert isinstance(self.policy, ChainPolicy)
        self.policy.load(start, margin=settings.margin)
        self._start = self.policy.frozen(start)

    def _draw(self, seen: npt.NDArray[np.float32]) -> Actions:
        """Draw exploring picks: half take any valid pick, half a pick that may well be the best."""
        with torch.no_grad():
            values = self.q_net(torch.from_numpy(seen)).numpy()
        values = values + self._chance.gumbel(0.0, _TEMPERATURE, values.shape)
        near = np.where(valid_actions(seen), values, -np.inf).argmax(axis=1)
        return np.where(self._chance.random(len(seen)) < 0.5, near, super()._draw(seen))

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        assert self.replay_buffer is not None
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        for _ in range(gradient_steps):
            sample = self.replay_buffer.sample(batch_size)
            seen, after = sample.observations, sample.next_observations
            with torch.no_grad():
                pick = margin_pick(self.q_net(after), after, self._settings.margin)
                following = self.q_net_target(after).gather(1, pick) - self._from(self._start(after), after)
                target = sample.rewards + (1 - sample.dones) * self.gamma * following
                target = target.clamp(-_CUT, _CUT)
                began = self._start(seen)
            values = self.q_net(seen)
            current = values.gather(1, sample.actions.long()) - self._from(began, seen)
            valid = began > _NEVER
            apart = torch.where(valid, values - began, 0.0).square().sum(dim=1) / valid.sum(dim=1)
            loss = (current - target).square().mean() + self._settings.keep * apart.mean()
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
        self._n_updates += gradient_steps

    @staticmethod
    def _from(began: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return began.gather(1, planned_picks(seen))


class _Kept(BaseCallback):
    """Hands the network to a function every `every` steps; training ends if it returns True."""

    def __init__(self, every: int, on_network: Callable[[int, QNetwork], bool | None]) -> None:
        super().__init__()
        self._every, self._tell, self._next = every, on_network, every

    def _on_step(self) -> bool:
        if self.num_timesteps < self._next:
            return True
        self._next += self._every
        assert isinstance(self.model.policy, ChainPolicy)
        return not self._tell(self.num_timesteps, self.model.policy.network())


def describe_training(steps: int, seed: int, settings: DqnSettings | None = None) -> dict[str, object]:
    """Describe the training for a policy file."""
    return {
        "trained_by": f"stable-baselines3 {stable_baselines3.__version__} DQN, on mdl/Chain-v0",
        "steps": steps,
        "seed": seed,
        "settings": asdict(settings or DqnSettings()),
    }


def train_chain_dqn(
    start: QNetwork,
    steps: int,
    seed: int,
    *,
    settings: DqnSettings | None = None,
    every: int = 5_000,
    on_network: Callable[[int, QNetwork], bool | None] = lambda step, network: None,
) -> tuple[QNetwork, int]:
    """Train for `steps` picks in all environments together; return the network and the steps done.

    on_network gets the network every so many steps and ends training by returning True. The same start, steps, seed and
    settings give the same network on the same machine.
    """
    torch.set_num_threads(1)
    settings = settings or DqnSettings()
    groups = [
        ChainVectorEnv(
            count,
            family=settings.families,
            n=sizes,
            reward="laid-out",
            prior_energy_j=_PRIOR_ENERGY_J,
            pool=_POOL * count,
        )
        for sizes, count in settings.groups
    ]
    model = ChainDQN(
        ChainPolicy,
        ChainVecEnv(groups),
        start=start,
        settings=settings,
        seed=seed,
        learning_rate=lambda left: settings.rate * (0.1 + 0.9 * left),
        learning_starts=min(4_000, steps // 4),
        batch_size=_BATCH,
        buffer_size=_BUFFER,
        train_freq=1,
        gradient_steps=1,
        target_update_interval=4_000,
        device="cpu",
    )
    model.explore_by(lambda: _FIRST_RATE + (_LAST_RATE - _FIRST_RATE) * min(1.0, model.num_timesteps / max(1, steps)))
    model.learn(steps, callback=_Kept(every, on_network))
    assert isinstance(model.policy, ChainPolicy)
    return model.policy.network(), model.num_timesteps
