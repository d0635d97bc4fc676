"""The planning policy: plans the rest of the round anew at every decision. Pure.

If nothing is hidden (no owner's use interferes), the plan over at most MAX_PLANNED devices is exact: the subset
recursion on the reported ends, as for the optimum. If busy periods are hidden, the candidates are the hops that the
plan and greedy propose, a few alternatives, and waiting. All are tried on the same drawn futures, each played to its
end by a simple rule, and the best on average is taken. Above that many devices greedy decides: a slip there is mended
later. A device that its owner's limits let receive nothing (Eq. 4) only sends in all of these: a hop to it never ends.

The subset recursion reduces n loads to one holder at the earliest moment, for many cases at once:

f(j, S) = the moment at which j alone holds exactly the loads of S and is idle. f(j, {j}) is given.

The last hop into (j, S) comes from an i that held T, a part of S without j. It starts when both sides are ready:

    f(j, S) = min over i, T of end(i, j, max(f(j, S without T), f(i, T)))

An end never falls when its start rises, so min over T comes first and `end` is asked once for each i. It takes
n (n - 1) 3^(n - 2) maxima in all.

A rollout draws the busy periods that a view hides, and plays the rest of the round. Its rule: the costliest idle device
sends to the cheapest, unless waiting for a cheaper one that is soon free costs less time than it saves. A rollout knows
when those get free; it ignores busy periods that begin later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from heapq import heapify, heappop, heappush
from math import exp, inf, log
from statistics import fmean
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mdl.devices import usage
from mdl.devices.usage import Periods, UsageKind, active_end_s, mean_gap_s
from mdl.scheduler.policies.chain import ChainView, Choice, Decision, DeviceState, DeviceView, Pair, Wait
from mdl.scheduler.policies.greedy import (
    EXPOSED_TRANSFERS,
    RUSH,
    SECONDS_PER_JOULE,
    Greedy,
    expected_free_s,
    pauses_per_second,
    too_few,
    typical_transfer_s,
)
from mdl.scheduler.policies.layout import cost_to_keep

Times: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.intp]
# starts (pairs, unions, cases) -> ends, the same shape; the pairs are those of `Tables`.
EndOf: TypeAlias = Callable[[Times], Times]


@dataclass(frozen=True)
class _Layer:
    """Unions of m other devices. part, rest: (unions, 2^m) into the compressed sets. target: states (j, S) of this
    size; source: (states, m + 1) into the flat (pairs, unions)."""

    part: Indices
    rest: Indices
    target: Indices
    source: Indices


@dataclass(frozen=True)
class Tables:
    """Tables for one n. receivers, senders: of each ordered pair. held: state (receiver, itself and the others of a
    compressed set) of each pair and set; mirrored: the pair with the roles exchanged."""

    n: int
    receivers: Indices
    senders: Indices
    mirrored: Indices
    held: Indices
    layers: tuple[_Layer, ...]


def earliest_ends(ready_s: Times, end_of: EndOf, tables: Tables | None = None) -> Times:
    """Return f as an array (n, 2^n, cases), infinite where j is not in S. ready_s: (n, cases)."""
    n, cases = ready_s.shape
    tables = tables or subset_tables(n)
    found = np.full((n << n, cases), np.inf)
    found[(np.arange(n) << n) + (1 << np.arange(n))] = ready_s
    for layer in tables.layers:
        mine = found[tables.held]
        theirs = mine[tables.mirrored]
        starts = np.maximum(mine[:, layer.rest], theirs[:, layer.part]).min(axis=2)
        ends = end_of(starts).reshape(-1, cases)
        found[layer.target] = ends[layer.source].min(axis=1)
    return found.reshape(n, 1 << n, cases)


@cache
def subset_tables(n: int) -> Tables:
    """Compute the tables once for each n; n = 12 takes about 1 MB."""
    receivers, senders = (np.array(side, dtype=np.intp) for side in zip(*_pairs(n), strict=True))
    place = {pair: index for index, pair in enumerate(_pairs(n))}
    mirrored = np.array([place[i, j] for j, i in _pairs(n)], dtype=np.intp)
    sets = np.arange(1 << (n - 2), dtype=np.intp)
    others = np.stack([_expand(sets, j, i) for j, i in _pairs(n)])
    held = (receivers[:, None] << n) + others + (1 << receivers[:, None])
    layers = tuple(_layer(n, members, others, receivers, senders) for members in range(n - 1))
    return Tables(n, receivers, senders, mirrored, held, layers)


def _pairs(n: int) -> list[tuple[int, int]]:
    return [(j, i) for j in range(n) for i in range(n) if i != j]


def _expand(sets: Indices, first: int, second: int) -> Indices:
    """Turn sets over the n - 2 others into sets over all n: a gap opens at each of the two."""
    for gap in sorted((first, second)):
        low = sets & ((1 << gap) - 1)
        sets = ((sets - low) << 1) | low
    return sets


def _layer(n: int, members: int, others: Indices, receivers: Indices, senders: Indices) -> _Layer:
    unions = [union for union in range(1 << (n - 2)) if union.bit_count() == members]
    part = np.array([_subsets(union) for union in unions], dtype=np.intp)
    rest = np.array(unions, dtype=np.intp)[:, None] ^ part
    whole = others[:, unions] | (1 << receivers[:, None]) | (1 << senders[:, None])
    states = ((receivers[:, None] << n) + whole).ravel()
    order = np.argsort(states, kind="stable").reshape(-1, members + 1)
    return _Layer(part, rest, states[order[:, 0]], order)


def _subsets(union: int) -> list[int]:
    found, subset = [], union
    while subset:
        found.append(subset)
        subset = (subset - 1) & union
    return [*found, 0]


@dataclass(frozen=True)
class Future:
    """Busy periods from now on, and the time at which each device ends its training or its hop; by position."""

    busy: tuple[Periods, ...]
    free_at_s: tuple[float, ...]


@dataclass(frozen=True)
class HopTimes:
    """The times of hops between n devices without pauses, in seconds. cost_s: the highest sends first.

    A hop to a device that may not receive takes inf, and so does keeping a load there. At least one device may receive.
    """

    transfer_s: list[list[float]]
    merge_s: list[float]
    cost_s: list[float]


def draw_future(
    devices: list[DeviceView], rush: float, horizon_s: float, typical_s: float, rng: np.random.Generator
) -> Future:
    """Draw one future. rush: the factor by which periods of use come more often than over a whole day."""
    busy = tuple(_draw_busy(device, rush, horizon_s, typical_s, rng) for device in devices)
    free_at_s = tuple(_free_at_s(device, periods) for device, periods in zip(devices, busy, strict=True))
    return Future(busy, free_at_s)


def roll_out(future: Future, hops: HopTimes, first: tuple[int, int] | None) -> float:
    """Return the seconds until one holder is left, if `first` starts now; None: wait for the next change first."""
    busy, cost_s = future.busy, hops.cost_s
    wait_s = 0.0 if first else _next_change_s(future)
    free_at_s = [max(at_s, wait_s) for at_s in future.free_at_s]
    left, now_s, idle = len(free_at_s), 0.0, set[int]()
    if first is not None:
        sender, receiver = first
        free_at_s[receiver] = _hop_end_s(busy, hops, sender, receiver, 0.0)
        coming = [(at_s, index) for index, at_s in enumerate(free_at_s) if index != sender]
        left -= 1
    else:
        coming = [(at_s, index) for index, at_s in enumerate(free_at_s)]
    heapify(coming)
    while left > 1 or coming:
        now_s, index = heappop(coming)
        idle.add(index)
        while coming and coming[0][0] <= now_s:
            idle.add(heappop(coming)[1])
        for index in list(idle):
            if busy[index] and (until_s := _busy_until_s(busy[index], now_s)) > now_s:
                idle.discard(index)
                heappush(coming, (until_s, index))
        if left == 1:
            return now_s
        while len(idle) > 1:
            order = sorted(idle, key=cost_s.__getitem__)
            receiver, sender = order[0], order[-1]
            if any(at_s - now_s + cost_s[other] < cost_s[receiver] for at_s, other in coming):
                break
            heappush(coming, (_hop_end_s(busy, hops, sender, receiver, now_s), receiver))
            idle.discard(sender)
            idle.discard(receiver)
            left -= 1
    return now_s


def _next_change_s(future: Future) -> float:
    edges_s = (edge_s for periods in future.busy if periods for edge_s in periods[0])
    return min((at_s for at_s in (*future.free_at_s, *edges_s) if at_s > 0.0), default=0.0)


def _hop_end_s(busy: tuple[Periods, ...], hops: HopTimes, sender: int, receiver: int, start_s: float) -> float:
    transfer_s, merge_s = hops.transfer_s[sender][receiver], hops.merge_s[receiver]
    first, second = busy[sender], busy[receiver]
    if not first and not second:
        return start_s + transfer_s + merge_s
    return active_end_s((second,), active_end_s((first, second), start_s, transfer_s), merge_s)


def _busy_until_s(periods: Periods, at_s: float) -> float:
    for start_s, end_s in periods:
        if start_s > at_s:
            break
        if end_s > at_s:
            return end_s
    return at_s


def _free_at_s(device: DeviceView, busy: Periods) -> float:
    match device.state:
        case DeviceState.TRAINING:
            return device.eta_ready_s
        case DeviceState.GET:
            return active_end_s((busy,), 0.0, device.op_left_s)
        case _:
            return 0.0


def _draw_busy(
    device: DeviceView, rush: float, horizon_s: float, typical_s: float, rng: np.random.Generator
) -> Periods:
    kind = device.kind
    is_busy = device.state is DeviceState.BUSY or device.busy_for_s > 0.0
    periods: list[tuple[float, float]] = []
    if is_busy:
        periods.append((0.0, draw_rest_s(kind, device.busy_for_s, typical_s, rng)))
    gap_s = mean_gap_s(kind) / rush
    if gap_s == inf:
        return tuple(periods)
    start_s = periods[-1][1] if periods else 0.0
    while (start_s := start_s + float(rng.exponential(gap_s))) < horizon_s:
        end_s = start_s + draw_rest_s(kind, 0.0, typical_s, rng)
        periods.append((start_s, end_s))
        start_s = end_s
    return tuple(periods)


def draw_rest_s(kind: UsageKind, age_s: float, typical_s: float, rng: np.random.Generator) -> float:
    """Draw the time that a period of age `age_s` still lasts; nearly nothing if it must be over."""
    share = float(rng.random())
    match kind:
        case UsageKind.SYNC:
            return _uniform_rest_s(usage.SYNC_RANGE_S, age_s, share)
        case UsageKind.INTERACTIVE:
            return _log_normal_rest_s(age_s, rng)
        case UsageKind.CALL:
            return _uniform_rest_s(usage.CALL_RANGE_S, age_s, share)
        case UsageKind.BIMODAL:
            if age_s < usage.BIMODAL_SHORT_S and rng.random() >= usage.BIMODAL_LONG_SHARE:
                return usage.BIMODAL_SHORT_S - age_s
            return _uniform_rest_s(usage.BIMODAL_LONG_RANGE_S, age_s, share)
        case UsageKind.ONCE:
            low, high = usage.ONCE_RANGE_TRANSFERS
            return _uniform_rest_s((low * typical_s, high * typical_s), age_s, share)
        case _:
            return 0.0


def _uniform_rest_s(bounds: tuple[float, float], age_s: float, share: float) -> float:
    low = max(bounds[0], age_s)
    return max(1e-6, low + share * (bounds[1] - low) - age_s)


def _log_normal_rest_s(age_s: float, rng: np.random.Generator) -> float:
    """Draw by rejection; far out in the tail, where that takes too long, draw a rest of about the age."""
    for _ in range(20):
        length_s = usage.INTERACTIVE_MEDIAN_S * exp(usage.INTERACTIVE_SIGMA * float(rng.standard_normal()))
        if length_s > age_s:
            return length_s - age_s
    return age_s * -log(1.0 - float(rng.random())) / 2.0


# The exact plan takes 2 ms for 9 devices; each additional device triples that.
MAX_PLANNED = 9
FUTURES = 64
_SENDERS = 3
_RECEIVERS = 3
# The greedy decision, which evens out energy, is kept unless another is better by this share of a typical transfer.
_MARGIN = 0.02
# The holder of a load is exposed to its user for so many typical transfers longer.
_EXPOSED_TRANSFERS = 2.0
# Futures are drawn this far: no device is busy beyond it.
_HORIZON_S = 60.0

Picked: TypeAlias = tuple[int, int] | None


class Planner:
    """A policy that plans anew. futures: the number drawn for a decision; 0 plans on expected ends alone."""

    name = "dp"

    def __init__(self, *, futures: int = FUTURES, energy: float = SECONDS_PER_JOULE) -> None:
        self._futures = futures
        self._greedy = Greedy(energy=energy)

    def decide(self, view: ChainView) -> Decision:
        if len(view.free()) < 2:
            return Wait(too_few(view))
        typical_s = typical_transfer_s(view)
        expected = [(expected_free_s(device, typical_s), device) for device in view.devices]
        holders = [device for free_s, device in expected if free_s < inf]
        greedy = self._greedy.decide(view)
        if len(holders) > MAX_PLANNED or not any(device.may_receive for device in holders):
            return greedy
        case = _Case(view, holders, np.array([free_s for free_s, _ in expected if free_s < inf]), typical_s)
        place = {device.peer_id: index for index, device in enumerate(holders)}
        hasty = (place[greedy.sender], place[greedy.receiver]) if isinstance(greedy, Pair) else None
        if hasty is not None and not holders[hasty[1]].may_receive:
            hasty = None
        if self._futures and any(pauses_per_second(one.kind) or one.busy_for_s for one in holders):
            picked, why = _try_out(case, hasty, self._futures)
            how = f", on average over {self._futures} drawn futures"
        else:
            picked, why = _follow(case, hasty)
            how = " on expected times"
        if picked is None and not view.may_wait():
            return greedy
        reason = f"dp: {why.picked}: {why.tell()}{how}"
        if picked is None:
            return Wait(reason, (why,))
        sender, receiver = (holders[index].peer_id for index in picked)
        return Pair(sender, receiver, reason, (why,))


class _Case:
    """The holders at one moment, and what hops between them take."""

    def __init__(self, view: ChainView, holders: list[DeviceView], ready_s: Times, typical_s: float) -> None:
        self.view, self.holders, self.ready_s, self.typical_s = view, holders, ready_s, typical_s
        self.pauses = np.array([pauses_per_second(device.kind) for device in holders])
        self.hops = _time_hops(view, holders, typical_s)

    def expected_hop_s(self) -> Times:
        """Return hop times (sender, receiver) with the expected pauses and the receiver's exposure through its load."""
        transfer_s = np.array(self.hops.transfer_s) * (1.0 + np.maximum(self.pauses[:, None], self.pauses))
        merge_s = np.array(self.hops.merge_s) * (1.0 + self.pauses)
        hop_s: Times = transfer_s + merge_s + _EXPOSED_TRANSFERS * self.typical_s * self.pauses
        return hop_s

    def choose(self, picked: Picked, ends_s: dict[Picked, float], hasty: Picked) -> Choice:
        """Describe the choice of this first step among all that were tried; ends_s: the end of the round after each."""
        return Choice(
            self._name(picked),
            "the round ends in",
            tuple((self._name(one), end_s) for one, end_s in ends_s.items()),
            favoured=self._name(hasty) if hasty in ends_s else "",
            favoured_as="greedy's choice",
            margin=_MARGIN * self.typical_s,
        )

    def _name(self, picked: Picked) -> str:
        return " to ".join(self.holders[index].peer_id for index in picked) if picked else "to wait"


def _follow(case: _Case, hasty: Picked) -> tuple[Picked, Choice]:
    """Return the best plan's first hop, or greedy's if a plan that begins with it is as good."""
    hop_s = case.expected_hop_s()
    planned, best_s = _plan(case, hop_s)
    ends_s = {planned: best_s}
    if hasty is not None and hasty != planned:
        sender, receiver = hasty
        ready_s = case.ready_s.copy()
        ready_s[receiver] = hop_s[sender, receiver]
        left = [index for index in range(len(ready_s)) if index != sender]
        rest_s = _solve(ready_s[left], hop_s[np.ix_(left, left)])[:, -1].min() if len(left) > 1 else ready_s[receiver]
        ends_s[hasty] = float(rest_s)
        if rest_s <= best_s + _MARGIN * case.typical_s:
            return hasty, case.choose(hasty, ends_s, hasty)
    return planned, case.choose(planned, ends_s, hasty)


def _try_out(case: _Case, hasty: Picked, count: int) -> tuple[Picked, Choice]:
    """Return the first step with the earliest mean end over all rollouts; each step meets the same futures."""
    planned, _ = _plan(case, case.expected_hop_s())
    tried = list(dict.fromkeys([hasty, planned, *_alternatives(case)]))
    if not case.view.may_wait():
        tried = [one for one in tried if one is not None]
    rng = np.random.default_rng([len(case.holders), int(case.view.time_s * 1e3)])
    futures = [draw_future(case.holders, RUSH, _HORIZON_S, case.typical_s, rng) for _ in range(count)]
    means_s = {one: fmean(roll_out(future, case.hops, one) for future in futures) for one in tried}
    best = min(means_s, key=lambda one: means_s[one] - (_MARGIN * case.typical_s if one == hasty else 0.0))
    return best, case.choose(best, means_s, hasty)


def _time_hops(view: ChainView, holders: list[DeviceView], typical_s: float) -> HopTimes:
    link_s = [view.size_mb / device.link_mb_s if device.link_mb_s else typical_s for device in holders]
    merge_s = [view.size_mb / device.merge_mb_s if device.merge_mb_s else 0.0 for device in holders]
    limit_s = [0.0 if device.may_receive else inf for device in holders]
    transfer_s = [
        [view.latency_s + max(first, second) + limit for second, limit in zip(link_s, limit_s, strict=True)]
        for first in link_s
    ]
    pauses = [pauses_per_second(device.kind) for device in holders]
    exposed_s = EXPOSED_TRANSFERS * typical_s
    cost_s = [
        cost_to_keep(own_s, share, exposed_s) + limit
        for own_s, share, limit in zip(link_s, pauses, limit_s, strict=True)
    ]
    return HopTimes(transfer_s, merge_s, cost_s)


def _alternatives(case: _Case) -> list[Picked]:
    free = [index for index, device in enumerate(case.holders) if device.state is DeviceState.FREE]
    free.sort(key=lambda index: -case.hops.cost_s[index])
    takers = [index for index in free if case.holders[index].may_receive]
    pairs: list[Picked] = [
        (sender, receiver) for sender in free[:_SENDERS] for receiver in takers[-_RECEIVERS:] if sender != receiver
    ]
    return [*pairs, None]


def _plan(case: _Case, hop_s: Times) -> tuple[Picked, float]:
    """Return the hop of the best plan that starts now, if one does, and the end of that plan."""
    found_s = _solve(case.ready_s, hop_s)
    holder = int(np.argmin(found_s[:, -1]))
    for start_s, sender, receiver in sorted(_trace(found_s, hop_s, holder, found_s.shape[1] - 1)):
        if start_s == 0.0 and case.holders[sender].state is case.holders[receiver].state is DeviceState.FREE:
            return (sender, receiver), float(found_s[holder, -1])
    return None, float(found_s[holder, -1])


def _solve(ready_s: Times, hop_s: Times) -> Times:
    tables = subset_tables(len(ready_s))
    takes_s = hop_s[tables.senders, tables.receivers][:, None, None]
    return earliest_ends(ready_s[:, None], lambda starts_s: starts_s + takes_s, tables)[:, :, 0]


def _trace(found_s: Times, hop_s: Times, holder: int, loads: int) -> list[tuple[float, int, int]]:
    """Return the hops (start, sender, receiver) that lead to this state."""
    if loads == 1 << holder:
        return []
    parts = _parts(loads & ~(1 << holder))
    starts_s = np.maximum(found_s[holder, loads ^ parts], found_s[:, parts])
    sender, chosen = np.unravel_index(int(np.argmin(starts_s + hop_s[:, holder, None])), starts_s.shape)
    part = int(parts[chosen])
    before = _trace(found_s, hop_s, holder, loads ^ part) + _trace(found_s, hop_s, int(sender), part)
    return [*before, (float(starts_s[sender, chosen]), int(sender), holder)]


def _parts(loads: int) -> Indices:
    parts = np.zeros(1, dtype=np.intp)
    while loads:
        bit = loads & -loads
        parts = np.concatenate((parts, parts | bit))
        loads ^= bit
    return parts[1:]
