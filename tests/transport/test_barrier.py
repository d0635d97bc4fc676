"""How long a device is out whose message met a bug, and when a node stops beginning again. Pure."""

import pytest

from mdl.transport.limits import FIRST_S, LONGEST_S, MOST_REBUILDS, REBUILDS_S, Barrier


def test_a_device_is_out_twice_as_long_each_time_and_never_for_more_than_a_day() -> None:
    barrier, now, lasted = Barrier(), 0.0, []
    for _ in range(14):
        for_s = barrier.put_out("key", "ann", now)
        assert barrier.is_out("key", now + for_s - 0.1)
        assert not barrier.is_out("key", now + for_s)
        lasted.append(for_s)
        now += for_s
    assert lasted[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert lasted[-1] == LONGEST_S
    assert barrier.met == 14


def test_it_is_out_under_every_name_and_told_by_the_one_it_had() -> None:
    barrier = Barrier()
    barrier.put_out("key", "ann", 0.0)
    barrier.put_out("other", "bob", 10.0)
    assert barrier.unheard(20.0) == ("ann", "bob")
    assert barrier.unheard(FIRST_S + 5.0) == ("bob",)
    assert not barrier.is_out("third", 20.0)


def test_memory_is_bounded_whoever_comes() -> None:
    barrier = Barrier()
    for number in range(5000):
        barrier.put_out(number, f"x{number}", 0.0)
    assert len(barrier._out) == 1024


@pytest.mark.parametrize(("pause_s", "goes_on"), [(1.0, False), (REBUILDS_S / MOST_REBUILDS + 1.0, True)])
def test_a_node_that_begins_again_too_often_stops(pause_s: float, goes_on: bool) -> None:
    barrier = Barrier()
    may = [barrier.may_rebuild(pause_s * number) for number in range(MOST_REBUILDS + 1)]
    assert may == [True] * MOST_REBUILDS + [goes_on]


def test_a_single_device_does_not_come_to_that_number() -> None:
    """It is out in between, ever longer."""
    barrier, now = Barrier(), 0.0
    for _ in range(30):
        assert barrier.may_rebuild(now)
        now += barrier.put_out("key", "ann", now)
