"""The paper's network (an MLP on five states a device) in plain NumPy. Pure.

It answers for one N only, and nothing keeps it from impossible picks: both are the paper's. `save_paper_dqn` in
mdl.scheduler.paper.policy_file keeps it on disk.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mdl.scheduler.paper.follow_order import Order
from mdl.scheduler.paper.problem import Codes, Floats, Integers, PaperChain, PaperRules, observe_paper


class MlpQ:
    """layers: (weight (outputs, inputs), bias) from first to last, float32; ReLU between. n: devices.

    counts: it also sees each device's receptions (`observe_paper`); the paper's own does not.
    """

    def __init__(self, layers: Sequence[tuple[Floats, Floats]], n: int, rules: PaperRules, *, counts: bool) -> None:
        self.layers, self.n, self.rules, self.counts = tuple(layers), n, rules, counts

    def __call__(self, seen: Floats) -> Floats:
        """Return Q (B, n) of observations (B, width)."""
        values = seen
        for number, (weight, bias) in enumerate(self.layers):
            values = values @ weight.T + bias
            if number + 1 < len(self.layers):
                values = np.maximum(values, 0.0)
        return values

    def value(self, state: Codes, n_agg: Integers) -> Floats:
        """Return Q (B, n) of devices in these states (`PaperState`, (B, n)) with so many receptions."""
        return self(observe_paper(state, n_agg if self.counts else None))

    def order(self, busy: Sequence[int]) -> Order | None:
        """Return the pairs it would order from this start, or None if it makes an impossible pick (it quits)."""
        return self.play(busy)[1]

    def play(self, busy: Sequence[int]) -> tuple[float, Order | None]:
        """Return the sum of Eq. 7 over its picks, and the pairs."""
        chain = PaperChain(busy, self.rules)
        total, order, sender = 0.0, [], -1
        while not chain.ended:
            pick = int(self.value(np.array([chain.state], np.int8), np.array([chain.n_agg]))[0].argmax())
            if chain.pick % 2:
                order.append((sender, pick))
            sender = pick
            total += chain.step(pick)
        return total, order if chain.end == "goal" else None
