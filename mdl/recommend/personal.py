"""One device: its own log in the cloud's numbers, its vector, and its suggestions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdl.errors import DataError
from mdl.recommend.device_step import VectorSettings, learn_vectors, score_features
from mdl.recommend.interactions import Interactions
from mdl.recommend.lesson import RecommenderLesson
from mdl.recommend.profiles import in_features_of
from mdl.recommend.splits import Negatives, SampleEnds, histories

# The index of the lone user of a device.
_ME = 0


@dataclass(frozen=True)
class Suggestion:
    """An item and its score: the logit of a click."""

    item: str
    score: float


def in_numbers_of(lesson: RecommenderLesson, own: Interactions) -> Interactions:
    """Return a device's log with the cloud's item numbers, without items that the cloud lacks. Raises DataError.

    own: of one user. Only the parts of a profile that the cloud knows by the same names count.
    """
    numbers = {title: number for number, title in enumerate(lesson.titles, 1)}
    found = np.array([numbers.get(own.titles[item - 1], 0) for item in own.items], np.int64)
    known = found > 0
    if known.sum() < 2:
        raise DataError(f"{known.sum()} of this device's {len(found)} interactions are with items that the cloud knows")
    return replace(
        in_features_of(lesson.cloud.encoder.features, own),
        titles=lesson.titles,
        items=found[known],
        starts=np.array([0, known.sum()]),
        times=None if own.times is None else own.times[known],
    )


def learn_vector(
    lesson: RecommenderLesson,
    own: Interactions,
    former: NDArray[np.float32] | None,
    settings: VectorSettings,
    seed: int,
) -> Tensor:
    """Learn a vector (size,) by Eq. 3 from a device's latest clicks. former: the one of an earlier basis, or None."""
    cloud = lesson.cloud
    fits = former is not None and former.shape == (cloud.basis.size,)
    before = torch.from_numpy(former)[None] if fits and former is not None else torch.zeros(1, cloud.basis.size)
    start = cloud.warm_start(before, own.profiles)
    places = SampleEnds(np.full(len(own.items) - 1, _ME), np.arange(1, len(own.items)))
    negatives = Negatives.never_met(own)
    return learn_vectors(cloud.model, cloud.basis, start, own, places, negatives, settings, seed)[_ME]


@torch.no_grad()
def suggest(lesson: RecommenderLesson, own: Interactions, vector: Tensor | None, top: int) -> list[Suggestion]:
    """Return the items with the highest scores that this user has not met; vector None: by the cloud's model alone."""
    cloud, end = lesson.cloud, SampleEnds(np.array([_ME]), np.array([len(own.items)]))
    history = torch.from_numpy(histories(own, end, cloud.model.settings.history))
    fresh = np.setdiff1d(np.arange(1, len(lesson.titles) + 1), own.items)
    candidates = torch.from_numpy(fresh)[None]
    features = cloud.model.features(torch.tensor([_ME]), history, candidates)
    scores = score_features(cloud.model, cloud.basis, None if vector is None else vector[None], features)[0]
    found = torch.topk(scores, min(top, len(fresh)))
    return [
        Suggestion(lesson.titles[fresh[place] - 1], float(value))
        for value, place in zip(found.values, found.indices, strict=True)
    ]
