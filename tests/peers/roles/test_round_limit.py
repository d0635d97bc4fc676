"""When a device leaves after as many rounds as its user wanted."""

from __future__ import annotations

from mdl.peers.roles.run_end import Leaving, RoundLimit


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


def test_who_has_used_its_battery_share_finishes_the_open_round_and_leaves() -> None:
    leaving = Leaving(0, round_id=4)
    assert leaving.why(4, 0, is_in_round=True, is_spent=False) == ""
    assert leaving.why(4, 0, is_in_round=True, is_spent=True) == ""
    assert "--max-battery-share" in leaving.why(5, 0, is_in_round=True, is_spent=True)
    assert leaving.is_over
    assert leaving.why(5, 0, is_in_round=False, is_spent=True) == ""
    between = Leaving(0, round_id=4)
    assert between.why(4, 0, is_in_round=False, is_spent=True)


def test_it_is_known_which_round_is_the_last() -> None:
    leaving = Leaving(2, round_id=0)
    assert _last(leaving) == 2
    leaving.why(1, 0, False, False)
    assert _last(leaving) == 2
    leaving.why(7, 0, False, False)  # the others have gone on without it
    assert _last(leaving) == 8
    leaving.why(8, 0, False, False)
    assert leaving.is_over
    assert _last(leaving) == 8
    assert _last(Leaving(0, round_id=0)) == 99


def test_what_was_offered_of_the_battery_is_not_spent_on_a_round_that_is_left_out() -> None:
    leaving = Leaving(0, round_id=4)
    leaving.why(4, 0, is_in_round=True, is_spent=True)
    assert _last(leaving) == 5


def _last(leaving: Leaving) -> int:
    """Of the first 99 rounds."""
    return max(round_id for round_id in range(1, 100) if leaving.stays_for(round_id))


def test_a_device_that_has_done_its_rounds_says_so() -> None:
    leaving = Leaving(2, round_id=0)
    assert [leaving.why(round_id, 0, False, False) for round_id in (1, 2, 3)] == ["", "2 rounds are done", ""]
