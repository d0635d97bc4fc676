"""The layout: one chain by a plain loop and many side by side are the same schedule, and each is a possible one."""

from __future__ import annotations

from dataclasses import fields
from math import inf

import numpy as np
import pytest

from mdl.scheduler.policies.fixed import Fifo
from mdl.scheduler.policies.layout import Prospects, lay_hops, lay_out
from mdl.scheduler.policies.qnet_numpy import Picks
from mdl.scheduler.study.judging import finish
from mdl.scheduler.study.play import play
from mdl.sim.timing.batch import Batch, pack
from mdl.sim.timing.scenario import draw_scenario


def _prospects(rows: int, count: int, seed: int) -> Prospects:
    rng = np.random.default_rng(seed)
    free = np.where(rng.random((rows, count)) < 0.4, 0.0, 3.0 * rng.random((rows, count)))
    free[rng.random((rows, count)) < 0.15] = np.inf
    costs, hops, none = 3.0 * rng.random((rows, count)), 3.0 * rng.random((rows, count)), np.zeros((rows, count))
    return Prospects(costs, costs, hops, free, hops, none, none)


def _row(expected: Prospects, row: int) -> Prospects:
    return Prospects(*(getattr(expected, field.name)[row : row + 1] for field in fields(expected)))


@pytest.mark.parametrize("count", [2, 3, 9, 20])
def test_many_chains_are_laid_out_as_each_of_them_alone(count: int) -> None:
    expected = _prospects(60, count, count)
    together = lay_out(expected)
    for row in range(60):
        alone = lay_out(_row(expected, row))
        assert np.array_equal(together.starts[row], alone.starts[0])
        assert np.array_equal(together.targets[row], alone.targets[0])
        assert together.ends[row] == alone.ends[0]


def test_everyone_who_is_coming_sends_once_except_the_last_holder() -> None:
    expected = _prospects(200, 9, 1)
    layout = lay_out(expected)
    coming = np.isfinite(expected.free)
    assert ((layout.targets >= 0) == np.isfinite(layout.starts)).all()
    assert ((layout.targets >= 0).sum(axis=1) == np.maximum(coming.sum(axis=1) - 1, 0)).all()
    assert (layout.starts >= expected.free)[layout.targets >= 0].all()


def test_a_cut_gap_of_a_full_receiver_is_kept_from_its_end_on() -> None:
    """Device 2 takes 0 at once; 1 comes later and would fit before it again, but only one gap is kept."""
    order, hops, costs, free = (0, 1, 2), (1.0, 1.0, 1.0), (9.0, 9.0, 0.0), (5.0, 2.0, 0.0)
    starts = {most: [hop.start for hop in lay_hops(order, hops, costs, free, most)] for most in (1, 2)}
    assert starts == {1: [5.0, 6.0], 2: [5.0, 2.0]}


def test_a_sender_whose_ways_never_end_is_left_out() -> None:
    hops = list(lay_hops((0, 1, 2), (float("inf"), 1.0, 1.0), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), 6))
    assert [(hop.sender, hop.receiver) for hop in hops] == [(1, 2)]


@pytest.mark.parametrize("most_gaps", [1, 2, 1 << 20])
def test_a_layout_picks_the_earliest_end_of_all_ways_the_first_of_equals(most_gaps: int) -> None:
    """Costs and times in few steps, so that many ways end at the same moment."""
    rng = np.random.default_rng(most_gaps)
    for count in [2, 3, 5, 9, 30] * 40:
        costs, hops, free = (rng.integers(low, 8, count) / 4.0 for low in (-2, 0, 0))
        costs[rng.random(count) < 0.1] = np.inf
        order = [int(one) for one in rng.permutation(count)]
        chain = hops.tolist(), costs.tolist(), free.tolist()
        laid = [(hop.sender, hop.receiver, hop.start, hop.end) for hop in lay_hops(order, *chain, most_gaps)]
        assert laid == _lay_by_trying_all(order, *chain, most_gaps)


def _lay_by_trying_all(
    order: list[int], hops: list[float], costs: list[float], free: list[float], most_gaps: int
) -> list[tuple[int, int, float, float]]:
    gaps, laid = {one: [(free[one], inf)] for one in order}, []
    for place, sender in enumerate(order[:-1]):
        later, ways = order[place + 1 :], []
        for number, receiver in enumerate(later):
            hop = max(hops[sender], hops[receiver])
            starts = [max(since, gaps[sender][-1][0]) for since, _ in gaps[receiver]]
            fits = [gap for gap, (_, until) in enumerate(gaps[receiver]) if starts[gap] + hop <= until]
            cost = costs[receiver] if len(later) > 1 else 0.0
            ways.append((starts[fits[0]] + hop + cost, number, receiver, fits[0], starts[fits[0]], hop))
        best_end, _, receiver, gap, start, hop = min(ways)
        if best_end == inf:
            continue
        laid.append((sender, receiver, start, start + hop))
        since, until = gaps[receiver][gap]
        cut = [(since, start), (start + hop, until)]
        gaps[receiver][gap : gap + 1] = cut if len(gaps[receiver]) < most_gaps else cut[1:]
    return laid


def test_on_equal_devices_the_layout_is_the_optimum_that_fifo_is() -> None:
    scenarios = [draw_scenario("paper", n, seed) for n in (3, 6, 9) for seed in range(20)]
    laid_out = finish(Batch(pack(scenarios)), Picks(None)).makespan_s
    assert laid_out == pytest.approx([play(scenario, Fifo()).makespan_s for scenario in scenarios])
