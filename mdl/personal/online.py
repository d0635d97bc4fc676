"""Online training that reuses the inference (DeepType 5.5): a step after thirty words costs as much as after three.

The results of a suggestion are kept: the last layer's input features, and the probabilities it gave. Once the meant
word is known, the gradient of the last layer needs no forward pass: (p - onehot(target)) x features. Samples are
collected, 16 to a step.

Probabilities are those of the layer that gave them. A suggestion before a step that is learned after it has stale ones:
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
# Suggestions kept of one sample: the first ones, since they can save most; they bound a step's time.
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
    stale: treatment of inferences that are older than an update. steps: made so far; dropped: stale suggestions.
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
        """Return the probabilities of all classes, (classes,), for features (F,), to suggest and perhaps to learn."""
        return Inference(features, torch.softmax(self._layer(features), dim=-1), self._version)

    def learn(self, suggestions: Sequence[Inference], target: int) -> bool:
        """Add a sample: its inferences, in order, and the class that was meant. Return True if a step was made."""
        self._waiting += [(inference, target) for inference in suggestions[: self._kept]]
        self._collected += 1
        if self._collected < self._samples:
            return False
        return self.flush()

    def flush(self) -> bool:
        """Take a step with the waiting samples; return False if there are none."""
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
        """Step along the gradient of the cross-entropy. features: (R, F). error: (R, classes), p - onehot."""
        layer = self._layer
        last = layer.widen if isinstance(layer, FactoredLinear) else layer
        seen = features
        if isinstance(layer, FactoredLinear):
            seen = layer.narrow(features)
            layer.narrow.weight.addmm_((error @ last.weight).T, features, alpha=-rate)
        last.weight.addmm_(error.T, seen, alpha=-rate)
        if last.bias is not None:
            last.bias.sub_(error.sum(dim=0), alpha=rate)
