"""A rule in two picks, the sender and then the receiver, for many rows at once. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mdl.scheduler.policies.chain_arrays import Bools, Floats, Integers, Stand
from mdl.scheduler.policies.features import Look, look_at, observe_receivers, observe_senders
from mdl.scheduler.policies.layout import lay_out, picks_now, prospects
from mdl.scheduler.policies.qnet_numpy import NumpyQ

Rule = Callable[[Stand], tuple[Integers, Integers]]
# A pick differs from that of the layout only if its value is this much better, in transfers of the median link.
MARGIN = 0.3


def layout_rule(stand: Stand) -> tuple[Integers, Integers]:
    """Return senders and receivers (B,) of the hops that the layout starts now; -1, -1: wait.

    The layout is that of `mdl.scheduler.policies.layout`.
    """
    expected = prospects(stand)
    return picks_now(lay_out(expected), expected.keep, stand.free(), stand.may_wait())


@dataclass(frozen=True)
class Picked:
    """Positions (B,), N for waiting. values: the network's (B, N + 1), zeros without a network. planned: the positions
    that have the margin in their favour."""

    positions: Integers
    values: Floats
    planned: Integers


class Picks:
    """A rule in two picks, the sender and then the receiver: the network's, or without a network those of the layout.

    The best value is picked; the pick of the layout has `margin` in its favour.
    """

    def __init__(self, q: NumpyQ | None, margin: float = MARGIN) -> None:
        self._q, self.margin = q, margin

    def __call__(self, stand: Stand) -> tuple[Integers, Integers]:
        if self._q is None:
            return layout_rule(stand)
        look = look_at(stand)
        senders = self.pick_senders(look).positions
        waits = senders == stand.state.shape[1]
        pairing = np.flatnonzero(~waits)
        receivers = np.full(len(senders), -1)
        if len(pairing):
            receivers[pairing] = self.pick_receivers(look.take(pairing), senders[pairing]).positions
        return np.where(waits, -1, senders), receivers

    def pick_senders(self, look: Look) -> Picked:
        """Make the first pick: a sender, or to wait."""
        return self._choose(look, *observe_senders(look))

    def pick_receivers(self, look: Look, senders: Integers) -> Picked:
        """Make the second pick. senders: positions (B,), none of them waiting."""
        return self._choose(look, *observe_receivers(look, senders))

    def _choose(self, look: Look, features: Floats, valid: Bools, planned: Integers) -> Picked:
        if self._q is None:
            return Picked(planned, np.zeros(valid.shape, dtype=np.float32), planned)
        values = self._q(features, look.stand.exists, valid)
        scores = values.copy()
        scores[np.arange(len(values)), planned] += self.margin
        return Picked(scores.argmax(axis=1), values, planned)
