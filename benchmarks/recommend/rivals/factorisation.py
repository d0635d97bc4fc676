"""Baselines without an order of the history: MF, FM, NeuMF, DeepFM (Table 2), small and with the field's equations.

All score candidates (B, C) of users (B,); the history, (B, L), is a field of FM and DeepFM: the mean of its items. A
user and an item have one embedding if the paper shares it; NeuMF has two, as published.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Standard deviation of a fresh embedding: scores begin near 0.
_STD = 0.05


class MatrixFactorisation(nn.Module):
    """MF: b + b_u + b_i + <p_u, q_i>."""

    def __init__(self, users: int, items: int, size: int = 32) -> None:
        super().__init__()
        self.users, self.items = _table(users, size), _table(items + 1, size)
        self.user_bias, self.item_bias = _table(users, 1, 0.0), _table(items + 1, 1, 0.0)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, users: Tensor, history: Tensor, candidates: Tensor) -> Tensor:
        crossed: Tensor = (self.users(users)[:, None] * self.items(candidates)).sum(dim=-1)
        biased: Tensor = crossed + self.user_bias(users) + self.item_bias(candidates).squeeze(-1) + self.bias
        return biased


class FactorisationMachine(nn.Module):
    """FM: b + sum of the fields' linear terms + sum over pairs of fields of <v, v'>. Fields: user, item, history."""

    def __init__(self, users: int, items: int, size: int = 32) -> None:
        super().__init__()
        self.fields = _Fields(users, items, size)
        self.linear = _Fields(users, items, 1, 0.0)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, users: Tensor, history: Tensor, candidates: Tensor) -> Tensor:
        embedded, linear = self.fields(users, history, candidates), self.linear(users, history, candidates)
        scores: Tensor = self.bias + linear.sum(dim=(-1, -2)) + cross(embedded)
        return scores


class NeuralFactorisation(nn.Module):
    """NeuMF: one layer over the product of one pair of embeddings beside a tower over another pair."""

    def __init__(self, users: int, items: int, size: int = 32) -> None:
        super().__init__()
        self.users, self.items = _table(users, size), _table(items + 1, size)
        self.tower_users, self.tower_items = _table(users, size), _table(items + 1, size)
        self.tower = _tower(2 * size)
        self.score = nn.Linear(size + 16, 1)

    def forward(self, users: Tensor, history: Tensor, candidates: Tensor) -> Tensor:
        product = self.users(users)[:, None] * self.items(candidates)
        both = _beside(self.tower_users(users), self.tower_items(candidates))
        scores: Tensor = self.score(torch.cat((product, self.tower(both)), dim=-1))
        return scores.squeeze(-1)


class DeepFactorisation(nn.Module):
    """DeepFM: an FM and a tower over the same embeddings, added."""

    def __init__(self, users: int, items: int, size: int = 32) -> None:
        super().__init__()
        self.machine = FactorisationMachine(users, items, size)
        self.tower, self.score = _tower(3 * size), nn.Linear(16, 1)

    def forward(self, users: Tensor, history: Tensor, candidates: Tensor) -> Tensor:
        embedded = self.machine.fields(users, history, candidates)
        deep: Tensor = self.score(self.tower(embedded.flatten(-2))).squeeze(-1)
        shallow: Tensor = self.machine(users, history, candidates)
        return shallow + deep


def cross(fields: Tensor) -> Tensor:
    """Sum <v, v'> over all pairs of fields (..., F, size), in F size steps: half of (sum v)^2 - sum v^2."""
    crossed: Tensor = (fields.sum(dim=-2) ** 2 - (fields**2).sum(dim=-2)).sum(dim=-1) / 2
    return crossed


class _Fields(nn.Module):
    """user, candidate and history as vectors, (B, C, 3, size); an empty history is zero."""

    def __init__(self, users: int, items: int, size: int, std: float = _STD) -> None:
        super().__init__()
        self.users, self.items = _table(users, size, std), _table(items + 1, size, std)
        self.met = nn.Embedding(items + 1, size, padding_idx=0)
        nn.init.normal_(self.met.weight, std=std)
        with torch.no_grad():
            self.met.weight[0] = 0

    def forward(self, users: Tensor, history: Tensor, candidates: Tensor) -> Tensor:
        count = (history > 0).sum(dim=1, keepdim=True).clamp(min=1)
        mean = self.met(history).sum(dim=1) / count
        items = self.items(candidates)
        of_user, of_history = (each[:, None].expand_as(items) for each in (self.users(users), mean))
        return torch.stack((of_user, items, of_history), dim=-2)


def _table(rows: int, size: int, std: float = _STD) -> nn.Embedding:
    table = nn.Embedding(rows, size)
    nn.init.normal_(table.weight, std=std)
    return table


def _tower(inputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())


def _beside(users: Tensor, items: Tensor) -> Tensor:
    return torch.cat((users[:, None].expand(-1, items.shape[1], -1), items), dim=-1)
