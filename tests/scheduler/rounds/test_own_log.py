"""Worlds from a mesh's own log: its training times, links and busy times, and what a log must tell."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import numpy as np
import pytest

from mdl.errors import DataError
from mdl.protocol.status_messages import DeviceRecord, RoundSummary
from mdl.scheduler.rounds.learned import make_rule
from mdl.scheduler.rounds.simulate import play_world
from mdl.scheduler.rounds.world import HORIZON_S, LEAST_ROUNDS, draw_logged_world, split_log

SIZE = 250_000


def summary(number: int, *devices: DeviceRecord, total_s: float = 10.0, size: int = SIZE) -> RoundSummary:
    names = tuple(each.peer_id for each in devices)
    return RoundSummary(number, 1.0, names, (), {"total": total_s}, 0, None, devices=devices, size=size)


def log(count: int = 12) -> list[RoundSummary]:
    """One device in use for 4 of every 10 s, so that it needs 6 s for 2 s of work; another one is twice as fast."""
    slow = DeviceRecord("slow", 6.0, 2.0, 50.0, False, ((0.0, 4.0),), kind=2, merge_mb_s=80.0)
    fast = DeviceRecord("fast", 1.0, 8.0)
    return [summary(number, slow, fast) for number in range(1, count + 1)]


def test_devices_are_as_the_log_tells_them() -> None:
    learned, _, _ = split_log(log(), "here")
    world = draw_logged_world(learned, np.random.default_rng(0))
    slow, fast = world.devices
    assert world.size_mb == pytest.approx(1.0)
    # Without the 4 s in which it was in use.
    assert (slow.period_s, fast.period_s) == (pytest.approx(2.0, rel=0.4), pytest.approx(1.0, rel=0.4))
    assert fmean(slow.links_mb_s) == pytest.approx(2.0, rel=0.4)
    assert fmean(fast.links_mb_s) == pytest.approx(8.0, rel=0.4)
    assert (slow.merge_mb_s, slow.battery_percent, slow.charging) == (80.0, 50.0, False)
    assert (fast.battery_percent, fast.charging, fast.busy) == (100.0, True, ())


def test_busy_times_come_again_and_again_in_their_share_until_the_horizon() -> None:
    learned, _, _ = split_log(log(), "here")
    for seed in range(5):
        busy = draw_logged_world(learned, np.random.default_rng(seed)).devices[0].busy
        assert all(start < end for start, end in busy)
        assert all(one[1] < other[0] for one, other in pairwise(busy))
        assert sum(end - start for start, end in busy) / HORIZON_S == pytest.approx(0.4, abs=0.01)


def test_parts_hold_different_rounds_of_the_log() -> None:
    told = [
        summary(number, DeviceRecord("a", float(number), 1.0), DeviceRecord("b", 1.0, 1.0)) for number in range(1, 13)
    ]
    parts = split_log(told, "here")
    ready = [[each.ready_s for each in part.devices["a"] if each] for part in parts]
    assert ready == [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [7.0, 8.0, 9.0], [10.0, 11.0, 12.0]]


def test_a_log_becomes_a_world_that_rules_play() -> None:
    learned, _, _ = split_log(log(), "here")
    played = play_world(draw_logged_world(learned, np.random.default_rng(1)), make_rule("third"), 5.0)
    assert played.progress >= 5.0


@pytest.mark.parametrize(
    ("rounds", "told"),
    [
        (log(LEAST_ROUNDS - 1), "expected 8 or more"),
        ([summary(n, DeviceRecord("a", 1.0, 1.0), DeviceRecord("b", 1.0), size=0) for n in range(9)], "no size"),
        ([summary(n, DeviceRecord("a", 1.0), DeviceRecord("b", 1.0)) for n in range(9)], "no speed of any link"),
        ([summary(n, DeviceRecord("a", 1.0, 1.0), DeviceRecord("b")) for n in range(9)], "1 devices that trained"),
        ([summary(n) for n in range(9)], "0 rounds that tell their devices"),
    ],
)
def test_a_log_that_tells_too_little_is_refused(rounds: list[RoundSummary], told: str) -> None:
    with pytest.raises(DataError, match=told):
        split_log(rounds, "here")
