"""MDLdroid's own scheduling problem (3.3.1): five states a device, two picks a pair, Eq. 7; plain, and a batch.

A pick is a step t, counted from 0. It brings one reward, that of its case in Eq. 7:

    beyond the limit of steps, or an invalid pick    -1, and the episode ends.
    the last pick of a chain, after which one device holds everything    +1.
    a busy device    rho - t rho / 2(N-1)    (printed: rho + t rho / 2(N-1), which the text contradicts).
    a free device that is to send    alpha + beta n_agg
    a free device that is to get    alpha - beta n_agg

n_agg: the device's receptions before. The constants are the paper's: alpha -0.04, beta 0.1, rho -0.8 (a sentence of
the paper swaps the names of beta and rho). A device that is busy at the start stays so for the episode and may be
picked all the same. `ChainPaperEnv` in mdl.scheduler.paper.env is the Gymnasium form.

The paper's scheduling objective (MDLdroid Eq. 4): normalised time plus normalised imbalance of energy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mdl.errors import ConfigError

Floats: TypeAlias = NDArray[np.float32]
Integers: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.int8]
Flags: TypeAlias = NDArray[np.bool_]

# "" while an episode goes on.
End: TypeAlias = Literal["", "goal", "illegal", "limit"]


class PaperState(IntEnum):
    """The five states of 3.3.1. A hop is over with its receiver's pick, so that GET is never seen between two picks."""

    FREE = 0
    BUSY = 1
    SEND = 2
    GET = 3
    DONE = 4


@dataclass(frozen=True)
class PaperRules:
    """The constants of Eq. 7.

    initial_reward: alpha.
    battery_cost: beta, for each reception before.
    busy_penalty: rho, for picking a busy device at step 0.
    goal_reward: for the last pick of a chain.
    illegal_reward: for an invalid pick, and for one beyond the limit.
    printed_sign: the busy penalty grows with t as Eq. 7 is printed; else it decays to 0 as the text says.
    step_limit: picks of an episode; None is 2 (N - 1), the number that a chain of valid picks has.
    """

    initial_reward: float = -0.04
    battery_cost: float = 0.1
    busy_penalty: float = -0.8
    goal_reward: float = 1.0
    illegal_reward: float = -1.0
    printed_sign: bool = False
    step_limit: int | None = None

    def busy_reward(self, step: int, n: int) -> float:
        """Return the reward for a busy device at this step (from 0) of a chain of n devices."""
        grown = step * self.busy_penalty / (2 * (n - 1))
        return self.busy_penalty + (grown if self.printed_sign else -grown)

    def most_steps(self, n: int) -> int:
        return 2 * (n - 1) if self.step_limit is None else self.step_limit


class PaperChain:
    """One episode in plain Python; the reference of `PaperBatch`.

    busy: for each device, True if it is busy at the start, False if it is free.
    """

    def __init__(self, busy: Sequence[int], rules: PaperRules) -> None:
        if len(busy) < 2:
            raise ConfigError(f"a chain needs at least 2 devices, not {len(busy)}")
        self.rules = rules
        self.state = [PaperState.BUSY if each else PaperState.FREE for each in busy]
        self.n_agg = [0] * len(busy)
        self.sender: int | None = None
        self.pick = 0
        self.end: End = ""

    @property
    def ended(self) -> bool:
        return self.end != ""

    def legal(self) -> list[bool]:
        """Return the devices that may be picked: those that are free or busy."""
        return [state <= PaperState.BUSY for state in self.state]

    def step(self, device: int) -> float:
        """Pick the sender, or, if one is picked, its receiver; return the reward (Eq. 7)."""
        n = len(self.state)
        legal = self.legal()[device]
        if self.pick >= self.rules.most_steps(n) or not legal:
            self.end = "limit" if legal else "illegal"
            return self.rules.illegal_reward
        reward = self._reward(device)
        self.pick += 1
        if self.sender is None:
            self.sender = device
            self.state[device] = PaperState.SEND
            return reward
        self.n_agg[device] += 1
        self.state[self.sender] = PaperState.DONE
        self.sender = None
        if self.pick == 2 * (n - 1):
            self.end = "goal"
            return self.rules.goal_reward
        return reward

    def _reward(self, device: int) -> float:
        """Return the reward of a valid pick that does not end the chain."""
        rules = self.rules
        if self.state[device] is PaperState.BUSY:
            return rules.busy_reward(self.pick, len(self.state))
        spent = rules.battery_cost * self.n_agg[device]
        return rules.initial_reward + (spent if self.sender is None else -spent)


def draw_busy(n: int, count: int, rng: np.random.Generator) -> Flags:
    """Draw the busy devices at the start, bool (count, n): 0 to n // 2 a row, the paper's "at most 50 %" (4.4.1)."""
    ranks = rng.random((count, n)).argsort(axis=1)
    return ranks < rng.integers(0, n // 2 + 1, (count, 1))


class PaperBatch:
    """Many episodes at once; one that ends is drawn anew at once. state: int8 (count, n), n_agg: int64 (count, n).

    The same picks give the same rewards as in `PaperChain`. step returns (reward float32 (count,), ended, failed):
    failed is an end other than the goal. busy: the devices that are busy at every start; None draws them (`draw_busy`).
    """

    def __init__(
        self, n: int, count: int, rules: PaperRules, rng: np.random.Generator, *, busy: Sequence[int] | None = None
    ) -> None:
        self.n, self.count, self.rules = n, count, rules
        self._rng = rng
        self._busy = None if busy is None else np.array(busy, bool)
        self._rows = np.arange(count) * n
        picks = max(2 * (n - 1), rules.most_steps(n)) + 1
        self._busy_reward = np.array([rules.busy_reward(pick, n) for pick in range(picks)])
        self.state = np.zeros((count, n), np.int8)
        self.n_agg = np.zeros((count, n), np.int64)
        self.pick = np.zeros(count, np.int64)
        self._sender = np.zeros(count, np.int64)
        self.reset(self._draw(count))

    def _draw(self, count: int) -> Flags:
        return draw_busy(self.n, count, self._rng) if self._busy is None else np.tile(self._busy, (count, 1))

    def reset(self, busy: Flags, rows: Integers | slice = slice(None)) -> None:
        """Start these rows with these busy devices (in the form of `draw_busy`)."""
        self.state[rows] = busy
        self.n_agg[rows] = 0
        self.pick[rows] = 0

    @property
    def legal(self) -> Flags:
        """The devices that may be picked, bool (count, n)."""
        return self.state <= PaperState.BUSY

    def step(self, devices: Integers) -> tuple[Floats, Flags, Flags]:
        """Make one pick in each row."""
        rules = self.rules
        state, n_agg = self.state.reshape(-1), self.n_agg.reshape(-1)
        at, gets = self._rows + devices, self.pick % 2 == 1
        failed = (state[at] > PaperState.BUSY) | (self.pick >= rules.most_steps(self.n))
        free = rules.initial_reward + rules.battery_cost * np.where(gets, -n_agg[at], n_agg[at])
        reward = np.where(state[at] == PaperState.BUSY, self._busy_reward[self.pick], free)
        goal = ~failed & (self.pick + 1 == 2 * (self.n - 1))
        reward = np.where(failed, rules.illegal_reward, np.where(goal, rules.goal_reward, reward))
        n_agg[at[~failed & gets]] += 1
        state[self._sender[~failed & gets]] = PaperState.DONE
        state[at[~failed & ~gets]] = PaperState.SEND
        self._sender = np.where(gets, self._sender, at)
        self.pick += 1
        ended = goal | failed
        over = np.flatnonzero(ended)
        if len(over):
            self.reset(self._draw(len(over)), over)
        return reward.astype(np.float32), ended, failed

    def observe(self, counts: bool = False) -> Floats:
        """Return `observe_paper` of all rows, float32 (count, width)."""
        return observe_paper(self.state, self.n_agg if counts else None)


def observe_paper(state: Codes, n_agg: Integers | None = None) -> Floats:
    """Observe states, float32 (count, 5 n): each device's state one-hot. If a device sends, its receiver is due.

    With n_agg, n more columns: receptions so far over n - 1. Without them the process is not Markov (the reward depends
    on them); the paper's five states leave them out.
    """
    count, n = state.shape
    seen = (state[:, :, None] == np.arange(len(PaperState), dtype=np.int8)).reshape(count, -1)
    if n_agg is not None:
        seen = np.concatenate([seen, n_agg / (n - 1)], axis=1)
    return np.asarray(seen, np.float32)


def energy_variance(energy_j: NDArray[np.float64]) -> float:
    """Return the variance of the energy over the devices: its imbalance (Eq. 6)."""
    return float(np.var(energy_j))


def normalise(values: Sequence[float]) -> list[float]:
    """Return N(x) = (x - min) / (max - min): 0 for the least, 1 for the most; all 0 if they are alike (Eq. 4)."""
    least, most = min(values), max(values)
    return [(value - least) / (most - least) if most > least else 0.0 for value in values]


def objectives(times_s: Sequence[float], variances_j2: Sequence[float]) -> list[float]:
    """Return N(T) + N(E) of several schedules of one iteration, 0 (best in both) to 2 (worst in both).

    times_s: T of Eq. 5, until one device holds everything. variances_j2: E of Eq. 6. The paper does not say over which
    set it takes min and max: here over the schedules that are compared.
    """
    pairs = zip(normalise(times_s), normalise(variances_j2), strict=True)
    return [time + balance for time, balance in pairs]
