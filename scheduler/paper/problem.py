"""MDLdroid's own scheduling problem (3.3.1): five states a device, two picks a pair, its reward; plain, and a batch.

What the paper's text fixes is here as it is: the states free, busy, send, get, done; initial reward alpha = -0.04,
battery cost beta = 0.1, busy penalty rho = -0.8 (its names for beta and rho are swapped, see docs/paper-notes.md);
an end after 2 (N - 1) picks; -1 for a pick that cannot be. The reward is a reading of Eq. 4 to 7, not a quotation of
the printed formulas: `PaperRules` names each choice. `ChainPaperEnv` in scheduler.paper.env is the Gymnasium form.
"""

from __future__ import annotations

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

# A device that is busy at the start stays so for 0.5 to 4 transfers (the paper's family): this many whole rounds.
_LONGEST_BUSY_ROUNDS = 4


class PaperState(IntEnum):
    """The five states of 3.3.1. GET is seen only where hops last (the reading "rounds")."""

    FREE = 0
    BUSY = 1
    SEND = 2
    GET = 3
    DONE = 4


@dataclass(frozen=True)
class PaperRules:
    """Reward of a pick (Eq. 7): initial_reward - battery_cost * n_agg + busy penalty, if the device is busy.

    n_agg: hops the device took part in before. busy: "fades": the penalty is an initial one, and shrinks to 0 over the
    picks of the episode; "stays": it does not; "rounds": pairs run side by side in rounds, nobody twice in one, and a
    busy device is free again after 1 to 4 rounds. printed_sign: the printed formula rewards what the text punishes.
    """

    initial_reward: float = -0.04
    battery_cost: float = 0.1
    busy_penalty: float = -0.8
    goal_reward: float = 1.0
    illegal_reward: float = -1.0
    busy: Literal["fades", "stays", "rounds"] = "fades"
    printed_sign: bool = False

    def __post_init__(self) -> None:
        if self.busy not in ("fades", "stays", "rounds"):
            raise ConfigError(f"busy {self.busy!r}: expected one of fades, stays, rounds")

    def penalty(self, pick: int, picks: int) -> float:
        """What picking a busy device adds to the reward of this pick (counted from 0, of `picks`)."""
        left = 1.0 - pick / picks if self.busy == "fades" else 1.0
        return (-left if self.printed_sign else left) * self.busy_penalty


class PaperChain:
    """One episode in plain Python; the reference of `PaperBatch`.

    busy: for each device how many rounds it is busy from the start, 0 if it is free (above 0 is "busy" where busy
    times do not end).
    """

    def __init__(self, busy: tuple[int, ...], rules: PaperRules) -> None:
        if len(busy) < 2:
            raise ConfigError(f"a chain needs at least 2 devices, not {len(busy)}")
        self.rules = rules
        self.state = [PaperState.BUSY if left else PaperState.FREE for left in busy]
        self.n_agg = [0] * len(busy)
        self.sender: int | None = None
        self.pick = 0
        self.picks = 2 * (len(busy) - 1)
        self.ended = False
        self.illegal = False
        self.busy_left = list(busy)

    def legal(self) -> list[bool]:
        """The devices that may be picked: those that are free or busy."""
        return [state <= PaperState.BUSY for state in self.state]

    def step(self, device: int) -> float:
        """Pick the sender, or, if one is picked, its receiver; returns the reward (Eq. 7)."""
        if not self.legal()[device]:
            self.ended = self.illegal = True
            return self.rules.illegal_reward
        reward = self.rules.initial_reward - self.rules.battery_cost * self.n_agg[device]
        if self.state[device] is PaperState.BUSY:
            reward += self.rules.penalty(self.pick, self.picks)
        self.pick += 1
        if self.sender is None:
            self.sender = device
            self.state[device] = PaperState.SEND
        else:
            self._aggregate(self.sender, device)
        self.ended = self.pick == self.picks
        return reward + (self.rules.goal_reward if self.ended else 0.0)

    def _aggregate(self, sender: int, receiver: int) -> None:
        self.sender = None
        self.n_agg[sender] += 1
        self.n_agg[receiver] += 1
        if self.rules.busy != "rounds":
            self.state[sender] = PaperState.DONE
            return
        self.state[receiver] = PaperState.GET
        if self.state.count(PaperState.FREE) < 2:
            self._close_round()

    def _close_round(self) -> None:
        self.busy_left = [max(0, left - 1) for left in self.busy_left]
        for device, state in enumerate(self.state):
            if state in (PaperState.SEND, PaperState.DONE):
                self.state[device] = PaperState.DONE
            else:
                self.state[device] = PaperState.BUSY if self.busy_left[device] else PaperState.FREE


def draw_busy(n: int, count: int, rng: np.random.Generator) -> Integers:
    """Rounds that each is busy from the start, int64 (count, n): 0 to n // 2 devices of a row, for 1 to 4 (4.4)."""
    ranks = rng.random((count, n)).argsort(axis=1)
    busy = ranks < rng.integers(0, n // 2 + 1, (count, 1))
    return np.where(busy, rng.integers(1, _LONGEST_BUSY_ROUNDS + 1, (count, n)), 0)


class PaperBatch:
    """Many episodes at once; one that ends is drawn anew at once. state: int8 (count, n), n_agg: int64 (count, n).

    The same picks give the same rewards as `PaperChain`. step returns (reward float32 (count,), ended, illegal).
    """

    def __init__(self, n: int, count: int, rules: PaperRules, rng: np.random.Generator) -> None:
        self.n, self.count, self.rules = n, count, rules
        self.picks = 2 * (n - 1)
        self._rng = rng
        self._rows = np.arange(count) * n
        self._penalty = np.array([rules.penalty(pick, self.picks) for pick in range(self.picks)], np.float32)
        self.state = np.zeros((count, n), np.int8)
        self.n_agg = np.zeros((count, n), np.int64)
        self.pick = np.zeros(count, np.int64)
        self._sender = np.zeros(count, np.int64)
        self._busy_left = np.zeros((count, n), np.int64)
        self.reset(draw_busy(n, count, rng))

    def reset(self, busy: Integers, rows: Integers | slice = slice(None)) -> None:
        """Start these rows with these busy devices (as `draw_busy` gives them)."""
        self.state[rows] = busy > 0
        self._busy_left[rows] = busy
        self.n_agg[rows] = 0
        self.pick[rows] = 0

    @property
    def legal(self) -> Flags:
        """Who may be picked, bool (count, n)."""
        return self.state <= PaperState.BUSY

    def step(self, devices: Integers) -> tuple[Floats, Flags, Flags]:
        """One pick in each row."""
        state, n_agg = self.state.reshape(-1), self.n_agg.reshape(-1)
        at = self._rows + devices
        was = state[at]
        legal = was <= PaperState.BUSY
        reward = self.rules.initial_reward - self.rules.battery_cost * n_agg[at]
        reward += self._penalty[self.pick] * (was == PaperState.BUSY)
        sends = legal & (self.pick % 2 == 0)
        state[at[sends]] = PaperState.SEND
        gets = legal & (self.pick % 2 == 1)
        senders, receivers = self._sender[gets], at[gets]
        n_agg[senders] += 1
        n_agg[receivers] += 1
        if self.rules.busy == "rounds":
            state[receivers] = PaperState.GET
            self._close_rounds(np.flatnonzero(gets))
        else:
            state[senders] = PaperState.DONE
        self._sender = np.where(sends, at, self._sender)
        self.pick += 1
        goal = legal & (self.pick == self.picks)
        reward = np.where(legal, reward + self.rules.goal_reward * goal, self.rules.illegal_reward)
        ended = goal | ~legal
        over = np.flatnonzero(ended)
        if len(over):
            self.reset(draw_busy(self.n, len(over), self._rng), over)
        return reward.astype(np.float32), ended, ~legal

    def _close_rounds(self, rows: Integers) -> None:
        rows = rows[(self.state[rows] == PaperState.FREE).sum(axis=1) < 2]
        state = self.state[rows]
        left = np.maximum(self._busy_left[rows] - 1, 0)
        gone = (state == PaperState.SEND) | (state == PaperState.DONE)
        self.state[rows] = np.where(gone, PaperState.DONE, left > 0)
        self._busy_left[rows] = left

    def observe(self, counts: bool = False) -> Floats:
        """As `observe_paper`, float32 (count, width)."""
        return observe_paper(self.state, self.pick % 2, self.n_agg if counts else None)


def observe_paper(state: Codes, phase: Integers, n_agg: Integers | None = None) -> Floats:
    """What the network sees, float32 (count, 5 n + 1): states one-hot, then the phase (0 sender, 1 receiver).

    With n_agg, n more columns: hops so far over n - 1. Without them the process is not Markov (docs/paper-notes.md).
    """
    count, n = state.shape
    seen = np.zeros((count, 5 * n + 1 + (n if n_agg is not None else 0)), np.float32)
    seen[:, : 5 * n] = (state[:, :, None] == np.arange(5, dtype=np.int8)).reshape(count, 5 * n)
    seen[:, 5 * n] = phase
    if n_agg is not None:
        seen[:, 5 * n + 1 :] = n_agg / (n - 1)
    return seen


def energy_variance(energy_j: NDArray[np.float64]) -> float:
    """How unevenly the energy is spent (Eq. 6): the variance over the devices."""
    return float(np.var(energy_j))
