"""A text as the data of a `Study`: the batches of its samples, and the loss of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from mdl.errors import ConfigError
from mdl.personal.compression import LayerUse
from mdl.personal.study import FeatureTask
from mdl.personal.words.next_word import NextWordModel, size_of
from mdl.personal.words.pieces import (
    BUCKETS,
    MOST_STEPS,
    batch_pieces,
    collate,
    collate_pieces,
    cut_pieces,
    draw_bucketed,
    draw_exact,
    draw_longest,
    iterate_pieces,
    list_samples,
)
from mdl.personal.words.prefix import (
    StepRows,
    count_once,
    draw_classes,
    mean_loss,
    sample_rows,
    sampled_loss,
    shared_rows,
)
from mdl.personal.words.text import Ids, Text

# Batches of samples: padded to 30; within four buckets; to a batch's longest; of one length without padding (5.3); or
# whole pieces with the shared history of their samples.
Batching: TypeAlias = Literal["padded", "buckets", "longest", "exact", "shared"]
# Numbers of pieces; or of samples, and the number of steps to which they are padded.
Batch: TypeAlias = Ids | tuple[Ids, int]
# Limit of cached features: 70,000 words of 400 units take 0.3 GB in half precision.
LARGEST_CACHE_BYTES = 1 << 30
_CACHE_BATCH = 256
# Words that suffice to see the last layer's inputs: some 120,000 steps, of 400 numbers each.
WATCHED_WORDS = 30_000
# A class that this text does not use counts half as much as one that it uses once.
_UNUSED = 0.5
# Numbers of a batch that seed its draw: enough that hardly two batches begin alike.
_SEED_NUMBERS = 4


class TextTask:
    """Next words of a text, in batches of about `size` words.

    sampled: classes that a loss computes, 0 for all. once: steps of a word's history are not learned again with it.
    """

    def __init__(
        self, model: NextWordModel, text: Text, batching: Batching, size: int, sampled: int = 0, once: bool = False
    ) -> None:
        self._model, self._batching, self._size, self._sampled = model, batching, size, sampled
        self._once = once
        self._pieces = cut_pieces(text)
        self._samples = list_samples(self._pieces)
        self._classes = size_of(model).classes

    def draw(self, generator: np.random.Generator) -> Sequence[Batch]:
        match self._batching:
            case "shared":
                return batch_pieces(self._pieces, self._size, generator)
            case "exact":
                return draw_exact(self._samples, self._size, generator)
            case "longest":
                return draw_longest(self._samples, self._size, generator)
            case "buckets":
                return draw_bucketed(self._samples, self._size, generator, BUCKETS)
            case "padded":
                return draw_bucketed(self._samples, self._size, generator, (MOST_STEPS,))

    def loss(self, batch: Batch) -> Tensor:
        if isinstance(batch, tuple):
            return self._mean(sample_rows(self._model, collate(self._samples, *batch)), batch[0])
        return self._mean(shared_rows(self._model, collate_pieces(self._pieces, batch)), batch)

    def _mean(self, rows: StepRows, batch: Ids) -> Tensor:
        rows = count_once(rows) if self._once else rows
        if not self._sampled:
            return mean_loss(self._model.output, rows)
        # The seed comes from the batch alone: a saved study draws the same after it is resumed.
        generator = np.random.default_rng(batch[:_SEED_NUMBERS])
        return sampled_loss(self._model.output, rows, *draw_classes(self._classes, self._sampled, generator))


def cache_text(
    model: NextWordModel, text: Text, size: int, once: bool = False, largest: int = LARGEST_CACHE_BYTES
) -> FeatureTask:
    """Cache a text's features for all epochs of tuning the last layer, in half precision: an extra, not the paper's.

    Raises ConfigError if they take more than `largest` bytes.
    """
    features, targets, weights, owner = list[Tensor](), list[Tensor](), list[Tensor](), list[Ids]()
    taken = 0
    with torch.no_grad():
        for words, batch in iterate_pieces(cut_pieces(text), _CACHE_BATCH):
            rows = shared_rows(model, batch)
            rows = count_once(rows) if once else rows
            taken += 2 * rows.features.numel()
            if taken > largest:
                raise ConfigError(
                    f"the features of {len(text)} words take more than {largest >> 20} MB: do not cache them"
                )
            features.append(rows.features.half())
            targets.append(rows.targets)
            weights.append(rows.weights)
            # History that a piece took over counts for its first sample.
            first = torch.searchsorted(batch.sample_piece, rows.piece)
            owner.append(words[torch.where(rows.sample < 0, first, rows.sample).numpy()])
    together = (torch.cat(features), torch.cat(targets), torch.cat(weights)) if features else _nothing(model)
    return FeatureTask(model.output, *together, np.concatenate([*owner, np.zeros(0, np.int64)]), size)


def _nothing(model: NextWordModel) -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros(0, model.hidden), torch.zeros(0, dtype=torch.int64), torch.zeros(0)


def watch_last_layer(model: NextWordModel, text: Text, words: int = WATCHED_WORDS) -> LayerUse:
    """Return the last layer's inputs in the first words of a text, and the use of each class in all of it."""
    total, weight = torch.zeros(model.hidden, model.hidden), 0.0
    with torch.no_grad():
        for _, batch in iterate_pieces(cut_pieces(text.first(words)), _CACHE_BATCH):
            rows = shared_rows(model, batch)
            total += (rows.features * rows.weights[:, None]).T @ rows.features
            weight += float(rows.weights.sum())
    uses = np.bincount(text.classes, minlength=size_of(model).classes).astype(np.float32)
    return LayerUse(total / max(weight, 1.0), torch.from_numpy(uses).clamp_min(_UNUSED))
