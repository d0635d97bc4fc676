"""The rules that every layout of hops shares: the cost of keeping a load, and the gaps that hops go into. Pure.

Greedy lays hops out in seconds, the layout that the network starts from in transfers of the median link
(`mdl.scheduler.policies.layout`, which also has these rules for many chains at once, in NumPy).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from mdl.scheduler.policies.chain_arrays import Doubles

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
