"""`ChainEnv` for many iterations side by side, on `mdl.sim.timing.batch`: a Gymnasium vector environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mdl.errors import ConfigError
from mdl.scheduler.policies.features import FEATURES, Look, look_at, observe_receivers, observe_senders
from mdl.scheduler.study.parallel_play import stand_of_rows
from mdl.scheduler.training.env import ILLEGAL_COST, LEADING, ChainEnv, Reward
from mdl.scheduler.training.objective import Objective, finish_batch, finish_batch_by_layout
from mdl.sim.timing.batch import Batch, pack

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Actions = npt.NDArray[np.int64]

# Scenarios are drawn and packed once, this many for each environment; episodes cycle through them.
_POOL_PER_ENV = 4


class ChainVectorEnv(VectorEnv[Floats, Actions, npt.NDArray[Any]]):
    """The same spaces, rewards and ends as `ChainEnv` (its options too), `num_envs` at once; of one max_n, and of hops.

    An environment that ends starts anew in the same step. Observations are those of the new episode, rewards and
    terminations those of the old one; its last observation is dropped, since nothing follows from it. Scenarios come
    from a pool of `pool` that is drawn at `reset(seed=...)`. `info` holds `valid`, bool (num_envs, max_n + 1), and
    `illegal`, bool (num_envs,).
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 (declared so by Gymnasium)

    def __init__(self, num_envs: int, *, pool: int | None = None, reward: Reward = "shaped", **options: Any) -> None:
        self._drawing = ChainEnv(reward=reward, **options)
        if self._drawing.exchange != "chain":
            raise ConfigError(f"exchange {self._drawing.exchange!r}: one by one only (`ChainEnv`); expected chain")
        self.num_envs, self._pool = num_envs, pool or _POOL_PER_ENV * num_envs
        self.single_observation_space: gymnasium.Space[Floats] = self._drawing.observation_space
        self.single_action_space: gymnasium.Space[np.int64] = self._drawing.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._shaped, self._objective = self._drawing.shaped, self._drawing.objective
        self._finish = finish_batch_by_layout if reward == "laid-out" else finish_batch
        self._keeps_plan = reward == "laid-out"
        self._so_far: npt.NDArray[np.float64] = np.zeros(num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        scenarios = [self._drawing.draw(self.np_random) for _ in range(self._pool)]
        self._packed = pack(scenarios)
        self._next = self.num_envs % self._pool
        self._batch = Batch(self._packed, np.arange(self.num_envs) % self._pool)
        self._senders = np.full(self.num_envs, -1)
        self._over = self._move_on(np.ones(self.num_envs, np.bool_))
        self._renew(self._over)
        self._so_far = self._values(np.ones(self.num_envs, np.bool_))
        seen = self._observe(np.ones(self.num_envs, np.bool_))
        return seen, {"valid": self._valid.copy(), "illegal": np.zeros(self.num_envs, np.bool_)}

    def step(
        self, actions: Actions
    ) -> tuple[Floats, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]:
        everybody, width = np.arange(self.num_envs), self._valid.shape[1]
        illegal = ~self._valid[everybody, actions]
        waits = ~illegal & (actions == width - 1)
        sends = ~illegal & ~waits & (self._senders < 0)
        pairs = np.flatnonzero(~illegal & ~waits & ~sends)
        self._batch.start(pairs, self._senders[pairs], actions[pairs])
        self._senders = np.where(sends, actions, -1)
        stuck = waits & ~self._batch.advance(waits)
        self._over = self._move_on(~illegal & ~sends) | stuck
        # The layout's own picks lead to the end that it would have reached anyway.
        planned = (actions == self._planned) & self._keeps_plan
        values = self._values(~planned | self._over)
        rewards = self._so_far - values
        if illegal.any():
            rewards[illegal] = -ILLEGAL_COST * self._packed.exists[self._batch.which[illegal]].sum(axis=1)
        ended = self._over | illegal
        if self._renew(ended):
            self._so_far = values
            values = self._values(ended)
        self._so_far = values
        info = {"illegal": illegal}
        seen = self._observe(~sends)
        return seen, rewards, ended, np.zeros(self.num_envs, np.bool_), info | {"valid": self._valid.copy()}

    def _move_on(self, rows: Bools) -> Bools:
        """Advance these rows until a pair can be made; return the rows that are over."""
        batch = self._batch
        over = batch.ended()
        moving = rows & ~over & (batch.idle().sum(axis=1) < 2)
        while moving.any():
            over |= moving & ~batch.advance(moving)
            over |= batch.ended()
            moving &= ~over & (batch.idle().sum(axis=1) < 2)
        return over

    def _renew(self, ended: Bools) -> bool:
        """Start new episodes in these rows; return True if there were any."""
        rows = np.flatnonzero(ended)
        if not len(rows):
            return False
        while len(rows):
            which = (self._next + np.arange(len(rows))) % self._pool
            self._next = int((self._next + len(rows)) % self._pool)
            place = np.arange(self.num_envs)
            place[rows] = self.num_envs + np.arange(len(rows))
            self._batch = Batch.join([self._batch, Batch(self._packed, which)]).take(place)
            self._senders[rows] = -1
            fresh = np.zeros(self.num_envs, np.bool_)
            fresh[rows] = True
            rows = np.flatnonzero(self._move_on(fresh) & fresh)  # so few survive that there is nothing to decide
        return True

    def _values(self, changed: Bools) -> npt.NDArray[np.float64]:
        """Return J: the present one, or that at the end of a continuation; rows without a change keep theirs."""
        objective: Objective = self._objective
        if not self._shaped:
            return objective.values(self._batch)
        values, rows = self._so_far.copy(), np.flatnonzero(changed)
        if len(rows):
            fork = self._batch.take(rows)
            self._finish(fork, self._senders[rows])
            values[rows] = objective.values(fork)
        return values

    def _observe(self, moved: Bools) -> Floats:
        """Observe all rows. moved: rows in which more than the pick of a sender has happened since the last look."""
        look = self._look_again(np.flatnonzero(moved))
        count, n = look.stand.exists.shape
        seen = np.zeros((count, self.single_observation_space.shape[0], LEADING + len(FEATURES)), np.float32)  # type: ignore[index]
        self._valid, self._planned = np.zeros((count, seen.shape[1] + 1), np.bool_), np.zeros(count, np.int64)
        seen[:, :n, 0] = look.stand.exists
        picking, picked = np.flatnonzero(self._senders < 0), np.flatnonzero(self._senders >= 0)
        for rows, senders in ((picking, None), (picked, self._senders[picked])):
            if not len(rows):
                continue
            there = look if len(rows) == count else look.take(rows)
            features, valid, planned = observe_senders(there) if senders is None else observe_receivers(there, senders)
            self._planned[rows] = np.where(planned < n, planned, seen.shape[1])  # the last action is to wait
            seen[rows, :n, LEADING:] = features
            seen[rows, :n, 1] = self._valid[rows, :n] = valid[:, :n]
            self._valid[rows, -1] = valid[:, n]
        return seen

    def _look_again(self, rows: Actions) -> Look:
        """Look at these rows again; the others keep their last look."""
        if len(rows) == self.num_envs:
            self._look = look_at(stand_of_rows(self._batch, rows))
        elif len(rows):
            self._look.put(rows, look_at(stand_of_rows(self._batch, rows)))
        return self._look
