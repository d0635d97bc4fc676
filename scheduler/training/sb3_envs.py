"""Batches as environments of stable-baselines3. Several `ChainVectorEnv` side by side hold meshes of different sizes,
each kind at its own width, so that small ones do not cost as much as large ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from mdl.scheduler.policies.features import FEATURES
from mdl.scheduler.training.env import LEADING
from mdl.scheduler.training.vector_env import ChainVectorEnv

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
