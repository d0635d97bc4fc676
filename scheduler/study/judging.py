"""Judges a network against the greedy rule on seeded scenarios, by the time until all have the result. Pure.

Plays many simulated iterations side by side under one rule: for rollouts, training and fast judging.

A rule takes a Stand of rows in which at least two devices are free and returns senders and receivers (-1, -1: wait).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

import numpy as np

from mdl.devices.scenario import Scenario
from mdl.devices.usage import DeviceState
from mdl.scheduler.policies.chain import Bools, Doubles, Integers, Policy, Stand
from mdl.scheduler.policies.qnet_numpy import MARGIN, NumpyQ, Picks, Rule
from mdl.scheduler.study.play import play
from mdl.sim.timing.batch import Batch, Codes, pack
from mdl.sim.timing.iteration import broadcast_end_s
from mdl.sim.timing.scenario import draw_scenario


@dataclass(frozen=True)
class BatchOutcome:
    """Results of B iterations.

    makespan_s, wasted_s: (B,). energy_j: (B, N). lost: number of contributions, (B,). states: at the end, (B, N), codes
    in the order of DeviceState.
    """

    makespan_s: Doubles
    energy_j: Doubles
    lost: Integers
    wasted_s: Doubles
    states: Codes


def evaluate(q: NumpyQ | None, family: str, n: int, seeds: Iterable[int], margin: float = MARGIN) -> BatchOutcome:
    """Play the scenarios of these seeds, like `mdl.scheduler.study.play.play` with Learned (or the layout)."""
    packed = pack([draw_scenario(family, n, seed) for seed in seeds])
    return finish(Batch(packed), Picks(q, margin))


def finish(batch: Batch, rule: Rule) -> BatchOutcome:
    """Play every row to its end; this uses up the batch."""
    rows, count = batch.idle().shape
    none, states = np.zeros(rows, dtype=np.int64), np.zeros((rows, count), dtype=np.int8)
    outcome = BatchOutcome(np.zeros(rows), np.zeros((rows, count)), none, np.zeros(rows), states)
    ids, over = np.arange(rows), batch.ended()
    while True:
        if over.mean() > 0.25 or over.all():
            _note(outcome, ids[over], batch.take(over))
            ids, batch = ids[~over], batch.take(~over)
            over = over[~over]
        if not len(ids):
            return outcome
        moved = step(batch, rule, ~over)
        over |= batch.ended() | ~moved


def step(batch: Batch, rule: Rule, playing: Bools) -> Bools:
    """Make one decision in each playing row that has a choice; then advance rows that wait or can pair no more.

    playing: (B,). Returns the rows in which something happened (B,); rows that are not playing count as such.
    """
    choosing = np.flatnonzero((batch.idle().sum(axis=1) > 1) & playing)
    waits = np.zeros(len(batch), dtype=np.bool_)
    if len(choosing):
        senders, receivers = rule(stand_of_rows(batch, choosing))
        pairs = senders >= 0
        waits[choosing[~pairs]] = True
        batch.start(choosing[pairs], senders[pairs], receivers[pairs])
    moving = playing & (waits | (batch.idle().sum(axis=1) < 2))
    moved: Bools = batch.advance(moving) | ~moving
    return moved


def stand_of_rows(batch: Batch, rows: Integers) -> Stand:
    """Convert these rows (positions) to a Stand, with the numbers of `mdl.scheduler.study.play.view_of`."""
    packed, which = batch.packed, batch.which[rows]
    shape = (len(rows), packed.exists.shape[1])
    zeros = np.zeros(shape)
    return Stand(
        exists=packed.exists[which],
        state=batch.states()[rows].astype(np.int64),
        link=packed.link_mb_s[which],
        merge=packed.merge_mb_s[which],
        kind=packed.kind[which],
        battery=packed.battery_percent[which],
        charging=packed.charging[which],
        in_use=np.zeros(shape, dtype=np.bool_),
        cpu=zeros,
        free_memory=zeros,
        busy_for=batch.busy_for_s()[rows],
        eta_ready=batch.eta_ready_s()[rows],
        op_left=batch.op_left_s()[rows],
        n_agg=batch.n_agg[rows].astype(np.float64),
        theta=batch.theta[rows],
        energy=batch.energy_j[rows],
        may_receive=packed.may_receive[which],
        time_s=batch.now_s[rows],
        size_mb=packed.size_mb[which],
        latency_s=packed.latency_s[which],
        unit_s=packed.unit_s[which],
    )


def _note(outcome: BatchOutcome, ids: Integers, batch: Batch) -> None:
    outcome.makespan_s[ids] = batch.makespan_s()
    outcome.energy_j[ids] = batch.energy_j
    outcome.lost[ids] = batch.lost.sum(axis=1)
    outcome.wasted_s[ids] = batch.wasted_s
    outcome.states[ids] = batch.states()


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
