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

The Chain-scheduler's network trained by stable-baselines3's DQN, starting from a network that learned from labels.

Three things keep bootstrapping from undoing what labels taught if ends of busy times are hidden.
- Rewards compare with the layout's result for the rest of the round (`ChainEnv`, "laid-out"). Each is a whole
  episode's return, and luck, which both continuations share, cancels out. The network has little left to add up, so
  `gamma` may be below 1, which makes distant rewards count less.
- The next pick in a target is the one that would really be made: the layout's has the margin (`Picks`).
- Values are kept near those that training starts from (`keep`).

The network's values remain minus the seconds that are left. While it learns, the start's value of the layout's pick
is subtracted from its values, since rewards count from there.

The paper's own DQN by stable-baselines3: an MLP on five states a device, trained on Eq. 7 (`mdl[train]`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import exp, log2
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.dqn.policies import DQNPolicy
from torch.nn import functional

from mdl.errors import ConfigError
from mdl.scheduler.paper.env import legal_picks
from mdl.scheduler.paper.policy import MlpQ, PaperBatch, PaperRules
from mdl.scheduler.policies.features import COLUMN, FEATURES
from mdl.scheduler.policies.qnet_numpy import MARGIN
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
