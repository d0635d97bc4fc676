"""Lay out the hops that are still due on the expected ends of everything: the schedule that learning starts from.

The costliest device sends first. Its receiver is the one with which its load's way ends first, in the first gap of the
receiver's time; the receiver's own way on counts too. A hop that starts at once in the layout is done now; if none
does, waiting is better. Pure.

Greedy lays hops out in seconds (`lay_hops`), one chain at a time. The layout that the network starts from has costs and
times in transfers of the median link, and NumPy lays out many chains side by side. A test checks that both give the
same layouts. The constants belong to the network's weights (`mdl.scheduler.policies.trained_under`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeVar

import numpy as np

from mdl.scheduler.policies.chain import (
    BUSY_SHARE,
    SEND,
    Bools,
    Doubles,
    Integers,
    Stand,
    energy_above_mean,
    expected_rest,
    link_times,
)
from mdl.scheduler.policies.trained_under import LAYOUT

Time = TypeVar("Time", float, Doubles)


@dataclass(slots=True)
class LaidHop:
    """One hop of a layout. Devices are positions.

    sender, receiver: the sender gives its load to the receiver.
    start: counted from now; 0: at once.
    end: the moment at which the receiver has it.
    ways: of a hop that starts at once: each possible receiver, in their order: its position, and the end of the load's
    way through it.
    """

    sender: int
    receiver: int
    start: float
    end: float
    ways: list[tuple[int, float]]


def cost_to_keep(link: Time, pauses: Time, exposed: Time | float) -> Time:
    """Return the cost of a load for its receiver: its own transfer, and the expected interruptions until that ends.

    link: time of a transfer over the device's own link. pauses: interruption for each unit of work, by its kind of use.
    exposed: time before its own transfer in which its user may interrupt it. All in one unit, numbers or arrays (B, N).
    """
    return link + pauses * (link + exposed)


def lay_hops(
    order: Sequence[int], hops: Sequence[float], costs: Sequence[float], free: Sequence[float], most_gaps: int
) -> Iterator[LaidHop]:
    """Yield the hops by which all devices but one hand on their loads, in order; the last in `order` keeps all.

    A sender picks the receiver with the earliest end of the hop plus the receiver's own way on (its cost). A hop may
    fill a gap that was left before another. A sender with only infinite or nan ends is left out.

    order: positions of the senders, the costliest first; each sends to a later one. hops, costs, free: by position:
    the transfer with its pauses, the cost of keeping a load, the time from which the device is free. most_gaps: the
    gaps kept of one receiver's time; beyond that, the earliest part of a gap that is cut is forgotten.
    """
    gaps = {device: [(free[device], inf)] for device in order}  # sorted, disjoint; the last one has no end
    counts = dict.fromkeys(order, 1)  # also of the gaps that are too short for any hop, which `gaps` is without
    places = {device: place for place, device in enumerate(order)}
    cheapest_first = sorted(order, key=lambda one: costs[one] if costs[one] < inf else inf)
    for place, sender in enumerate(order[:-1]):
        ready, own_hop, is_last = gaps[sender][-1][0], hops[sender], place == len(order) - 2
        cheapest_first.remove(sender)
        best, best_gap, best_start, best_end = -1, 0, inf, inf
        for receiver in cheapest_first:
            cost = 0.0 if is_last else costs[receiver]
            if ready + own_hop + cost > best_end:
                break  # this way ends later, however early it starts, and so do those of all costlier ones
            other_hop, (since, until) = hops[receiver], gaps[receiver][0]
            hop, start, gap = own_hop if own_hop > other_hop else other_hop, since if since > ready else ready, 0
            end = start + hop + cost
            if end > best_end:
                continue
            if start + hop > until:
                start, gap = _fit(gaps[receiver], ready, hop)
                end = start + hop + cost
            if end < best_end or (end == best_end < inf and places[receiver] < places[best]):
                best, best_gap, best_start, best_end = receiver, gap, start, end
        if best < 0:
            continue
        ways = _ways(order[place + 1 :], hops, costs, gaps, ready, own_hop) if best_start == 0.0 else []
        laid = LaidHop(sender, best, best_start, best_start + max(own_hop, hops[best]), ways)
        yield laid
        since, until = gaps[best][best_gap]
        cut = [(since, laid.start), (laid.end, until)] if counts[best] < most_gaps else [(laid.end, until)]
        counts[best] += len(cut) - 1
        gaps[best][best_gap : best_gap + 1] = [(since, until) for since, until in cut if since + hops[best] <= until]


def _fit(gaps: Sequence[tuple[float, float]], ready: float, hop: float) -> tuple[float, int]:
    """Return the start of a hop in the first of these gaps that it fits, and the number of that gap."""
    for number, (since, until) in enumerate(gaps):
        start = since if since > ready else ready
        if start + hop <= until:
            return start, number
    return inf, 0


def _ways(
    receivers: Sequence[int],
    hops: Sequence[float],
    costs: Sequence[float],
    gaps: Mapping[int, Sequence[tuple[float, float]]],
    ready: float,
    own_hop: float,
) -> list[tuple[int, float]]:
    """Return each receiver that the sender's load may go through, and the end of that way."""
    lasting = [(one, own_hop if own_hop > hops[one] else hops[one]) for one in receivers]
    kept = (0.0,) if len(receivers) == 1 else [costs[one] for one in receivers]
    ends = [_fit(gaps[one], ready, hop)[0] + hop + cost for (one, hop), cost in zip(lasting, kept, strict=True)]
    return [(one, end) for one, end in zip(receivers, ends, strict=True) if end < inf]


_PAUSES: Doubles = LAYOUT.rush * BUSY_SHARE / (1.0 - BUSY_SHARE)


@dataclass(frozen=True)
class Prospects:
    """Estimates for the devices of B chains: float64, shape (B, N), in transfers of the median link.

    costs: of keeping a load there (`cost_to_keep`, energy, a low battery).
    keep: the same; infinite for a device that may not receive, so that it sends first, and to no such other.
    hops: transfer over the device's own link, with the pauses to expect.
    free: from now until the device is expected to be free; infinite if it never is, or if its end is unknown.
    link: the same transfer undisturbed.
    rest: of the device's busy period, 0 if it is not busy.
    energy: accumulated above the mean of all, per watt.
    """

    costs: Doubles
    keep: Doubles
    hops: Doubles
    free: Doubles
    link: Doubles
    rest: Doubles
    energy: Doubles


@dataclass(frozen=True)
class Layout:
    """The hops of B chains, laid out. Times from now, in transfers of the median link.

    starts: float64, shape (B, N): the time at which each device is to send, infinite if it is not.
    targets: int64, shape (B, N): the receiver's position, -1 if the device is not to send.
    ends: float64, shape (B,): the time at which the last holder has everything.
    """

    starts: Doubles
    targets: Integers
    ends: Doubles

    def take(self, rows: Integers) -> Layout:
        """Copy these chains. rows: positions or a mask."""
        return Layout(self.starts[rows], self.targets[rows], self.ends[rows])

    def put(self, rows: Integers, fresh: Layout) -> None:
        """Write over these chains. rows: as many positions as `fresh` has chains."""
        self.starts[rows], self.targets[rows], self.ends[rows] = fresh.starts, fresh.targets, fresh.ends


def prospects(stand: Stand) -> Prospects:
    """Estimate each device's prospects (B, N) from its link, its kind of use, its battery and its energy."""
    link_time = link_times(stand)
    energy = energy_above_mean(stand)
    pauses = _PAUSES[stand.kind]
    low = (stand.battery < LAYOUT.low_battery_percent) & ~stand.charging
    costs = cost_to_keep(link_time, pauses, LAYOUT.exposed_transfers)
    costs += LAYOUT.low_battery_transfers * low + LAYOUT.energy_transfers * _weighed_energy(energy)
    holds = stand.holds()
    rest = np.where(holds & (stand.busy_for > 0.0), expected_rest(stand), 0.0)
    times = (stand.eta_ready + stand.op_left) / stand.unit_s[:, None] + rest
    # A device with no known end is not waited for.
    times = np.where(holds & (times > 0.0) & (stand.state != SEND), times, inf)
    times = np.where(stand.free(), 0.0, times)
    keep = np.where(stand.may_receive, costs, inf)
    return Prospects(costs, keep, link_time * (1.0 + pauses), times, link_time, rest, energy)


def lay_out(expected: Prospects) -> Layout:
    """Schedule all hops that are due in B chains, by the rules in the module's docstring. The hops of a chain with a
    number that is not finite are arbitrary."""
    free = LAYOUT.waiting_counts * expected.free
    ranks = expected.keep - LAYOUT.late_saves * np.where(expected.free < inf, expected.free, 0.0)
    if len(free) > 1:
        return _lay_out_many(ranks, expected.keep, expected.hops, free)
    return _lay_out_one(*(array[0].tolist() for array in (ranks, expected.keep, expected.hops, free)))


def picks_now(layout: Layout, costs: Doubles, may_pick: Bools, may_wait: Bools) -> tuple[Integers, Integers]:
    """Return positions (B,) of the senders and of the receivers of the hops that start now; -1 and -1 to wait.

    costs: (B, N). may_pick: (B, N), devices that are free. may_wait: (B,), chains in which something is under way. In
    the other chains, if no hop of the layout starts now, the costliest device sends to the cheapest.
    """
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
    """Return positions (B,) of the receivers for `senders` (B,): the planned device if it is valid, else the cheapest.

    costs, valid: (B, N); valid: devices that may be picked as receivers.
    """
    rows = np.arange(len(costs))
    planned = layout.targets[rows, senders]
    possible = (planned >= 0) & valid[rows, planned]
    return np.where(possible, planned, cheapest(costs, valid))


def cheapest(costs: Doubles, allowed: Bools) -> Integers:
    """Return the position (B,) of the allowed device with the least cost; the last of equals.

    costs, allowed: (B, N). The position means nothing for a chain in which no device is allowed.
    """
    last: Integers = costs.shape[1] - 1 - np.where(allowed, costs, inf)[:, ::-1].argmin(axis=1)
    return last


def _weighed_energy(energy: Doubles) -> Doubles:
    """Weigh energy of earlier rounds more than what one round can spend (LAYOUT.energy_of_a_round)."""
    most, of_one_round = LAYOUT.most_energy, LAYOUT.energy_of_a_round
    counted = np.minimum(np.maximum(energy, -most), most)
    of_round = np.minimum(np.maximum(energy, -of_one_round), of_one_round)
    weighed: Doubles = of_round + LAYOUT.earlier_counts * (counted - of_round)
    return weighed


def _lay_out_one(ranks: list[float], costs: list[float], hops: list[float], free: list[float]) -> Layout:
    count = len(costs)
    order = sorted((index for index in range(count) if free[index] < inf), key=lambda one: (-ranks[one], free[one]))
    starts, targets = [inf] * count, [-1] * count
    last = free[order[-1]] if order else 0.0
    for hop in lay_hops(order, hops, costs, free, LAYOUT.max_gaps):
        starts[hop.sender], targets[hop.sender] = hop.start, hop.receiver
        if hop.receiver == order[-1]:
            last = max(last, hop.end)
    return Layout(np.array([starts]), np.array([targets]), np.array([last]))


def _lay_out_many(ranks: Doubles, costs: Doubles, hops: Doubles, free: Doubles) -> Layout:
    batch, count = costs.shape
    rows = np.arange(batch)
    known = free < inf
    order = np.lexsort((free, np.where(known, -ranks, inf)), axis=1)
    number = known.sum(axis=1)
    hop, onward = hops[rows[:, None], order], costs[rows[:, None], order]
    since = np.full((batch, count, LAYOUT.max_gaps), inf)
    until = np.full((batch, count, LAYOUT.max_gaps), -inf)
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
        ways = first + span + ahead
        best = ways.argmin(axis=1)
        best_gap = start[rows, best].argmin(axis=1)
        # The chains in which this device is to send.
        due = np.flatnonzero((place < number - 1) & (ways[rows, best] < inf))
        receiver, gap = (best + place + 1)[due], best_gap[due]
        begun = first[due, best[due]]
        ended = begun + span[due, best[due]]
        starts[due, order[due, place]] = begun
        targets[due, order[due, place]] = order[due, receiver]
        old_until = until[due, receiver, gap]
        room = used[due, receiver] < LAYOUT.max_gaps
        slot = np.where(room, used[due, receiver], gap)
        until[due[room], receiver[room], gap[room]] = begun[room]
        since[due, receiver, slot], until[due, receiver, slot] = ended, old_until
        used[due, receiver] += room
        most = int(used.max())
    final = np.maximum(number - 1, 0)
    ends = np.where(np.arange(LAYOUT.max_gaps) < used[rows, final][:, None], since[rows, final], -inf).max(axis=1)
    return Layout(starts, targets, np.where(number > 0, ends, 0.0))
