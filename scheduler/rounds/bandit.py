"""A participation rule that tunes itself: a bandit over the share that must be able to give, and the grace. Pure.

Each arm is a pair of bounds of the rule `third`. A round is played under one arm. Its reward is its worth over its
seconds, beside the mean of all rounds. The bandit is UCB1 (Auer et al., 2002) over rewards of which older ones fade, as
a mesh changes. It begins with the arm of `third`, tries each arm once, and has no chance in it.
"""

from __future__ import annotations

from math import log, sqrt

import msgspec

from mdl.scheduler.rounds.participation import Decision, RoundSeen
from mdl.scheduler.rounds.shipped import Bounds, CloseAfter

# (wait_for, grace_s): the first one is that of `third`. Few, since a mesh has to try each.
ARMS = ((1.0 / 3.0, 2.0), (0.2, 0.0), (1.0 / 3.0, 0.0), (0.5, 0.0), (0.5, 4.0), (2.0 / 3.0, 0.0))
# The weight of a round falls to a half after about 70 rounds.
_FADES = 0.99
# UCB1's bonus, in units of the mean reward: rewards of rounds vary by about so much.
_BONUS = 0.5


class Bandit:
    """`third` with the bounds that this mesh's own rounds speak for."""

    def __init__(self, name: str, bounds: Bounds) -> None:
        self.name = name
        self._arms = [
            CloseAfter(name, msgspec.structs.replace(bounds, wait_for=share, grace_s=grace_s))
            for share, grace_s in ARMS
        ]
        self._tries, self._worth, self._seconds = ([0.0] * len(ARMS) for _ in range(3))
        self._arm = 0

    @property
    def bounds(self) -> Bounds:
        """The bounds of the round that is open."""
        return self._arms[self._arm].bounds

    def decide(self, seen: RoundSeen) -> Decision:
        return self._arms[self._arm].decide(seen)

    def hear(self, seconds: float, worth: float) -> None:
        """Count the round for its arm, and choose the arm of the next one."""
        for values in (self._tries, self._worth, self._seconds):
            values[:] = [_FADES * value for value in values]
        self._tries[self._arm] += 1.0
        self._worth[self._arm] += worth
        self._seconds[self._arm] += seconds
        untried = [arm for arm, tries in enumerate(self._tries) if not tries]
        self._arm = untried[0] if untried else max(range(len(ARMS)), key=self._promise)

    def _promise(self, arm: int) -> float:
        """Return the arm's worth a second over the mean of all, and the bonus of what it may still be."""
        mean = sum(self._worth) / sum(self._seconds)
        if not mean:
            return -self._tries[arm]
        rate = self._worth[arm] / self._seconds[arm] / mean
        return rate + _BONUS * sqrt(log(max(2.0, sum(self._tries))) / self._tries[arm])
