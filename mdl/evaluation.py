"""How good a model is on test windows, as counts that add up over devices. Importing this module never imports torch."""

from __future__ import annotations

import msgspec


class Evaluation(msgspec.Struct, frozen=True):
    """Per-class counts over n windows; adding two evaluations gives the evaluation of both devices' windows."""

    true_positive: tuple[int, ...]
    false_positive: tuple[int, ...]
    false_negative: tuple[int, ...]
    loss_sum: float
    n: int
