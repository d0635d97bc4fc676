"""Users' interactions with items, in order: the logs that recommenders learn from. Every interaction is a click.

Beside clicks a user may have a profile: a category of each of some named features, as gender and age (Eq. 6's u).

The test of a recommender: the split of a log into training and tests, and the quality of a ranking.

The split is leave-last-out or halves, with stored negatives. A sample is a context (a user and their former items), the
one item that came next and `negatives` that had not come. The last item of each user is the test, the one before it is
for choosing settings; training ends before both (4.2.1).

The quality of a ranking (Eq. 8) is HitRate@K, NDCG@K and macro-AUC; ties count against us. The paper prints NDCG with
the indicator inside the logarithm too, which would make it HitRate; log2(R + 1) is meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.errors import ConfigError, DataError

Integers = NDArray[np.int64]

MOST_FEATURES = 64
MOST_CATEGORIES = 1 << 12
# The longest name of a user, item, feature or category: an address or a product's number, not a description.
LONGEST_NAME = 128

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST_NAME)]


class Feature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A feature of users, like their age group. Number k of a profile stands for categories[k - 1], 0 for unknown."""

    name: Name
    categories: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MOST_CATEGORIES)]


@dataclass(frozen=True)
class Interactions:
    """Interactions of U users with I items, user by user and each user's in order.

    users: names (U,). titles: of items (I,); item number i stands for titles[i - 1], 0 pads. items: item numbers (N,).
    starts: (U + 1,); user k's are items[starts[k]:starts[k + 1]]. times: (N,) in the log's own unit, None if it has
    only an order. profiles: (U, C) numbers of categories of C features of a user.
    """

    users: tuple[str, ...]
    titles: tuple[str, ...]
    items: Integers
    starts: Integers
    times: NDArray[np.float64] | None
    profiles: Integers
    features: tuple[Feature, ...]

    @property
    def lengths(self) -> Integers:
        """The number of interactions of each user, (U,)."""
        return np.diff(self.starts)

    def of(self, user: int) -> Integers:
        return self.items[self.starts[user] : self.starts[user + 1]]

    def find(self, name: str) -> int:
        """Return the number of a user. Raises ConfigError with the first names if there is none."""
        try:
            return self.users.index(name)
        except ValueError:
            some = ", ".join(self.users[:5])
            raise ConfigError(f"user {name[:40]!r} is not in the data; it has {len(self.users)}: {some} ...") from None


def group_by_user(users: NDArray[Any], items: NDArray[Any], times: NDArray[np.float64] | None) -> Interactions:
    """Group rows of a log (N,) by user; for equal times, and without times, the order of the rows stays.

    users, items: names, or whole numbers that stand for them.
    """
    names, user_of = np.unique(users, return_inverse=True)
    titles, item_of = np.unique(items, return_inverse=True)
    order = np.argsort(user_of, kind="stable") if times is None else np.lexsort((np.arange(len(times)), times, user_of))
    starts = np.concatenate(([0], np.cumsum(np.bincount(user_of, minlength=len(names)))))
    return Interactions(
        tuple(map(str, names)),
        tuple(map(str, titles)),
        item_of[order].astype(np.int64) + 1,
        starts.astype(np.int64),
        None if times is None else times[order],
        np.zeros((len(names), 0), np.int64),
        (),
    )


def keep_active(data: Interactions, least: int) -> Interactions:
    """Keep users and items with at least `least` interactions (A.1), until all left have them. Raises DataError."""
    kept = np.ones(len(data.items), bool)
    user_of = np.repeat(np.arange(len(data.users)), data.lengths)
    while True:
        users = np.bincount(user_of[kept], minlength=len(data.users)) >= least
        items = np.bincount(data.items[kept], minlength=len(data.titles) + 1) >= least
        now = kept & users[user_of] & items[data.items]
        if now.sum() == kept.sum():
            break
        kept = now
    if not kept.any():
        raise DataError(f"no user and item are left with at least {least} interactions each; lower `least`")
    return _take(data, kept, user_of, users)


def keep_users(data: Interactions, users: Integers) -> Interactions:
    """Keep these users alone; all items keep their numbers. users: sorted."""
    user_of = np.repeat(np.arange(len(data.users)), data.lengths)
    chosen = np.isin(np.arange(len(data.users)), users)
    kept = _take(data, chosen[user_of], user_of, chosen)
    return replace(kept, titles=data.titles, items=data.items[chosen[user_of]])


def _take(data: Interactions, kept: NDArray[np.bool_], user_of: Integers, users: NDArray[np.bool_]) -> Interactions:
    numbers, items = np.unique(data.items[kept], return_inverse=True)
    lengths = np.bincount(user_of[kept], minlength=len(data.users))[users]
    return Interactions(
        tuple(name for name, stays in zip(data.users, users, strict=True) if stays),
        tuple(data.titles[number - 1] for number in numbers),
        items.astype(np.int64) + 1,
        np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
        None if data.times is None else data.times[kept],
        data.profiles[users],
        data.features,
    )


# By user's name: the names of features, and of this user's categories.
Told: TypeAlias = Mapping[str, Mapping[str, str]]


def number_profiles(data: Interactions, told: Told, known: Sequence[Feature] | None = None) -> Interactions:
    """Return the data with profiles from what is told of its users. known: the features to use, None: those in `told`.

    Raises DataError if there are too many.
    """
    features = _features(data.users, told) if known is None else tuple(known)
    profiles = np.zeros((len(data.users), len(features)), np.int64)
    numbers = [{name: number for number, name in enumerate(each.categories, 1)} for each in features]
    for row, user in enumerate(data.users):
        if mine := told.get(user):
            profiles[row] = [
                found.get(mine.get(each.name, ""), 0) for each, found in zip(features, numbers, strict=True)
            ]
    return replace(data, profiles=profiles, features=features)


def tell_profiles(data: Interactions) -> Told:
    """Return the profiles in words, of users with known categories alone."""
    told: dict[str, dict[str, str]] = {}
    for user, profile in zip(data.users, data.profiles, strict=True):
        found = {
            each.name: each.categories[number - 1]
            for each, number in zip(data.features, profile, strict=True)
            if number
        }
        if found:
            told[user] = found
    return told


def _features(users: Sequence[str], told: Told) -> tuple[Feature, ...]:
    names: dict[str, set[str]] = {}
    for user in users:
        for feature, category in told.get(user, {}).items():
            names.setdefault(feature, set()).update([category] if category else [])
    if len(names) > MOST_FEATURES:
        raise DataError(f"profiles of {len(names)} features; at most {MOST_FEATURES}")
    for feature, categories in names.items():
        if len(categories) > MOST_CATEGORIES:
            raise DataError(
                f"profiles: {feature!r} has {len(categories)} categories; at most {MOST_CATEGORIES}: give groups of it"
            )
    return tuple(Feature(feature, tuple(sorted(categories))) for feature, categories in names.items())


def in_features_of(features: Sequence[Feature], data: Interactions) -> Interactions:
    """Return the same profiles in other features' numbers; categories that these lack become unknown."""
    return number_profiles(data, tell_profiles(data), features)


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
