"""Where a device stands, and its own work that no round has counted: carried once, whatever lineage it comes from."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from mdl.bounds import MAX_MEMBERS
from mdl.peers.roles.trainer import model_state
from mdl.peers.roles.trainer.model_state import ModelState, TrainedWork, total
from mdl.protocol.delta import Contributor, Partial, PartialSum, apply_delta, digest_of
from mdl.protocol.grid import room_for
from mdl.protocol.round_messages import ModelMessage
from mdl.protocol.vocabulary import (
    MAX_REACHED,
    MAX_STARTS,
    Ballot,
    Counted,
    Fork,
    History,
    Lineage,
    LineagePoint,
    doubted,
)
from tests.peers.roles.at_once import apply_at_once, sum_of

ME, ANN, BOB = (Contributor(name, 1) for name in ("me", "ann", "bob"))
ZEROS = np.zeros(2, np.float32)
START = (Fork(0, 3, "ann.1.1"),)
SPLIT = (*START, Fork(1, 2, "me.1.9"))
NESTED = (*SPLIT, Fork(2, 1, "me.1.12"))


def _apply(standing: ModelState, *who: Contributor, value: float = 1.0, eta: float = 1.0) -> None:
    """Apply a result of these devices: the mean of their deltas is this value everywhere."""
    at = standing.parameters
    result = sum_of(np.full(at.size, value), who, room=room_for(len(who)), parameters=at)
    apply_at_once(standing, result, eta)


def _move(standing: ModelState, round_id: int, history: History) -> None:
    values = np.full(2, 40 + round_id, np.float32)
    standing.move_to(round_id, values, digest_of(values), history)


def _carry(standing: ModelState) -> float | None:
    carry = total(standing.uncounted)
    return None if carry is None else float(carry[0])


def test_a_result_is_applied_and_its_contributors_decide_on_the_next_round() -> None:
    standing = ModelState(ME, ZEROS)
    before = standing.parameters
    _apply(standing, ANN, ME, value=3.0, eta=0.5)
    expected = apply_delta(ZEROS, np.full(2, 3.0, np.float32), 0.5)
    np.testing.assert_array_equal(standing.parameters, expected)
    np.testing.assert_array_equal(before, ZEROS)
    assert (standing.round_id, standing.digest, standing.base) == (1, digest_of(expected), ("ann", "me"))


def test_everybody_who_stands_there_says_the_same_history() -> None:
    mine, anns = ModelState(ME, ZEROS), ModelState(ANN, ZEROS)
    for standing in (mine, anns):
        standing.follow(START, ("ann", "bob", "me"))
        _apply(standing, ANN, BOB, ME)
        _apply(standing, ANN, ME)
    history = mine.history()
    assert history == anns.history()
    assert history == History(START, ("ann", "me"), (Counted(ANN, 2), Counted(BOB, 1), Counted(ME, 2)))
    assert ModelState(BOB, ZEROS, 2, history).history() == history


def test_of_two_starts_of_one_process_in_a_round_the_later_ones_work_is_told_to_be_counted() -> None:
    for restarts in range(2, 12):
        later = Contributor("me", restarts)
        standing = ModelState(later, ZEROS)
        _apply(standing, *(Contributor("me", number) for number in range(1, restarts + 1)))
        assert standing.is_counted((), 1)


def test_work_is_counted_up_to_the_last_round_this_very_process_contributed_to() -> None:
    standing = ModelState(ME, ZEROS)
    assert not standing.is_counted((), 1)
    _apply(standing, ANN, ME)
    _apply(standing, ANN)
    assert (standing.is_counted((), 1), standing.is_counted((), 2)) == (True, False)
    again = ModelState(Contributor("me", 2), standing.parameters, 2, standing.history())
    assert not again.is_counted((), 1)


def test_who_knows_what_it_has_promised_votes() -> None:
    standing = ModelState(ME, ZEROS)
    assert not standing.votes(has_staged=False)  # an earlier start of it may have promised anything
    _apply(standing, ANN, ME)
    assert standing.votes(has_staged=False)
    again = (Contributor("me", 2), standing.parameters, 1, standing.history())
    assert not ModelState(*again).votes(has_staged=False)
    assert ModelState(*again, standing.ballot(term=1)).votes(has_staged=False)


def test_who_has_lost_a_result_tells_how_far_it_has_been() -> None:
    elsewhere, begun = (Fork(0, 2, "ann.9"),), (Fork(0, 2, "me.1"),)
    standing = ModelState(ME, ZEROS)
    for lineage in (elsewhere, begun):
        standing.follow(lineage, ("ann", "me"))
        _apply(standing, ANN, ME)
    assert standing.forgotten() == ()  # the other one was left, not lost
    ballot = standing.ballot(term=1)
    emptied = ModelState(Contributor("me", 2), ZEROS, ballot=ballot)
    assert emptied.forgotten() == ballot.reached
    behind = ModelState(Contributor("me", 2), ZEROS, 1, History(begun, ("ann", "me")), ballot)
    assert behind.forgotten() == (LineagePoint("me.1", 2),)


def test_a_ballot_that_was_lost_is_not_known_again_at_the_next_start() -> None:
    """That one finds a file: it tells what was promised since the loss."""
    history = History(START, ("ann", "bob", "me"), (Counted(ME, 4),))
    lost = ModelState(Contributor("me", 2), ZEROS, 4, history)
    assert not lost.votes(has_staged=False)
    again = ModelState(Contributor("me", 3), ZEROS, 4, history, lost.ballot(term=7))
    assert not again.votes(has_staged=False)
    _apply(again, ANN, Contributor("me", 3))
    assert again.votes(has_staged=False)
    assert ModelState(Contributor("me", 4), ZEROS, 5, again.history(), again.ballot(term=8)).votes(has_staged=False)


@pytest.mark.parametrize("incarnation", [300, 100], ids=["later", "the clock is behind"])
def test_who_has_lost_all_has_no_vote_before_its_new_work_is_counted_whatever_its_clock_says(incarnation: int) -> None:
    history = History(START, ("ann", "bob", "me"), (Counted(Contributor("me", 200), 4),))
    lost = ModelState(Contributor("me", incarnation), ZEROS)
    _move(lost, 4, history)
    assert not lost.votes(has_staged=False)
    for again in (incarnation + 1, 400):  # the clock is right again at the last start
        lost = ModelState(Contributor("me", again), ZEROS, 4, history, lost.ballot(term=7))
        assert not lost.votes(has_staged=False)
    _apply(lost, ANN, Contributor("me", incarnation + 1))
    assert lost.votes(has_staged=False)


def test_a_start_that_was_lost_between_two_that_are_known_is_not_known() -> None:
    """The clock was behind at the first start after the loss, which met nobody who counted the lost one."""
    first = ModelState(Contributor("me", 100), ZEROS)
    again = ModelState(Contributor("me", 300), ZEROS, ballot=first.ballot(term=7))
    _move(again, 4, History(START, ("ann", "me"), (Counted(Contributor("me", 200), 4),)))
    assert not again.votes(has_staged=False)


def test_the_starts_that_a_ballot_names_are_bounded() -> None:
    ballot = None
    for number in range(2 * MAX_STARTS):
        ballot = ModelState(Contributor("me", number), ZEROS, ballot=ballot).ballot(term=7)
    assert ballot is not None
    assert ballot.starts == tuple(range(MAX_STARTS, 2 * MAX_STARTS))


def test_nor_where_w_holds_nothing_of_the_device_yet() -> None:
    """In a mesh's first round: what it promised there before the loss is in no ballot that was written since."""
    begun = History(START, ("ann", "me"))
    lost = ModelState(Contributor("me", 2), ZEROS, 0, begun)
    assert not lost.votes(has_staged=False)
    again = ModelState(Contributor("me", 3), ZEROS, 0, begun, lost.ballot(term=7))
    assert not again.votes(has_staged=False)
    again.follow(SPLIT, ("bob", "me"))
    assert again.votes(has_staged=False)
    _move(again, 0, begun)  # back from a fork that it has seen begin
    assert not again.votes(has_staged=False)
    assert not ModelState(Contributor("me", 4), ZEROS, 0, begun, again.ballot(term=8)).votes(has_staged=False)
    known = ModelState(Contributor("me", 1), ZEROS, 0)
    known.follow(START, ("ann", "me"))
    assert ModelState(Contributor("me", 2), ZEROS, 0, begun, known.ballot(term=7)).votes(has_staged=False)


def test_who_came_to_a_fork_and_lost_all_in_its_first_round_has_no_vote_there() -> None:
    """No round counts it: it was there when the fork began, may have staged the first result, and comes back twice."""
    fork = History((*START, Fork(4, 2, "ann.1.9")), ("ann", "me"), (Counted(ANN, 4),))
    lost = ModelState(Contributor("me", 2), ZEROS)
    again = ModelState(Contributor("me", 3), ZEROS, ballot=lost.ballot(term=9))
    for standing in (lost, again):
        _move(standing, 4, fork)
        assert not standing.votes(has_staged=False)
    standing = ModelState(Contributor("me", 4), again.state, 4, again.history(), again.ballot(term=9))
    assert not standing.votes(has_staged=False)
    _move(standing, 4, History(START, ("ann",), (Counted(ANN, 4),)))
    standing.follow(fork.lineage, fork.base)
    assert not standing.votes(has_staged=False)  # it did not begin just now


def test_who_saw_a_fork_begin_has_its_vote_there_also_after_a_restart_and_on_its_way_back() -> None:
    trunk = History(START, ("ann",), (Counted(ANN, 4),))
    fork = History((*START, Fork(4, 2, "ann.1.9")), ("ann", "me"), trunk.counted)
    standing = ModelState(ME, ZEROS)
    _move(standing, 4, trunk)
    standing.follow(fork.lineage, fork.base)
    assert standing.votes(has_staged=False)
    again = ModelState(Contributor("me", 2), standing.state, 4, trunk, standing.ballot(term=9))
    assert not again.votes(has_staged=False)
    _move(again, 4, fork)
    assert again.votes(has_staged=False)


def test_who_lost_its_ballot_votes_after_a_round_that_holds_its_new_work_and_no_other() -> None:
    """A round that was decided before the loss can come again: whoever it holds may have voted on the next."""
    standing = ModelState(Contributor("me", 2), ZEROS, 4, History(START, ("ann", "me"), (Counted(ME, 4),)))
    _apply(standing, ANN, ME)
    assert not standing.votes(has_staged=False)
    _apply(standing, ANN, Contributor("me", 2))
    assert standing.votes(has_staged=False)


def test_what_was_promised_where_a_fork_was_left_is_not_known_by_having_seen_the_fork_begin() -> None:
    before = History(START, ("ann", "bob", "me"), (Counted(ME, 1),))
    standing = ModelState(Contributor("me", 2), ZEROS, 1, before)
    standing.follow(SPLIT, ("bob", "me"))
    assert standing.votes(has_staged=False)
    _move(standing, 1, before)
    assert not standing.votes(has_staged=False)


def test_who_reads_an_older_disk_has_no_vote_where_a_round_holds_a_start_that_it_does_not_know() -> None:
    """A backup that was put back, or a cloned card: it saw the fork begin, and another start of it worked there."""
    standing = ModelState(ME, ZEROS)
    standing.follow(START, ("ann", "me"))
    ballot = standing.ballot(term=7)
    other = History(START, ("ann", "me"), (Counted(Contributor("me", 2), 4),))
    again = ModelState(Contributor("me", 3), ZEROS, 4, other, ballot)
    assert not again.votes(has_staged=False)
    _apply(again, ANN, Contributor("me", 3))
    assert again.votes(has_staged=False)
    # Of an earlier fork nothing follows: where this one began, all was new.
    before = History((*START, Fork(4, 2, "ann.1.9")), ("ann", "me"), (Counted(Contributor("me", 2), 4),))
    seen = Ballot(9, begun="ann.1.9", starts=(1,))
    assert ModelState(Contributor("me", 3), ZEROS, 4, before, seen).votes(has_staged=False)


def test_a_ballot_that_may_be_an_older_one_gives_no_vote_until_new_work_is_counted() -> None:
    standing = ModelState(ME, ZEROS)
    standing.follow(START, ("ann", "me"))
    _apply(standing, ANN, ME)
    kept = (Contributor("me", 2), standing.parameters, 1, standing.history())
    assert ModelState(*kept, standing.ballot(term=1)).votes(has_staged=False)
    again = ModelState(*kept, doubted(standing.ballot(term=1)))
    assert not again.votes(has_staged=False)
    _apply(again, ANN, Contributor("me", 2))
    assert again.votes(has_staged=False)


def test_a_restarted_device_that_had_staged_a_result_has_no_vote_on_that_round() -> None:
    standing = ModelState(ME, ZEROS)
    standing.follow(START, ("ann", "me"))
    standing.note_further(1)
    assert standing.votes(has_staged=True)
    again = ModelState(ME, ZEROS, ballot=standing.ballot(term=1))
    again.follow(START, ("ann", "me"))
    assert not again.votes(has_staged=False)
    _move(again, 1, History(START, ("ann", "me")))
    assert again.votes(has_staged=False)


def test_a_device_votes_on_each_lineage_where_it_has_not_been_further() -> None:
    standing = ModelState(ME, ZEROS)
    standing.follow(START, ("ann", "me"))
    _move(standing, 4, History(START, ("ann", "bob"), (Counted(ME, 1),)))
    assert (standing.votes(has_staged=False), standing.base) == (True, ("ann", "bob"))
    _move(standing, 5, History(SPLIT, ("ann",), (Counted(ME, 1),)))
    assert standing.votes(has_staged=False)
    _move(standing, 3, History(START, ("ann",)))
    assert not standing.votes(has_staged=False)


def _crowd(first: int, count: int) -> list[Contributor]:
    return [Contributor(f"pod-{number:04}", 1) for number in range(first, first + count)]


def test_a_history_names_those_who_were_counted_last_and_can_be_read() -> None:
    """Containers come with ever new names; all who stand there forget the same ones."""
    mine = ModelState(ME, ZEROS)
    for others in (_crowd(0, 3), _crowd(3, MAX_MEMBERS - 4), _crowd(2000, 2)):
        _apply(mine, ME, *others)
    before = mine.history()
    assert {entry.contributor for entry in before.counted} == {ME, *_crowd(2, MAX_MEMBERS - 3), *_crowd(2000, 2)}
    anns = ModelState(ANN, mine.state, mine.round_id, before)
    for standing in (mine, anns):
        _apply(standing, ANN, BOB)
    assert mine.history() == anns.history()
    message = ModelMessage(mine.round_id, mine.digest, mine.history())
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ModelMessage) == message


@pytest.mark.parametrize("round_id", [1, 2])
def test_work_whose_entry_may_have_made_room_for_others_is_not_brought_in_again(round_id: int) -> None:
    """It gave its delta to a round, and was away until 1,024 others had been counted since."""
    standing = ModelState(ME, ZEROS)
    standing.follow(START, ("ann", "me"))
    standing.add(TrainedWork(np.ones(2, np.float32)).given_in((START, round_id)))
    _move(standing, 3, History(START, ("ann",), tuple(Counted(each, 1) for each in _crowd(0, MAX_MEMBERS))))
    assert _carry(standing) == (None if round_id == 1 else 1.0)


def test_uncounted_work_adds_up_without_changing_what_was_handed_over() -> None:
    standing = ModelState(ME, ZEROS)
    first, second = np.full(2, 1.0, np.float32), np.full(2, 2.0, np.float32)
    standing.add(TrainedWork(first))
    standing.add(TrainedWork(second))
    assert (_carry(standing), first[0], second[0]) == (3.0, 1.0, 2.0)


def _contribute(standing: ModelState, own: float, *others: Contributor, fresh: bool = True) -> None:
    """A round with what this device trained for it, and all that is to come in with it."""
    here, trained = (standing.lineage, standing.round_id + 1), ((standing.round_id + 1, standing.digest),)
    standing.share()
    works = standing.take()
    _apply(standing, ME, *others, value=1.0 + standing.round_id / 64)
    if fresh:
        works += (TrainedWork(np.full(2, own, np.float32), trained),)
    standing.add(*(work.given_in(here) for work in works))


def _split() -> ModelState:
    """One round with the mesh, then two on a fork, of which it contributed to the first."""
    standing = ModelState(ME, ZEROS)
    standing.follow(START, ("ann", "bob", "me"))
    _contribute(standing, 100.0, ANN, BOB)
    standing.follow(SPLIT, ("ann", "me"))
    _contribute(standing, 1.0, ANN)
    _apply(standing, ANN, value=5.0)
    return standing


def test_own_work_in_rounds_of_a_fork_is_carried_when_it_is_left_behind_and_nothing_of_the_others() -> None:
    standing = _split()
    assert _carry(standing) is None
    _move(standing, 7, History(START, ("bob",), (Counted(ME, 1),)))
    assert _carry(standing) == 1.0


def test_a_fork_is_carried_once_however_often_the_device_moves() -> None:
    standing = _split()
    for round_id in (7, 8):
        _move(standing, round_id, History(START, ("bob",), (Counted(ME, 1),)))
        assert _carry(standing) == 1.0


def test_who_comes_back_to_the_fork_after_all_carries_nothing_of_what_is_in_its_model() -> None:
    standing = _split()
    _move(standing, 7, History(START, ("bob",), (Counted(ME, 1),)))
    _move(standing, 9, History(SPLIT, ("ann",), (Counted(ME, 2),)))
    assert _carry(standing) is None


def test_who_comes_back_to_the_middle_of_a_fork_brings_nothing_that_its_next_rounds_count() -> None:
    standing = _split()
    for own in (2.0, 3.0):
        _contribute(standing, own, ANN)  # rounds 4 and 5, after 2
    _move(standing, 7, History(START, ("bob",), (Counted(ME, 1),)))
    assert _carry(standing) == 6.0
    _move(standing, 4, History(SPLIT, ("ann",), (Counted(ME, 4),)))
    assert (_carry(standing), standing.take()) == (3.0, ()), "round 5 is closed there, and will be taken over"
    _move(standing, 5, History(SPLIT, ("ann",), (Counted(ME, 5),)))
    assert _carry(standing) is None


@pytest.mark.parametrize(("small_bytes", "works"), [(0, 2), (8, 10)])
def test_memory_does_not_grow_with_the_rounds_of_a_fork(
    monkeypatch: pytest.MonkeyPatch, small_bytes: int, works: int
) -> None:
    monkeypatch.setattr(model_state, "_SMALL_BYTES", small_bytes)
    standing = _split()
    for own in range(20):
        _contribute(standing, float(own), ANN)
    assert len(standing._in_w) == works
    _move(standing, 7, History(START, ("bob",), (Counted(ME, 1),)))
    assert (_carry(standing), len(standing.uncounted)) == (1.0 + sum(range(20)), works)


def test_work_is_dropped_wherever_the_counts_say_that_it_is_in() -> None:
    for counted, carry in ((Counted(ME, 2), None), (Counted(ME, 1), 4.0), (Counted(Contributor("me", 2), 2), 4.0)):
        standing = ModelState(ME, ZEROS, 1, History(START, ("ann", "me")))
        standing.add(TrainedWork(np.full(2, 4, np.float32), rounds=((START, 2),)))
        assert _carry(standing) == 4.0
        _move(standing, 3, History(START, ("ann",), (counted,)))
        assert _carry(standing) == carry


def test_work_of_a_round_that_only_the_other_lineage_has_is_not_counted_there_by_its_number() -> None:
    standing = ModelState(ME, ZEROS, 1, History(SPLIT, ("me",)))
    standing.add(TrainedWork(np.full(2, 4, np.float32), rounds=((SPLIT, 3),)))
    _move(standing, 5, History((*START, Fork(1, 1, "other")), ("ann",), (Counted(ME, 5),)))
    assert _carry(standing) == 4.0


def test_a_move_along_the_fork_carries_nothing() -> None:
    standing = _split()
    _move(standing, 7, History(SPLIT, ("ann",), (Counted(ME, 2),)))
    assert _carry(standing) is None


def test_only_the_forks_that_are_left_behind_are_carried() -> None:
    for back_to, carry in ((SPLIT, 5.0), (START, 6.0), ((*START, Fork(1, 2, "other")), 6.0)):
        standing = _split()
        standing.follow(NESTED, ("me",))
        _contribute(standing, 5.0)
        _move(standing, 9, History(back_to, ("ann",), (Counted(ME, 2),)))
        assert _carry(standing) == carry


def test_a_fork_that_is_left_before_its_last_round_brings_that_round() -> None:
    standing = _split()
    _contribute(standing, 7.0, ANN)
    _move(standing, 3, History((*SPLIT, Fork(3, 2, "other")), ("ann",), (Counted(ME, 2),)))
    assert _carry(standing) == 7.0


X, Y = ((*START, Fork(0, 2, name)) for name in ("x", "y"))
THERE = ZEROS, digest_of(ZEROS)


def test_what_one_fork_brought_into_another_counts_once_whichever_of_them_goes_on() -> None:
    """3 of x and 1 of y were trained; in y both count, and x counts its own."""
    cases: tuple[tuple[History, float | None], ...] = (
        (History(X, ("ann", "me"), (Counted(ANN, 1), Counted(ME, 1))), 1.0),
        (History(Y, ("bob", "me"), (Counted(BOB, 1), Counted(ME, 1))), None),
        (History(START, ("ann",), (Counted(ANN, 1),)), 4.0),
    )
    for history, carry in cases:
        standing = ModelState(ME, ZEROS)
        standing.follow(X, ("ann", "me"))
        _contribute(standing, 3.0, ANN)
        standing.move_to(0, *THERE, History(START))
        assert _carry(standing) == 3.0
        standing.follow(Y, ("bob", "me"))
        _contribute(standing, 1.0, BOB)
        assert _carry(standing) is None
        _move(standing, 1, history)
        assert _carry(standing) == carry


def test_a_lineage_that_is_left_at_its_very_start_is_carried_by_those_who_contributed() -> None:
    standing = ModelState(ME, ZEROS)
    standing.follow(START, ("ann", "me"))
    _contribute(standing, 5.0, ANN)
    _move(standing, 2, History(Y, ("bob",)))
    assert _carry(standing) == 5.0
    _move(standing, 1, History(START, ("ann", "me"), (Counted(ME, 1),)))
    assert _carry(standing) is None


@pytest.mark.parametrize(
    ("small_bytes", "rounds", "carry"), [(0, 2, 2.0), (0, 3, 1.0), (1 << 20, 17, 17.0), (1 << 20, 40, 17.0)]
)
def test_two_starts_of_a_mesh_add_up_within_their_first_rounds_and_not_later(
    monkeypatch: pytest.MonkeyPatch, small_bytes: int, rounds: int, carry: float
) -> None:
    """And of the last round the others may not have heard, or it is not saved."""
    monkeypatch.setattr(model_state, "_SMALL_BYTES", small_bytes)
    standing = ModelState(ME, ZEROS)
    standing.follow(START, ("ann", "me"))
    for _ in range(rounds):
        _contribute(standing, 1.0, ANN)
    _move(standing, 50, History((Fork(0, 3, "bob.1.1"),), ("bob",)))
    assert _carry(standing) == carry


@pytest.mark.parametrize(
    ("small_bytes", "has_gone_on", "carry"), [(0, False, 1.0), (0, True, None), (1 << 20, True, 1.0)]
)
def test_a_last_round_of_which_the_others_have_not_heard_or_which_is_not_saved_is_carried_when_they_leave_it(
    monkeypatch: pytest.MonkeyPatch, small_bytes: int, has_gone_on: bool, carry: float | None
) -> None:
    """Others go on from before a round, though this device has trained from it: one of them came back without it."""
    monkeypatch.setattr(model_state, "_SMALL_BYTES", small_bytes)
    for rounds in (1, 2):
        standing = ModelState(ME, ZEROS, 6 - rounds, History(START, ("ann", "me")))
        for _ in range(rounds):
            standing.share()
            _contribute(standing, 1.0, ANN)
        if has_gone_on:
            standing.share()  # the others are about to train round 7 from it
        _move(standing, 6, History((*START, Fork(5, 2, "ann.1.7")), ("ann",)))
        assert _carry(standing) == carry


def test_what_was_trained_from_this_very_w_is_found_or_comes_in_a_sum_on_another_lineage_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_state, "_SMALL_BYTES", 0)
    standing = ModelState(ME, ZEROS)
    standing.follow(X, ("ann", "me"))
    _contribute(standing, 1.0, ANN)
    same = standing.parameters, standing.digest
    _contribute(standing, 2.0, ANN)
    standing.move_to(1, *same, History(START, ("bob",), (Counted(BOB, 1),)))
    found = standing.find(2)
    assert found is not None
    assert (found.values[0], standing.find(3)) == (2.0, None)
    standing.follow(X, ("ann",))
    standing.move_to(2, ZEROS, digest_of(ZEROS), History(X, ("ann",), (Counted(ME, 2),)))
    _contribute(standing, 4.0, ANN)
    standing.move_to(1, *same, History(START, ("bob",), (Counted(BOB, 1),)))
    assert standing.find(2) is None
    assert (standing.is_in_a_sum(2), standing.is_in_a_sum(3)) == (True, False)


def test_a_sum_that_is_left_in_its_middle_is_lost_and_what_came_after_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_state, "_SMALL_BYTES", 0)
    standing = _split()
    for own in (2.0, 4.0, 8.0):
        _contribute(standing, own, ANN)  # rounds 4, 5 and 6
    _move(standing, 7, History((*SPLIT, Fork(4, 2, "other")), ("ann",), (Counted(ME, 4),)))
    assert [work.values[0] for work in standing.take()] == [8.0]
    assert [standing.is_split(work) for work in standing.uncounted] == [True]


def test_the_last_rounds_of_a_fork_can_be_left_in_their_middle_if_the_model_is_small() -> None:
    standing = _split()
    for own in (2.0, 4.0, 8.0, 16.0, 32.0):
        _contribute(standing, own, ANN)  # rounds 4 to 8
    _move(standing, 9, History((*SPLIT, Fork(6, 2, "other")), ("ann",), (Counted(ME, 6),)))
    assert [work.values[0] for work in standing.take()] == [16.0, 32.0]
    assert standing.uncounted == ()


def test_of_what_is_left_in_the_middle_of_a_long_fork_the_rounds_of_one_sum_are_lost_if_the_model_is_small() -> None:
    standing = _split()
    for number in range(4, 24):
        _contribute(standing, 2.0**number, ANN)  # rounds 4 to 23
    _move(standing, 24, History((*SPLIT, Fork(9, 2, "other")), ("ann",), (Counted(ME, 9),)))
    (lost,) = (work for work in standing.uncounted if standing.is_split(work))
    assert (lost.since, lost.counted[0][1]) == (8, 11)
    assert sum(work.values[0] for work in standing.take()) == sum(2.0**number for number in range(12, 24))


def test_memory_does_not_grow_however_often_a_device_is_left_out_or_away() -> None:
    standing = ModelState(ME, ZEROS, 5, History(START, ("ann", "me")))
    for number in range(50):
        _apply(standing, ANN)
        standing.add(*standing.take(), TrainedWork(ZEROS + 1, ((6 + number, b""),), rounds=((START, 6 + number),)))
    assert (_carry(standing), len(standing.uncounted), standing.uncounted[0].rounds) == (50.0, 1, ())
    standing = _split()
    for number in range(20):
        standing.follow((*SPLIT, Fork(standing.round_id, 1, f"x{number}")), ("me",))
        _contribute(standing, 1.0)
        _move(standing, standing.round_id, History(SPLIT, ("ann",), (Counted(ME, 2),)))
        _contribute(standing, 1.0, ANN)
    assert len(standing._in_w) < 24


def test_a_restarted_device_knows_how_far_it_was() -> None:
    standing = ModelState(ME, ZEROS, 6, History(START, ("ann", "me")))
    _move(standing, 5, History((*START, Fork(5, 1, "x"))))
    _move(standing, 5, History(START))
    assert standing.was_further()


def test_how_far_it_has_been_on_a_lineage_is_remembered_for_those_it_left() -> None:
    standing = _split()  # round 1 of START, and up to round 3 of SPLIT
    assert not standing.was_further()
    for lineage, round_id, is_so in ((START, 0, True), (START, 1, False), (SPLIT, 2, True), (SPLIT, 3, False)):
        _move(standing, round_id, History(lineage))
        assert standing.was_further() is is_so
    for number in range(2 * MAX_REACHED):
        _move(standing, number, History((*START, Fork(0, 1, f"x{number}"))))
    assert len(standing.reached) <= MAX_REACHED


def _part_of_the_first_value(*, lacks: bytes = b"\x02") -> Partial:
    """Two segments of one value: the first has its work."""
    return Partial(ME, 1.0, 1, lacks)


def _left_behind(result: PartialSum, lineage: Lineage = ()) -> ModelState:
    """It gave its work to a round that went on without it, and hears of the result later."""
    standing, others = ModelState(ME, ZEROS), ModelState(ANN, ZEROS)
    for each in (standing, others):
        each.follow(lineage, ("ann", "bob", "me"))
    apply_at_once(others, result, 1.0)
    standing.add(TrainedWork(np.array([3.0, 5.0], np.float32), ((1, standing.digest),), ((lineage, 1),)))
    standing.move_to(1, others.parameters, others.digest, others.history())
    return standing


def test_what_a_round_has_counted_in_some_segments_only_is_brought_in_in_the_others() -> None:
    result = sum_of(np.ones(2), (ANN, BOB), partial=(_part_of_the_first_value(),))
    standing = _left_behind(result)
    assert not standing.is_counted((), 1)
    carried = total(standing.uncounted)
    assert carried is not None
    np.testing.assert_array_equal(carried, [0.0, 5.0])
    assert standing.base == ("ann", "bob")  # who was lost does not decide on the next round
    _apply(standing, ANN, BOB, ME)
    assert Counted(ME, 2) in standing.history().counted


def test_who_is_in_all_segments_is_counted_though_it_was_lost() -> None:
    partial = _part_of_the_first_value(lacks=b"")
    standing = _left_behind(sum_of(np.ones(2), (ANN, BOB), partial=(partial,)))
    assert standing.is_counted((), 1)
    assert _carry(standing) is None


def test_a_fork_that_is_left_gives_back_the_part_that_it_had_counted() -> None:
    result = sum_of(np.ones(2), (ANN, BOB), partial=(_part_of_the_first_value(),))
    standing = _left_behind(result, START)
    apart = (*START, Fork(0, 1, "bob.1.2"))
    _move(standing, 1, History(apart, ("bob",), ()))
    carried = total(standing.uncounted)
    assert carried is not None
    np.testing.assert_array_equal(carried, [3.0, 5.0])
    _move(standing, 1, History(START, ("ann", "bob"), (Counted(ME, 1, 1, b"\x02"),)))
    carried = total(standing.uncounted)
    assert carried is not None
    np.testing.assert_array_equal(carried, [0.0, 5.0])


def test_work_that_is_still_being_recalled_is_split_when_it_is_there() -> None:
    result = sum_of(np.ones(2), (ANN, BOB), partial=(_part_of_the_first_value(),))
    standing = _left_behind(result)
    fresh = standing.marked(TrainedWork(np.empty(0, np.float32), ((1, digest_of(ZEROS)),), (((), 1),)))
    _apply(standing, ANN, BOB, ME)  # its entry in the history is of a later round now
    standing.uncounted = ()
    standing.add(msgspec.structs.replace(fresh, values=np.array([7.0, 9.0], np.float32)))
    carried = total(standing.uncounted)
    assert carried is not None
    np.testing.assert_array_equal(carried, [0.0, 9.0])
