"""Eq. 4 as printed: time and imbalance at one scale, added."""

from __future__ import annotations

from mdl.scheduler.paper.policy import normalise, objectives


def test_eq_4_n_of_x_is_x_less_the_least_over_the_range() -> None:
    assert normalise([3.0, 5.0, 7.0]) == [0.0, 0.5, 1.0]
    assert normalise([2.0, 2.0]) == [0.0, 0.0]
    assert normalise([4.0]) == [0.0]


def test_eq_4_is_0_for_the_best_in_both_and_2_for_the_worst_in_both() -> None:
    assert objectives([1.0, 3.0, 2.0], [10.0, 30.0, 30.0]) == [0.0, 2.0, 1.5]
