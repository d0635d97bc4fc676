"""The backbone, a Deep Interest Network with target attention, and its training from a log (Eq. 4) and scoring.

The candidate asks the history for the items that matter (queries, keys and values of one size, Table 5); the answer
joins the candidate and the user. The paper's patches stand behind `first`, `second` and `third` of `classifier`.
Training takes binary cross-entropy over samples with drawn negatives.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from mdl.errors import TrainingCancelledError
from mdl.peers.dccl.model.interactions import Interactions, ItemSamples, Negatives, SampleEnds, batches, make_samples

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


# Contexts that are scored at once: 101 candidates of 128 features are 26 MB.
_ASKED = 512


class FitSettings(msgspec.Struct, frozen=True):
    """epochs: passes over the places; batch: contexts a step, each with 1 + negatives candidates.

    history: items of a context. decay: of AdamW.
    """

    epochs: int = 5
    batch: int = 512
    negatives: int = 4
    learning_rate: float = 1e-3
    decay: float = 0.0
    history: int = 20


def click_loss(scores: Tensor) -> Tensor:
    """Return the mean pointwise cross-entropy of scores (..., 1 + n): the first candidates were clicked, others not."""
    labels = torch.zeros_like(scores)
    labels[..., 0] = 1
    return F.binary_cross_entropy_with_logits(scores, labels)


def fit(
    loss_of: Callable[[ItemSamples], Tensor],
    parameters: Iterable[nn.Parameter],
    data: Interactions,
    places: SampleEnds,
    negatives: Negatives,
    settings: FitSettings,
    rng: np.random.Generator,
    after_epoch: Callable[[int, float], bool] = lambda epoch, loss: True,
    must_end: Callable[[], bool] = lambda: False,
) -> None:
    """Minimise the loss of samples that end at these places, in place.

    after_epoch: gets the epoch and its mean loss, returns False to end. must_end: asked before each batch. Dropout
    follows torch's generator: fork and seed it. Raises TrainingCancelledError.
    """
    optimizer = torch.optim.AdamW(list(parameters), settings.learning_rate, weight_decay=settings.decay)
    for epoch in range(settings.epochs):
        total = 0.0
        for some in batches(places, settings.batch, rng):
            if must_end():
                raise TrainingCancelledError("stopped before its end")
            loss = loss_of(make_samples(data, some, negatives, settings.negatives, settings.history, rng))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            total += loss.item() * len(some)
        if not after_epoch(epoch, total / max(len(places), 1)):
            return


def fit_model(
    model: nn.Module,
    data: Interactions,
    places: SampleEnds,
    negatives: Negatives,
    settings: FitSettings,
    rng: np.random.Generator,
    after_epoch: Callable[[int, float], bool] = lambda epoch, loss: True,
    must_end: Callable[[], bool] = lambda: False,
) -> None:
    """Run Eq. 4: `fit` of a model that scores candidates (B, C) in contexts, users (B,) and history (B, L)."""

    def loss_of(samples: ItemSamples) -> Tensor:
        return click_loss(model.train()(*as_tensors(samples)))

    fit(loss_of, model.parameters(), data, places, negatives, settings, rng, after_epoch, must_end)


@torch.no_grad()
def score(model: nn.Module, samples: ItemSamples) -> NDArray[np.float32]:
    """Return the scores of all candidates, (B, 1 + n)."""
    model.eval()
    found = [model(*as_tensors(samples.take(slice(begin, begin + _ASKED)))) for begin in range(0, len(samples), _ASKED)]
    return torch.cat(found).numpy()


def as_tensors(samples: ItemSamples) -> tuple[Tensor, Tensor, Tensor]:
    """Return users, history and candidates as a model takes them."""
    users, history, candidates = (
        torch.from_numpy(np.ascontiguousarray(each)) for each in (samples.users, samples.history, samples.candidates)
    )
    return users, history, candidates
