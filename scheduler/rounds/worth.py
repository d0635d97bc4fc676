"""The worth of a round, as a formula. Pure.

    worth = coverage ** COVERAGE * (sum over members of c / n) ** TOGETHER
    c = (sum over the device's work of periods * FRESH ** age) ** ALONE

A round to which all n devices bring one fresh local period is worth 1: progress counts such rounds. Terms:

- TOGETHER: a round of k of n devices is worth about k ** 0.58 (the fit of an earlier trial over all rules, R2 0.67).
- FRESH: work loses a tenth for each round that closed since the parameters that it began from (given by that trial).
- ALONE: more periods of one device before it gives are worth less each (assumed: the square root).
- COVERAGE: coverage is the mean over all devices of FRESH ** (rounds in a row that closed without it). Devices hold
  different data, so a model that few of them made is worth less (assumed: the square root).

The formula ranks rules and rewards learners. It is a rough one (docs/results/rounds.md): `benchmarks/rounds.py` trains
really, by the same rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

TOGETHER = 0.58
FRESH = 0.9
ALONE = 0.5
COVERAGE = 0.5


def contribution(work: Iterable[tuple[int, float]]) -> float:
    """Return c of one device. work: (age in rounds, local periods) of each part of its sum."""
    return float(sum(periods * FRESH**age for age, periods in work) ** ALONE)


def coverage(left_out: Sequence[int]) -> float:
    """Return the coverage. left_out: of each device, rounds in a row up to this one that closed without it."""
    return sum(FRESH**rounds for rounds in left_out) / len(left_out)


def worth(contributions: Sequence[float], left_out: Sequence[int]) -> float:
    """Return the worth of a round of these members, beside the round of all devices with one fresh period each."""
    return worth_of(sum(contributions), coverage(left_out), len(left_out))


def worth_of(contributed: float, covered: float, n: int) -> float:
    """Return the same of sums: of the members' contributions, and the coverage."""
    return float(covered**COVERAGE * (contributed / n) ** TOGETHER)
