"""The loss of a few of a device's own windows, by which it judges others' deltas (MDLdroid 5).

No other device trains on them, so that for what comes in they are held out; none is taken from training, and no test
window decides what is merged. They are tested in a module of their own, beside the one that trains.
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
    from mdl.protocol.delta import Vector

# 16 MiB: a second copy of a larger model is too much for a small device, and its forward passes take too long.
LARGEST = 1 << 22


class OwnLoss:
    """See the module. make: a model, made when it is first needed. x, y: as in `Windows`.

    count: windows that are drawn, at most. classes: that the model tells apart, or how many numbers or labels it gives.
    """

    def __init__(
        self, make: Callable[[], FlatModel], x: NDArray[Any], y: NDArray[Any], classes: int, count: int, seed: int
    ) -> None:
        # Of as many classes guessing costs as much as of these: numbers cost 1, a label ln(2).
        self.classes = {"classes": classes, "numbers": 3, "labels": 2}[targets_of(y)]
        self._outputs = classes
        rows = np.sort(np.random.default_rng(seed).permutation(len(y))[:count])
        self._make, self._x, self._y = make, x[rows], y[rows]
        self._model: FlatModel | None = None
        self._kept: Callable[[], Vector | None] = lambda: None
        self._loss = 0.0

    def __call__(self, parameters: Vector, keep: bool = False) -> float:
        """In nats a window. keep: these are asked for again, and not changed meanwhile."""
        if self._kept() is parameters:
            return self._loss
        self._model = self._model or self._make()
        self._model.load(parameters)
        counts = evaluate(self._model.module, self._x, self._y, self._outputs)
        loss = counts.loss_sum / max(counts.n, 1)
        if keep:
            self._kept, self._loss = weakref.ref(parameters), loss
        return loss
