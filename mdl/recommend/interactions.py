"""Users' interactions with items, in order: the logs that recommenders learn from. Every interaction is a click.

Beside clicks a user may have a profile: a category of each of some named features, as gender and age (Eq. 6's u).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
