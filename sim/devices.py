"""What devices are like: classes of link and merge speed, battery, heat; kinds of use come from sim.usage.

Numbers are given by the scheduling study, fitted to recordings of real phones, or assumed: docs/device-models.md
says which, and how good each fit is. Pure: a seeded generator is passed in, no files, no clock.
"""

from __future__ import annotations

import numpy as np

from sim.usage import (
    UsageKind,
    busy_rate,
    draw_busy_periods,
    expected_busy_s,
    expected_rest_s,
    mean_gap_s,
)

__all__ = [
    "CLASS_SHARES",
    "LINK_RANGES_MB_S",
    "MERGE_RANGES_MB_S",
    "UsageKind",
    "busy_rate",
    "draw_busy_periods",
    "draw_class",
    "draw_link_mb_s",
    "draw_merge_mb_s",
    "expected_busy_s",
    "expected_rest_s",
    "mean_gap_s",
]

# Class 0 is the fastest. Shares and links are given, and so are the outer two merge ranges; the two between follow
# the ratio of CPU benchmark medians of phones cut into the same shares (CPU float test: 1 : 0.53 : 0.14 : 0.08).
CLASS_SHARES = (0.35, 0.35, 0.20, 0.10)
LINK_RANGES_MB_S = ((10.0, 20.0), (5.0, 10.0), (2.0, 4.0), (1.0, 2.0))
MERGE_RANGES_MB_S = ((600.0, 1200.0), (300.0, 600.0), (100.0, 200.0), (50.0, 100.0))


def draw_class(rng: np.random.Generator) -> int:
    """A device class 0 (fastest) to 3, by CLASS_SHARES."""
    return int(np.searchsorted(np.cumsum(CLASS_SHARES[:-1]), rng.random(), side="right"))


def draw_link_mb_s(device_class: int, rng: np.random.Generator) -> float:
    """Link speed in MB/s, uniform over the range of the class."""
    return float(rng.uniform(*LINK_RANGES_MB_S[device_class]))


def draw_merge_mb_s(device_class: int, rng: np.random.Generator) -> float:
    """Merge speed in MB/s, uniform over the range of the class."""
    return float(rng.uniform(*MERGE_RANGES_MB_S[device_class]))
