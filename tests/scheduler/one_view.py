"""The observation of one view, as the network gets those of many."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mdl.scheduler.policies.chain import ChainView, stand_of
from mdl.scheduler.policies.features import look_at, observe_receivers, observe_senders


class Observation(NamedTuple):
    """features: float32, shape (n, F), columns as FEATURES.

    valid: bool, shape (n + 1,): devices that may be picked now; the last is waiting.
    """

    features: NDArray[np.float32]
    valid: NDArray[np.bool_]


def observe(view: ChainView, sender: int | None = None) -> Observation:
    """Observe one view, to pick the sender or, if `sender` (its position) is given, the receiver."""
    look = look_at(stand_of(view))
    features, valid, _ = observe_senders(look) if sender is None else observe_receivers(look, np.array([sender]))
    return Observation(features[0], valid[0])
