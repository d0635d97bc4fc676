"""The device's step (Eq. 3) and its MetaPatch: small patches in a frozen model, all made of one vector a device.

A patch stands behind a layer: out = f_l(x) + h_l(f_l(x)), h_l a bottleneck (Eq. 1). The parameters of all patches of a
device are theta_l = Theta_l * vector (Eq. 2): the basis Theta is the same on all devices, the vector is a device's own.
Samples of many devices go through in one pass: each brings its vector as it brings its features. Without vectors there
is no patch at all, and the model answers as if it had never been patched.

From its own clicks a device learns its vector; the model and the basis stay as they are. Many devices learn in one pass
here, as the benchmark and a driver of many devices need it. One device is a pass of one. Both come to the same vectors:
a device's draws follow from the seed and its own number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mdl.errors import ConfigError
from mdl.peers.dccl.model.din import Din, as_tensors
from mdl.peers.dccl.model.interactions import Integers, Interactions, ItemSamples, Negatives, SampleEnds, make_samples

# Scale of the up-projections that a vector of ones would generate: a new patch changes little at first.
_UP_SCALE = 0.3


class Junction(msgspec.Struct, frozen=True):
    """A place for a patch: behind the module `name` of a model, an output with `width` entries along `dim`."""

    name: str
    width: int
    dim: int = -1


class Basis(nn.Module):
    """Theta of all junctions, (sum of K_l, vector size): frozen on devices and learned on the cloud.

    bottleneck: units of a patch. K_l = 2 width bottleneck + bottleneck + width. Starts from torch's generator.
    """

    def __init__(self, junctions: Sequence[Junction], size: int, bottleneck: int = 16) -> None:
        super().__init__()
        self.junctions = tuple(junctions)
        self.size, self.bottleneck = size, bottleneck
        self.counts = [2 * each.width * bottleneck + bottleneck + each.width for each in self.junctions]
        self.theta = nn.Parameter(torch.cat([self._start(each.width) for each in self.junctions]))

    def generate(self, vectors: Tensor) -> list[Tensor]:
        """Return Eq. 2: the parameters (..., K_l) of each junction's patch, for vectors (..., size)."""
        return list(torch.split(vectors @ self.theta.T, self.counts, dim=-1))

    def _start(self, width: int) -> Tensor:
        hidden, size = self.bottleneck, self.size
        parts = (
            torch.randn(width * hidden, size) / (width * size) ** 0.5,
            torch.zeros(hidden, size),
            _UP_SCALE * torch.randn(width * hidden, size) / (hidden * size) ** 0.5,
            torch.zeros(width, size),
        )
        return torch.cat(parts)


def patch(outputs: Tensor, parameters: Tensor, bottleneck: int) -> Tensor:
    """Return h_l of outputs (B, n, width), each of the B with parameters of its own, (B, K_l)."""
    width, hidden = outputs.shape[-1], bottleneck
    down, down_bias, up, up_bias = torch.split(parameters, [hidden * width, hidden, hidden * width, width], dim=-1)
    narrow = torch.baddbmm(down_bias[:, None], outputs, down.view(-1, width, hidden))
    return torch.baddbmm(up_bias[:, None], torch.relu(narrow), up.view(-1, hidden, width))


@contextmanager
def patched(model: nn.Module, basis: Basis, vectors: Tensor | None) -> Iterator[None]:
    """Patch the model within: row b of its input is answered with the patches of vectors[b], (B, size).

    vectors of shape (size,) are for all rows; None is the gate: the model is as it was. One thread at a time. Raises
    ConfigError if the model has no such junction, or one of another width.
    """
    if vectors is None:
        yield
        return
    generated = basis.generate(vectors if vectors.dim() == 2 else vectors[None])
    handles = []
    try:
        for junction, parameters in zip(basis.junctions, generated, strict=True):
            module = _find(model, junction.name)
            handles.append(module.register_forward_hook(_make_hook(junction, parameters, basis.bottleneck)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _make_hook(junction: Junction, parameters: Tensor, bottleneck: int):  # type: ignore[no-untyped-def]
    def add_patch(_: nn.Module, __: object, outputs: Tensor) -> Tensor:
        moved = outputs.movedim(junction.dim, -1)
        if moved.shape[-1] != junction.width:
            raise ConfigError(f"junction {junction.name!r} has {moved.shape[-1]} outputs, not {junction.width}")
        flat = moved.reshape(moved.shape[0], -1, junction.width)
        each = parameters if len(parameters) == len(flat) else parameters.expand(len(flat), -1)
        return outputs + patch(flat, each, bottleneck).view(moved.shape).movedim(-1, junction.dim)

    return add_patch


def _find(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        names = ", ".join(each for each, _ in model.named_modules() if each)
        raise ConfigError(f"the model has no layer {name!r} to patch; it has {names}") from None


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
