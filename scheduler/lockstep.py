"""Plays many simulated iterations side by side under one rule: for rollouts, training and fast judging. Pure.

A rule takes a Stand of rows in which at least two devices are free and returns senders and receivers (-1, -1: wait).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from scheduler.numpyq import INVALID_Q, NumpyQ
from scheduler.observation import (
    FREE,
    Bools,
    Doubles,
    Floats,
    Integers,
    Stand,
    interrupted_link_times,
    observe_receivers,
    observe_senders,
)
from sim.batch import Batch

Rule = Callable[[Stand], tuple[Integers, Integers]]

# A pick differs from the greedy one only if its value is this much better, in transfers of the median link.
MARGIN = 0.05


@dataclass(frozen=True)
class Outcome:
    """Of B iterations. makespan_s, wasted_s: (B,). energy_j: (B, N). lost: how many contributions, (B,)."""

    makespan_s: Doubles
    energy_j: Doubles
    lost: Integers
    wasted_s: Doubles


def finish(batch: Batch, rule: Rule) -> Outcome:
    """Play every row to its end; the batch given is used up."""
    rows, count = batch.idle().shape
    outcome = Outcome(np.zeros(rows), np.zeros((rows, count)), np.zeros(rows, dtype=np.int64), np.zeros(rows))
    ids, over = np.arange(rows), batch.ended()
    while True:
        if over.mean() > 0.25 or over.all():
            _note(outcome, ids[over], batch.take(over))
            ids, batch = ids[~over], batch.take(~over)
            over = over[~over]
        if not len(ids):
            return outcome
        moved = step(batch, rule, ~over)
        over |= batch.ended() | ~moved


def step(batch: Batch, rule: Rule, playing: Bools) -> Bools:
    """One decision in each playing row that has a choice, then on to the next event where nothing else can be paired.

    Returns where something happened; rows that are not playing count as such.
    """
    choosing = np.flatnonzero((batch.idle().sum(axis=1) > 1) & playing)
    waits = np.zeros(len(batch), dtype=np.bool_)
    if len(choosing):
        senders, receivers = rule(stand_of_rows(batch, choosing))
        pairs = senders >= 0
        waits[choosing[~pairs]] = True
        batch.start(choosing[pairs], senders[pairs], receivers[pairs])
    moving = playing & (waits | (batch.idle().sum(axis=1) < 2))
    moved: Bools = batch.advance(moving) | ~moving
    return moved


def stand_of_rows(batch: Batch, rows: Integers) -> Stand:
    """The stand of these rows, as `scheduler.play.view_of` would show them."""
    packed, which = batch.packed, batch.which[rows]
    shape = (len(rows), packed.exists.shape[1])
    zeros = np.zeros(shape)
    return Stand(
        exists=packed.exists[which],
        state=batch.states()[rows].astype(np.int64),
        link=packed.link_mb_s[which],
        merge=packed.merge_mb_s[which],
        kind=packed.kind[which],
        battery=packed.battery_percent[which],
        charging=packed.charging[which],
        in_use=np.zeros(shape, dtype=np.bool_),
        cpu=zeros,
        free_memory=zeros,
        busy_for=batch.busy_for_s()[rows],
        eta_ready=batch.eta_ready_s()[rows],
        op_left=batch.op_left_s()[rows],
        n_agg=batch.n_agg[rows].astype(np.float64),
        theta=batch.theta[rows],
        energy=batch.energy_j[rows],
        time_s=batch.now_s[rows],
        size_mb=packed.size_mb[which],
        latency_s=packed.latency_s[which],
        unit_s=packed.unit_s[which],
    )


def greedy_rule(stand: Stand) -> tuple[Integers, Integers]:
    """Whose transfer takes longest sends, whose takes shortest receives; it never waits.

    A transfer takes the link time, stretched by the share of time that its kind of use keeps the device busy. Among
    equals the first sends and the last receives.
    """
    costs = interrupted_link_times(stand)
    free = (stand.state == FREE) & stand.exists
    return np.where(free, costs, -np.inf).argmax(axis=1), _cheapest(costs, free)


class Picks:
    """A rule in two picks, the sender and then the receiver: the network's, or the greedy ones without a network.

    The best value is picked, unless the greedy pick is within the margin of it.
    """

    def __init__(self, q: NumpyQ | None, margin: float = MARGIN) -> None:
        self._q = q
        self._margin = margin

    def __call__(self, stand: Stand) -> tuple[Integers, Integers]:
        features = observe_senders(stand)
        senders, _ = self.pick_senders(stand, features)
        waits = senders == stand.state.shape[1]
        pairing = np.flatnonzero(~waits)
        receivers = np.full(len(senders), -1)
        if len(pairing):
            receivers[pairing], _ = self.pick_receivers(stand.take(pairing), features[pairing], senders[pairing])
        return np.where(waits, -1, senders), receivers

    def pick_senders(self, stand: Stand, features: Floats) -> tuple[Integers, Floats]:
        """Positions (N for waiting) and the values (B, N + 1) they were chosen by."""
        nobody = np.full(len(features), -1)
        values = self._values(stand, *observe_receivers(stand, features, nobody))
        greedy, _ = greedy_rule(stand)
        return self._choose(values, greedy), values

    def pick_receivers(self, stand: Stand, features: Floats, senders: Integers) -> tuple[Integers, Floats]:
        observed, valid = observe_receivers(stand, features, senders)
        values = self._values(stand, observed, valid)
        greedy = _cheapest(interrupted_link_times(stand), valid[:, :-1])
        return self._choose(values, greedy), values

    def _values(self, stand: Stand, observed: Floats, valid: Bools) -> Floats:
        if self._q is None:
            return np.where(valid, np.float32(0.0), np.float32(INVALID_Q))
        return self._q(observed, stand.exists, valid)

    def _choose(self, values: Floats, greedy: Integers) -> Integers:
        rows = np.arange(len(values))
        best = values.argmax(axis=1)
        return np.where(values[rows, best] > values[rows, greedy] + self._margin, best, greedy)


def _cheapest(costs: Doubles, allowed: Bools) -> Integers:
    last: Integers = costs.shape[1] - 1 - np.where(allowed, costs, np.inf)[:, ::-1].argmin(axis=1)
    return last


def _note(outcome: Outcome, ids: Integers, batch: Batch) -> None:
    outcome.makespan_s[ids] = batch.makespan_s()
    outcome.energy_j[ids] = batch.energy_j
    outcome.lost[ids] = batch.lost.sum(axis=1)
    outcome.wasted_s[ids] = batch.wasted_s
