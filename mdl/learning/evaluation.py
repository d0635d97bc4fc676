"""How good a model is on test windows, as counts that add up over devices. Importing it never imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from mdl.bounds import MAX_CLASSES, MAX_LOSS, Count
from mdl.errors import DataError, RemoteProtocolError

if TYPE_CHECKING:
    from torch import nn

    from mdl.protocol.delta import Vector

# Windows evaluated at once: bounds the memory of activations, and is past the point where larger batches are faster.
_BATCH = 256


Counts: TypeAlias = Annotated[tuple[Count, ...], Meta(max_length=MAX_CLASSES)]
# The largest mean loss that is told, of a million windows.
_LOSSES = 1e6 * MAX_LOSS


class Evaluation(msgspec.Struct, frozen=True):
    """Per-class counts over n windows; adding two evaluations gives the evaluation of both devices' windows.

    Adding raises RemoteProtocolError when the other counts other classes.
    """

    true_positive: Counts
    false_positive: Counts
    false_negative: Counts
    loss_sum: Annotated[float, Meta(ge=-_LOSSES, le=_LOSSES)]
    n: Count

    def __add__(self, other: Evaluation) -> Evaluation:
        return Evaluation(
            _add(self.true_positive, other.true_positive),
            _add(self.false_positive, other.false_positive),
            _add(self.false_negative, other.false_negative),
            self.loss_sum + other.loss_sum,
            self.n + other.n,
        )

    @property
    def accuracy(self) -> float:
        """Share of windows whose class was found; 0 without windows."""
        return sum(self.true_positive) / self.n if self.n else 0.0

    @property
    def macro_f1(self) -> float:
        """Mean F1 over the classes that occur as truth or as prediction; 0 without windows."""
        scores = [
            2 * hit / (2 * hit + wrong + missed)
            for hit, wrong, missed in zip(self.true_positive, self.false_positive, self.false_negative, strict=True)
            if hit + wrong + missed
        ]
        return sum(scores) / len(scores) if scores else 0.0

    @property
    def loss(self) -> float:
        """Mean cross-entropy in nats; 0 without windows."""
        return self.loss_sum / self.n if self.n else 0.0


def no_evaluation(classes: int) -> Evaluation:
    """The neutral element: what to start a sum from."""
    zeros = (0,) * classes
    return Evaluation(zeros, zeros, zeros, 0.0, 0)


def count_predictions(truth: NDArray[np.int64], predicted: NDArray[np.int64], classes: int, loss: float) -> Evaluation:
    """Counts per class from labels 0..classes-1, both of shape (n,). loss: summed over the n windows."""
    hits = np.bincount(truth[truth == predicted], minlength=classes)
    wrong = np.bincount(predicted, minlength=classes) - hits
    missed = np.bincount(truth, minlength=classes) - hits
    return Evaluation(_counts(hits), _counts(wrong), _counts(missed), loss, int(truth.size))


def evaluate(module: nn.Module, x: Vector, y: NDArray[np.int64], classes: int) -> Evaluation:
    """Evaluate in batches without gradients; every submodule's training mode is left as it was.

    x: float32 (n, channels, time), y: int64 (n,), labels 0..classes-1. Raises DataError if a label lies outside.
    """
    if y.size and (int(y.min()) < 0 or int(y.max()) >= classes):
        raise DataError(f"test labels {int(y.min())}..{int(y.max())} where the model has classes 0..{classes - 1}")
    loss, predicted = 0.0, np.empty(y.size, np.int64)
    for start in range(0, y.size, _BATCH):
        batch = slice(start, start + _BATCH)
        logits = predict_logits(module, x[batch])
        if logits.shape[1] != classes:
            raise DataError(f"the model tells {logits.shape[1]} classes apart where the data has {classes}")
        predicted[batch] = logits.argmax(axis=1)
        loss += float(_cross_entropy(logits, y[batch]))
    return count_predictions(np.asarray(y, np.int64), predicted, classes, loss)


def predict_logits(module: nn.Module, x: Vector) -> Vector:
    """Logits of a few windows at once, float32 (n, classes); training mode is left as it was."""
    import torch

    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            logits: Vector = module(torch.from_numpy(np.array(x, np.float32))).numpy()
            return logits
    finally:
        for part, training in modes:
            part.training = training


def _cross_entropy(logits: Vector, y: NDArray[np.int64]) -> np.float64:
    """Summed over the batch, in float64 so that sums over any number of devices agree."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    picked = shifted[np.arange(len(y)), y]
    total: np.float64 = np.sum(np.log(np.exp(shifted).sum(axis=1)) - picked)
    return total


def _add(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if len(a) != len(b):
        raise RemoteProtocolError(f"evaluations over {len(a)} and {len(b)} classes cannot be added up")
    return tuple(left + right for left, right in zip(a, b, strict=True))


def _counts(values: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
