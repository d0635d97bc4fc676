"""Medians and quartiles, as all benchmarks round and print them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


def quartiles(values: Sequence[float] | Any, digits: int = 3) -> list[float]:
    """Return [median, lower quartile, upper quartile]."""
    return [round(float(value), digits) for value in np.percentile(values, [50, 25, 75])]


def median(values: Iterable[float], digits: int = 3) -> float:
    """Return the median, rounded."""
    return round(statistics.median(values), digits)
