"""Where a device stands, and its own work that no round has counted: carried once, whatever lineage it comes from."""

from __future__ import annotations

import numpy as np

from mdl.delta import Contributor, ModelDelta, Vector, apply_delta, digest_of
from mdl.messages import Counted, Fork, History
from peers.standing import Standing, Work, total

ME, ANN, BOB = (Contributor(name, 1) for name in ("me", "ann", "bob"))
ZEROS = np.zeros(2, np.float32)
START = (Fork(0, 3, "ann.1.1"),)
SPLIT = (*START, Fork(1, 2, "me.1.9"))
NESTED = (*SPLIT, Fork(2, 1, "me.1.12"))


def _delta(*who: Contributor, value: float = 1.0) -> ModelDelta:
    return ModelDelta(np.full(2, value, np.float32), float(len(who)), frozenset(who))


def _move(standing: Standing, round_id: int, history: History) -> None:
    values = np.full(2, 40 + round_id, np.float32)
    standing.move_to(round_id, values, digest_of(values), history, eta=1.0)


def _carry(standing: Standing) -> float | None:
    carry = total(standing.uncounted)
    return None if carry is None else float(carry[0])


def test_a_result_is_applied_and_its_contributors_decide_on_the_next_round() -> None:
    standing = Standing(ME, ZEROS)
    before = standing.parameters
    standing.apply(_delta(ANN, ME, value=3.0), eta=0.5)
    expected = apply_delta(ZEROS, _delta(value=3.0).values, 0.5)
    np.testing.assert_array_equal(standing.parameters, expected)
    np.testing.assert_array_equal(before, ZEROS)
    assert (standing.round_id, standing.digest, standing.base) == (1, digest_of(expected), ("ann", "me"))


def test_everybody_who_stands_there_says_the_same_history() -> None:
    mine, anns = Standing(ME, ZEROS), Standing(ANN, ZEROS)
    for standing in (mine, anns):
        standing.follow(START, ("ann", "bob", "me"))
        standing.apply(_delta(ANN, BOB, ME), 1.0)
        standing.apply(_delta(ANN, ME), 1.0)
    history = mine.history()
    assert history == anns.history()
    assert history == History(START, ("ann", "me"), (Counted(ANN, 2), Counted(BOB, 1), Counted(ME, 2)))
    assert Standing(BOB, ZEROS, 2, history).history() == history


def test_work_is_counted_up_to_the_last_round_this_very_process_contributed_to() -> None:
    standing = Standing(ME, ZEROS)
    assert not standing.is_counted((), 1)
    standing.apply(_delta(ANN, ME), 1.0)
    standing.apply(_delta(ANN), 1.0)
    assert (standing.is_counted((), 1), standing.is_counted((), 2)) == (True, False)
    again = Standing(Contributor("me", 2), standing.parameters, 2, standing.history())
    assert not again.is_counted((), 1)


def test_who_has_followed_its_lineage_without_a_gap_votes() -> None:
    standing = Standing(ME, ZEROS)
    assert not standing.votes
    standing.apply(_delta(ANN, ME), 1.0)
    assert standing.votes
    assert not Standing(ME, standing.parameters, 1, standing.history()).votes  # a restart has forgotten what it staged


def test_a_round_missed_on_ones_own_lineage_costs_no_vote_and_another_lineage_does() -> None:
    standing = Standing(ME, ZEROS)
    standing.follow(START, ("ann", "me"))
    _move(standing, 4, History(START, ("ann", "bob")))
    assert (standing.votes, standing.base) == (True, ("ann", "bob"))
    _move(standing, 5, History(SPLIT, ("ann",)))
    assert not standing.votes


def test_uncounted_work_adds_up_without_changing_what_was_handed_over() -> None:
    standing = Standing(ME, ZEROS)
    first, second = _delta(value=1.0).values, _delta(value=2.0).values
    standing.add(Work(first))
    standing.add(Work(second))
    assert (_carry(standing), first[0], second[0]) == (3.0, 1.0, 2.0)


def _split() -> Standing:
    """One round with the mesh, then two on a fork, of which it contributed to the first."""
    standing = Standing(ME, ZEROS)
    standing.follow(START, ("ann", "bob", "me"))
    standing.apply(_delta(ANN, BOB, ME, value=100.0), 1.0)
    standing.follow(SPLIT, ("ann", "me"))
    standing.apply(_delta(ANN, ME, value=1.0), 1.0)
    standing.apply(_delta(ANN, value=10.0), 1.0)
    return standing


def test_rounds_of_a_fork_are_carried_when_it_is_left_behind_and_only_those_it_contributed_to() -> None:
    standing = _split()
    assert _carry(standing) is None
    _move(standing, 7, History(START, ("bob",)))
    assert _carry(standing) == 1.0


def test_the_contributors_of_a_fork_carry_its_work_exactly_once_together() -> None:
    """Each carries the mean; so many means, of weight one each, are the sum of what was put in."""
    mine, anns = Standing(ME, ZEROS), Standing(ANN, ZEROS)
    own = {ME: np.array([1, 5], np.float32), ANN: np.array([3, 7], np.float32)}
    result = ModelDelta((own[ME] + own[ANN]) / np.float32(2), 2.0, frozenset(own))
    carried = np.zeros(2, np.float32)
    for standing in (mine, anns):
        standing.follow(START, ("ann", "bob", "me"))
        standing.follow(SPLIT, ("ann", "me"))
        standing.apply(result, 1.0)
        _move(standing, 7, History(START, ("bob",)))
        carry = total(standing.uncounted)
        assert carry is not None
        carried += carry
    np.testing.assert_array_equal(carried, own[ME] + own[ANN])


def test_a_fork_is_carried_once_however_often_the_device_moves() -> None:
    standing = _split()
    for round_id in (7, 8):
        _move(standing, round_id, History(START, ("bob",)))
        assert _carry(standing) == 1.0


def test_who_comes_back_to_the_fork_after_all_carries_nothing_of_what_is_in_its_model() -> None:
    standing = _split()
    _move(standing, 7, History(START, ("bob",)))
    _move(standing, 9, History(SPLIT, ("ann",)))
    assert _carry(standing) is None


def test_work_is_dropped_wherever_the_counts_say_that_it_is_in() -> None:
    for counted, carry in ((Counted(ME, 2), None), (Counted(ME, 1), 4.0), (Counted(Contributor("me", 2), 2), 4.0)):
        standing = Standing(ME, ZEROS, 1, History(START, ("ann", "me")))
        standing.add(Work(np.full(2, 4, np.float32), rounds=((START, 2),), given=((START, 2),)))
        assert _carry(standing) == 4.0
        _move(standing, 3, History(START, ("ann",), (counted,)))
        assert _carry(standing) == carry


def test_work_of_a_round_that_only_the_other_lineage_has_is_not_counted_there_by_its_number() -> None:
    standing = Standing(ME, ZEROS, 1, History(SPLIT, ("me",)))
    standing.add(Work(np.full(2, 4, np.float32), rounds=((SPLIT, 3),)))
    _move(standing, 5, History((*START, Fork(1, 1, "other")), ("ann",), (Counted(ME, 5),)))
    assert _carry(standing) == 4.0


def test_a_move_along_the_fork_carries_nothing() -> None:
    standing = _split()
    _move(standing, 7, History(SPLIT, ("ann",)))
    assert _carry(standing) is None


def test_only_the_forks_that_are_left_behind_are_carried() -> None:
    for back_to, carry in ((SPLIT, 5.0), (START, 6.0), ((*START, Fork(1, 2, "other")), 6.0)):
        standing = _split()
        standing.follow(NESTED, ("me",))
        standing.apply(_delta(ME, value=5.0), 1.0)
        _move(standing, 9, History(back_to, ("ann",)))
        assert _carry(standing) == carry


def test_the_result_that_was_applied_is_not_touched_by_what_is_added_to_the_carry() -> None:
    standing = Standing(ME, ZEROS)
    standing.follow(START, ("me",))
    standing.follow(SPLIT, ("me",))
    results: list[Vector] = []
    for value in (1.0, 2.0):
        delta = _delta(ME, value=value)
        results.append(delta.values)
        standing.apply(delta, 1.0)
    assert [values[0] for values in results] == [1.0, 2.0]
    _move(standing, 9, History(START, ("ann",)))
    assert _carry(standing) == 3.0


def test_a_round_whose_result_a_contributor_never_had_is_part_of_its_share_in_the_fork() -> None:
    standing = Standing(ME, ZEROS)
    standing.follow(SPLIT, ("bob", "me"))
    values = np.full(2, -1.5, np.float32)  # w(1) = w(0) - 0.5 * 3
    standing.move_to(
        1, values, digest_of(values), History(SPLIT, ("bob", "me"), (Counted(BOB, 1), Counted(ME, 1))), 0.5
    )
    assert _carry(standing) is None
    _move(standing, 1, History(START, ("ann",), (Counted(ANN, 1),)))
    assert _carry(standing) == 3.0


def test_a_round_of_others_is_no_part_of_a_share() -> None:
    standing = Standing(ME, ZEROS)
    standing.follow(SPLIT, ("bob", "me"))
    _move(standing, 1, History(SPLIT, ("bob",), (Counted(BOB, 1),)))
    _move(standing, 1, History(START, ("ann",), (Counted(ANN, 1),)))
    assert _carry(standing) is None


def _join(standing: Standing, lineage: tuple[Fork, ...], *who: Contributor, value: float = 1.0) -> None:
    """Contribute to a lineage's next round, with all that may enter it."""
    standing.follow(lineage, tuple(contributor.peer_id for contributor in who))
    standing.apply(_delta(*who, value=value), 1.0, standing.take())


X, Y = ((*START, Fork(0, 2, name)) for name in ("x", "y"))


def test_what_one_fork_brought_into_another_is_taken_off_where_it_counts_already() -> None:
    """Its share in y is 3, and 1 of what the others bring of y is its share in x: it counts in x, and not again."""
    standing = Standing(ME, ZEROS)
    _join(standing, X, ANN, ME, value=1.0)
    standing.move_to(0, ZEROS, digest_of(ZEROS), History(START), 1.0)
    assert _carry(standing) == 1.0
    _join(standing, Y, BOB, ME, value=3.0)
    assert _carry(standing) is None
    standing.move_to(0, ZEROS, digest_of(ZEROS), History(X), 1.0)
    assert (_carry(standing), standing.take()) == (3.0, ()), "whether x has its round again is not known yet"
    _move(standing, 1, History(X, ("ann", "me"), (Counted(ANN, 1), Counted(ME, 1))))
    assert _carry(standing) == 2.0
    assert len(standing.take()) == 1


def test_what_one_fork_brought_into_another_comes_with_it_where_neither_goes_on() -> None:
    standing = Standing(ME, ZEROS)
    _join(standing, X, ANN, ME, value=1.0)
    standing.move_to(0, ZEROS, digest_of(ZEROS), History(START), 1.0)
    _join(standing, Y, BOB, ME, value=3.0)
    _move(standing, 1, History(START, ("ann",)))
    assert _carry(standing) == 3.0


def test_a_lineage_that_is_left_at_its_very_start_is_carried_by_those_who_contributed() -> None:
    standing = Standing(ME, ZEROS)
    _join(standing, START, ANN, ME, value=5.0)
    _move(standing, 2, History(Y, ("bob",)))
    assert _carry(standing) == 5.0
    _move(standing, 1, History(START, ("ann", "me")))
    assert _carry(standing) is None


def test_work_given_in_an_earlier_attempt_of_a_round_enters_the_next_attempt_and_no_other_round() -> None:
    given = Work(ZEROS + 1, rounds=((START, 2),), given=((START, 2),))
    for lineage, taken in ((START, (given,)), ((*START, Fork(1, 2, "x")), ())):
        standing = Standing(ME, ZEROS, 1, History(lineage, ("ann", "me")))
        standing.add(given)
        assert standing.take() == taken


def test_a_training_that_comes_with_a_share_is_known_by_its_w_on_another_lineage_too() -> None:
    standing = Standing(ME, ZEROS)
    _join(standing, X, ANN, ME, value=1.0)
    same = standing.parameters, standing.digest
    _join(standing, X, ANN, ME, value=2.0)
    standing.move_to(1, *same, History(START, ("bob",), (Counted(BOB, 1),)), 1.0)
    assert standing.is_shared(2)
    assert not standing.is_shared(3)


def test_the_share_of_a_staged_round_comes_where_the_fork_has_gone_further_than_the_next_one() -> None:
    for who, carry in (((ANN, ME), 3.0), ((ANN, BOB), None)):
        standing = Standing(ME, ZEROS)
        standing.follow(X, ("ann", "me"))
        history = History(X, ("ann",), (Counted(ANN, 2), Counted(ME, 1)))
        values = ZEROS + 9
        standing.move_to(2, values, digest_of(values), history, 1.0, (), _delta(*who, value=3.0))
        _move(standing, 1, History(START, ("bob",)))
        assert _carry(standing) == carry
