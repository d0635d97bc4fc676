"""The paper's scheduling problem as a Gymnasium environment, `mdl/ChainPaper-v0`, for its DQN with an MLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from mdl.scheduler.paper.policy import Floats, Integers, PaperChain, PaperRules, PaperState, draw_busy, observe_paper

PAPER_ENV_ID = "mdl/ChainPaper-v0"


class ChainPaperEnv(gymnasium.Env[Floats, np.int64]):
    """MDLdroid's Chain-scheduler, literally: pick sender and receiver in turn until one device holds all (3.3.1).

    ## Action space
    `Discrete(n)`: a device. Picks alternate: the sender of a pair, then its receiver. There is no waiting.

    ## Observation space
    `Box(0, 1, (5 n,), float32)`: for each device its state one-hot in the order free, busy, send, get, done. With
    `counts`, n more columns: each device's receptions, over n - 1. Only then is the process Markov, since the reward
    depends on them.

    ## Reward
    Eq. 7 (`PaperRules`): one case a pick, listed in scheduler/paper/policy.py.

    ## Start
    0 to n // 2 devices are busy, for the whole episode. `busy`, or `reset(options={"busy": [...]})`, sets them: the
    paper's agent learns for the resource condition that it is given, and again when that changes (3.3.3).

    ## Episode end
    Terminated after 2 (n - 1) picks (`info["end"] == "goal"`), by an illegal pick (`"illegal"`), or by one beyond the
    rules' `step_limit` (`"limit"`). Never truncated.

    ## Info
    `legal`: bool (n,), the devices that may be picked; `n_agg`: int64 (n,); `end`: "" while it goes on.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (declared so by Gymnasium)

    def __init__(
        self, n: int = 9, rules: PaperRules | None = None, *, counts: bool = False, busy: Sequence[int] | None = None
    ) -> None:
        self.n, self.rules, self.counts, self.busy = n, rules or PaperRules(), counts, busy
        self.action_space: spaces.Space[np.int64] = spaces.Discrete(n)
        width = 5 * n + (n if counts else 0)
        self.observation_space: spaces.Space[Floats] = spaces.Box(0.0, 1.0, (width,), np.float32)
        self._chain = PaperChain((0,) * n, self.rules)

    @property
    def legal(self) -> npt.NDArray[np.bool_]:
        """The devices that may be picked now, bool (n,)."""
        return np.array(self._chain.legal())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        given = (options or {}).get("busy", self.busy)
        self._chain = PaperChain(draw_busy(self.n, 1, self.np_random)[0] if given is None else given, self.rules)
        return self._observe(), self._info()

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        reward = self._chain.step(int(action))
        return self._observe(), reward, self._chain.ended, False, self._info()

    def _observe(self) -> Floats:
        state = np.array([self._chain.state], np.int8)
        return np.asarray(observe_paper(state, self._n_agg()[None] if self.counts else None)[0], np.float32)

    def _n_agg(self) -> Integers:
        return np.array(self._chain.n_agg, np.int64)

    def _info(self) -> dict[str, Any]:
        return {"legal": self.legal, "n_agg": self._n_agg(), "end": self._chain.end}


def legal_picks(seen: Floats, n: int) -> npt.NDArray[np.bool_]:
    """Return legal picks, bool (count, n), in a batch of this environment's observations: free and busy devices."""
    states = seen[:, : 5 * n].reshape(len(seen), n, 5)
    return (states[:, :, PaperState.FREE] > 0) | (states[:, :, PaperState.BUSY] > 0)


if PAPER_ENV_ID not in gymnasium.registry:
    gymnasium.register(PAPER_ENV_ID, entry_point="mdl.scheduler.paper.env:ChainPaperEnv")
