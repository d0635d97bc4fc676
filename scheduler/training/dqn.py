"""DQN by stable-baselines3 with our network, our exploration and no illegal picks: `MaskedDQN`, `ChainPolicy`.

stable-baselines3 sets the exploration rate from `exploration_schedule` after every step, so this module replaces the
schedule, not the rate. It explores in `_sample_action` without asking `predict` while `learning_starts` lasts, so
`_sample_action` chooses among the valid picks here. Its own save format is a pickle: networks are kept as safetensors.

Exploration is TDGE of Algorithm 2 (3.3.2) with the threshold of Eq. 8 to 10, or DGE or TGE. With the probability
`Exploration.rate`, epsilon, the next pick is a random one of those that are valid.

- TDGE: epsilon stays 1 until the reward of one episode is above the threshold T(N); from then on it decays.
- DGE: it decays from the first episode.
- TGE: the threshold alone: 1 until an episode is above T(N), then the last rate at once.

The paper gives neither the decay nor Phi: a rate decays by exp(-episodes / decay_episodes), and `PHI` is measured.

Batches are environments of stable-baselines3 (`ChainVecEnv`). Several `ChainVectorEnv` side by side hold meshes of
different sizes, each kind at its own width, so that small ones do not cost as much as large ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log2
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.dqn.policies import DQNPolicy
from torch.nn import functional

from mdl.errors import ConfigError
from mdl.scheduler.paper.problem import PaperRules
from mdl.scheduler.policies.features import COLUMN, FEATURES
from mdl.scheduler.training.env import LEADING, ChainVectorEnv, split_observation
from mdl.scheduler.training.qnet_torch import QNetwork

# Epsilon starts at 1 (Algorithm 2) and does not fall below LAST, so that a wrong policy is found out.
FIRST, LAST = 1.0, 0.02
# This many episodes after decay has begun, 1 / e of the rate is left.
DECAY_EPISODES = 400.0
STRATEGIES = ("tdge", "dge", "tge")
# With half of the devices busy one random episode in a hundred is above T(N), at N = 9; at N = 3 to 8 more are. With a
# smaller offset TDGE and TGE might never stop exploring (`python -m benchmarks chain_scheduler --part phi`).
PHI = 1.32


def balance_reward(n: int, battery_cost: float) -> float:
    """Return f(N) of Eq. 9, the highest reward of battery balance: beta (N mod 2) + f(N // 2), f(0) = f(1) = 0."""
    return battery_cost * (n % 2) + balance_reward(n // 2, battery_cost) if n > 1 else 0.0


def latency_reward(n: int, battery_cost: float) -> float:
    """Return g(N) of Eq. 10, the optimal reward of latency: beta log2 N."""
    return battery_cost * log2(n)


def threshold(n: int, rules: PaperRules, phi: float = PHI) -> float:
    """Return T(N) of Eq. 8: f(N) + g(N) - Phi."""
    return balance_reward(n, rules.battery_cost) + latency_reward(n, rules.battery_cost) - phi


class Exploration:
    """A strategy by name, told the reward of each finished episode; `rate` is the probability to explore now.

    threshold: T(N), in sums of Eq. 7. episode: the number of ended episodes. passed_at: the number of the first one
    above the threshold, counted from 1; None before.
    """

    def __init__(self, name: str, threshold: float, decay_episodes: float = DECAY_EPISODES) -> None:
        if name not in STRATEGIES:
            raise ConfigError(f"exploration {name!r}: expected one of {', '.join(STRATEGIES)}")
        self.name = name
        self.episode = 0
        self.passed_at: int | None = None
        self._threshold, self._decay_episodes = threshold, decay_episodes

    def end_episode(self, episode_return: float) -> None:
        self.episode += 1
        if self.passed_at is None and episode_return > self._threshold:
            self.passed_at = self.episode

    @property
    def rate(self) -> float:
        begun = 0 if self.name == "dge" else self.passed_at
        if begun is None:
            return FIRST
        return LAST if self.name == "tge" else decay_rate(self.episode - begun, self._decay_episodes)


def decay_rate(episodes: int, decay_episodes: float) -> float:
    """Return epsilon so many episodes after its decay began: LAST + (FIRST - LAST) exp(-episodes / decay_episodes)."""
    return LAST + (FIRST - LAST) * exp(-episodes / decay_episodes)


Actions: TypeAlias = npt.NDArray[np.int64]
_WAIT_VALID = COLUMN["wait_valid"]
_PLAN_SENDS, _PLAN_RECEIVES, _SECOND = (
    LEADING + COLUMN[name] for name in ("plan_sends", "plan_receives", "receiver_phase")
)
# The valid actions, bool (B, A), of a batch of observations.
Valid: TypeAlias = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.bool_]]


class MaskedDQN(DQN):
    """DQN that explores valid actions only, with its own generator, and by Double-DQN (van Hasselt et al., 2016).

    valid: see `Valid`; None allows every action. It limits exploration, not the network's picks.
    """

    def __init__(self, *args: Any, valid: Valid | None = None, double: bool = True, **kwargs: Any) -> None:
        self._valid, self._double = valid, double
        self._chance = np.random.default_rng(kwargs.get("seed"))
        super().__init__(*args, **kwargs)

    def explore_by(self, rate: Callable[[], float]) -> None:
        """Take the exploration rate from this function from now on."""
        self.exploration_schedule = lambda _: rate()
        self.exploration_rate = rate()

    def _sample_action(
        self, learning_starts: int, action_noise: ActionNoise | None = None, n_envs: int = 1
    ) -> tuple[Actions, Actions]:
        assert isinstance(self._last_obs, np.ndarray)
        rate = 1.0 if self.num_timesteps < learning_starts else self.exploration_rate
        explores = self._chance.random(n_envs) < rate
        actions: Actions = np.zeros(n_envs, np.int64)
        if not explores.all():
            actions = np.asarray(self.policy.predict(self._last_obs, deterministic=True)[0], np.int64)
        any_valid = self._draw(self._last_obs)
        actions = np.where(explores, any_valid, actions)
        return actions, actions

    def _draw(self, seen: npt.NDArray[np.float32]) -> Actions:
        draws = self._chance.random((len(seen), int(self.action_space.n)))  # type: ignore[attr-defined]
        if self._valid is not None:
            draws = np.where(self._valid(seen), draws, -1.0)
        return np.asarray(draws.argmax(axis=1), np.int64)

    def _pick(self, network: Any, seen: torch.Tensor) -> torch.Tensor:
        """Return the action (B, 1) that a network picks, int64."""
        best: torch.Tensor = network(seen).argmax(dim=1, keepdim=True)
        return best

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Train like the base class, but let the network pick the next action and the target network value it."""
        if not self._double:
            super().train(gradient_steps, batch_size)
            return
        assert self.replay_buffer is not None
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        for _ in range(gradient_steps):
            sample = self.replay_buffer.sample(batch_size)
            with torch.no_grad():
                best = self._pick(self.q_net, sample.next_observations)
                following = self.q_net_target(sample.next_observations).gather(1, best)
                target = sample.rewards + (1 - sample.dones) * self.gamma * following
            current = self.q_net(sample.observations).gather(1, sample.actions.long())
            loss = functional.smooth_l1_loss(current, target)
            self.policy.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
        self._n_updates += gradient_steps


class ChainPolicy(DQNPolicy):
    """stable-baselines3's policy around `QNetwork`: one network for any number of devices, invalid picks masked."""

    def make_q_net(self) -> Any:
        return _MaskedQ(self.observation_space, self.action_space).to(self.device)

    def load(self, network: QNetwork, *, margin: float = 0.0) -> None:  # type: ignore[override]
        """Start from this network's weights (the target network too); margin: in favour of the layout's pick."""
        for net in (self.q_net, self.q_net_target):
            assert isinstance(net, _MaskedQ)
            net.network.load_weights(network.weights())
            net.margin = margin

    def frozen(self, network: QNetwork) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the values of a network that does not learn, for the same observations."""
        net = _MaskedQ(self.observation_space, self.action_space)
        net.network.load_weights(network.weights())
        return net.requires_grad_(False)

    def network(self) -> QNetwork:
        """Copy the learned network."""
        assert isinstance(self.q_net, _MaskedQ)
        return QNetwork(weights=self.q_net.network.weights())


class _MaskedQ(BasePolicy):
    """`QNetwork` on observations of `ChainEnv`."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        super().__init__(observation_space, action_space)
        self.network = QNetwork(seed=int(torch.randint(2**31, (1,)).item()))
        self.margin = 0.0

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        leading, features = seen[:, :, :2], seen[:, :, 2:]
        waits = features[:, :, _WAIT_VALID].amax(dim=1, keepdim=True) > 0
        valid = torch.cat([leading[:, :, 1] > 0, waits], dim=1)
        values: torch.Tensor = self.network(features, leading[:, :, 0] > 0, valid)
        return values

    def _predict(self, observation: Any, deterministic: bool = True) -> torch.Tensor:
        return margin_pick(self(observation), observation, self.margin).reshape(-1)


class TellExploration(BaseCallback):
    """Tells an `Exploration` the return of each finished episode; keeps them all in `returns`.

    on_episode gets the number of ended episodes and the last return; training ends if it returns True.
    """

    def __init__(
        self,
        exploration: Exploration | None = None,
        on_episode: Callable[[int, float], bool | None] = lambda episodes, last: None,
    ) -> None:
        super().__init__()
        self._on_episode = on_episode
        self.returns: list[float] = []
        self._exploration = exploration
        self._sums: npt.NDArray[np.float64] = np.zeros(0)

    def _on_step(self) -> bool:
        rewards, dones = self.locals["rewards"], self.locals["dones"]
        if not len(self._sums):
            self._sums = np.zeros(len(rewards))
        self._sums += rewards
        goes_on = True
        for row in np.flatnonzero(dones).tolist():
            self.returns.append(float(self._sums[row]))
            if self._exploration is not None:
                self._exploration.end_episode(self.returns[-1])
            self._sums[row] = 0.0
            goes_on &= not self._on_episode(len(self.returns), self.returns[-1])
        return goes_on


class FollowSteps(BaseCallback):
    """Calls a function after each step; training ends if it returns True."""

    def __init__(self, on_step: Callable[[int], bool | None]) -> None:
        super().__init__()
        self._tell = on_step

    def _on_step(self) -> bool:
        return not self._tell(self.num_timesteps)


def valid_actions(seen: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Return the valid picks (B, M + 1) in a batch of `ChainEnv`'s observations (B, M, LEADING + F)."""
    return split_observation(seen)[2]


def planned_picks(seen: torch.Tensor) -> torch.Tensor:
    """Return the layout's pick (B, 1) in observations (B, M, 2 + F), M for waiting."""
    second = seen[:, :, _SECOND].amax(dim=1, keepdim=True) > 0
    marks = torch.where(second, seen[:, :, _PLAN_RECEIVES], seen[:, :, _PLAN_SENDS])
    most, place = marks.max(dim=1, keepdim=True)
    return torch.where(most > 0, place, torch.full_like(place, seen.shape[1]))


def margin_pick(values: torch.Tensor, seen: torch.Tensor, margin: float) -> torch.Tensor:
    """Return the pick (B, 1): the best of values (B, M + 1), with `margin` in favour of the layout's."""
    planned = planned_picks(seen)
    return values.scatter_add(1, planned, torch.full_like(planned, margin, dtype=values.dtype)).argmax(1, keepdim=True)


Floats = npt.NDArray[np.float32]
_BOUND = 1e4


class BatchVecEnv(VecEnv):
    """A batch in the form that stable-baselines3 expects: `step_wait` plays `_actions`; no environment stands alone."""

    _actions: npt.NDArray[np.int64]

    def step_async(self, actions: npt.NDArray[Any]) -> None:
        self._actions = np.asarray(actions, np.int64)

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        if attr_name == "render_mode":
            return [None] * self.num_envs
        raise AttributeError(attr_name)

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError(attr_name)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class ChainVecEnv(BatchVecEnv):
    """Observations (num_envs, M, 2 + F) and actions of the widest group, M devices; action M waits in each.

    Episodes start anew in the same step. The last observation of an ended one is not kept, since nothing follows.
    """

    def __init__(self, groups: Sequence[ChainVectorEnv]) -> None:
        self._groups = list(groups)
        self._widths = [group.single_observation_space.shape[0] for group in self._groups]  # type: ignore[index]
        self._widest = max(self._widths)
        self._ends = np.cumsum([group.num_envs for group in self._groups])[:-1]
        shape = (self._widest, LEADING + len(FEATURES))
        super().__init__(
            sum(group.num_envs for group in self._groups),
            spaces.Box(-_BOUND, _BOUND, shape, np.float32),
            spaces.Discrete(self._widest + 1),
        )

    def reset(self) -> Floats:
        seeds = self._seeds if self._seeds[0] is not None else [None] * self.num_envs
        firsts = [0, *self._ends.tolist()]
        seen = [group.reset(seed=seeds[first])[0] for group, first in zip(self._groups, firsts, strict=True)]
        self._reset_seeds()
        return self._join(seen)

    def step_wait(self) -> tuple[Floats, npt.NDArray[np.float32], npt.NDArray[np.bool_], list[dict[str, Any]]]:
        seen, rewards, ended = [], [], []
        for group, width, actions in zip(self._groups, self._widths, np.split(self._actions, self._ends), strict=True):
            each = group.step(np.where(actions == self._widest, width, actions))
            seen.append(each[0])
            rewards.append(each[1])
            ended.append(each[2])
        told: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        return self._join(seen), np.concatenate(rewards).astype(np.float32), np.concatenate(ended), told

    def _join(self, parts: Sequence[Floats]) -> Floats:
        rows = [np.pad(part, ((0, 0), (0, self._widest - part.shape[1]), (0, 0))) for part in parts]
        return np.concatenate(rows)
