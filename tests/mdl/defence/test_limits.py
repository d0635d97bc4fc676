"""Limits that a mesh learns from what its devices tell of each other's deltas (MDLdroid 5: a poisoning check)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.bounds import MAX_LENGTH
from mdl.defence.limits import AGAINST, FEW, LONGER, RECENT, MeshKnowledge, OwnDeltaSeen, greatest_length, spread

NAMES = [f"p{number}" for number in range(10)]


def _angles(*values: float) -> dict[str, OwnDeltaSeen]:
    return {name: OwnDeltaSeen(angle=value) for name, value in zip(NAMES, values, strict=False)}


def test_little_is_known_of_two_devices_and_nothing_of_rounds_long_ago() -> None:
    known = MeshKnowledge()
    assert known.note(1, _angles(-0.1, -0.15)) == set()
    assert known.least_angle(2) == AGAINST
    known.note(2, {"p7": OwnDeltaSeen(angle=-0.2)})
    assert known.least_angle(3) == pytest.approx(-0.15 - 4 * 1.4826 * 0.05)
    assert known.least_angle(RECENT + 3) == AGAINST


def test_who_is_judged_by_many_counts_once() -> None:
    known = MeshKnowledge()
    known.note(1, _angles(0.1, -0.1, 0.0))
    for _ in range(9):
        known.note(1, {"liar": OwnDeltaSeen(angle=-0.99)})
    assert known.least_angle(2) > -0.9


def test_three_of_ten_that_turn_their_signs_make_no_room_for_themselves() -> None:
    known = MeshKnowledge()
    assert known.note(2, _angles(0.83, 0.85, 0.84, 0.84, 0.86, 0.8, 0.82, -0.84, -0.85, -0.83)) >= set(NAMES[7:])
    assert known.least_angle(3) == AGAINST


def test_where_data_differ_limits_are_far_away() -> None:
    known = MeshKnowledge()
    assert known.note(5, _angles(-0.6, 0.4, -0.3, 0.1, 0.5, -0.5, 0.0, 0.2, -0.1, 0.3)) == set()
    assert known.least_angle(6) < -1.0


@pytest.mark.parametrize("devices", [3, 4, 7, 10, 30])
@given(data=st.data())
def test_less_than_a_third_cannot_raise_the_limit_of_lengths_beyond_what_honest_ones_do(
    devices: int, data: st.DataObject
) -> None:
    liars = (devices - 1) // 3
    honest = data.draw(st.lists(st.floats(0.5, 2.0), min_size=devices - liars, max_size=devices - liars))
    lies = data.draw(st.lists(st.floats(0.0, 1e30), min_size=liars, max_size=liars))
    assert greatest_length([*honest, *lies]) <= LONGER * max(honest)
    assert greatest_length(honest) >= LONGER * min(honest)


def test_of_few_devices_no_length_is_known_and_none_is_beyond_what_can_be_told() -> None:
    assert greatest_length([1.0] * (FEW - 1)) == 0.0
    assert greatest_length([1e30] * FEW) == MAX_LENGTH


def test_a_minority_does_not_move_a_spread_far() -> None:
    assert spread([0.9, 1.0, 1.1, 1e9]) == pytest.approx(0.1 * 1.4826, rel=0.1)
