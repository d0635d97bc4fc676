"""The device's step (Eq. 3): from its own clicks a device learns one vector; the model and the basis stay as they are.

Many devices learn in one pass here, as the benchmark and a driver of many devices need it. One device is a pass of one.
Both come to the same vectors: a device's draws follow from the seed and its own number.
"""

from __future__ import annotations

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdl.recommend.din import Din
from mdl.recommend.interactions import Integers, Interactions
from mdl.recommend.metapatch import Basis, patched
from mdl.recommend.splits import ItemSamples, Negatives, SampleEnds, make_samples
from mdl.recommend.training import as_tensors

# Devices that learn at the same time: with 64 clicks each, the cache of the classifier's inputs takes 40 MB.
DEVICES_AT_ONCE = 256


class VectorSettings(msgspec.Struct, frozen=True):
    """steps of Adam, each with `batch` of the device's clicks drawn anew, 1 + negatives candidates each.

    most: the most of its latest clicks that a device learns from. anchor: weight of the squared distance to the vector
    it started from.
    """

    steps: int = 20
    batch: int = 32
    negatives: int = 4
    learning_rate: float = 0.02
    anchor: float = 0.0
    most: int = 100


def learn_vectors(
    model: Din,
    basis: Basis,
    start: Tensor,
    data: Interactions,
    places: SampleEnds,
    negatives: Negatives,
    settings: VectorSettings,
    seed: int,
    ids: Integers | None = None,
) -> Tensor:
    """Run Eq. 3 for the devices of all users, (U, size); a user without a place keeps the start.

    start: (U, size). ids: numbers for the users' draws, their own by default.
    """
    learned, by_user = start.clone(), _rows_by_user(places, len(data.users), settings.most)
    numbers = np.arange(len(data.users)) if ids is None else ids
    users = np.array([user for user, rows in enumerate(by_user) if len(rows)], np.int64)
    model.eval()
    for begin in range(0, len(users), DEVICES_AT_ONCE):
        some = users[begin : begin + DEVICES_AT_ONCE]
        drawn = []
        for user in some:
            rng, own = np.random.default_rng([seed, numbers[user]]), places.take(by_user[user])
            samples = make_samples(data, own, negatives, settings.negatives, model.settings.history, rng)
            drawn.append((samples, rng.integers(0, len(samples), (settings.steps, settings.batch))))
        learned[some] = _learn(model, basis, start[some], drawn, settings)
    return learned


def _rows_by_user(places: SampleEnds, users: int, most: int) -> list[Integers]:
    order = np.argsort(places.users, kind="stable")
    ends = np.cumsum(np.bincount(places.users, minlength=users))
    return [each[-most:] for each in np.split(order, ends[:-1])]


def _learn(
    model: Din, basis: Basis, start: Tensor, drawn: list[tuple[ItemSamples, Integers]], settings: VectorSettings
) -> Tensor:
    """Learn all these devices' vectors (M, size). drawn: samples of each, and the rows of each step (steps, batch).

    The classifier's inputs for the samples are computed once: no patch changes them.
    """
    with torch.no_grad():
        features = torch.cat([model.features(*as_tensors(samples)) for samples, _ in drawn])
    offsets = np.cumsum([0, *(len(samples) for samples, _ in drawn[:-1])])
    rows = torch.from_numpy(
        np.stack([steps + offset for (_, steps), offset in zip(drawn, offsets, strict=True)], axis=1)
    )
    vectors = nn.Parameter(start.clone())
    optimizer = torch.optim.Adam([vectors], settings.learning_rate)
    for chosen in rows:  # (M, batch)
        seen = features[chosen]
        scores = score_features(model, basis, vectors, seen.flatten(1, 2)).view(seen.shape[:-1])
        labels = torch.zeros_like(scores)
        labels[..., 0] = 1
        each = F.binary_cross_entropy_with_logits(scores, labels, reduction="none").mean(dim=(1, 2))
        loss = each.sum() + settings.anchor * ((vectors - start) ** 2).sum()
        optimizer.zero_grad()
        loss.backward(inputs=[vectors])  # type: ignore[no-untyped-call]
        optimizer.step()
    return vectors.detach()


def score_features(model: Din, basis: Basis, vectors: Tensor | None, features: Tensor) -> Tensor:
    """Score features (B, n, F) by devices with these vectors, (B, size); None: by the model alone. Returns (B, n)."""
    with patched(model.classifier, basis, vectors):
        scores: Tensor = model.classifier(features)
    return scores.squeeze(-1)


def score_with_vectors(model: Din, basis: Basis, vectors: Tensor | None, samples: ItemSamples) -> Tensor:
    """Score samples by their own devices, (B, 1 + n); vectors: (U, size), None for the model alone."""
    own = None if vectors is None else vectors[torch.from_numpy(samples.users)]
    return score_features(model, basis, own, model.features(*as_tensors(samples)))
