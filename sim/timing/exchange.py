"""The timing model of the ways to give the result to all: a round in segments, and the broadcast after hops. Pure.

In segments (MDLdroid has none; `scheduler/plans/segment_plan.py`): each device gives the owners its pieces, each owner
merges its segments and gives the results to all. Links are full duplex and carry all that waits: no windows, no losses.
A result goes as soon as all its pieces are there. Work on a device stands still while it is busy.
"""

from __future__ import annotations

from collections.abc import Sequence

from mdl.devices.busy_periods import active_end_s
from mdl.devices.scenario import Scenario
from mdl.protocol.tree import tree_children

# A delta flows in this many steps: a result goes out while the next pieces come in. Plans have 5 to 160 segments.
_STEPS = 32
# Order, answer and the first piece, before anything flows.
_MESSAGES = 3
# An owner's link takes this much longer than its bytes do: it is full both ways at once, and lanes to several others
# wait for each other (measured over predicted without it: docs/results.md, "Rounds in segments on the model").
_FULL_BOTH_WAYS = 1.15


def exchange_end_s(
    scenario: Scenario, shares: Sequence[float], members: Sequence[int], start_s: float, coded: float = 1.0
) -> float:
    """Return the time at which all members have the result, if all hold their deltas at start_s.

    shares: of each device, by its index. coded: bytes on the way, over those of float32; merges are float32 again.

    The later of two times counts: the last result has followed its last piece, and each link has carried its bytes,
    M (1 + (N-2) s) each way.
    """
    travels_mb = scenario.size_mb * coded
    begin_s = start_s + _MESSAGES * scenario.latency_s
    flown_s = _last_result_s(scenario, shares, members, begin_s, travels_mb)
    carried_s = [flown_s]
    for index in members:
        device, share = scenario.devices[index], shares[index]
        megabytes = travels_mb * (1.0 + (len(members) - 2) * share) * (_FULL_BOTH_WAYS if share else 1.0)
        carried_s.append(active_end_s((device.busy,), begin_s, megabytes / device.link_mb_s))
    return max(carried_s) + scenario.latency_s


def _last_result_s(
    scenario: Scenario, shares: Sequence[float], members: Sequence[int], begin_s: float, travels_mb: float
) -> float:
    """Go step by step: a result waits for the slowest piece, then for each owner's merges, then for its receivers."""
    devices, others = scenario.devices, len(members) - 1
    owners = [index for index in members if shares[index] > 0.0]
    sent_s, merged_s, given_s, got_s = (dict.fromkeys(members, begin_s) for _ in range(4))

    def work(index: int, at_s: float, megabytes: float, mb_s: float) -> float:
        return active_end_s((devices[index].busy,), at_s, megabytes / _STEPS / mb_s)

    for _ in range(_STEPS):
        for index in members:
            sent_s[index] = work(index, sent_s[index], travels_mb * (1.0 - shares[index]), devices[index].link_mb_s)
        piece_s = max(sent_s.values())
        for index in owners:
            times = shares[index] * others
            merged_mb, given_mb = scenario.size_mb * times, travels_mb * times
            merged_s[index] = work(index, max(merged_s[index], piece_s), merged_mb, devices[index].merge_mb_s)
            given_s[index] = work(index, max(given_s[index], merged_s[index]), given_mb, devices[index].link_mb_s)
        result_s = max(given_s[index] for index in owners)
        for index in members:
            begun_s = max(got_s[index], piece_s)
            got_s[index] = work(index, begun_s, travels_mb * (1.0 - shares[index]), devices[index].link_mb_s)
            got_s[index] = max(got_s[index], result_s)
    return max(got_s.values())


def broadcast_end_s(scenario: Scenario, root: int, members: Sequence[int], start_s: float) -> float:
    """Return when all members have the result that the root has at start_s: down the binomial tree, child by child.

    The fastest links are the inner nodes; the root feeds the slowest directly (3.2.3). A busy child delays its parent
    by no more than that child's own hop.
    """
    devices = scenario.devices
    rest = sorted((index for index in members if index != root), key=lambda index: -devices[index].link_mb_s)
    places = range(1, len(rest) + 1)
    leaves = sorted((place for place in places if not tree_children(place, len(rest) + 1)), key=_depth, reverse=True)
    at = {0: root, **dict(zip([place for place in places if place not in leaves] + leaves, rest, strict=True))}
    has_s, ends_s = {0: start_s}, [start_s]
    for place in range(len(at)):
        free_s = has_s[place]
        for child in tree_children(place, len(at)):
            parent, other = devices[at[place]], devices[at[child]]
            transfer_s = scenario.latency_s + scenario.size_mb / min(parent.link_mb_s, other.link_mb_s)
            free_s = has_s[child] = active_end_s((parent.busy, other.busy), free_s, transfer_s)
            ends_s.append(free_s)
    return max(ends_s)


def _depth(place: int) -> int:
    return place.bit_count()
