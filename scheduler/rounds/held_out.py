"""Compares a learned participation rule with the best shipped one, on worlds that it was not trained on. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean

import numpy as np

from mdl.scheduler.rounds.judge import over_reference
from mdl.scheduler.rounds.learned import Layer, LearnedRule
from mdl.scheduler.rounds.own_log import Logged, draw_logged_world
from mdl.scheduler.rounds.participation import ParticipationRule
from mdl.scheduler.rounds.registry import make_rule
from mdl.scheduler.rounds.shipped import Bounds
from mdl.scheduler.rounds.simulate import play_world
from mdl.scheduler.rounds.world import FAMILIES, HORIZON_S, World, draw_world

# The worlds of each cell: (a name, its worlds).
Cells = Mapping[str, Sequence[World]]
# The shipped rules that may be the best one.
RULES = ("best-ratio", "third", "half")
# Progress of a comparison, in rounds of all devices.
LEVEL = 15.0
# MB of a delta, in turns.
_SIZES_MB = (1.0, 10.0, 40.0)
_RECORDED = "recorded"


@dataclass(frozen=True)
class Reference:
    """The best shipped rule on some worlds. times_s: of each cell's worlds under it."""

    rule: str
    times_s: dict[str, list[float]]

    def mean_log(self) -> float:
        return fmean(log(each) for times in self.times_s.values() for each in times)


def drawn_cells(n: int, count: int, first_seed: int) -> Cells:
    """Draw so many worlds of n devices in each family, small and large models in turns."""
    return {
        family: [draw_world(family, n, _SIZES_MB[at % len(_SIZES_MB)], first_seed + at) for at in range(count)]
        for family in FAMILIES
    }


def logged_cells(part: Logged, count: int, seed: int) -> Cells:
    """Draw so many worlds of a part of a mesh's log."""
    rng = np.random.default_rng([3, seed])
    return {_RECORDED: [draw_logged_world(part, rng) for _ in range(count)]}


def find_best_rule(cells: Cells) -> Reference:
    """Play all worlds under the shipped rules; return the one with the least time, by the mean of logarithms."""
    return min((play_rule(cells, rule) for rule in RULES), key=Reference.mean_log)


def play_rule(cells: Cells, rule: str) -> Reference:
    """Play all worlds under one rule."""
    return Reference(rule, {cell: _times_s(worlds, lambda: make_rule(rule)) for cell, worlds in cells.items()})


def less_time_than(
    reference: Reference, layers: Sequence[Layer], max_n: int, cells: Cells
) -> dict[str, tuple[float, float]]:
    """Return by how many percent a network takes less time than the reference, and half of the 95 % interval, by cell.

    Times are compared world by world.
    """
    found = {}
    for cell, worlds in cells.items():
        own_s = _times_s(worlds, lambda: LearnedRule("learned", layers, max_n, Bounds()))
        mean, low, high = over_reference(own_s, reference.times_s[cell])
        found[cell] = (round(0.0 - mean, 2), round((high - low) / 2.0, 2))
    return found


def _times_s(worlds: Sequence[World], make: Callable[[], ParticipationRule]) -> list[float]:
    """Return the time to the level in each world, or the whole world's if it is not reached."""
    return [min(HORIZON_S, play_world(world, make(), LEVEL).reached_s(LEVEL)) for world in worlds]
