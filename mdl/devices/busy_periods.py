"""Free time of devices: work stands still while a device, or its partner, is busy. Pure."""

from __future__ import annotations

from bisect import bisect_right
from math import inf

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
