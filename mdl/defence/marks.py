"""A receiver's measures of a partial sum before it merges it (MDLdroid 5). Knows vectors, and nothing of a mesh.

Lengths are of whole vectors. Angles are of values at secret places that the receiver has drawn. 64 Ki of them give a
cosine to 0.4 % in a millisecond. An attacker that hides something among the other values has to guess the places.
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
    """The measures of one partial sum, or of a device's pieces of one. None: not known.

    norm: its length. own_norm: of the receiver's own delta of this round. contributors: how many are in it.
    cosine: to the receiver's own partial sum. cosine_global: to the last global delta. rounds: the most work in it.
    loss: of the receiver's windows at w, in nats. loss_theirs: likewise after a step along this delta, or along its
    mean over its rounds. classes: of these windows.
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
        """The rise of the receiver's loss; below 0 where the delta is of use to the receiver."""
        return None if self.loss is None or self.loss_theirs is None else self.loss_theirs - self.loss


def draw_places(size: int, rng: np.random.Generator) -> Places | None:
    """Draw the places at which a vector of `size` values is examined, sorted int64; None: everywhere."""
    if size <= MOST_PLACES:
        return None
    return np.unique(rng.integers(0, size, MOST_PLACES))


def length(values: Values) -> float:
    """Return the Euclidean length; inf or nan if the values contain one."""
    return sqrt(float(np.vdot(values, values)))


def cosine(some: Values, others: Values) -> float | None:
    """Return the cosine of two vectors; None if one of them is all zeros and has no angle."""
    lengths = length(some) * length(others)
    return float(np.vdot(some, others)) / lengths if lengths > 0.0 else None
