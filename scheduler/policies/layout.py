"""Lays out the hops that are still due on the expected ends of everything: the schedule that learning starts from.

The costliest device sends first, to whoever it ends with first (the receiver's own way on counts too), in the first gap
of that one's time. What starts at once in the layout is done now; if nothing does, waiting is better. Pure.

Costs and times are in transfers of the median link. One chain is laid out by a plain loop, many side by side in NumPy.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from scheduler.policies.chain_arrays import (
    BUSY_SHARE,
    DONE,
    FREE,
    SEND,
    Bools,
    Doubles,
    Integers,
    Stand,
    energy_above_mean,
    expected_rest,
    link_times,
)
from scheduler.policies.greedy import EXPOSED_TRANSFERS, LATE_SAVES, LOW_BATTERY_PERCENT, RUSH, WAITING_COUNTS

# Gaps that are kept of one receiver's time; when there are more, the earliest part of a gap that is cut is forgotten.
MAX_GAPS = 6
# On the dying family a quarter fewer contributions are lost by it, at no cost in time; more costs time.
_LOW_BATTERY_TRANSFERS = 2.0
# Energy evens out over rounds: what a device has spent above the mean makes it as much costlier, and it sends earlier.
# One round alone takes nobody further from the mean than so much; what is beyond was left by earlier rounds, and counts
# more. Up to there the weight is the price in time of each round.
_ENERGY_TRANSFERS = 0.02
_ENERGY_OF_A_ROUND = 12.0
_EARLIER_COUNTS = 2.0
_MOST_ENERGY = 50.0
_PAUSES: Doubles = RUSH * BUSY_SHARE / (1.0 - BUSY_SHARE)


@dataclass(frozen=True)
class Prospects:
    """Of each device (B, N). costs: of keeping it as a receiver. hops: its transfer, with the pauses to expect. free:
    when it is expected to be free, infinite if never. link: its transfer undisturbed. rest: of its busy period, 0 if it
    is not busy. energy: accumulated above the mean of all."""

    costs: Doubles
    hops: Doubles
    free: Doubles
    link: Doubles
    rest: Doubles
    energy: Doubles


@dataclass(frozen=True)
class Layout:
    """starts: (B, N), when each is to send (infinite: never); targets: (B, N), to whom, else -1. ends: (B,), of all."""

    starts: Doubles
    targets: Integers
    ends: Doubles

    def take(self, rows: Integers) -> Layout:
        return Layout(self.starts[rows], self.targets[rows], self.ends[rows])

    def put(self, rows: Integers, fresh: Layout) -> None:
        self.starts[rows], self.targets[rows], self.ends[rows] = fresh.starts, fresh.targets, fresh.ends


def prospects(stand: Stand) -> Prospects:
    """What may be expected of each device by its link, its kind of use, its battery and its energy."""
    link_time = link_times(stand)
    energy = energy_above_mean(stand)
    pauses = _PAUSES[stand.kind]
    low = (stand.battery < LOW_BATTERY_PERCENT) & ~stand.charging
    costs = link_time + pauses * (link_time + EXPOSED_TRANSFERS)
    costs += _LOW_BATTERY_TRANSFERS * low + _ENERGY_TRANSFERS * _weighed_energy(energy)
    holds = (stand.state < DONE) & stand.exists
    rest = np.where(holds & (stand.busy_for > 0.0), expected_rest(stand), 0.0)
    times = (stand.eta_ready + stand.op_left) / stand.unit_s[:, None] + rest
    # Of whom nothing is known nothing is expected.
    times = np.where(holds & (times > 0.0) & (stand.state != SEND), times, inf)
    times = np.where((stand.state == FREE) & stand.exists, 0.0, times)
    return Prospects(costs, link_time * (1.0 + pauses), times, link_time, rest, energy)


def lay_out(expected: Prospects) -> Layout:
    """The schedule of all hops that are due, as the module describes it."""
    free = WAITING_COUNTS * expected.free
    ranks = expected.costs - LATE_SAVES * np.where(expected.free < inf, expected.free, 0.0)
    if len(free) > 1:
        return _lay_out_many(ranks, expected.costs, expected.hops, free)
    return _lay_out_one(*(array[0].tolist() for array in (ranks, expected.costs, expected.hops, free)))


def picks_now(layout: Layout, costs: Doubles, may_pick: Bools, may_wait: Bools) -> tuple[Integers, Integers]:
    """Senders and receivers (B,) that the layout starts now; (-1, -1) to wait, or the extremes if nobody may wait."""
    rows = np.arange(len(costs))
    now = (layout.starts == 0.0) & may_pick
    senders = np.where(now, costs, -inf).argmax(axis=1)
    receivers = layout.targets[rows, senders]
    none = ~now.any(axis=1)
    extremes = none & ~may_wait
    senders = np.where(extremes, np.where(may_pick, costs, -inf).argmax(axis=1), senders)
    receivers = np.where(extremes, cheapest(costs, may_pick), receivers)
    waits = none & may_wait
    return np.where(waits, -1, senders), np.where(waits, -1, receivers)


def receivers_for(layout: Layout, costs: Doubles, valid: Bools, senders: Integers) -> Integers:
    """To whom these senders would send: as laid out if that one may be picked, else to the cheapest."""
    rows = np.arange(len(costs))
    planned = layout.targets[rows, senders]
    possible = (planned >= 0) & valid[rows, planned]
    return np.where(possible, planned, cheapest(costs, valid))


def cheapest(costs: Doubles, allowed: Bools) -> Integers:
    """Of equals the last."""
    last: Integers = costs.shape[1] - 1 - np.where(allowed, costs, inf)[:, ::-1].argmin(axis=1)
    return last


def _weighed_energy(energy: Doubles) -> Doubles:
    counted = np.minimum(np.maximum(energy, -_MOST_ENERGY), _MOST_ENERGY)
    of_round = np.minimum(np.maximum(energy, -_ENERGY_OF_A_ROUND), _ENERGY_OF_A_ROUND)
    weighed: Doubles = of_round + _EARLIER_COUNTS * (counted - of_round)
    return weighed


def _lay_out_one(ranks: list[float], costs: list[float], hops: list[float], free: list[float]) -> Layout:
    count = len(costs)
    order = sorted((index for index in range(count) if free[index] < inf), key=lambda one: (-ranks[one], free[one]))
    gaps = {index: [(free[index], inf)] for index in order}
    starts, targets = [inf] * count, [-1] * count
    for place, sender in enumerate(order[:-1]):
        ready = max(gap[0] for gap in gaps[sender])
        own, final = hops[sender], place == len(order) - 2
        best_end, best_start, best, best_gap = inf, inf, -1, 0
        for receiver in order[place + 1 :]:
            other = hops[receiver]
            hop, first, first_gap = own if own > other else other, inf, 0
            for number, (since, until) in enumerate(gaps[receiver]):
                start = since if since > ready else ready
                if start < first and start + hop <= until:
                    first, first_gap = start, number
            end = first + hop + (0.0 if final else costs[receiver])
            if end < best_end:
                best_end, best_start, best, best_gap = end, first, receiver, first_gap
        starts[sender], targets[sender] = best_start, best
        since, until = gaps[best][best_gap]
        end = best_start + max(own, hops[best])
        if len(gaps[best]) < MAX_GAPS:
            gaps[best][best_gap] = (since, best_start)
            gaps[best].append((end, until))
        else:
            gaps[best][best_gap] = (end, until)
    last = max(gap[0] for gap in gaps[order[-1]]) if order else 0.0
    return Layout(np.array([starts]), np.array([targets]), np.array([last]))


def _lay_out_many(ranks: Doubles, costs: Doubles, hops: Doubles, free: Doubles) -> Layout:
    batch, count = costs.shape
    rows = np.arange(batch)
    known = free < inf
    order = np.lexsort((free, np.where(known, -ranks, inf)), axis=1)
    number = known.sum(axis=1)
    hop, onward = hops[rows[:, None], order], costs[rows[:, None], order]
    since = np.full((batch, count, MAX_GAPS), inf)
    until = np.full((batch, count, MAX_GAPS), -inf)
    since[:, :, 0], until[:, :, 0] = free[rows[:, None], order], inf
    used = np.ones((batch, count), dtype=np.int64)
    starts, targets = np.full((batch, count), inf), np.full((batch, count), -1)
    most = 1
    for place in range(int(number.max(initial=0)) - 1):
        ready = np.where(np.arange(most) < used[:, place, None], since[:, place, :most], -inf).max(axis=1)
        later = slice(place + 1, count)
        span = np.maximum(hop[:, place, None], hop[:, later])
        start = np.maximum(since[:, later, :most], ready[:, None, None])
        start = np.where(start + span[:, :, None] <= until[:, later, :most], start, inf)
        first = start.min(axis=2)
        ahead = np.where((place == number - 2)[:, None], 0.0, onward[:, later])
        best = (first + span + ahead).argmin(axis=1)
        best_gap = start[rows, best].argmin(axis=1)
        who = np.flatnonzero(place < number - 1)
        receiver, gap = (best + place + 1)[who], best_gap[who]
        begun = first[who, best[who]]
        ended = begun + span[who, best[who]]
        starts[who, order[who, place]] = begun
        targets[who, order[who, place]] = order[who, receiver]
        old_until = until[who, receiver, gap]
        room = used[who, receiver] < MAX_GAPS
        slot = np.where(room, used[who, receiver], gap)
        until[who[room], receiver[room], gap[room]] = begun[room]
        since[who, receiver, slot], until[who, receiver, slot] = ended, old_until
        used[who, receiver] += room
        most = int(used.max())
    final = np.maximum(number - 1, 0)
    ends = np.where(np.arange(MAX_GAPS) < used[rows, final][:, None], since[rows, final], -inf).max(axis=1)
    return Layout(starts, targets, np.where(number > 0, ends, 0.0))
