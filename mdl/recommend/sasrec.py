"""SASRec (ICDM 2018): self-attention over the history says what comes next; a candidate scores by its own embedding.

r_i = <F, E_i>, where F is the last position after the blocks and E the items' embedding, shared with the input. It
knows no user. Two blocks of one head, as published.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
        """What each position says comes next, (B, L, size); it sees itself and what stands before it."""
        length = history.shape[1]
        seen: Tensor = self.dropout(self.items(history) * self.items.embedding_dim**0.5 + self.places[-length:])
        later = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
        # A padded position may see itself, or it would see nothing at all; nobody else sees it.
        hidden = later | (history == 0)[:, None] & ~torch.eye(length, dtype=torch.bool)
        for block in self.blocks:
            seen = block(seen, src_mask=hidden)
        found: Tensor = self.norm(seen)
        return found
