"""A bounded sample of recordings that go on, in which each window so far is as likely as any other.

Algorithm R (Vitter, ACM TOMS 1985). A device that trained on its newest windows alone would forget the older ones; so
it trains yesterday's again beside today's, in the proportion in which they came.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdl.errors import DataError

Rows = NDArray[Any]


class Reservoir:
    """See the module. capacity: windows to keep at most. seen: windows that have come so far."""

    def __init__(self, capacity: int, seed: int) -> None:
        self.capacity, self.seen = capacity, 0
        self._random = np.random.default_rng(seed)
        self._x: Rows | None = None
        self._y: Rows = np.empty(0, np.int64)

    def __len__(self) -> int:
        return min(self.seen, self.capacity)

    @property
    def x(self) -> Rows:
        """The kept windows, (len, ...): a view, which changes with `add`."""
        assert self._x is not None, "nothing was added yet"
        return self._x[: len(self)]

    @property
    def y(self) -> Rows:
        return self._y[: len(self)]

    def add(self, x: Rows, y: Rows) -> None:
        """Add windows in the order in which they came. Raises DataError if their shape differs from earlier ones."""
        if self._x is None:
            self._x = np.empty((self.capacity, *x.shape[1:]), x.dtype)
            self._y = np.empty((self.capacity, *y.shape[1:]), y.dtype)
        if x.shape[1:] != self._x.shape[1:] or len(x) != len(y):
            raise DataError(f"windows of shape {x.shape[1:]} with {len(y)} labels, where {self._x.shape[1:]} are kept")
        room = max(0, min(len(y), self.capacity - self.seen))
        self._x[self.seen : self.seen + room], self._y[self.seen : self.seen + room] = x[:room], y[:room]
        # Among the rest, window number n (from 1) stays with probability capacity / n, in a random one's place.
        numbers = np.arange(self.seen + room, self.seen + len(y)) + 1
        places = self._random.integers(0, numbers, endpoint=False) if len(numbers) else numbers
        for row in np.flatnonzero(places < self.capacity):
            self._x[places[row]], self._y[places[row]] = x[room + row], y[room + row]
        self.seen += len(y)
