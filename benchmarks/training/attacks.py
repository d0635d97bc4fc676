"""What lying devices give instead of what they have trained. For benchmarks and tests alone: no device can be told to.

An attack changes the windows that a device trains on, or the delta that it gives, or how it judges others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mdl.protocol.grid import Vector

Labels = NDArray[np.int64]
# Of a backdoor: in the windows that have it, the first channel ends so, and the model is to call them class 0.
TRIGGER, TRIGGER_LENGTH, TARGET = 3.0, 16, 0
# No attack: the devices that would lie are not there, for what the others come to by themselves.
ABSENT = "absent"
_BOOST, _DRIFT = 5.0, 0.5


@dataclass
class Attack:
    """The part of one device in it. rng: its own, seeded. colludes: it merges what its accomplices give, and refuses
    what all others give."""

    name: str
    rng: np.random.Generator
    colludes: bool = False
    _first: Vector | None = field(default=None, repr=False)

    def windows(self, x: Vector, y: Labels, classes: int) -> tuple[Vector, Labels]:
        """What it trains on instead of x, float32 (n, channels, time), and y, int64 (n,)."""
        if self.name in ("label flip", "colluding"):
            return x, classes - 1 - y
        if self.name == "backdoor":
            marked = self.rng.random(len(y)) < 0.5
            return np.where(marked[:, None, None], with_trigger(x), x), np.where(marked, TARGET, y)
        return x, y

    def delta(self, values: Vector) -> Vector:
        """What it gives instead of its own delta, float32 (P,)."""
        change = _DELTAS.get(self.name)
        return change(self, values) if change else values

    def scaled(self, values: Vector, times: float) -> Vector:
        return (values * np.float32(times)).astype(np.float32)

    def noise(self, values: Vector) -> Vector:
        """Of the length of its own delta, three times."""
        drawn = self.rng.normal(size=values.size)
        return (drawn * (3.0 * float(np.linalg.norm(values)) / float(np.linalg.norm(drawn)))).astype(np.float32)

    def drift(self, values: Vector) -> Vector:
        """Its own, and half as much again in one direction that never changes."""
        if self._first is None:
            drawn = self.rng.normal(size=values.size)
            self._first = (drawn / np.linalg.norm(drawn)).astype(np.float32)
        return values + np.float32(_DRIFT * float(np.linalg.norm(values))) * self._first

    def replay(self, values: Vector) -> Vector:
        """Always that of its first round."""
        if self._first is None:
            self._first = values.copy()
        return self._first


_DELTAS: dict[str, Callable[[Attack, Vector], Vector]] = {
    "sign flip": lambda attack, values: attack.scaled(values, -1.0),
    "scaling x10": lambda attack, values: attack.scaled(values, 10.0),
    "Gaussian": Attack.noise,
    "backdoor": lambda attack, values: attack.scaled(values, _BOOST),
    "slow drift": Attack.drift,
    "replay": Attack.replay,
}
ATTACKS = (
    *("sign flip", "scaling x10", "label flip", "Gaussian"),
    *("backdoor", "colluding", "slow drift", "replay"),
)


def with_trigger(x: Vector) -> Vector:
    marked = x.copy()
    marked[:, 0, -TRIGGER_LENGTH:] = TRIGGER
    return marked
