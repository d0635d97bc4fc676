"""Plays many simulated iterations side by side under one rule: for rollouts, training and fast judging. Pure.

A rule takes a Stand of rows in which at least two devices are free and returns senders and receivers (-1, -1: wait).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mdl.scheduler.policies.chain_arrays import Bools, Doubles, Integers, Stand
from mdl.scheduler.policies.qnet_numpy import MARGIN, NumpyQ, Picks, Rule
from mdl.sim.timing.batch import Batch, Codes, pack
from mdl.sim.timing.scenario import draw_scenario


@dataclass(frozen=True)
class BatchOutcome:
    """Results of B iterations.

    makespan_s, wasted_s: (B,). energy_j: (B, N). lost: number of contributions, (B,). states: at the end, (B, N), codes
    in the order of DeviceState.
    """

    makespan_s: Doubles
    energy_j: Doubles
    lost: Integers
    wasted_s: Doubles
    states: Codes


def evaluate(q: NumpyQ | None, family: str, n: int, seeds: Iterable[int], margin: float = MARGIN) -> BatchOutcome:
    """Play the scenarios of these seeds, like `mdl.scheduler.study.play.play` with Learned (or the layout)."""
    packed = pack([draw_scenario(family, n, seed) for seed in seeds])
    return finish(Batch(packed), Picks(q, margin))


def finish(batch: Batch, rule: Rule) -> BatchOutcome:
    """Play every row to its end; this uses up the batch."""
    rows, count = batch.idle().shape
    none, states = np.zeros(rows, dtype=np.int64), np.zeros((rows, count), dtype=np.int8)
    outcome = BatchOutcome(np.zeros(rows), np.zeros((rows, count)), none, np.zeros(rows), states)
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
    """Make one decision in each playing row that has a choice; then advance rows that wait or can pair no more.

    playing: (B,). Returns the rows in which something happened (B,); rows that are not playing count as such.
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
    """Convert these rows (positions) to a Stand, with the numbers of `mdl.scheduler.study.play.view_of`."""
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
        may_receive=packed.may_receive[which],
        time_s=batch.now_s[rows],
        size_mb=packed.size_mb[which],
        latency_s=packed.latency_s[which],
        unit_s=packed.unit_s[which],
    )


def _note(outcome: BatchOutcome, ids: Integers, batch: Batch) -> None:
    outcome.makespan_s[ids] = batch.makespan_s()
    outcome.energy_j[ids] = batch.energy_j
    outcome.lost[ids] = batch.lost.sum(axis=1)
    outcome.wasted_s[ids] = batch.wasted_s
    outcome.states[ids] = batch.states()
