"""Limits that a mesh learns from what its devices tell of each other's deltas (MDLdroid 5: a poisoning check)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.bounds import MAX_LOSS
from mdl.defence.limits import AGAINST, RECENT, Known, Limits, Seen, spread

NAMES = [f"p{number}" for number in range(10)]


def _rises(*values: float) -> dict[str, Seen]:
    return {name: Seen(rise=value) for name, value in zip(NAMES, values, strict=False)}


def _angles(*values: float) -> dict[str, Seen]:
    return {name: Seen(angle=value) for name, value in zip(NAMES, values, strict=False)}


def test_little_is_known_of_two_devices_and_nothing_of_rounds_long_ago() -> None:
    known = Known()
    assert known.note(1, _rises(0.1, -0.1)) == set()
    assert known.limits(2) == Limits(MAX_LOSS, AGAINST)
    known.note(2, {"p7": Seen(0.0)})
    assert known.limits(3) == Limits(pytest.approx(4 * 1.4826 * 0.1), AGAINST)
    assert known.limits(RECENT + 3) == Limits()


def test_who_is_judged_by_many_counts_once() -> None:
    known = Known()
    known.note(1, _rises(0.1, -0.1, 0.0))
    for _ in range(9):
        known.note(1, {"liar": Seen(5.0)})
    assert known.limits(2).rise < 1.0


@given(st.lists(st.floats(-0.3, 0.1), min_size=7, max_size=7), st.lists(st.floats(3.0, 1e6), min_size=3, max_size=3))
def test_three_of_ten_that_raise_losses_stand_out_once_all_are_known(honest: list[float], lies: list[float]) -> None:
    known = Known()
    assert known.note(1, _rises(*honest, *lies)) >= set(NAMES[7:])
    assert known.limits(2).rise < 3.0


def test_three_of_ten_that_turn_their_signs_make_no_room_for_themselves() -> None:
    known = Known()
    assert known.note(2, _angles(0.83, 0.85, 0.84, 0.84, 0.86, 0.8, 0.82, -0.84, -0.85, -0.83)) >= set(NAMES[7:])
    assert known.limits(3).angle == AGAINST


def test_where_data_differ_limits_are_far_away() -> None:
    known = Known()
    assert known.note(5, _rises(-1.0, 9.0, 2.0, 1.0, 8.0, 4.0, -0.5, 0.7, 3.0, 2.5)) == set()
    assert known.note(5, _angles(-0.6, 0.4, -0.3, 0.1, 0.5, -0.5, 0.0, 0.2, -0.1, 0.3)) == set()
    assert known.limits(6).angle < -1.0


def test_a_minority_does_not_move_a_spread_far() -> None:
    assert spread([0.9, 1.0, 1.1, 1e9]) == pytest.approx(0.1 * 1.4826, rel=0.1)
