"""The loss of a few of a device's own windows, by which it judges others' deltas (MDLdroid 5).

No other device trains on them, so that they are held out for incoming deltas. None is taken from training, and no test
window decides on a merge. A separate module beside the one that trains tests them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mdl.data.targets import targets_of
from mdl.learning.evaluation import evaluate

if TYPE_CHECKING:
    from mdl.learning.flat import FlatModel
    from mdl.protocol.grid import Vector

# 16 MiB: a second copy of a larger model is too much for a small device, and its forward passes take too long.
LARGEST = 1 << 22


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
