"""4.2.1: the last item tests, what comes before the last two teaches, and 100 negatives are drawn once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.recommend.rounds import places_between
from mdl.errors import DataError
from mdl.peers.dccl.model.interactions import (
    Negatives,
    batches,
    group_by_user,
    histories,
    keep_active,
    keep_users,
    last_places,
    make_samples,
    make_test,
    training_places,
)
from tests.peers.dccl.model.logs import small_log


def test_the_last_item_tests_and_is_learned_from_by_nobody() -> None:
    log = small_log()
    test, tuning, training = last_places(log, 1), last_places(log, 2), training_places(log)
    assert log.items[test.places].tolist() == [log.of(user)[-1] for user in range(6)]
    assert not set(training.places) & (set(test.places) | set(tuning.places))
    # All but the first, which has nothing before it, and the last two.
    assert len(training) == 6 * (12 - 3)


def test_halves_in_time_are_disjoint_and_whole() -> None:
    log = small_log(length=13)
    first, second = training_places(log, (0, 0.5)), training_places(log, (0.5, 1))
    assert not set(first.places) & set(second.places)
    assert sorted([*first.places, *second.places]) == sorted(training_places(log).places)
    for user in range(6):
        assert first.places[first.users == user].max() < second.places[second.users == user].min()


def test_a_history_is_what_came_before_padded_at_its_front() -> None:
    log = small_log(users=2)
    places = training_places(log)
    found = histories(log, places, 4)
    assert found[0].tolist() == [0, 0, 0, log.of(0)[0]]
    assert found[5].tolist() == log.of(0)[2:6].tolist()
    second = np.flatnonzero(places.users == 1)[0]
    assert found[second].tolist() == [0, 0, 0, log.of(1)[0]]  # nothing of the user before


def test_test_negatives_were_never_met_differ_and_are_the_same_again() -> None:
    log = small_log()
    test = make_test(log, 1, 5, seed=3)
    assert test.candidates.shape == (6, 101)
    for user, row in zip(test.users, test.candidates, strict=True):
        assert len(set(row.tolist())) == 101
        assert not set(row[1:].tolist()) & set(log.of(user).tolist())
    assert (make_test(log, 1, 5, seed=3).candidates == test.candidates).all()
    assert (make_test(log, 1, 5, seed=4).candidates != test.candidates).any()


def test_a_log_of_too_few_items_is_refused() -> None:
    with pytest.raises(DataError, match="a test needs 100 items that a user never met; this log has 60 items"):
        make_test(small_log(items=60), 1, 5, seed=0)


def test_what_comes_later_is_not_told_by_its_absence_among_the_negatives() -> None:
    log = small_log(users=1, items=30)
    places = training_places(log, (0, 0.5))
    samples = make_samples(log, places, Negatives.before(log, 0.5), 50, 5, np.random.default_rng(0))
    drawn = set(samples.candidates[:, 1:].ravel().tolist())
    assert not drawn & set(log.of(0)[:5].tolist())
    assert set(log.of(0)[5:].tolist()) <= drawn


def test_whoever_met_everything_still_gets_negatives() -> None:
    log = group_by_user(np.zeros(4, int), np.arange(4), None)
    assert Negatives.never_met(log).draw(np.zeros(1, int), 3, np.random.default_rng(0)).shape == (1, 3)


def test_a_pass_goes_over_each_place_once() -> None:
    places = training_places(small_log())
    seen = np.concatenate([some.places for some in batches(places, 7, np.random.default_rng(0))])
    assert sorted(seen) == sorted(places.places)


def test_a_calendar_needs_times() -> None:
    log = small_log(users=2, length=6)
    with pytest.raises(DataError, match="cannot be cut by the calendar"):
        places_between(log, 0, 1)
    timed = replace(log, times=np.tile(np.arange(6.0), 2))
    assert places_between(timed, 0, 3).places.tolist() == [1, 2, 7, 8]


def test_the_filter_holds_for_users_and_items_at_once() -> None:
    users, items = np.array([0, 0, 0, 1, 1, 1, 2, 2]), np.array([7, 8, 9, 7, 8, 5, 9, 5])
    # User 2 has two; without it items 9 and 5 have one each, and so users 0 and 1 have 7 and 8 left.
    log = keep_active(group_by_user(users, items, None), 2)
    assert log.users == ("0", "1", "2")
    log = keep_active(group_by_user(users[:-1], items[:-1], None), 2)
    assert (log.users, log.titles, log.items.tolist()) == (("0", "1"), ("7", "8"), [1, 2, 1, 2])
    with pytest.raises(DataError, match="no user and item are left"):
        keep_active(log, 3)


def test_one_users_log_keeps_the_numbers_of_items() -> None:
    log = small_log()
    own = keep_users(log, np.array([2]))
    assert own.users == (log.users[2],)
    assert own.titles == log.titles
    assert own.items.tolist() == log.of(2).tolist()
    assert own.profiles.tolist() == [[1]]
