"""The test of a recommender: the split of a log into training and tests, and the quality of a ranking.

The split is leave-last-out or halves, with stored negatives. A sample is a context (a user and their former items), the
one item that came next and `negatives` that had not come. The last item of each user is the test, the one before it is
for choosing settings; training ends before both (4.2.1).

The quality of a ranking (Eq. 8) is HitRate@K, NDCG@K and macro-AUC; ties count against us. The paper prints NDCG with
the indicator inside the logarithm too, which would make it HitRate; log2(R + 1) is meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mdl.errors import DataError
from mdl.recommend.interactions import Integers, Interactions

# Section 4.1.1: each last item is ranked among so many that its user never met.
TEST_NEGATIVES = 100
# Ends the drawing for a user with nearly all items met, which would not end by itself.
_MOST_DRAWS = 100


@dataclass(frozen=True)
class ItemSamples:
    """B contexts. users: (B,). history: (B, L), the last items before, 0 pads at the front. candidates: (B, 1 + n), the
    item that came first, then negatives."""

    users: Integers
    history: Integers
    candidates: Integers

    def __len__(self) -> int:
        return len(self.users)

    def take(self, rows: Integers | slice) -> ItemSamples:
        return ItemSamples(self.users[rows], self.history[rows], self.candidates[rows])


@dataclass(frozen=True)
class SampleEnds:
    """Ends of samples in a log: users (B,) and places (B,), of the next item among all items of the log."""

    users: Integers
    places: Integers

    def __len__(self) -> int:
        return len(self.users)

    def take(self, rows: Integers) -> SampleEnds:
        return SampleEnds(self.users[rows], self.places[rows])


def last_places(data: Interactions, back: int) -> SampleEnds:
    """Return each user's last place (back 1), or the one before (2); users of fewer than three are left out (4.2.1)."""
    users = np.flatnonzero(data.lengths >= 3)
    if not len(users):
        raise DataError("no user has three interactions: one to learn from, one to tune on, one to test with")
    return SampleEnds(users, data.starts[users + 1] - back)


def training_places(data: Interactions, part: tuple[float, float] = (0.0, 1.0)) -> SampleEnds:
    """Return all places to learn from: each user's items before the last two, and of these a part in time.

    part: from and to, as shares of each user's own sequence; (0, 0.5) is the first half. Each user's first item has
    nothing before it, and is none.
    """
    length = np.maximum(data.lengths - 2, 0)
    first = np.maximum(np.floor(length * part[0]).astype(np.int64), 1)
    return _between(data, first, np.floor(length * part[1]).astype(np.int64))


def _between(data: Interactions, first: Integers, end: Integers) -> SampleEnds:
    counts = np.maximum(end - first, 0)
    users = np.repeat(np.arange(len(data.users)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return SampleEnds(users, data.starts[users] + first[users] + within)


def histories(data: Interactions, places: SampleEnds, length: int) -> Integers:
    """Return the last items before each place, (B, length)."""
    back = places.places[:, None] - np.arange(length, 0, -1)
    is_there = back >= data.starts[places.users][:, None]
    return np.where(is_there, data.items[np.maximum(back, 0)], 0)


class Negatives:
    """Draws items that a user has not met. met: users (N,) and items (N,), all pairs that count as met."""

    def __init__(self, users: Integers, items: Integers, item_count: int) -> None:
        self._items = item_count
        self._met = np.unique(users * (item_count + 1) + items)

    @classmethod
    def never_met(cls, data: Interactions) -> Negatives:
        """Count the whole log as met: for tests."""
        return cls(np.repeat(np.arange(len(data.users)), data.lengths), data.items, len(data.titles))

    @classmethod
    def before(cls, data: Interactions, part: float = 1.0) -> Negatives:
        """Count the training part as met, up to a share of each user's sequence: later items stay unknown."""
        ends = np.floor(np.maximum(data.lengths - 2, 0) * part).astype(np.int64)
        known = _between(data, np.zeros(len(data.users), np.int64), ends)
        return cls(known.users, data.items[known.places], len(data.titles))

    def draw(self, users: Integers, count: int, rng: np.random.Generator, distinct: bool = False) -> Integers:
        """Draw (B, count). distinct: no item twice in a row. A user with nearly all items met may get a met one."""
        drawn = rng.integers(1, self._items + 1, (len(users), count))
        for _ in range(_MOST_DRAWS):
            again = self._is_met(users, drawn)
            if distinct:
                again |= _repeats(drawn)
            if not again.any():
                break
            drawn[again] = rng.integers(1, self._items + 1, int(again.sum()))
        return drawn

    def _is_met(self, users: Integers, items: Integers) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        keys = users[:, None] * (self._items + 1) + items
        place = np.minimum(np.searchsorted(self._met, keys), max(len(self._met) - 1, 0))
        return self._met[place] == keys if len(self._met) else np.zeros(keys.shape, bool)


def _repeats(drawn: Integers) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    order = np.argsort(drawn, axis=1, kind="stable")
    ordered = np.take_along_axis(drawn, order, axis=1)
    same = np.zeros(drawn.shape, bool)
    np.put_along_axis(same, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    return same


def make_samples(
    data: Interactions, places: SampleEnds, drawn: Negatives, count: int, length: int, rng: np.random.Generator
) -> ItemSamples:
    """Return the samples that end at these places, each with `count` negatives and a history of `length`."""
    candidates = np.concatenate((data.items[places.places][:, None], drawn.draw(places.users, count, rng)), axis=1)
    return ItemSamples(places.users, histories(data, places, length), candidates)


def make_test(data: Interactions, back: int, length: int, seed: int) -> ItemSamples:
    """Return each user's item and TEST_NEGATIVES others, the same for the same log and seed: store them once."""
    places, rng = last_places(data, back), np.random.default_rng([seed, back])
    if len(data.titles) - data.lengths.max() < TEST_NEGATIVES:
        logged = f"{len(data.titles)} items, of which one user has met {data.lengths.max()}"
        raise DataError(f"a test needs {TEST_NEGATIVES} items that a user never met; this log has {logged}")
    negatives = Negatives.never_met(data).draw(places.users, TEST_NEGATIVES, rng, distinct=True)
    candidates = np.concatenate((data.items[places.places][:, None], negatives), axis=1)
    return ItemSamples(places.users, histories(data, places, length), candidates)


def batches(places: SampleEnds, size: int, rng: np.random.Generator) -> Iterator[SampleEnds]:
    """Yield one pass over the places in a random order."""
    order = rng.permutation(len(places))
    for begin in range(0, len(order), size):
        yield places.take(order[begin : begin + size])


Floats = NDArray[np.float64]


def ranks(scores: NDArray[np.floating]) -> NDArray[np.int64]:
    """Return the rank of the first candidate among all, (B,), 1 is best. scores: (B, 1 + n). NaN is worst.

    An equal score of another candidate stands before it.
    """
    first, others = scores[:, :1], scores[:, 1:]
    found: NDArray[np.int64] = 1 + others.shape[1] - (others < first).sum(axis=1)
    return found


def hits(rank: NDArray[np.int64], k: int) -> Floats:
    """Return 1 if the item is among the first k, (B,); the mean over users is HitRate@K."""
    return (rank <= k).astype(np.float64)


def gains(rank: NDArray[np.int64], k: int) -> Floats:
    """Return 1 / log2(R + 1) if the item is among the first k, else 0, (B,); the mean over users is NDCG@K."""
    return np.where(rank <= k, 1 / np.log2(rank + 1), 0.0)


def top_metrics(rank: NDArray[np.int64]) -> dict[str, float]:
    """Return Table 2's five metrics, in percent."""
    hit = {f"HR@{k}": 100 * float(hits(rank, k).mean()) for k in (1, 5, 10)}
    return hit | {f"NDCG@{k}": 100 * float(gains(rank, k).mean()) for k in (5, 10)}
