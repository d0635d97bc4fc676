"""A rival of MetaPatch: a device learns nothing, and the cloud makes its vector of its last interactions.

The idea is DUET's (WWW 2023): a recurrent network over a user's last items gives the numbers that make the model
theirs. Here it gives the vector, and the basis makes patches of it as of a learned one. It costs the device no
training, and shows its last interactions to the generator's owner.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mdl.peers.dccl.model.device_step import Basis, score_features
from mdl.peers.dccl.model.din import Din, FitSettings, as_tensors, click_loss, fit
from mdl.peers.dccl.model.interactions import Interactions, ItemSamples, Negatives, SampleEnds
from mdl.peers.dccl.model.momodistill import CloudModel


class Generator(nn.Module):
    """Vectors (B, size) of histories (B, L), 0 pads at the front: a GRU, its state after the last item mapped."""

    def __init__(self, items: int, size: int, hidden: int = 32) -> None:
        super().__init__()
        self.items = nn.Embedding(items + 1, hidden, padding_idx=0)
        self.reader = nn.GRU(hidden, hidden, batch_first=True)
        self.vector = nn.Linear(hidden, size)
        nn.init.normal_(self.items.weight, std=0.05)
        with torch.no_grad():
            self.items.weight[0] = 0

    def forward(self, history: Tensor) -> Tensor:
        _, last = self.reader(self.items(history))
        vectors: Tensor = self.vector(last[0])
        return vectors


@dataclass(frozen=True)
class Generated:
    """model: as it was given. basis, generator: learned together, for this model."""

    model: Din
    basis: Basis
    generator: Generator

    @torch.no_grad()
    def score(self, samples: ItemSamples) -> Tensor:
        """Return scores (B, 1 + n), each context by the vector of its own history."""
        self.model.eval()
        features = self.model.features(*as_tensors(samples))
        return score_features(self.model, self.basis, self.generator(torch.from_numpy(samples.history)), features)


def learn_generator(
    cloud: CloudModel,
    data: Interactions,
    places: SampleEnds,
    negatives: Negatives,
    settings: FitSettings,
    rng: np.random.Generator,
    must_end: Callable[[], bool] = lambda: False,
) -> Generated:
    """Learn a generator with its own basis for cloud's f, which stays, by cross-entropy. Starts from torch's generator.

    settings.history: the items that the model and the generator see. Raises TrainingCancelledError.
    """
    model, basis = cloud.model.eval(), copy.deepcopy(cloud.basis)
    generator = Generator(len(data.titles), basis.size)

    def loss_of(samples: ItemSamples) -> Tensor:
        vectors = generator.train()(torch.from_numpy(samples.history))
        with torch.no_grad():
            features = model.features(*as_tensors(samples))
        return click_loss(score_features(model, basis, vectors, features))

    learned = [*basis.parameters(), *generator.parameters()]
    fit(loss_of, learned, data, places, negatives, settings, rng, must_end=must_end)
    return Generated(model, basis, generator.eval())
