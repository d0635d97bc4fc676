"""Judges participation rules: the same worlds under each, and the seconds to levels of progress, paired. Pure.

Every rule is compared with the first one on the same worlds. A ratio of times is a mean of logarithms over worlds, so
that slow worlds do not outweigh the others, and its 95 % interval is paired. Worlds of seeds below `FIRST_TUNING_SEED`
only judge: nothing may be tuned on them. Recorded phones are split likewise. A learned rule is compared with the best
shipped one, on worlds that it was not trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, isinf, log
from statistics import fmean
from typing import Any

import numpy as np

from mdl.scheduler.rounds.learned import Layer, LearnedRule, make_rule
from mdl.scheduler.rounds.participation import Bounds, ParticipationRule
from mdl.scheduler.rounds.simulate import PlayedWorld, play_world
from mdl.scheduler.rounds.world import FAMILIES, HORIZON_S, Logged, World, draw_logged_world, draw_world
from mdl.scheduler.study.judging import half_width

# Progress in rounds of all devices (`scheduler/rounds/participation.py`).
LEVELS = (5.0, 15.0, 30.0)


@dataclass
class RuleScore:
    """One rule on the worlds of a cell. times_s: a list by level. unreached: worlds that ended below the last level.

    Such a world counts with its whole length, so the rule's true time is longer.
    """

    rule: str
    times_s: list[list[float]] = field(default_factory=lambda: [[] for _ in LEVELS])
    unreached: int = 0
    rounds: list[int] = field(default_factory=list)
    least_shares: list[float] = field(default_factory=list)
    longest_gap: int = 0
    joules: list[float] = field(default_factory=list)

    def add(self, played: PlayedWorld) -> None:
        reached = [played.reached_s(level) for level in LEVELS]
        for times, seconds in zip(self.times_s, reached, strict=True):
            times.append(min(seconds, HORIZON_S))
        self.unreached += isinf(reached[-1])
        self.rounds.append(len(played.rounds))
        self.least_shares.append(min(played.shares()))
        self.longest_gap = max(self.longest_gap, played.longest_gap())
        self.joules.append(fmean(played.joules))


@dataclass
class Cell:
    """Rules on the worlds of one kind. scores: in the order of the rules, the reference first."""

    what: str
    scores: list[RuleScore]

    @property
    def worlds(self) -> int:
        return len(self.scores[-1].rounds)


def judge_cell(
    what: str,
    rules: Sequence[str],
    worlds: Iterable[World],
    make: Callable[[str], ParticipationRule],
    show: Callable[[int], None] = lambda played: None,
    into: Cell | None = None,
) -> Cell:
    """Play each world under every rule before the next one, each with a fresh rule. into: a cell that is filled.

    show: is given the number of worlds played.
    """
    cell = into or Cell(what, [RuleScore(rule) for rule in rules])
    for world in worlds:
        played = [play_world(world, make(rule), LEVELS[-1]) for rule in rules]
        for score, each in zip(cell.scores, played, strict=True):
            score.add(each)
        show(cell.worlds)
    return cell


def over_reference(own_s: Sequence[float], reference_s: Sequence[float]) -> tuple[float, float, float]:
    """Return by how many percent times are over the reference's on the same worlds, and the 95 % interval's ends."""
    ratios = [log(own / reference) for own, reference in zip(own_s, reference_s, strict=True)]
    mean, half = fmean(ratios), half_width(ratios)
    return tuple(100.0 * (exp(each) - 1.0) for each in (mean, mean - half, mean + half))  # type: ignore[return-value]


def over_all_levels(own: RuleScore, reference: RuleScore) -> tuple[float, float, float]:
    """Do the same with each world's geometric mean of the times to all levels."""

    def whole(score: RuleScore) -> list[float]:
        return [exp(fmean(log(seconds) for seconds in times)) for times in zip(*score.times_s, strict=True)]

    return over_reference(whole(own), whole(reference))


def describe_cell(cell: Cell) -> dict[str, Any]:
    """Return a cell as `--json` prints it."""
    reference = cell.scores[0]
    return {
        "worlds_of": cell.what,
        "worlds": cell.worlds,
        "rules": [_describe(each, reference) for each in cell.scores],
    }


def _describe(score: RuleScore, reference: RuleScore) -> dict[str, Any]:
    levels = [
        {
            "level": level,
            "mean_s": round(fmean(own), 3),
            "interval_95_s": round(half_width(own), 3),
            "over_percent": _rounded(over_reference(own, theirs)),
        }
        for level, own, theirs in zip(LEVELS, score.times_s, reference.times_s, strict=True)
    ]
    return {
        "rule": score.rule,
        "levels": levels,
        "over_percent": _rounded(over_all_levels(score, reference)),
        "unreached": score.unreached,
        "rounds": round(fmean(score.rounds), 1),
        "least_share": round(fmean(score.least_shares), 4),
        "longest_gap": score.longest_gap,
        "joules_a_device": round(fmean(score.joules), 1),
    }


def _rounded(over: tuple[float, float, float]) -> dict[str, float]:
    return dict(zip(("mean", "low", "high"), (round(each, 2) for each in over), strict=True))


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
