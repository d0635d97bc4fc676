"""The backbone: a Deep Interest Network with target attention, and three dense layers with the junctions behind them.

The candidate asks the history for the items that matter (queries, keys and values of one size, Table 5); the answer
joins the candidate and the user. The paper's patches stand behind `first`, `second` and `third` of `classifier`.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec
import torch
from torch import Tensor, nn

JUNCTIONS = ("first", "second", "third")


class DinSettings(msgspec.Struct, frozen=True):
    """embedding: of users and items; hidden: of attention and dense layers; history: items of a context.

    has_user: the user's own embedding is an input. encoder_layers: of self-attention over the history.
    """

    embedding: int = 32
    hidden: int = 32
    history: int = 20
    dropout: float = 0.2
    has_user: bool = True
    encoder_layers: int = 0


class Din(nn.Module):
    """See the module. Scores (B, C) of candidates (B, C) in contexts: users (B,), history (B, L), 0 pads."""

    def __init__(self, users: int, items: int, settings: DinSettings) -> None:
        super().__init__()
        size, hidden = settings.embedding, settings.hidden
        self.settings = settings
        self.items = nn.Embedding(items + 1, size, padding_idx=0)
        self.users = nn.Embedding(users, size) if settings.has_user else None
        self.recency = nn.Parameter(torch.zeros(settings.history, size))
        layers = [
            nn.TransformerEncoderLayer(size, 1, hidden, settings.dropout, batch_first=True)
            for _ in range(settings.encoder_layers)
        ]
        self.encoder = nn.ModuleList(layers)
        self.query, self.key, self.value = (nn.Linear(size, hidden) for _ in range(3))
        self.dropout = nn.Dropout(settings.dropout)
        width = size * (2 if settings.has_user else 1) + 2 * hidden
        self.match = nn.Linear(size, hidden, bias=False)
        self.classifier = nn.Sequential(
            OrderedDict(
                first=_dense(width, hidden),
                second=_dense(hidden, hidden),
                third=_dense(hidden, hidden),
                score=nn.Linear(hidden, 1),
            )
        )
        for table in (self.items, self.users):
            if table is not None:
                nn.init.normal_(table.weight, std=0.05)
        with torch.no_grad():
            self.items.weight[0] = 0

    def forward(self, users: Tensor, history: Tensor, candidates: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.features(users, history, candidates))
        return scores.squeeze(-1)

    def features(self, users: Tensor, history: Tensor, candidates: Tensor) -> Tensor:
        """Return the classifier's inputs, (B, C, F): no patch changes them."""
        asked = self.dropout(self.items(candidates))
        seen = self._encode(history)
        logits = self.query(asked) @ self.key(seen).transpose(1, 2) / self.query.out_features**0.5
        empty = history == 0
        weights = torch.softmax(logits.masked_fill(empty[:, None], -1e9), dim=-1)
        interest = weights.masked_fill(empty[:, None], 0.0) @ self.value(seen)
        interest = self.dropout(interest)
        parts = [asked, interest, interest * self.match(asked)]
        if self.users is not None:
            parts.append(self.dropout(self.users(users))[:, None].expand(-1, candidates.shape[1], -1))
        return torch.cat(parts, dim=-1)

    def _encode(self, history: Tensor) -> Tensor:
        seen: Tensor = self.items(history) + self.recency[-history.shape[1] :]
        if self.encoder:
            empty = history == 0
            empty[:, -1] = False  # a context without any history would attend to nothing
            for layer in self.encoder:
                seen = layer(seen, src_key_padding_mask=empty)
        return seen


def _dense(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU())
