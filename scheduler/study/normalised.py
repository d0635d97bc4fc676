"""The paper's scheduling objective (MDLdroid Eq. 4): normalised time plus normalised imbalance of energy. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def normalise(values: Sequence[float]) -> list[float]:
    """Return N(x) = (x - min) / (max - min): 0 for the least, 1 for the most; all 0 if they are alike (Eq. 4)."""
    least, most = min(values), max(values)
    return [(value - least) / (most - least) if most > least else 0.0 for value in values]


def objectives(times_s: Sequence[float], variances_j2: Sequence[float]) -> list[float]:
    """Return N(T) + N(E) of several schedules of one iteration, 0 (best in both) to 2 (worst in both).

    times_s: T of Eq. 5, until one device holds everything. variances_j2: E of Eq. 6. The paper does not say over which
    set it takes min and max: here over the schedules that are compared.
    """
    pairs = zip(normalise(times_s), normalise(variances_j2), strict=True)
    return [time + balance for time, balance in pairs]
