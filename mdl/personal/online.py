"""Online training that reuses the inference (DeepType 5.5): a step after thirty words costs as much as after three.

What a suggestion computed is kept: the features that the last layer saw, and the probabilities it gave. When it is
known what was meant, the gradient of the last layer is there without a forward pass: (p - onehot(target)) x features.
Samples are collected, 16 to a step.

Probabilities are those of the layer that gave them. Who suggested before a step and learns after it has stale ones:
these are dropped, or computed again from their features, which no step of the last layer changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from mdl.errors import ConfigError
from mdl.personal.compression import FactoredLinear

# 5.5: "a pre-defined batch size (16)".
STEP_SAMPLES = 16
# Of one sample's suggestions: the first ones, since they can save most; a step's time is bounded by them.
KEPT_SUGGESTIONS = 3


@dataclass(frozen=True)
class Inference:
    """One forward pass. features: (F,). probabilities: (classes,). version: of the layer that gave them."""

    features: Tensor
    probabilities: Tensor
    version: int


class OnlineLearner:
    """Learns the last layer of a model in place. layer: linear, or factored.

    learning_rate: of a step along the mean over its suggestions. samples: of a step. kept: suggestions of a sample.
    stale: what becomes of inferences that an update came after. steps: made so far; dropped: stale suggestions.
    """

    def __init__(
        self,
        layer: nn.Module,
        learning_rate: float,
        samples: int = STEP_SAMPLES,
        kept: int = KEPT_SUGGESTIONS,
        stale: Literal["recompute", "drop"] = "recompute",
    ) -> None:
        if not isinstance(layer, nn.Linear | FactoredLinear):
            raise ConfigError(f"a {type(layer).__name__} cannot learn online: only a linear last layer can")
        self.steps = self.dropped = 0
        self._layer = layer
        self._rate, self._samples, self._kept, self._stale = learning_rate, samples, kept, stale
        self._version = 0
        self._waiting: list[tuple[Inference, int]] = []
        self._collected = 0

    @torch.no_grad()
    def infer(self, features: Tensor) -> Inference:
        """Probabilities of all classes, (classes,), for features (F,); to be suggested from, and perhaps learned."""
        return Inference(features, torch.softmax(self._layer(features), dim=-1), self._version)

    def learn(self, suggestions: Sequence[Inference], target: int) -> bool:
        """A sample: what was inferred for it, in order, and the class that was meant. Whether a step was made."""
        self._waiting += [(inference, target) for inference in suggestions[: self._kept]]
        self._collected += 1
        if self._collected < self._samples:
            return False
        return self.flush()

    def flush(self) -> bool:
        """A step with the samples that are there, if there are any."""
        fresh = self._refresh()
        self._waiting, self._collected = [], 0
        if not fresh:
            return False
        features = torch.stack([inference.features for inference, _ in fresh])
        error = torch.stack([inference.probabilities for inference, _ in fresh])
        error[torch.arange(len(fresh)), torch.tensor([target for _, target in fresh])] -= 1
        self._step(features, error, self._rate / len(fresh))
        self._version += 1
        self.steps += 1
        return True

    def invalidate(self) -> None:
        """Another one has changed the model, its features too: what was inferred is worth nothing any more."""
        self._version += 1
        self.dropped += len(self._waiting)
        self._waiting, self._collected = [], 0

    def _refresh(self) -> list[tuple[Inference, int]]:
        stale = [pair for pair in self._waiting if pair[0].version != self._version]
        if stale and self._stale == "drop":
            self.dropped += len(stale)
            return [pair for pair in self._waiting if pair[0].version == self._version]
        return [
            pair if pair[0].version == self._version else (self.infer(pair[0].features), pair[1])
            for pair in self._waiting
        ]

    @torch.no_grad()
    def _step(self, features: Tensor, error: Tensor, rate: float) -> None:
        """Along the gradient of the cross-entropy. features: (R, F). error: (R, classes), p - onehot."""
        layer = self._layer
        last = layer.widen if isinstance(layer, FactoredLinear) else layer
        seen = features
        if isinstance(layer, FactoredLinear):
            seen = layer.narrow(features)
            layer.narrow.weight.addmm_((error @ last.weight).T, features, alpha=-rate)
        last.weight.addmm_(error.T, seen, alpha=-rate)
        if last.bias is not None:
            last.bias.sub_(error.sum(dim=0), alpha=rate)
