"""The rounds that each device took part in, and since when it trains."""

from __future__ import annotations

from mdl.peers.roles.agent.aggregation import Attendance
from mdl.scheduler.rounds.participation import LOOKED_BACK
from tests.peers.roles.desk import A, B, C


def test_rounds_in_a_row_without_a_device_are_counted_until_one_has_its_work() -> None:
    attendance = Attendance()
    for _ in range(2):
        attendance.close([A, B], (), ["a", "b", "c"])
    assert [attendance.left_out(name) for name in "abc"] == [0, 0, 2]
    attendance.close([A, C], (), ["a", "b", "c"])
    assert [attendance.left_out(name) for name in "abc"] == [0, 1, 0]
    assert [attendance.took_part(name) for name in "abc"] == [3, 2, 1]


def test_a_contributor_without_the_result_counts_as_left_out() -> None:
    attendance = Attendance()
    attendance.close([A, B], [B], ["a", "b"])
    assert (attendance.left_out("b"), attendance.took_part("b")) == (1, 0)


def test_a_device_that_is_away_is_not_left_out() -> None:
    attendance = Attendance()
    attendance.close([A], (), ["a"])
    assert attendance.left_out("c") == 0


def test_only_the_last_rounds_are_looked_back_on() -> None:
    attendance = Attendance()
    for _ in range(LOOKED_BACK + 5):
        attendance.close([A], (), ["a"])
    assert (attendance.rounds, attendance.took_part("a")) == (LOOKED_BACK, LOOKED_BACK)


def test_a_device_trains_since_the_first_round_that_it_has_given_nothing_to() -> None:
    attendance = Attendance()
    attendance.open([A, B], 1.0)
    attendance.close([A], (), ["a", "b"])
    attendance.open([A, B], 5.0)
    assert (attendance.trains_since(A, 5.0), attendance.trains_since(B, 5.0)) == (5.0, 1.0)
    assert attendance.trains_since(C, 5.0) == 5.0
