"""What a receiver measures of a partial mean before it merges it (MDLdroid 5). Knows vectors, and nothing of a mesh.

Lengths are of whole vectors. Angles are of values at places that the receiver has drawn and tells nobody: 64 Ki of them
give a cosine to 0.4 %, take a millisecond, and whoever wants to hide something among the others has to guess.
"""

from __future__ import annotations

from math import sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]
Places = NDArray[np.int64]

MOST_PLACES = 1 << 16


class Marks(msgspec.Struct, frozen=True):
    """Of one partial mean, or of a device's pieces of one.

    norm: its length. own_norm: of the receiver's own delta of this round. contributors: how many are in it.
    cosine: to what the receiver holds itself. cosine_global: to the last global delta. rounds: of work in it at most.
    loss: of the receiver's windows at w, in nats. loss_theirs: after a step along this, for its rounds the mean of
    them. None: not known. classes: that these windows are of.
    """

    norm: float
    own_norm: float | None = None
    contributors: int = 1
    cosine: float | None = None
    cosine_global: float | None = None
    rounds: int = 1
    loss: float | None = None
    loss_theirs: float | None = None
    classes: int = 2

    @property
    def rise(self) -> float | None:
        """By how much it raises the receiver's loss; below 0 where it is of use to the receiver."""
        return None if self.loss is None or self.loss_theirs is None else self.loss_theirs - self.loss


def draw_places(size: int, rng: np.random.Generator) -> Places | None:
    """Where a vector of `size` values is looked at, sorted int64; None: everywhere."""
    if size <= MOST_PLACES:
        return None
    return np.unique(rng.integers(0, size, MOST_PLACES))


def look_at(values: Values, places: Places | None) -> Values:
    """The values at these places; a view if that is everywhere."""
    return values if places is None else values[places]


def length(values: Values) -> float:
    """Euclidean; inf or nan if there is such a value in it."""
    return sqrt(float(np.vdot(values, values)))


def cosine(some: Values, others: Values) -> float | None:
    """None if one of them is nothing but zeros, where there is no angle."""
    lengths = length(some) * length(others)
    return float(np.vdot(some, others)) / lengths if lengths > 0.0 else None
