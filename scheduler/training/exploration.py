"""How often training explores: the strategies that MDLdroid compares (Eq. 8 to 10, Fig. 6), as plain functions.

- DGE: the rate decays with the episodes, whatever was learned;
- TGE: the rate follows how far the returns still are from a target, whatever the episode;
- TDGE: both: it decays, and faster the nearer the target is.

The project's sources name the three, and that the target of Eq. 8 has an offset Phi "obtained from experiment"; they do
not give the printed formulas. These are our readings, and Phi is our measurement. Returns are sums of Eq. 7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import exp

from mdl.errors import ConfigError
from scheduler.paper.problem import PaperRules

# A rate is the probability of a random valid pick, from FIRST down to LAST.
FIRST, LAST = 1.0, 0.02
# DGE and TDGE: after so many episodes 1 / e of the rate is left.
DECAY_EPISODES = 400.0
# The mean return is taken over so many episodes.
WINDOW = 50
# Phi by N, measured: mean return of the exact optimum of Eq. 7 minus the ideal of `ideal_return`, over 2,000 random
# starts (`benchmarks/chain_scheduler.py --part phi`); the text's sign, a fading penalty, no quitting.
PHI = {3: -0.101, 4: -0.292, 5: -0.222, 6: -0.418, 7: -0.339, 8: -0.506, 9: -0.469}


def ideal_return(n: int, rules: PaperRules) -> float:
    """The return of a chain on which nobody is busy and nobody aggregates more than twice.

    2 (n - 1) picks; each device is picked once, the n - 2 between the ends a second time, at battery_cost.
    """
    return rules.goal_reward + 2 * (n - 1) * rules.initial_reward - (n - 2) * rules.battery_cost


def target_return(n: int, rules: PaperRules, phi: float | None = None) -> float:
    """Eq. 8, our reading: target = ideal return + Phi; Phi is what busy devices cost even the best on average."""
    if phi is None and n not in PHI:
        raise ConfigError(f"n {n}: Phi is measured for {min(PHI)} to {max(PHI)} devices; give phi")
    return ideal_return(n, rules) + (PHI[n] if phi is None else phi)


def decay_rate(episode: int, decay_episodes: float = DECAY_EPISODES) -> float:
    """DGE: LAST + (FIRST - LAST) exp(-episode / decay_episodes)."""
    return LAST + (FIRST - LAST) * _decay(episode, decay_episodes)


def target_gap(mean_return: float, target: float, worst: float) -> float:
    """Eq. 9, our reading: the share of the way from the worst to the target return that is still to go, 0 to 1."""
    return min(1.0, max(0.0, (target - mean_return) / (target - worst)))


def target_rate(mean_return: float, target: float, worst: float) -> float:
    """TGE: LAST + (FIRST - LAST) gap."""
    return LAST + (FIRST - LAST) * target_gap(mean_return, target, worst)


def target_decay_rate(
    episode: int, mean_return: float, target: float, worst: float, decay_episodes: float = DECAY_EPISODES
) -> float:
    """TDGE (Eq. 10, our reading): LAST + (FIRST - LAST) gap exp(-episode / decay_episodes)."""
    gap = target_gap(mean_return, target, worst)
    return LAST + (FIRST - LAST) * gap * _decay(episode, decay_episodes)


class Exploration:
    """A strategy by name, told the return of each finished episode; `rate` is the probability to explore now."""

    def __init__(self, name: str, target: float, worst: float, decay_episodes: float = DECAY_EPISODES) -> None:
        if name not in STRATEGIES:
            raise ConfigError(f"exploration {name!r}: expected one of {', '.join(STRATEGIES)}")
        if not worst < target:
            raise ConfigError(f"exploration: the worst return {worst} must be below the target {target}")
        self.name = name
        self.episode = 0
        self._target, self._worst, self._decay_episodes = target, worst, decay_episodes
        self._returns: deque[float] = deque([worst], maxlen=WINDOW)

    def end_episode(self, episode_return: float) -> None:
        if self.episode == 0:
            self._returns.clear()
        self.episode += 1
        self._returns.append(episode_return)

    @property
    def rate(self) -> float:
        return STRATEGIES[self.name](self)

    def _rate_dge(self) -> float:
        return decay_rate(self.episode, self._decay_episodes)

    def _rate_tge(self) -> float:
        return target_rate(self._mean(), self._target, self._worst)

    def _rate_tdge(self) -> float:
        return target_decay_rate(self.episode, self._mean(), self._target, self._worst, self._decay_episodes)

    def _mean(self) -> float:
        return sum(self._returns) / len(self._returns)


STRATEGIES: dict[str, Callable[[Exploration], float]] = {
    "tdge": Exploration._rate_tdge,
    "dge": Exploration._rate_dge,
    "tge": Exploration._rate_tge,
}


def _decay(episode: int, decay_episodes: float) -> float:
    return exp(-episode / decay_episodes)
