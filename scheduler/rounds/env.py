"""The choice of devices for a round as a Gymnasium environment, `mdl/Rounds-v0`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from mdl.errors import ConfigError
from mdl.scheduler.rounds.learned import BOUND, COLUMNS, LONGEST_WAIT_S, observe
from mdl.scheduler.rounds.participation import LEAST_MEMBERS, Bounds, close_with, plan_exchange
from mdl.scheduler.rounds.simulate import RoundsMesh
from mdl.scheduler.rounds.world import FAMILIES, World, check_size, draw_world

Floats = npt.NDArray[np.float32]

ROUNDS_ENV_ID = "mdl/Rounds-v0"
# Seeds of worlds: training draws from here up; lower ones are for tuning and for judging.
FIRST_TRAINING_SEED = 1_000_000
_SEEDS = 2**31


class RoundsEnv(gymnasium.Env[Floats, np.int64]):
    """A mesh for many rounds: again and again wait, or close the open round with some of the devices that can give.

    ## Action space
    `Discrete(max_n + 2)`. 0: wait until a device changes, for 2 s at most. k from 1 to max_n: close with the first k
    devices of the exact plan's order (`in_plan_order`), which is the order of the rows. max_n + 1: close with the best
    set of the plan among the devices that can give now. A close needs two devices that can give, and all that have been
    left out of nine rounds in a row (the bound of the rule `third`). An action that is not possible waits.

    ## Observation space
    `Box(-20, 20, (max_n * F,), float32)`: a row a device, row after row, of the F columns of `COLUMNS` in
    `mdl.scheduler.rounds.learned`. Devices that can give come first, in the plan's order, then the others by the
    time until they can. Rows beyond n are 0. `closes` is 1 in row k - 1 if action k is possible. All of it is what a
    rule sees (`RoundSeen`): no end of a busy time.

    ## Reward
    Progress gained (`mdl.scheduler.rounds.participation`) minus the seconds gone by, over the world's `unit_s`: a local
    period of its median device and the planned exchange of all. Rewards of an episode add up to the progress reached
    minus its whole time in units. Episodes end at a level of progress, so that only the time to it counts.

    ## Start
    `reset(seed=s)` draws a family, n, a size and a world. `reset(options={"world": w})` plays that world.

    ## Episode end
    Terminated at the level. Truncated at the end of the world, after two hours of virtual time.

    ## Info
    `world_id`; `valid`: bool (max_n + 2,); `progress` and `now_s` so far; `reason` of a close, `""` after a wait.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (declared so by Gymnasium)

    def __init__(
        self,
        family: str | Sequence[str] = FAMILIES,
        n: int | tuple[int, int] = 9,
        *,
        size_mb: float | tuple[float, float] = (0.5, 50.0),
        level: float = 10.0,
        max_n: int | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self.families = (family,) if isinstance(family, str) else tuple(family)
        self.n_range = (n, n) if isinstance(n, int) else n
        self.sizes_mb = (size_mb, size_mb) if isinstance(size_mb, int | float) else size_mb
        self.max_n, self.level, self.bounds = max_n or self.n_range[1], level, bounds or Bounds()
        self._check()
        self.action_space: spaces.Space[np.int64] = spaces.Discrete(self.max_n + 2)
        self.observation_space: spaces.Space[Floats] = spaces.Box(
            -BOUND, BOUND, (self.max_n * len(COLUMNS),), np.float32
        )

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """The possible actions, bool (max_n + 2,)."""
        return self._choices.valid.copy()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        world = (options or {}).get("world") or self.draw(self.np_random)
        if len(world.devices) > self.max_n:
            raise ConfigError(f"world {world.world_id}: {len(world.devices)} devices, at most {self.max_n}")
        self.mesh, self.progress = RoundsMesh(world), 0.0
        self.unit_s = unit_of(world)
        return self._observe(), self._info("")

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        mesh, before_s, before = self.mesh, self.mesh.now_s, self.progress
        members, reason = self._choices.members(int(action)), ""
        if members:
            close = close_with(self._seen, members, self.bounds)
            played, reason = mesh.close(close), close.reason
            self.progress += played.worth if played else 0.0
        else:
            mesh.wait(self._seen.open_s + LONGEST_WAIT_S)
        reward = self.progress - before - (mesh.now_s - before_s) / self.unit_s
        done = self.progress >= self.level
        return self._observe(), reward, done, mesh.over and not done, self._info(reason)

    def draw(self, rng: np.random.Generator) -> World:
        """Draw a world to train on, like `reset`."""
        family = self.families[int(rng.integers(len(self.families)))]
        n = int(rng.integers(self.n_range[0], self.n_range[1] + 1))
        size_mb = float(np.exp(rng.uniform(*np.log(self.sizes_mb))))
        return draw_world(family, n, size_mb, int(rng.integers(FIRST_TRAINING_SEED, _SEEDS)))

    def _observe(self) -> Floats:
        self._seen = self.mesh.see()
        self._choices = observe(self._seen, self.bounds, self.max_n)
        return self._choices.observation

    def _info(self, reason: str) -> dict[str, Any]:
        return {
            "world_id": self.mesh.world.world_id,
            "valid": self.valid,
            "progress": self.progress,
            "now_s": self.mesh.now_s,
            "reason": reason,
        }

    def _check(self) -> None:
        unknown = [family for family in self.families if family not in FAMILIES]
        if unknown or not self.families:
            raise ConfigError(f"family {unknown or '()'}: expected some of {', '.join(FAMILIES)}")
        least, most = self.n_range
        if not LEAST_MEMBERS <= least <= most <= self.max_n:
            raise ConfigError(f"n {self.n_range}: expected 2 <= least <= most <= max_n ({self.max_n})")
        check_size(self.max_n, self.sizes_mb[0])
        check_size(self.max_n, self.sizes_mb[1])
        if not (self.sizes_mb[0] <= self.sizes_mb[1] and self.level > 0.0):
            raise ConfigError(f"size_mb {self.sizes_mb}, level {self.level}: expected least <= most, a level above 0")


def unit_of(world: World) -> float:
    """Return the seconds that rewards are counted in: a median device's local period, and the exchange of all."""
    rates = [device.measured_at(0.0)[0] for device in world.devices]
    exchange_s = plan_exchange(rates, [True] * len(rates), world.size_mb, world.latency_s).seconds
    return float(np.median([device.period_s for device in world.devices])) + exchange_s


if ROUNDS_ENV_ID not in gymnasium.registry:
    gymnasium.register(ROUNDS_ENV_ID, entry_point="mdl.scheduler.rounds.env:RoundsEnv")
