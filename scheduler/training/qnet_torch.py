"""The Q-network in torch, for training; `mdl.scheduler.policies.qnet_numpy` describes its layers and pools."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from mdl.scheduler.policies.features import COLUMN
from mdl.scheduler.policies.qnet_numpy import (
    INVALID_Q,
    NumpyQ,
    Weights,
    draw_weights,
    layer_shapes,
    load_weights,
    save_weights,
)

__all__ = ["NumpyQ", "QNetwork", "load_policy", "save_policy"]

_MAY_PICK = COLUMN["may_pick"]


class QNetwork(nn.Module):
    """Q-values of picking each device or waiting: forward(features (B, M, F), exists (B, M), valid (B, M + 1)).

    Returns (B, M + 1), the last for waiting; invalid picks have -1e9. The value is minus the remaining objective in
    transfers of the median link. Fresh weights come from `seed`.
    """

    def __init__(self, seed: int = 0, weights: Weights | None = None) -> None:
        super().__init__()
        for name, (outputs, inputs) in layer_shapes().items():
            self.add_module(name, nn.Linear(inputs, outputs))
        self.load_weights(weights if weights is not None else draw_weights(np.random.default_rng(seed)))

    def forward(self, features: torch.Tensor, exists: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        masks = (exists.bool().unsqueeze(-1).float(), (features[:, :, _MAY_PICK] > 0).unsqueeze(-1).float())
        counts = [mask.sum(dim=1).clamp(min=1.0) for mask in masks]

        def pool(values: torch.Tensor) -> torch.Tensor:
            parts = []
            for mask, count in zip(masks, counts, strict=True):
                masked = values * mask
                parts += [masked.sum(dim=1) / count, masked.amax(dim=1)]
            return torch.cat(parts, dim=1)

        hidden = torch.relu(self._layer("encode1", features))
        hidden = torch.relu(self._layer("encode2", hidden))
        for around, own in (("around1", "own1"), ("around2", "own2")):
            hidden = torch.relu(self._layer(own, hidden) + self._layer(around, pool(hidden)).unsqueeze(1))
        advantage = self._layer("advantage", hidden).squeeze(-1)
        state = self._layer("state2", torch.relu(self._layer("state1", pool(hidden))))
        q = torch.cat([advantage, state[:, 1:]], dim=1) + state[:, :1]
        return q.masked_fill(~valid.bool(), INVALID_Q)

    def load_weights(self, weights: Weights) -> None:
        self.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in weights.items()})

    def weights(self) -> Weights:
        """Copy the weights to arrays."""
        return {name: values.detach().cpu().numpy().copy() for name, values in self.state_dict().items()}

    def plain(self) -> NumpyQ:
        """Return the same network without torch."""
        return NumpyQ(self.weights())

    def _layer(self, name: str, values: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.get_submodule(name)(values)
        return out


def save_policy(path: Path, network: QNetwork, metadata: dict[str, object]) -> None:
    """Save weights in safetensors, with metadata (any JSON object: command, seed, evaluation)."""
    save_weights(path, network.weights(), metadata)


def load_policy(path: Path) -> tuple[QNetwork, dict[str, object]]:
    """Load a network. Raises DataError if the file holds no policy for this version's observation."""
    weights, metadata = load_weights(path)
    return QNetwork(weights=weights), metadata
