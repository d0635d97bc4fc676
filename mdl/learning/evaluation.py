"""The quality of a model on windows, as counts that add up over devices. Importing it never imports torch.

`OwnLoss` is the loss of a few of a device's own windows, by which it judges others' deltas (MDLdroid 5). No other
device trains on them, so that they are held out for incoming deltas. None is taken from training, and no test window
decides on a merge. A separate module beside the one that trains tests them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdl.bounds import MAX_CONFUSED, within
from mdl.data.windows import targets_of, to_input
from mdl.errors import DataError, TrainingCancelledError
from mdl.protocol.counts import MAX_SUM, Errors, Evaluation

if TYPE_CHECKING:
    from torch import nn

    from mdl.learning.flat import FlatModel
    from mdl.protocol.grid import Vector

# Windows evaluated at once. With the LeNet 256 are no faster and take 20 MB more for activations, which is much on a
# small computer; a recurrent model would be some 15 % faster with them.
_BATCH = 64
# 16 MiB: a second copy of a larger model is too much for a small device, and its forward passes take too long.
LARGEST_TESTED = 1 << 22


def count_predictions(truth: NDArray[np.int64], predicted: NDArray[np.int64], classes: int, loss: float) -> Evaluation:
    """Count hits and errors per class from labels 0..classes-1, both of shape (n,). loss: summed over the n windows."""
    hits = np.bincount(truth[truth == predicted], minlength=classes)
    wrong = np.bincount(predicted, minlength=classes) - hits
    missed = np.bincount(truth, minlength=classes) - hits
    counted = (_counts(hits), _counts(wrong), _counts(missed), loss, int(truth.size))
    return Evaluation(*counted, _confusion(truth, predicted, classes) if truth.size and classes <= MAX_CONFUSED else ())


def evaluate(
    module: nn.Module, x: NDArray[Any], y: NDArray[Any], classes: int, stopped: Callable[[], bool] = lambda: False
) -> Evaluation:
    """Evaluate in batches without gradients; leave every submodule's training mode as it was.

    x, y: as in `Windows`. classes: number of outputs. stopped: asked before each batch. Raises DataError if a label
    lies outside, TrainingCancelledError.
    """
    if targets_of(y) != "classes":
        return _evaluate_columns(module, x, y, stopped)
    if y.size and (int(y.min()) < 0 or int(y.max()) >= classes):
        raise DataError(f"test labels {int(y.min())}..{int(y.max())} where the model has classes 0..{classes - 1}")
    loss, predicted = 0.0, np.empty(y.size, np.int64)
    for start in range(0, y.size, _BATCH):
        if stopped():
            raise TrainingCancelledError(f"stopped with {start} of {y.size} windows tested")
        batch = slice(start, start + _BATCH)
        logits = predict_logits(module, x[batch])
        if logits.shape[1] != classes:
            raise DataError(f"the model tells {logits.shape[1]} classes apart where the data has {classes}")
        predicted[batch] = logits.argmax(axis=1)
        loss += float(_cross_entropy(logits, y[batch]))
    return count_predictions(np.asarray(y, np.int64), predicted, classes, loss)


def _evaluate_columns(module: nn.Module, x: Vector, y: NDArray[Any], stopped: Callable[[], bool]) -> Evaluation:
    """Evaluate numbers or labels, y (n, k)."""
    import torch

    from mdl.learning.models import loss_of, to_tensor

    find_loss, loss, found = loss_of(module, y), 0.0, np.empty(y.shape, np.float32)
    for start in range(0, len(y), _BATCH):
        if stopped():
            raise TrainingCancelledError(f"stopped with {start} of {len(y)} windows tested")
        batch = slice(start, start + _BATCH)
        outputs = predict_logits(module, x[batch])
        if outputs.shape[1] != y.shape[1]:
            raise DataError(f"the model gives {outputs.shape[1]} {targets_of(y)} where the data has {y.shape[1]}")
        found[batch] = outputs
        with torch.no_grad():
            told = find_loss(torch.from_numpy(outputs), to_tensor(y[batch]))
        loss += float(told) * len(outputs)
    return count_labels(y, found > 0, loss) if targets_of(y) == "labels" else sum_errors(y, found, loss)


def count_labels(truth: NDArray[np.uint8], found: NDArray[np.bool_], loss: float) -> Evaluation:
    """Count hits and errors of labels (n, k). loss: summed over the n windows."""
    wanted = truth.astype(bool)
    hits, wrong, missed = (_counts(each.sum(axis=0)) for each in (found & wanted, found & ~wanted, ~found & wanted))
    exact = int((found == wanted).all(axis=1).sum())
    return Evaluation(hits, wrong, missed, loss, len(truth), (), "labels", exact)


def sum_errors(truth: NDArray[np.float32], found: NDArray[np.float32], loss: float) -> Evaluation:
    """Sum the errors of numbers (n, k). loss: summed over the n windows. A non-finite value is the largest error."""
    wanted = truth.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        away = found.astype(np.float64) - wanted
        sums = (np.square(away), np.abs(away), wanted, np.square(wanted))
        columns = np.stack([each.sum(axis=0) for each in sums], axis=1)
    errors = (Errors(*(within(value, -MAX_SUM, MAX_SUM) for value in column)) for column in columns.tolist())
    none = (0,) * truth.shape[1]
    return Evaluation(none, none, none, loss, len(truth), (), "numbers", 0, tuple(errors))


def predict_logits(module: nn.Module, x: NDArray[Any]) -> Vector:
    """Return logits of a few windows or images at once, float32 (n, classes); leave training mode as it was."""
    import torch

    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
            logits: Vector = module(torch.from_numpy(to_input(x)).to(device)).to("cpu").numpy()
            return logits
    finally:
        for part, training in modes:
            part.training = training


def _cross_entropy(logits: Vector, y: NDArray[np.int64]) -> np.float64:
    """Return the sum over the batch, in float64 so that sums over any number of devices agree."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    picked = shifted[np.arange(len(y)), y]
    total: np.float64 = np.sum(np.log(np.exp(shifted).sum(axis=1)) - picked)
    return total


def _confusion(truth: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> tuple[tuple[int, ...], ...]:
    """Count the windows of each true class (rows) by predicted class."""
    cells = np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(classes, classes)
    return tuple(_counts(row) for row in cells)


def _counts(values: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


class OwnLoss:
    """See the module. make: makes the model when it is first needed. x, y: as in `Windows`.

    count: windows to draw at most. classes: the number of the model's classes, numbers or labels.
    """

    def __init__(
        self, make: Callable[[], FlatModel], x: NDArray[Any], y: NDArray[Any], classes: int, count: int, seed: int
    ) -> None:
        # The number of classes for which guessing costs as much as here: numbers cost 1, a label ln(2).
        self.classes = {"classes": classes, "numbers": 3, "labels": 2}[targets_of(y)]
        self._outputs = classes
        rows = np.sort(np.random.default_rng(seed).permutation(len(y))[:count])
        self._make, self._x, self._y = make, x[rows], y[rows]
        self._model: FlatModel | None = None
        self._kept: Callable[[], Vector | None] = lambda: None
        self._loss = 0.0

    def __call__(self, parameters: Vector, keep: bool = False) -> float:
        """Return the loss in nats a window. keep: these parameters will be asked for again, unchanged."""
        if self._kept() is parameters:
            return self._loss
        self._model = self._model or self._make()
        self._model.load(parameters)
        counts = evaluate(self._model.module, self._x, self._y, self._outputs)
        loss = counts.loss_sum / max(counts.n, 1)
        if keep:
            self._kept, self._loss = weakref.ref(parameters), loss
        return loss
