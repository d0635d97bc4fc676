"""How good a model is on test windows, as counts that add up over devices. Importing it never imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdl.bounds import MAX_CONFUSED
from mdl.data.windows import to_input
from mdl.errors import DataError, TrainingCancelledError
from mdl.protocol.counts import Evaluation

if TYPE_CHECKING:
    from torch import nn

    from mdl.protocol.delta import Vector

# Windows evaluated at once. Of the LeNet 256 are no faster and take 20 MB more for activations, which is much on a
# small computer; a recurrent model would be some 15 % faster with them.
_BATCH = 64


def count_predictions(truth: NDArray[np.int64], predicted: NDArray[np.int64], classes: int, loss: float) -> Evaluation:
    """Counts per class from labels 0..classes-1, both of shape (n,). loss: summed over the n windows."""
    hits = np.bincount(truth[truth == predicted], minlength=classes)
    wrong = np.bincount(predicted, minlength=classes) - hits
    missed = np.bincount(truth, minlength=classes) - hits
    counted = (_counts(hits), _counts(wrong), _counts(missed), loss, int(truth.size))
    return Evaluation(*counted, _confusion(truth, predicted, classes) if truth.size and classes <= MAX_CONFUSED else ())


def evaluate(
    module: nn.Module, x: Vector, y: NDArray[np.int64], classes: int, stopped: Callable[[], bool] = lambda: False
) -> Evaluation:
    """Evaluate in batches without gradients; every submodule's training mode is left as it was.

    x: as in `Windows`, y: int64 (n,), labels 0..classes-1. stopped: asked before each batch. Raises
    DataError if a label lies outside, TrainingCancelledError.
    """
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


def predict_logits(module: nn.Module, x: NDArray[Any]) -> Vector:
    """Logits of a few windows or images at once, float32 (n, classes); training mode is left as it was."""
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
    """Summed over the batch, in float64 so that sums over any number of devices agree."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    picked = shifted[np.arange(len(y)), y]
    total: np.float64 = np.sum(np.log(np.exp(shifted).sum(axis=1)) - picked)
    return total


def _confusion(truth: NDArray[np.int64], predicted: NDArray[np.int64], classes: int) -> tuple[tuple[int, ...], ...]:
    """Windows of each true class (rows) by the class that was predicted."""
    cells = np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(classes, classes)
    return tuple(_counts(row) for row in cells)


def _counts(values: NDArray[np.int64]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
