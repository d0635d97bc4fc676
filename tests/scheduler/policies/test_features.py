"""The observation: the same from a view and from a batch, free of units, and honest about what may be picked."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from mdl.devices.scenario import Scenario
from mdl.scheduler.policies.chain import ChainView, DeviceState, DeviceView
from mdl.scheduler.policies.features import COLUMN, FEATURES, look_at, observe_receivers, observe_senders
from mdl.scheduler.study.judging import stand_of_rows
from mdl.scheduler.study.play import view_of
from mdl.sim.timing.batch import Batch, pack
from mdl.sim.timing.iteration import Iteration
from mdl.sim.timing.scenario import FAMILIES, draw_scenario
from tests.scheduler.one_view import observe


def _views(scenario: Scenario, seed: int) -> list[tuple[ChainView, Batch]]:
    """The same moments of random play as a view and as a batch of one."""
    rng = np.random.default_rng(seed)
    iteration, batch = Iteration(scenario), Batch(pack([scenario]))
    moments = []
    while not iteration.ended:
        idle = iteration.idle()
        moments.append((view_of(iteration), batch.take(np.array([0]))))
        if len(idle) >= 2 and (rng.random() < 0.5 or not iteration.may_wait()):
            sender, receiver = (int(index) for index in rng.permutation(idle)[:2])
            iteration.start(sender, receiver)
            batch.start(*(np.array([value]) for value in (0, sender, receiver)))
        else:
            iteration.advance()
            batch.advance()
    return moments


@pytest.mark.parametrize("family", FAMILIES)
def test_a_batch_shows_what_the_view_shows(family: str) -> None:
    for seed in range(4):
        for view, batch in _views(draw_scenario(family, 7, seed), seed):
            look = look_at(stand_of_rows(batch, np.array([0])))
            free = [index for index, device in enumerate(view.devices) if device.state is DeviceState.FREE]
            for sender in (None, *free[:1]):
                seen = observe(view, sender)
                theirs, valid, planned = (
                    observe_senders(look) if sender is None else observe_receivers(look, np.array([sender]))
                )
                assert seen.features == pytest.approx(theirs[0], abs=1e-5)
                assert np.array_equal(seen.valid, valid[0])
                assert valid[0, planned[0]] or not free[1:]


def test_who_is_free_may_be_picked_and_the_sender_not_again() -> None:
    states = [DeviceState.FREE, DeviceState.TRAINING, DeviceState.FREE, DeviceState.DONE]
    view = ChainView(1.0, 10.0, tuple(DeviceView(str(i), state, 5.0, 100.0) for i, state in enumerate(states)))
    assert observe(view).valid.tolist() == [True, False, True, False, True]
    assert observe(view, 2).valid.tolist() == [True, False, False, False, False]


def test_nobody_waits_when_nothing_is_under_way() -> None:
    states = [DeviceState.FREE, DeviceState.FREE, DeviceState.DONE]
    view = ChainView(1.0, 10.0, tuple(DeviceView(str(i), state, 5.0) for i, state in enumerate(states)))
    assert not observe(view).valid[-1]


def test_twice_the_data_in_twice_the_time_looks_the_same() -> None:
    given = msgspec.structs.replace(draw_scenario("hetero", 6, 1), latency_s=0.0)
    slower = tuple(msgspec.structs.replace(device, ready_s=2 * device.ready_s) for device in given.devices)
    doubled = msgspec.structs.replace(given, size_mb=2 * given.size_mb, devices=slower)
    same = [FEATURES.index(name) for name in FEATURES if name not in ("unit_log", "size_log")]
    for (one, _), (two, _) in zip(_views(given, 0), _views(doubled, 0), strict=True):
        assert observe(one).features[:, same] == pytest.approx(observe(two).features[:, same], abs=1e-5)


def test_an_unknown_link_counts_as_the_median_and_says_so() -> None:
    devices = tuple(DeviceView(str(i), DeviceState.FREE, link) for i, link in enumerate((2.0, 4.0, 8.0, None)))
    features = observe(ChainView(0.0, 10.0, devices)).features
    assert features[:, COLUMN["link_time"]] == pytest.approx([2.0, 1.0, 0.5, 1.0])
    assert features[:, COLUMN["link_unknown"]].tolist() == [0.0, 0.0, 0.0, 1.0]
