"""Training a recommender from a log (Eq. 4) and scoring: binary cross-entropy over samples with drawn negatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from mdl.errors import TrainingCancelledError
from mdl.recommend.interactions import Interactions
from mdl.recommend.splits import ItemSamples, Negatives, SampleEnds, batches, make_samples

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
