"""Use of a device: its state in a round, and its owner's use: kinds of use, busy periods, and the free time between.

Free and busy stretches alternate (a renewal process): free ones are exponential with the kind's mean gap, busy ones
follow the kind's law. Work stands still while a device, or its partner, is busy. A policy sees the kind and how long a
period has lasted, never when it ends. Pure: a seeded generator is passed in. docs/device-models.md says which constant
is fitted, given or assumed, and how good it is.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from enum import Enum, IntEnum
from math import inf

import numpy as np


class DeviceState(Enum):
    """The state of a device in this round. Only FREE devices may be paired."""

    TRAINING = "training"
    FREE = "free"
    BUSY = "busy"
    SEND = "send"
    GET = "get"
    DONE = "done"
    DEAD = "dead"


Periods = tuple[tuple[float, float], ...]


def active_end_s(busy: tuple[Periods, ...], start_s: float, work_s: float) -> float:
    """Return the time at which work ends that starts at start_s and stands still while any of these is busy."""
    at_s, left_s = start_s, work_s
    while True:
        blocked_until_s, next_start_s = at_s, inf
        for periods in busy:
            place = periods_begun(periods, at_s)
            if place and periods[place - 1][1] > blocked_until_s:
                blocked_until_s = periods[place - 1][1]
            if place < len(periods):
                next_start_s = min(next_start_s, periods[place][0])
        if blocked_until_s > at_s:
            at_s = blocked_until_s
            continue
        if left_s <= next_start_s - at_s:
            return at_s + left_s
        left_s -= next_start_s - at_s
        at_s = next_start_s


def active_s(busy: tuple[Periods, ...], start_s: float, end_s: float) -> float:
    """Return the seconds between the two in which none of these is busy."""
    total_s, at_s = 0.0, start_s
    blocking = sorted(period for periods in busy for period in _overlapping(periods, start_s, end_s))
    for begin_s, until_s in blocking:
        total_s += max(0.0, begin_s - at_s)
        at_s = max(at_s, until_s)
    return total_s + max(0.0, end_s - at_s)


def _overlapping(periods: Periods, start_s: float, end_s: float) -> Periods:
    return periods[max(0, periods_begun(periods, start_s) - 1) : periods_begun(periods, end_s)]


def periods_begun(periods: Periods, at_s: float) -> int:
    """Return how many of the periods have begun by then."""
    return bisect_right(periods, (at_s, inf))


class UsageKind(IntEnum):
    """The kinds of use that occupy a device, in the order of the `kind` field in an observation."""

    IDLE = 0
    SYNC = 1
    INTERACTIVE = 2
    CALL = 3
    BIMODAL = 4
    ONCE = 5


# Given: lengths of busy periods in seconds.
SYNC_RANGE_S = (0.2, 0.8)
INTERACTIVE_MEDIAN_S = 2.0
CALL_RANGE_S = (6.0, 14.0)
BIMODAL_SHORT_S = 0.3
BIMODAL_LONG_RANGE_S = (8.0, 12.0)
# In units of one transfer over the median link, the unit of the start in the paper's family.
ONCE_RANGE_TRANSFERS = (0.5, 4.0)
# Assumed: short and long periods of the bimodal kind are as frequent.
BIMODAL_LONG_SHARE = 0.5
# Fitted: how long a phone in use stays loaded from one reading to later ones.
INTERACTIVE_SIGMA = 1.0
# Share of time busy. Fitted: screen off, in use, and within a minute of another load. The bimodal kind is
# assumed to load a device as much as the interactive one, so that the two differ only in what can be foreseen.
BUSY_SHARES = {
    UsageKind.SYNC: 0.012,
    UsageKind.INTERACTIVE: 0.13,
    UsageKind.CALL: 0.24,
    UsageKind.BIMODAL: 0.13,
}
# Beyond so many deviations from the median a log-normal period tells nothing more (and float64 runs out).
_LONGEST_DEVIATION = 8.0


def expected_busy_s(kind: UsageKind, transfer_s: float = 1.0) -> float:
    """Return the mean length of one busy period in seconds; `transfer_s` scales the kind "once" alone."""
    return expected_rest_s(kind, 0.0, transfer_s)


def expected_rest_s(kind: UsageKind, busy_for_s: float, transfer_s: float = 1.0) -> float:
    """Return the mean seconds until a period of age `busy_for_s` ends (mean residual life); 0 once it must be over."""
    match kind:
        case UsageKind.IDLE:
            return 0.0
        case UsageKind.SYNC:
            return _uniform_rest(SYNC_RANGE_S, busy_for_s)
        case UsageKind.INTERACTIVE:
            return _log_normal_rest(busy_for_s)
        case UsageKind.CALL:
            return _uniform_rest(CALL_RANGE_S, busy_for_s)
        case UsageKind.BIMODAL:
            return _bimodal_rest(busy_for_s)
        case UsageKind.ONCE:
            if not transfer_s:  # such a period takes no time if transfers take none
                return 0.0
            return transfer_s * _uniform_rest(ONCE_RANGE_TRANSFERS, busy_for_s / transfer_s)


def busy_rate(kind: UsageKind, gap_scale: float = 1.0) -> float:
    """Return the share of time, 0..1, that a device of this kind is busy in the long run; 0 for idle and once."""
    gap_s = gap_scale * mean_gap_s(kind)
    return 0.0 if math.isinf(gap_s) else expected_busy_s(kind) / (expected_busy_s(kind) + gap_s)


def mean_gap_s(kind: UsageKind) -> float:
    """Return the mean free time in seconds between two busy periods; infinite for idle and once."""
    share = BUSY_SHARES.get(kind, 0.0)
    return expected_busy_s(kind) * (1.0 - share) / share if share else math.inf


def draw_busy_periods(
    kind: UsageKind, horizon_s: float, rng: np.random.Generator, *, gap_scale: float = 1.0, transfer_s: float = 1.0
) -> Periods:
    """Draw busy periods (start_s, end_s) touching [0, horizon_s), sorted and disjoint; the process is stationary at 0.

    A period under way at 0 has a negative start, so that `t - start` is its age; the last may end after the horizon.
    `gap_scale` stretches the mean gap (below 1: busier than the recordings). "once" is one period that starts at 0 and
    lasts 0.5 to 4 times `transfer_s`.
    """
    if kind is UsageKind.IDLE:
        return ()
    if kind is UsageKind.ONCE:
        return ((0.0, transfer_s * float(rng.uniform(*ONCE_RANGE_TRANSFERS))),)
    gap_s = gap_scale * mean_gap_s(kind)
    periods = [_period_under_way(kind, rng)] if rng.random() < busy_rate(kind, gap_scale) else []
    free_from_s = periods[0][1] if periods else 0.0
    while (start_s := free_from_s + float(rng.exponential(gap_s))) < horizon_s:
        free_from_s = start_s + _draw_length(kind, rng)
        periods.append((start_s, free_from_s))
    return tuple(periods)


def _uniform_rest(bounds: tuple[float, float], age: float) -> float:
    low, high = bounds
    return (low + high) / 2.0 - age if age <= low else max(0.0, (high - age) / 2.0)


def _log_normal_rest(age_s: float) -> float:
    """Return the mean residual life of the log-normal law: E[X; X > a] / P(X > a) - a, by the normal distribution."""
    medians = age_s / INTERACTIVE_MEDIAN_S  # 0 for the smallest ages that a float can hold
    if medians <= 0.0:
        return INTERACTIVE_MEDIAN_S * math.exp(INTERACTIVE_SIGMA**2 / 2.0)
    deviation = min(math.log(medians) / INTERACTIVE_SIGMA, _LONGEST_DEVIATION)
    age_s = INTERACTIVE_MEDIAN_S * math.exp(INTERACTIVE_SIGMA * deviation)
    beyond = math.erfc((deviation - INTERACTIVE_SIGMA) / math.sqrt(2.0)) / math.erfc(deviation / math.sqrt(2.0))
    return INTERACTIVE_MEDIAN_S * math.exp(INTERACTIVE_SIGMA**2 / 2.0) * beyond - age_s


def _bimodal_rest(age_s: float) -> float:
    long_s = sum(BIMODAL_LONG_RANGE_S) / 2.0
    if age_s < BIMODAL_SHORT_S:
        return (1.0 - BIMODAL_LONG_SHARE) * BIMODAL_SHORT_S + BIMODAL_LONG_SHARE * long_s - age_s
    return _uniform_rest(BIMODAL_LONG_RANGE_S, age_s)


def _draw_length(kind: UsageKind, rng: np.random.Generator) -> float:
    if kind is UsageKind.SYNC:
        return float(rng.uniform(*SYNC_RANGE_S))
    if kind is UsageKind.INTERACTIVE:
        return INTERACTIVE_MEDIAN_S * math.exp(INTERACTIVE_SIGMA * float(rng.standard_normal()))
    if kind is UsageKind.CALL:
        return float(rng.uniform(*CALL_RANGE_S))
    return float(rng.uniform(*BIMODAL_LONG_RANGE_S)) if rng.random() < BIMODAL_LONG_SHARE else BIMODAL_SHORT_S


def _period_under_way(kind: UsageKind, rng: np.random.Generator) -> tuple[float, float]:
    """Draw the period that covers a random instant: long ones are met more often, each point of them equally."""
    length_s = _draw_met_length(kind, rng)
    age_s = length_s * float(rng.random())
    return -age_s, length_s - age_s


def _draw_met_length(kind: UsageKind, rng: np.random.Generator) -> float:
    """Draw a length from the law weighted by length (density proportional to x f(x))."""
    if kind is UsageKind.SYNC:
        return _draw_met_uniform(SYNC_RANGE_S, rng)
    if kind is UsageKind.INTERACTIVE:
        return math.exp(INTERACTIVE_SIGMA**2) * _draw_length(kind, rng)
    if kind is UsageKind.CALL:
        return _draw_met_uniform(CALL_RANGE_S, rng)
    long_part = BIMODAL_LONG_SHARE * sum(BIMODAL_LONG_RANGE_S) / 2.0
    is_long = rng.random() < long_part / expected_busy_s(kind)
    return _draw_met_uniform(BIMODAL_LONG_RANGE_S, rng) if is_long else BIMODAL_SHORT_S


def _draw_met_uniform(bounds: tuple[float, float], rng: np.random.Generator) -> float:
    low, high = bounds
    return math.sqrt(low**2 + (high**2 - low**2) * float(rng.random()))
