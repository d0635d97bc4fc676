"""The books and the invariants, each against a mistake that it must name."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from mdl.protocol.delta import Contributor, PartialSum, apply_delta, digest_of, own_sum, pair_aggregate
from mdl.protocol.grid import Vector, grid_of, room_for
from mdl.protocol.vector_work import hold_own
from mdl.protocol.vocabulary import Fork
from mdl.sim.mesh.accounts import Accounts, InvariantError, model_at

A, B = Contributor("a", 1), Contributor("b", 1)
START = np.zeros(16, np.float32)
ATTEMPT = (1, 1)


GRID = grid_of(START, 1)


def _after(parameters: Vector, result: PartialSum) -> Vector:
    return apply_delta(parameters, GRID.to_mean(result.values, result.theta), 1.0)


def _two_hold() -> tuple[Accounts, PartialSum, PartialSum]:
    accounts = Accounts(START)
    deltas = [own_sum(accounts.train(owner, 1, START, 1.0), GRID) for owner in (A, B)]
    for owner, delta in zip((A, B), deltas, strict=True):
        accounts.hold_own(ATTEMPT, accounts.start, owner, delta)
    return accounts, deltas[0], deltas[1]


def test_each_training_counts_once_in_the_mean_of_both() -> None:
    accounts, mine, theirs = _two_hold()
    result = pair_aggregate(mine, theirs)
    after = (digest_of(_after(START, result)), ())
    accounts.check_result(accounts.start, result, "round 1")
    assert accounts.close((accounts.start, ()), after, 1, result, "a")
    assert not accounts.close((accounts.start, ()), after, 1, result, "b")
    assert [count for _, _, count in accounts.held_works(after)] == pytest.approx([1.0, 1.0])


def test_training_the_same_round_from_the_same_parameters_is_the_same_work() -> None:
    accounts = Accounts(START)
    one, same = accounts.train(A, 1, START, 1.0), accounts.train(A, 1, START, 1.0)
    other = accounts.train(A, 1, START + 1, 1.0)
    assert np.array_equal(one.values, same.values)
    assert not np.array_equal(one.values, other.values)
    assert np.array_equal(accounts.recall(A, 1, START), one.values)
    assert accounts.recall(B, 1, START) is None


def test_a_training_that_counts_in_two_rounds_is_named() -> None:
    accounts, mine, _ = _two_hold()
    once = _after(START, mine)
    twice = _after(once, mine)
    accounts.note_model(digest_of(once), START)  # the same grid
    accounts.close((accounts.start, ()), (digest_of(once), ()), 1, mine, "a")
    with pytest.raises(InvariantError, match="a/1's training of round 1 counts 2 times") as error:
        accounts.close((digest_of(once), ()), (digest_of(twice), ()), 2, mine, "a")
    assert error.value.kind == "double"


def test_the_same_model_on_another_lineage_has_counts_of_its_own() -> None:
    """One contributor that brings its share in a fork, and nothing else, makes the very w that the fork had."""
    accounts, mine, theirs = _two_hold()
    result = pair_aggregate(mine, theirs)
    digest, fork = digest_of(_after(START, result)), Fork(0, 2, "x")
    start, forked = model_at(accounts.start, (fork,), 0), model_at(digest, (fork,), 1)
    assert accounts.close(start, forked, 1, result, "a")
    assert accounts.close(start, (digest, ()), 1, replace(result, theta=1.0, contributors=mine.contributors), "a")
    assert [count for _, _, count in accounts.held_works(forked)] == pytest.approx([1.0, 1.0])
    assert [count for _, _, count in accounts.held_works((digest, ()))] == pytest.approx([1.0, 1.0])


def test_a_mean_that_leaves_somebody_out_is_named() -> None:
    accounts, mine, theirs = _two_hold()
    false = replace(mine, theta=2.0, contributors=mine.contributors | theirs.contributors)
    with pytest.raises(InvariantError, match="has no mean of a/1, b/1"):
        accounts.check_mean(ATTEMPT, accounts.start, false, "b")


def test_sums_of_coded_own_deltas_are_exact_and_their_counts_are_near_one() -> None:
    accounts, room = Accounts(START, "int4"), room_for(2.0, coding="int4")
    trained = [accounts.train(owner, 1, START, 1.0) for owner in (A, B)]
    mine, theirs = (hold_own(START, delta, room).sum for delta in trained)
    for owner, delta in ((A, mine), (B, theirs)):
        accounts.hold_own(ATTEMPT, accounts.start, owner, delta)
    assert mine.values.max() != theirs.values.max()
    both = pair_aggregate(mine, theirs)
    accounts.check_result(accounts.start, both, "round 1")
    with pytest.raises(InvariantError, match="has no mean of a/1, b/1"):
        accounts.check_result(accounts.start, replace(both, values=both.values + 1), "round 1")
    once = _after(START, both)
    accounts.note_model(digest_of(once), START)  # the same grid
    accounts.close((accounts.start, ()), (digest_of(once), ()), 1, both, "a")
    with pytest.raises(InvariantError, match=r"counts (2|1\.[89])"):
        accounts.close((digest_of(once), ()), (b"twice", ()), 2, both, "a")


def test_a_theta_that_is_not_added_is_named() -> None:
    accounts, mine, theirs = _two_hold()
    merged = pair_aggregate(mine, theirs)
    with pytest.raises(InvariantError, match=r"has theta 1\.0 of a/1, b/1"):
        accounts.check_mean(ATTEMPT, accounts.start, replace(merged, theta=1.0), "b")


def test_a_model_that_no_round_gave_is_named() -> None:
    accounts, mine, _ = _two_hold()
    with pytest.raises(InvariantError, match="to a model that no round gave"):
        accounts.close((b"unknown", ()), (b"after", ()), 1, mine, "a")
