"""The exploration rate of training: TDGE of Algorithm 2 (3.3.2) with the threshold of Eq. 8 to 10, and DGE and TGE.

With the probability `Exploration.rate`, epsilon, the next pick is a random one of those that are valid.

- TDGE: epsilon stays 1 until the reward of one episode is above the threshold T(N); from then on it decays.
- DGE: it decays from the first episode.
- TGE: the threshold alone: 1 until an episode is above T(N), then the last rate at once.

The paper gives neither the decay nor Phi: a rate decays by exp(-episodes / decay_episodes), and `PHI` is measured.
"""

from __future__ import annotations

from math import exp, log2

from mdl.errors import ConfigError
from mdl.scheduler.paper.problem import PaperRules

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
