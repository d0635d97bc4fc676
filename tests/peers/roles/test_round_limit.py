"""When a device leaves after as many rounds as its user wanted."""

from __future__ import annotations

from peers.roles.round_limit import RoundLimit


def test_a_device_leaves_once_after_as_many_rounds_as_it_was_told() -> None:
    limit = RoundLimit(2, round_id=5)
    assert [round_id for round_id in (5, 6, 6, 7, 7, 8) if limit.is_reached(round_id, 0)] == [7]


def test_rounds_that_others_have_done_do_not_count() -> None:
    limit = RoundLimit(2, round_id=0)
    assert [limit.is_reached(round_id, 0) for round_id in (40, 41, 42)] == [False, False, True]


def test_at_the_goal_of_the_mesh_it_waits_to_be_sent_home_with_the_others() -> None:
    limit = RoundLimit(1, round_id=0)
    assert not limit.is_reached(1, goal=1)


def test_without_a_limit_nobody_leaves() -> None:
    limit = RoundLimit(0, round_id=0)
    assert not any(limit.is_reached(round_id, 0) for round_id in range(1, 50))
