"""The training speed of this device, so that shares can follow it: the LeNet on windows of noise, for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy as np

# Devices are only compared with one another, so it need not be their model: a window of UCI HAR, batches as usual.
_CHANNELS, _TIME, _CLASSES, _WINDOWS = 9, 128, 6, 64
# Long enough that a clock of milliseconds and a processor that wakes up do not matter.
_MEASURE_S = 0.5


def measure_speed(clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the windows a second in training. Loads torch if needed."""
    from mdl.config import TrainingSettings
    from mdl.learning.flat import FlatModel
    from mdl.learning.models import build_model
    from mdl.learning.training import LocalTrainer

    rng = np.random.default_rng(0)
    x = rng.standard_normal((_WINDOWS, _CHANNELS, _TIME)).astype(np.float32)
    y = rng.integers(_CLASSES, size=_WINDOWS)
    model = FlatModel(build_model("lenet", _CHANNELS, _TIME, _CLASSES, 0))
    trainer = LocalTrainer(model, x, y, msgspec.structs.replace(TrainingSettings(), rounds_per_epoch=1))
    parameters = model.values().copy()
    trainer.train_round(parameters, 1)  # the first is slower
    began, done, rounds = clock(), 0, 1
    while (passed := clock() - began) < _MEASURE_S:
        rounds += 1
        done += trainer.train_round(parameters, rounds).samples
    return done / passed
