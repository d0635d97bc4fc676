"""The rules that every layout of hops shares: the cost of keeping a load, and the gaps that hops go into. Pure.

Greedy lays hops out in seconds, the layout that the network starts from in transfers of the median link
(`mdl.scheduler.policies.layout`, which also has these rules for many chains at once, in NumPy).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    ways: each possible receiver, in their order: its position, and the end of the load's way through it.
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
    for place, sender in enumerate(order[:-1]):
        ready, own_hop, is_last = gaps[sender][-1][0], hops[sender], place == len(order) - 2
        best, best_gap, best_start, best_end = -1, 0, inf, inf
        ways: list[tuple[int, float]] = []
        for receiver in order[place + 1 :]:
            other_hop = hops[receiver]
            hop, first, first_gap = own_hop if own_hop > other_hop else other_hop, inf, 0
            for number, (since, until) in enumerate(gaps[receiver]):
                start = since if since > ready else ready
                if start + hop <= until:
                    first, first_gap = start, number
                    break
            end = first + hop + (0.0 if is_last else costs[receiver])
            if end < inf:
                ways.append((receiver, end))
            if end < best_end:
                best, best_gap, best_start, best_end = receiver, first_gap, first, end
        if best < 0:
            continue
        laid = LaidHop(sender, best, best_start, best_start + max(own_hop, hops[best]), ways)
        yield laid
        since, until = gaps[best][best_gap]
        cut = [(since, laid.start), (laid.end, until)]
        gaps[best][best_gap : best_gap + 1] = cut if len(gaps[best]) < most_gaps else cut[1:]
