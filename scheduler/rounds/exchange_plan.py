"""The exact plan of an exchange in segments, and the sets of devices that it would rather take. Pure.

A set of k devices with links r needs max(1 / min r, 2 (k - 1) / sum r) seconds a megabyte: the bound that shares by
bandwidth reach (`mdl.scheduler.plans.segment_plan`). For any k the fastest k links have the least.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from mdl.devices.usage import expected_rest_s
from mdl.scheduler.plans.segment_plan import bandwidth_shares, level
from mdl.scheduler.rounds.participation import LEAST_MEMBERS, DeviceSeen, RoundSeen
from mdl.scheduler.rounds.worth import FRESH, contribution, worth_of

# Order, answer and the first piece before anything flows, and the last result (`mdl.sim.timing.iteration`).
_MESSAGES = 4
# An owner's link takes this much longer than its bytes do, since it is full both ways (measured there).
_FULL_BOTH_WAYS = 1.15


class Planned(NamedTuple):
    """shares: of the model, by member. seconds: from the close to the result everywhere, if nobody is busy."""

    shares: list[float]
    seconds: float


class BestSet(NamedTuple):
    """devices: in the plan's order. close_in_s: seconds until the last one can give. ratio: worth a second."""

    devices: tuple[DeviceSeen, ...]
    close_in_s: float
    ratio: float


def plan_exchange(rates: Sequence[float], may_own: Sequence[bool], size_mb: float, latency_s: float) -> Planned:
    """Plan an exchange. rates: MB/s of each member. may_own: False for a member in use; if all are, all may own."""
    owners = may_own if any(may_own) else [True] * len(rates)
    shares, time_per_mb = bandwidth_shares(level(rates), owners)
    return Planned(shares, _FULL_BOTH_WAYS * size_mb * time_per_mb + _MESSAGES * latency_s)


def in_plan_order(devices: Sequence[DeviceSeen], left_out_at_most: float) -> list[DeviceSeen]:
    """Sort devices: those at the bound first, then those that are not in use, the fastest link first."""
    return sorted(devices, key=lambda each: (each.left_out < left_out_at_most, each.busy_for_s > 0.0, -each.link_mb_s))


def best_set(
    seen: RoundSeen, left_out_at_most: float, *, now: bool = False, least: int = LEAST_MEMBERS
) -> BestSet | None:
    """Return the set with the best ratio of worth to time since the round opened; None if no set can ever give.

    Sets are the beginnings of the plan's order, at the moment of each device's expected end of training. A set holds
    every device that has been left out `left_out_at_most` times. now: sets that can give now alone, without that.
    least: the fewest devices of a set.
    """
    if now:
        moments, bound = [0.0], 0
    else:
        bound = sum(each.left_out >= left_out_at_most for each in seen.devices)
        moments = sorted({max(0.0, each.ready_in_s) for each in seen.devices})
    best: BestSet | None = None
    for moment_s in moments:
        able = [each for each in seen.devices if each.ready_in_s <= moment_s]
        if sum(each.left_out >= left_out_at_most for each in able) < bound:
            continue
        order = in_plan_order(able, left_out_at_most)
        for count, ratio in _ratios(seen, order, moment_s):
            if count >= max(bound, least) and (best is None or ratio > best.ratio):
                best = BestSet(tuple(order[:count]), moment_s, ratio)
    return best


def _ratios(seen: RoundSeen, order: Sequence[DeviceSeen], moment_s: float) -> list[tuple[int, float]]:
    """Return the number of members and the worth a second of each beginning of the order."""
    n = len(seen.devices)
    covered = sum(FRESH ** (each.left_out + 1) for each in seen.devices)
    contributed, total_mb_s, slowest_mb_s, rest_s = 0.0, 0.0, inf, 0.0
    found = []
    for count, device in enumerate(order, 1):
        contributed += contribution([(device.base_age, max(1.0, device.progress))])
        covered += 1.0 - FRESH ** (device.left_out + 1)
        total_mb_s += device.link_mb_s
        slowest_mb_s = min(slowest_mb_s, device.link_mb_s)
        if device.busy_for_s > 0.0:
            rest_s = max(rest_s, expected_rest_s(device.kind, device.busy_for_s) - moment_s)
        if count < LEAST_MEMBERS:
            continue
        time_per_mb = max(1.0 / slowest_mb_s, 2.0 * (count - 1) / total_mb_s)
        exchange_s = _FULL_BOTH_WAYS * seen.size_mb * time_per_mb + _MESSAGES * seen.latency_s
        seconds = seen.open_s + moment_s + rest_s + exchange_s
        found.append((count, worth_of(contributed, covered / n, n) / seconds))
    return found
