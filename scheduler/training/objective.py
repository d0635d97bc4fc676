"""The true objective of an iteration, and its end by the greedy rule: training rewards come from both. Pure.

J = makespan + energy_weight x imbalance + lost_weight x lost contributions, in transfers of the median link: times are
divided by its transfer time, energies by a sender's energy in that time. The rule of rollouts is simple enough for
batches: among the idle, the device with the costliest link (and kind of use) sends, the cheapest receives, none waits.
The layout (`mdl.scheduler.policies.layout`) may continue instead: slower to play, and nearer to a network's play.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median, pstdev

import numpy as np

from mdl.devices.energy import SEND_W
from mdl.devices.scenario import Scenario
from mdl.scheduler.policies.chain_arrays import BUSY_SHARE, Bools, Doubles, Integers, Stand, stand_of
from mdl.scheduler.policies.layout import cost_to_keep, lay_out, prospects, receivers_for
from mdl.scheduler.policies.qnet_numpy import layout_rule
from mdl.scheduler.policies.trained_under import LAYOUT
from mdl.scheduler.study.parallel_play import stand_of_rows, step
from mdl.scheduler.study.play import view_of
from mdl.sim.timing.batch import Batch
from mdl.sim.timing.iteration import Iteration

# Transfers: costs of devices that may not receive; those of devices that may not be paired are infinite.
_FULL = 1e6


@dataclass(frozen=True)
class Objective:
    """energy_weight: for the standard deviation of accumulated energy. lost_weight: for one device's contribution."""

    energy_weight: float = 0.02
    lost_weight: float = 2.0

    def value(self, iteration: Iteration, unit_s: float) -> float:
        """Return J of an iteration; at its end the true value, before that with the time so far."""
        elapsed_s = iteration.makespan_s if iteration.ended else iteration.now_s
        energy_j = [iteration.energy_j(index) for index in range(len(iteration.scenario.devices))]
        imbalance = pstdev(energy_j) / (SEND_W * unit_s)
        return elapsed_s / unit_s + self.energy_weight * imbalance + self.lost_weight * len(iteration.lost)

    def values(self, batch: Batch) -> Doubles:
        """Return the same for each row of a batch, shape (B,)."""
        packed, which = batch.packed, batch.which
        exists, unit = packed.exists[which], packed.unit_s[which]
        elapsed_s = np.where(batch.ended(), batch.makespan_s(), batch.now_s)
        count = exists.sum(axis=1)
        mean = np.where(exists, batch.energy_j, 0.0).sum(axis=1) / count
        spread = np.sqrt((np.where(exists, batch.energy_j - mean[:, None], 0.0) ** 2).sum(axis=1) / count)
        lost = batch.lost.sum(axis=1)
        values: Doubles = elapsed_s / unit + self.energy_weight * spread / (SEND_W * unit) + self.lost_weight * lost
        return values


def unit_of(scenario: Scenario) -> float:
    """Return the seconds of a transfer over the median link."""
    return scenario.latency_s + scenario.size_mb / median(device.link_mb_s for device in scenario.devices)


def rollout_costs(scenario: Scenario) -> Doubles:
    """Return the rule's costs, shape (n,), in transfers of the median link: link time, lengthened by the kind's risk.

    A device that may not receive costs more than all others: it sends first.
    """
    links = np.array([device.link_mb_s for device in scenario.devices])
    share = BUSY_SHARE[[device.kind for device in scenario.devices]]
    costs = _cost(scenario.size_mb / links / unit_of(scenario), share)
    return np.where([device.may_receive for device in scenario.devices], costs, _FULL)


def finish(iteration: Iteration, costs: Doubles, sender: int | None = None) -> None:
    """Play an iteration to its end by the rule. costs: (N,). sender: of the first pair, if it is picked already."""
    while not iteration.ended:
        idle = iteration.idle()
        while len(idle) >= 2:
            giver = max(idle, key=costs.__getitem__) if sender is None else sender
            sender = None
            idle.remove(giver)
            taker = min(idle, key=costs.__getitem__)
            idle.remove(taker)
            iteration.start(giver, taker)
        if not iteration.advance():
            return


def batch_costs(batch: Batch) -> Doubles:
    """Return `rollout_costs` of each row, shape (B, N)."""
    packed, which = batch.packed, batch.which
    time = packed.size_mb[which, None] / packed.link_mb_s[which] / packed.unit_s[which, None]
    return np.where(packed.may_receive[which], _cost(time, BUSY_SHARE[packed.kind[which]]), _FULL)


def finish_batch(batch: Batch, senders: Integers | None = None) -> None:
    """Run `finish` for every row at once. senders (B,): of the first pairs, -1 if not picked yet."""
    costs = batch_costs(batch)
    if senders is not None:
        rows = np.flatnonzero(senders >= 0)
        if len(rows):
            receivers = np.where(batch.idle()[rows], costs[rows], np.inf)
            receivers[np.arange(len(rows)), senders[rows]] = np.inf
            batch.start(rows, senders[rows], receivers.argmin(axis=1))
    moving = ~batch.ended()
    while moving.any():
        _pair_by_rule(batch, costs, moving)
        moving = batch.advance(moving) & ~batch.ended()


def finish_by_layout(iteration: Iteration, sender: int | None = None) -> None:
    """Play an iteration to its end by the layout. sender: of the first pair, if it is picked already."""
    while not iteration.ended:
        waits = False
        if len(iteration.idle()) >= 2:
            stand = stand_of(view_of(iteration))
            if sender is None:
                giver, taker = (int(each[0]) for each in layout_rule(stand))
            else:
                giver, taker, sender = sender, int(_laid_out_receivers(stand, np.array([sender]))[0]), None
            waits = giver < 0
            if not waits:
                iteration.start(giver, taker)
        if (waits or len(iteration.idle()) < 2) and not iteration.advance():
            return


def finish_batch_by_layout(batch: Batch, senders: Integers | None = None) -> None:
    """Run `finish_by_layout` for every row at once. senders (B,): of the first pairs, -1 if not picked yet."""
    if senders is not None and len(rows := np.flatnonzero(senders >= 0)):
        batch.start(rows, senders[rows], _laid_out_receivers(stand_of_rows(batch, rows), senders[rows]))
    playing = ~batch.ended()
    while playing.any():
        playing &= step(batch, layout_rule, playing) & ~batch.ended()


def _laid_out_receivers(stand: Stand, senders: Integers) -> Integers:
    expected, valid = prospects(stand), stand.free()
    valid[np.arange(len(senders)), senders] = False
    return receivers_for(lay_out(expected), expected.costs, valid, senders)


def _pair_by_rule(batch: Batch, costs: Doubles, moving: Bools) -> None:
    while True:
        idle = batch.idle()
        rows = np.flatnonzero(moving & (idle.sum(axis=1) >= 2))
        if not len(rows):
            return
        senders = np.where(idle[rows], costs[rows], -np.inf).argmax(axis=1)
        receivers = np.where(idle[rows], costs[rows], np.inf)
        receivers[np.arange(len(rows)), senders] = np.inf
        batch.start(rows, senders, receivers.argmin(axis=1))


def _cost(link_time: Doubles, share: Doubles) -> Doubles:
    """Return costs, shaped (n,) or (B, N). link_time: in transfers. share: busy share of the time, 0 to 1."""
    return cost_to_keep(link_time, share / (1.0 - share), LAYOUT.exposed_transfers)
