"""SASRec (ICDM 2018): self-attention over the history predicts the next item; a candidate's embedding gives its score.

r_i = <F, E_i>, where F is the last position after the blocks and E the items' embedding, shared with the input. It
knows no user. Two blocks of one head, as published.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from mdl.peers.dccl.model.din import click_loss
from mdl.peers.dccl.model.interactions import Integers, Interactions, Negatives


class SelfAttentiveRecommender(nn.Module):
    """See the module. Scores (B, C) of candidates after histories (B, L), 0 pads at the front."""

    def __init__(self, items: int, size: int = 50, history: int = 50, blocks: int = 2, dropout: float = 0.2) -> None:
        super().__init__()
        self.items = nn.Embedding(items + 1, size, padding_idx=0)
        self.places = nn.Parameter(torch.zeros(history, size))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(size, 1, size, dropout, batch_first=True, norm_first=True) for _ in range(blocks)
        )
        self.norm, self.dropout = nn.LayerNorm(size), nn.Dropout(dropout)
        nn.init.normal_(self.items.weight, std=0.05)
        with torch.no_grad():
            self.items.weight[0] = 0

    def forward(self, users: Tensor, history: Tensor, candidates: Tensor) -> Tensor:
        scores: Tensor = (self.items(candidates) @ self.read(history)[:, -1, :, None]).squeeze(-1)
        return scores

    def read(self, history: Tensor) -> Tensor:
        """Return each position's prediction of the next item, (B, L, size), from itself and the positions before."""
        length = history.shape[1]
        seen: Tensor = self.dropout(self.items(history) * self.items.embedding_dim**0.5 + self.places[-length:])
        later = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
        # A padded position may see itself, or it would see nothing at all; no other position sees it.
        hidden = later | (history == 0)[:, None] & ~torch.eye(length, dtype=torch.bool)
        for block in self.blocks:
            seen = block(seen, src_mask=hidden)
        found: Tensor = self.norm(seen)
        return found


class SequenceSettings(msgspec.Struct, frozen=True):
    """epochs: one window of each user's sequence a pass; batch: users of a step; learning_rate: of Adam.

    history: items of a window; a longer sequence ends at another place in each pass.
    """

    epochs: int = 60
    batch: int = 128
    learning_rate: float = 1e-3
    history: int = 100


def fit_sequences(
    model: SelfAttentiveRecommender,
    data: Interactions,
    negatives: Negatives,
    settings: SequenceSettings,
    rng: np.random.Generator,
    after_epoch: Callable[[int, float], bool] = lambda epoch, loss: True,
) -> None:
    """Train as published: each position of a window predicts the next item, against one negative.

    Each user's last two items are left out. after_epoch: as for `fit`. Dropout follows torch's generator.
    """
    optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate)
    users = np.flatnonzero(data.lengths >= 4)
    for epoch in range(settings.epochs):
        total = 0.0
        for begin in range(0, len(order := rng.permutation(users)), settings.batch):
            some = order[begin : begin + settings.batch]
            history, clicked = windows(data, some, settings.history, rng)
            drawn = negatives.draw(some, settings.history, rng)
            loss = _next_loss(model.train(), *(torch.from_numpy(each) for each in (history, clicked, drawn)))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item() * len(some)
        if not after_epoch(epoch, total / max(len(users), 1)):
            return


def windows(data: Interactions, users: Integers, length: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
    """Return the met items and the next ones, (B, length) each, 0 pads at the front."""
    usable = data.lengths[users] - 2
    ends = rng.integers(np.minimum(usable, length + 1), usable + 1)
    places = (data.starts[users] + ends)[:, None] - np.arange(length + 1, 0, -1)
    is_there = places >= data.starts[users][:, None]
    items = np.where(is_there, data.items[np.maximum(places, 0)], 0)
    return items[:, :-1], np.where(items[:, :-1] > 0, items[:, 1:], 0)


def _next_loss(model: SelfAttentiveRecommender, history: Tensor, clicked: Tensor, drawn: Tensor) -> Tensor:
    """Return the mean over the positions with a next item; all arguments (B, L)."""
    said, is_there = model.read(history), clicked > 0
    scores = torch.stack([(said * model.items(each)).sum(dim=-1)[is_there] for each in (clicked, drawn)], dim=-1)
    return click_loss(scores)
