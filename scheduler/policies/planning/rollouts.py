"""Rollouts: draws of the busy periods that a view hides, and the time the rest of a round takes then. Pure.

The rule of a rollout: the costliest idle device sends to the cheapest, unless waiting for a cheaper one that is soon
free costs less time than it saves. A rollout knows when those get free; it ignores busy periods that begin later.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import exp, inf, log

import numpy as np

from mdl.devices import usage
from mdl.devices.busy_periods import active_end_s
from mdl.devices.usage import Periods, UsageKind, mean_gap_s
from mdl.scheduler.policies.chain import DeviceState, DeviceView


@dataclass(frozen=True)
class Future:
    """Busy periods from now on, and the time at which each device ends its training or its hop; by position."""

    busy: tuple[Periods, ...]
    free_at_s: tuple[float, ...]


@dataclass(frozen=True)
class Hops:
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


def roll_out(future: Future, hops: Hops, first: tuple[int, int] | None) -> float:
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


def _hop_end_s(busy: tuple[Periods, ...], hops: Hops, sender: int, receiver: int, start_s: float) -> float:
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
