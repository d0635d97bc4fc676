"""The paper's scheduling problem as a Gymnasium environment, `mdl/ChainPaper-v0`, for its DQN with an MLP."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from scheduler.paper.problem import Floats, Integers, PaperChain, PaperRules, draw_busy, observe_paper

PAPER_ENV_ID = "mdl/ChainPaper-v0"


class ChainPaperEnv(gymnasium.Env[Floats, np.int64]):
    """MDLdroid's Chain-scheduler, literal: who sends, then who receives, until one device holds everything (3.3.1).

    ## Action space
    `Discrete(n)`: a device. Picks alternate: the sender of a pair, then its receiver. There is no waiting.

    ## Observation space
    `Box(0, 1, (5 n + 1,), float32)`: for each device its state one-hot in the order free, busy, send, get, done; then
    the phase, 0 when a sender is to be picked and 1 when a receiver is. With `counts`, n more columns: how often each
    has aggregated, over n - 1; only then is the process Markov, since the reward depends on it.

    ## Reward
    Eq. 7 in the reading that `rules` names: alpha - beta n_agg, and the busy penalty if the device is busy; +1 with the
    last pick. A pick of a device that is neither free nor busy gives -1.

    ## Start
    0 to n // 2 devices are busy, each for 1 to 4 rounds (only the reading "rounds" ends busy times). `reset(options=
    {"busy": [...]})` starts from given rounds a device.

    ## Episode end
    Terminated after 2 (n - 1) picks (`info["end"] == "goal"`), or by an illegal pick (`"illegal"`). Never truncated.

    ## Info
    `legal`: bool (n,), who may be picked; `n_agg`: int64 (n,); `end`: "" while it goes on.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (declared so by Gymnasium)

    def __init__(self, n: int = 9, rules: PaperRules | None = None, *, counts: bool = False) -> None:
        self.n, self.rules, self.counts = n, rules or PaperRules(), counts
        self.action_space: spaces.Space[np.int64] = spaces.Discrete(n)
        width = 5 * n + 1 + (n if counts else 0)
        self.observation_space: spaces.Space[Floats] = spaces.Box(0.0, 1.0, (width,), np.float32)
        self._chain = PaperChain((0,) * n, self.rules)

    @property
    def legal(self) -> npt.NDArray[np.bool_]:
        """Who may be picked now, bool (n,)."""
        return np.array(self._chain.legal())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        given = (options or {}).get("busy")
        busy = draw_busy(self.n, 1, self.np_random)[0] if given is None else given
        self._chain = PaperChain(tuple(int(left) for left in busy), self.rules)
        return self._observe(), self._info()

    def step(self, action: np.int64) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        reward = self._chain.step(int(action))
        return self._observe(), reward, self._chain.ended, False, self._info()

    def _observe(self) -> Floats:
        chain = self._chain
        state = np.array([chain.state], np.int8)
        seen = observe_paper(state, np.array([chain.pick % 2]), self._n_agg()[None] if self.counts else None)
        return np.asarray(seen[0], np.float32)

    def _n_agg(self) -> Integers:
        return np.array(self._chain.n_agg, np.int64)

    def _info(self) -> dict[str, Any]:
        chain = self._chain
        end = "illegal" if chain.illegal else "goal" if chain.ended else ""
        return {"legal": self.legal, "n_agg": self._n_agg(), "end": end}


if PAPER_ENV_ID not in gymnasium.registry:
    gymnasium.register(PAPER_ENV_ID, entry_point="scheduler.paper.env:ChainPaperEnv")
