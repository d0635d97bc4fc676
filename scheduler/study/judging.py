"""Judges a network against the greedy rule on seeded scenarios, by the time until all have the result. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

import numpy as np

from mdl.devices.scenario import Scenario
from mdl.devices.usage import DeviceState
from mdl.scheduler.policies.chain import Policy
from mdl.scheduler.policies.qnet_numpy import NumpyQ, Picks
from mdl.scheduler.study.parallel_play import finish
from mdl.scheduler.study.play import play
from mdl.sim.timing.batch import Batch, pack
from mdl.sim.timing.iteration import broadcast_end_s
from mdl.sim.timing.scenario import draw_scenario

# Tuning looks at these seeds; 0 to 299 only judge.
FIRST_TUNING_SEED = 500_000
# The verdict at the end of a network's training rests on these.
FIRST_VERDICT_SEED = 600_000
# Evaluated while training: family and N.
WATCHED = (("paper", 9), ("hetero", 9), ("dynamic", 9), ("dynamic", 16))
# The cells that compare two networks: they include empty batteries, and ways of drawing that vary by scenario.
COMPARED = (*WATCHED, ("dying", 9), ("varied", 9))
# Scenarios to compare on, by the name of their kind.
Cells = Mapping[str, Sequence[Scenario]]
_DONE, _DEAD = (list(DeviceState).index(state) for state in (DeviceState.DONE, DeviceState.DEAD))
# Rows of a batch, so that memory stays small for large N.
_ROWS = 100


@dataclass(frozen=True)
class JudgedPolicy:
    """One policy on many scenarios, in their order. everywhere_s: until all live devices have the result, of each.

    lost: contributions that no result holds.
    """

    name: str
    everywhere_s: tuple[float, ...]
    lost: int = 0

    @property
    def mean_s(self) -> float:
        return fmean(self.everywhere_s)


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95 % confidence interval of a mean; 0 for a single value."""
    return 1.96 * stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def less_time(one: JudgedPolicy, other: JudgedPolicy) -> tuple[float, float]:
    """Return the percent by which one's mean time is below the other's on the same scenarios, and half of the paired
    95 % interval of that (the other's mean is taken as given)."""
    apart = [theirs - ours for ours, theirs in zip(one.everywhere_s, other.everywhere_s, strict=True)]
    scale = 100.0 / other.mean_s
    return round(scale * fmean(apart), 2), round(scale * half_width(apart), 2)


def compare_networks(
    one: NumpyQ, other: NumpyQ | None, count: int, first_seed: int = FIRST_TUNING_SEED
) -> dict[str, tuple[float, float]]:
    """Return `less_time` of one network against another by cell, or against the greedy rule (None).

    count: scenarios of each cell; their seeds begin with first_seed.
    """
    return compare_on(one, other, _draw_cells(COMPARED, count, first_seed))


def compare_on(one: NumpyQ, other: NumpyQ | None, cells: Cells) -> dict[str, tuple[float, float]]:
    """Do the same on given scenarios by cell."""
    return {
        cell: less_time(judge_network("one", one, scenarios), judge_network("other", other, scenarios))
        for cell, scenarios in cells.items()
    }


def tell_verdict(less: dict[str, tuple[float, float]], rule: str = "the greedy rule") -> tuple[str, str]:
    """Return "better", "level" or "worse" than a rule, and one sentence on whether to use the network.

    less: of `compare_networks`, with the rule. Worse: beyond the 95 % interval of one cell. Better: beyond that of the
    cells' mean.
    """
    mean = fmean(gain for gain, _ in less.values())
    half = sqrt(sum(each**2 for _, each in less.values())) / len(less)
    if worse := worse_cells(less):
        cell = min(worse, key=lambda name: less[name][0])
        return "worse", f"do not use it: on {cell} rounds take {-less[cell][0]:.1f} % longer than by {rule}"
    if mean > half:
        return "better", f"use it: rounds take {mean:.1f} +- {half:.1f} % less time than by {rule}"
    return "level", f"it is level with {rule} ({mean:+.1f} +- {half:.1f} % less time): no reason to use it"


def worse_cells(less: dict[str, tuple[float, float]]) -> list[str]:
    """List cells of `compare_networks` on which the first network takes longer, beyond the interval."""
    return [cell for cell, (gain, half) in less.items() if gain + half < 0.0]


def judge_network(name: str, network: NumpyQ | None, scenarios: Sequence[Scenario]) -> JudgedPolicy:
    """Play all side by side; without a network by the greedy rule, as `mdl.scheduler.policies.layout` lays it out."""
    ends_s: list[float] = []
    lost = 0
    for first in range(0, len(scenarios), _ROWS):
        part = scenarios[first : first + _ROWS]
        outcome = finish(Batch(pack(part)), Picks(network))
        lost += int(outcome.lost.sum())
        for scenario, states, end_s in zip(part, outcome.states, outcome.makespan_s.tolist(), strict=True):
            living = np.flatnonzero(states[: len(scenario.devices)] != _DEAD).tolist()
            holder = [index for index in living if states[index] != _DONE]
            ends_s.append(broadcast_end_s(scenario, holder[0], living, end_s) if holder else end_s)
    return JudgedPolicy(name, tuple(ends_s), lost)


def judge_policy(name: str, make: Callable[[], Policy], scenarios: Sequence[Scenario]) -> JudgedPolicy:
    """Play all one by one, each with a fresh policy (some remember)."""
    played = [play(scenario, make()) for scenario in scenarios]
    return JudgedPolicy(name, tuple(each.everywhere_s for each in played), sum(len(each.lost) for each in played))


def watched_cells(count: int) -> Cells:
    """Draw so many scenarios of each cell of `WATCHED`."""
    return _draw_cells(WATCHED, count, FIRST_TUNING_SEED)


def watch(cells: Cells) -> Callable[[NumpyQ], dict[str, float]]:
    """Return a function that tells by what percent a network's rounds are shorter than the greedy rule's, by cell."""
    greedy = {cell: judge_network("greedy", None, scenarios).mean_s for cell, scenarios in cells.items()}

    def gain(network: NumpyQ) -> dict[str, float]:
        return {
            cell: round(100.0 * (1.0 - judge_network("dqn", network, scenarios).mean_s / greedy[cell]), 2)
            for cell, scenarios in cells.items()
        }

    return gain


def _draw_cells(cells: Sequence[tuple[str, int]], count: int, first_seed: int) -> Cells:
    return {
        f"{family} {n}": [draw_scenario(family, n, first_seed + number) for number in range(count)]
        for family, n in cells
    }
