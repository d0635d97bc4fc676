"""Profiles of users beside clicks: a category of each of some named features, as gender and age (Eq. 6's u)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from mdl.errors import DataError
from mdl.recommend.interactions import MOST_CATEGORIES, MOST_FEATURES, Feature, Interactions

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
