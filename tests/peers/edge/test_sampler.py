"""What a device tells about itself: how fast it merges is measured at the merge, not guessed."""

from __future__ import annotations

import numpy as np
import pytest

from mdl.protocol.delta import Contributor, ModelDelta, pair_aggregate
from peers.edge.sampler import MergeTimer, Sampler


def _delta(name: str, value: float) -> ModelDelta:
    return ModelDelta(np.full(1000, value, np.float32), 1.0, frozenset([Contributor(name, 1)]))


def test_a_timed_merge_is_a_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    times_s = iter([10.0, 10.5, 20.0, 21.5])
    monkeypatch.setattr("peers.edge.sampler.time.perf_counter", lambda: next(times_s))
    timer, mine, theirs = MergeTimer(), _delta("a", 1.0), _delta("b", 3.0)
    assert timer.rate_mb_s() is None
    merged, plain = timer(mine, theirs), pair_aggregate(mine, theirs)
    assert (merged.theta, merged.contributors) == (plain.theta, plain.contributors)
    assert (merged.values == plain.values).all()
    assert timer.rate_mb_s() == pytest.approx(0.004 / 0.5)
    assert timer.rate_mb_s() == pytest.approx(0.004 / 0.5), "as before: nothing has been merged since"
    timer(mine, theirs)
    assert timer.rate_mb_s() == pytest.approx(0.004 / 1.5)


def test_resources_tell_the_speed_of_the_last_merges() -> None:
    timer = MergeTimer()
    sampler = Sampler(merges=timer)
    assert sampler(0).resources.merge_mb_s is None
    timer(_delta("a", 1.0), _delta("b", 3.0))
    assert sampler(0).resources.merge_mb_s == timer.rate_mb_s() is not None
    assert Sampler()(0).resources.merge_mb_s is None


def test_what_the_system_does_not_tell_is_as_it_was_the_last_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look opens files, and strangers can use up a process's descriptors."""

    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    told, untold = Sampler(), Sampler()
    before = told(1)
    monkeypatch.setattr("peers.edge.sampler.psutil.virtual_memory", refuse)
    assert told(2).resources == before.resources
    assert told(2).sent_bytes == 2
    assert untold(0).resources.free_memory_bytes == 0, "so it is given no more than it must have"
