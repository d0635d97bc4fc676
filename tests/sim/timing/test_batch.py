"""The batch of iterations and the plain reference are one timing model: random play gives the same story in both."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.devices.usage import DeviceState
from mdl.errors import LocalProtocolError
from mdl.sim.timing.batch import Batch, pack
from mdl.sim.timing.iteration import Iteration
from mdl.sim.timing.scenario import FAMILIES, draw_scenario

_CODES = list(DeviceState)


def _assert_same(batch: Batch, row: int, iteration: Iteration) -> None:
    devices = range(len(iteration.scenario.devices))
    assert batch.now_s[row] == pytest.approx(iteration.now_s, abs=1e-9)
    assert [_CODES[code] for code in batch.states()[row][: len(devices)]] == [iteration.state(i) for i in devices]
    assert np.flatnonzero(batch.idle()[row]).tolist() == iteration.idle()
    assert batch.may_wait()[row] == iteration.may_wait()
    assert batch.ended()[row] == iteration.ended
    assert batch.makespan_s()[row] == pytest.approx(iteration.makespan_s, abs=1e-9)
    assert batch.wasted_s[row] == pytest.approx(iteration.wasted_s, abs=1e-9)
    assert np.flatnonzero(batch.lost[row]).tolist() == sorted(iteration.lost)
    eta_s = [
        max(0.0, iteration.scenario.devices[i].ready_s - iteration.now_s)
        if iteration.state(i) is DeviceState.TRAINING
        else 0.0
        for i in devices
    ]
    for ours, theirs in (
        (batch.energy_j, [iteration.energy_j(i) for i in devices]),
        (batch.theta, [iteration.theta(i) for i in devices]),
        (batch.n_agg, [iteration.n_agg(i) for i in devices]),
        (batch.free_since_s, [iteration.free_since_s(i) for i in devices]),
        (batch.op_left_s(), [iteration.op_left_s(i) for i in devices]),
        (batch.eta_ready_s(), eta_s),
    ):
        assert ours[row][: len(devices)] == pytest.approx(theirs, abs=1e-9)
    busy = [i for i in devices if iteration.state(i) is DeviceState.BUSY]
    assert batch.busy_for_s()[row][busy] == pytest.approx([iteration.busy_for_s(i) for i in busy], abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_random_play_gives_the_same_story_as_the_reference(family: str) -> None:
    scenarios = [draw_scenario(family, n, seed) for seed in range(6) for n in (2, 5, 9)]
    batch, iterations = Batch(pack(scenarios)), [Iteration(scenario) for scenario in scenarios]
    rng = np.random.default_rng(7)
    steps = 0
    while not batch.ended().all():
        moving = np.zeros(len(batch), dtype=np.bool_)
        for row, iteration in enumerate(iterations):
            _assert_same(batch, row, iteration)
            if iteration.ended:
                continue
            idle = iteration.idle()
            if len(idle) >= 2 and (rng.random() < 0.4 or not iteration.may_wait()):
                sender, receiver = (int(index) for index in rng.permutation(idle)[:2])
                batch.start(*(np.array([value]) for value in (row, sender, receiver)))
                iteration.start(sender, receiver)
            else:
                moving[row] = True
                iteration.advance()
        batch.advance(moving)
        steps += 1
    assert steps > 10
    for row, iteration in enumerate(iterations):
        _assert_same(batch, row, iteration)
    if family == "dying":
        assert batch.lost.any()
        assert (batch.wasted_s > 0).any()


def test_who_is_not_idle_is_not_paired() -> None:
    batch = Batch(pack([draw_scenario("hetero", 4, 0)]))
    training = np.flatnonzero(~batch.idle()[0])
    assert len(training) > 1
    with pytest.raises(LocalProtocolError, match="not idle"):
        batch.start(np.array([0]), training[:1], training[1:2])


def test_a_branch_leaves_what_it_came_from_as_it_was() -> None:
    batch = Batch(pack([draw_scenario("hetero", 4, 0)]))
    while batch.idle().sum() < 2:
        batch.advance()
    before = batch.states().copy()
    branch = batch.take(np.array([0, 0]))
    idle = np.flatnonzero(batch.idle()[0])
    branch.start(np.array([0, 1]), idle[[0, 1]], idle[[1, 0]])
    branch.advance()
    assert np.array_equal(batch.states(), before)
    assert not np.array_equal(branch.states()[0], branch.states()[1])
