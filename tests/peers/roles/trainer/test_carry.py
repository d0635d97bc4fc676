"""Work that no round has counted enters the next own delta, once (docs/protocol-hops.md, fault rules 7 and 8)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mdl.peers.roles.trainer import model_state
from mdl.peers.roles.trainer.model_state import TrainedWork
from mdl.peers.roles.trainer.progress import RoundProgress
from mdl.peers.roles.trainer.round_state import RoundState
from mdl.peers.roles.trainer.trainer import Trainer
from mdl.protocol.delta import Contributor, ModelDelta, apply_delta, digest_of
from mdl.protocol.machine import (
    DeltaRecalled,
    Evaluate,
    LocalDeltaReady,
    RecallDelta,
    Send,
    TrainLocally,
    TransferProgressed,
)
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    CatchUp,
    DeltaWanted,
    ModelMessage,
    ModelWanted,
    RoundClosed,
    RoundOpened,
)
from mdl.protocol.vector_work import hold_own
from mdl.protocol.vocabulary import Ballot, Counted, Fork, History, TrainingReport
from tests.peers.roles.trainer.own_work import (
    ANN,
    BEFORE,
    BOB,
    ELSEWHERE,
    FORK,
    ME,
    MEMBERS,
    ROOM,
    SPLIT,
    START,
    ZEROS,
    a_trainer,
    carry_of,
    close_round,
    cut_off,
    held_by,
    lose_round,
    merge,
    move_on,
    open_round,
    recalls_in,
    say,
    stage,
    train,
    vector,
)

# -- a round that closed without this device --------------------------------------------------------------------------


def test_what_a_round_left_out_is_in_the_next_own_delta_and_only_there() -> None:
    trainer = a_trainer()
    open_round(trainer)
    train(trainer, 1, 2, 3, 4)
    close_round(trainer, (ANN, BOB), 5, 5, 5, 5)
    assert carry_of(trainer) == [1, 2, 3, 4]
    assert open_round(trainer) == [], "it is given at once, and nothing is trained"
    assert (held_by(trainer), carry_of(trainer)) == ([1, 2, 3, 4], None)
    assert trainer.hold().theta == 1.0
    close_round(trainer, MEMBERS, 0, 0, 0, 0)
    open_round(trainer)
    train(trainer, 10, 10, 10, 10)
    assert held_by(trainer) == [10, 10, 10, 10]


def test_what_a_round_counted_is_not_carried() -> None:
    trainer = a_trainer()
    open_round(trainer)
    train(trainer, 1, 2, 3, 4)
    assert recalls_in(close_round(trainer, MEMBERS, 5, 5, 5, 5)) == []
    assert carry_of(trainer) is None


def test_work_that_was_left_out_again_and_again_adds_up() -> None:
    trainer = a_trainer()
    for _ in range(3):
        open_round(trainer)
        train(trainer, 1, 2, 3, 4)
        close_round(trainer, (ANN, BOB), 0, 0, 0, 0)
    assert carry_of(trainer) == [3, 6, 9, 12]


def test_an_own_delta_that_was_merged_away_is_recalled_when_the_round_left_it_out() -> None:
    trainer = a_trainer()
    before = trainer.parameters
    open_round(trainer)
    train(trainer, 1, 2, 3, 4)
    merge(trainer, 3, 3, 3, 3)
    (recall,) = recalls_in(close_round(trainer, (ANN, BOB), 5, 5, 5, 5))
    assert (recall.round_id, recall.parameters is before) == (1, True)
    assert carry_of(trainer) is None
    trainer.handle(DeltaRecalled(1, vector(1, 2, 3, 4)), 6.0)
    assert carry_of(trainer) == [1, 2, 3, 4]


def test_a_recalled_delta_that_is_not_known_any_longer_is_no_work_and_no_error() -> None:
    trainer = a_trainer()
    open_round(trainer)
    train(trainer, 1, 2, 3, 4)
    merge(trainer, 3, 3, 3, 3)
    close_round(trainer, (ANN, BOB), 5, 5, 5, 5)
    assert trainer.handle(DeltaRecalled(1, None), 6.0) == []
    assert carry_of(trainer) is None


@pytest.mark.parametrize("is_large", [False, True], ids=["merged away", "too large to be subtracted from"])
def test_earlier_work_in_a_delta_that_is_recalled_is_carried_on_with_the_recalled_part(
    monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    if is_large:
        monkeypatch.setattr(model_state, "_SMALL_BYTES", 0)
    trainer = a_trainer()
    lose_round(trainer, 1, 1, 1, 1)
    open_round(trainer)
    train(trainer, 2, 2, 2, 2)
    assert held_by(trainer) == [3, 3, 3, 3]
    if not is_large:
        merge(trainer, 3, 3, 3, 3)
    (recall,) = recalls_in(close_round(trainer, (ANN, BOB), 0, 0, 0, 0))
    assert carry_of(trainer) == [1, 1, 1, 1]
    trainer.handle(DeltaRecalled(recall.round_id, vector(2, 2, 2, 2)), 6.0)
    assert carry_of(trainer) == [3, 3, 3, 3]


def test_training_that_ends_after_its_round_is_carried() -> None:
    trainer = a_trainer()
    open_round(trainer)
    close_round(trainer, (ANN, BOB), 5, 5, 5, 5)
    assert trainer.round_id == 1
    train(trainer, 1, 2, 3, 4, round_id=1)
    assert carry_of(trainer) == [1, 2, 3, 4]


def test_training_that_ends_in_the_middle_of_the_next_round_is_given_to_that_one_at_once() -> None:
    trainer = a_trainer()
    open_round(trainer)
    close_round(trainer, (ANN, BOB), 5, 5, 5, 5)
    assert open_round(trainer) == [], "one training at a time"
    train(trainer, 1, 2, 3, 4, round_id=1)
    assert (held_by(trainer), carry_of(trainer)) == ([1, 2, 3, 4], None)


def test_work_that_is_late_once_more_is_given_to_the_round_after() -> None:
    trainer = a_trainer()
    open_round(trainer)
    close_round(trainer, (ANN, BOB), 5, 5, 5, 5)
    open_round(trainer)
    train(trainer, 1, 2, 3, 4, round_id=1)
    close_round(trainer, (ANN, BOB), 5, 5, 5, 5)
    assert open_round(trainer) == []
    assert held_by(trainer) == [1, 2, 3, 4]
    close_round(trainer, MEMBERS, 0, 0, 0, 0)
    (work,) = open_round(trainer)
    assert isinstance(work, TrainLocally), "counted: it trains again"


@pytest.mark.parametrize("comes_between", [False, True])
def test_who_trains_may_add_the_earlier_work_up_unless_there_is_other_work_by_then(comes_between: bool) -> None:
    """Of 800 MB a sum takes a second, and heartbeats must not wait."""
    trainer = a_trainer()
    lose_round(trainer, 1, 2, 3, 4)
    if comes_between:
        lose_round(trainer, 2, 2, 2, 2, is_recalled=False)
    (work,) = open_round(trainer)
    assert isinstance(work, TrainLocally)
    assert [list(each) for each in work.earlier] == [[1, 2, 3, 4]]
    if comes_between:
        trainer.handle(DeltaRecalled(2, vector(2, 2, 2, 2)), 2.0)
    delta, report = ModelDelta(vector(1, 1, 1, 1), 1.0, frozenset([ME])), TrainingReport(0.5, 8, 1.0)
    assert work.room == ROOM
    held = hold_own(work.parameters, delta, work.room, work.earlier)
    trainer.handle(LocalDeltaReady(work.round_id, delta, report, held), 2.0)
    assert held_by(trainer) == ([4, 5, 6, 7] if comes_between else [2, 3, 4, 5])
    assert (trainer.hold() is held.sum) is not comes_between


def test_earlier_work_that_another_round_has_taken_by_then_is_not_counted_with_the_training() -> None:
    trainer = a_trainer()
    lose_round(trainer, 1, 2, 3, 4)
    (work,) = open_round(trainer)
    assert isinstance(work, TrainLocally)
    other = RoundState(9, 1, frozenset(MEMBERS), room=ROOM)
    trainer._progress._own._hold(other, TrainedWork(vector(0, 0, 0, 0)))
    assert [list(each.values) for each in other.works] == [[1, 2, 3, 4]]
    delta = ModelDelta(vector(1, 1, 1, 1), 1.0, frozenset([ME]))
    held = hold_own(work.parameters, delta, ROOM, work.earlier)
    trainer.handle(LocalDeltaReady(work.round_id, delta, TrainingReport(0.5, 8, 1.0), held), 2.0)
    assert held_by(trainer) == [1, 1, 1, 1]


def test_a_round_begun_afresh_brings_the_earlier_work_in_once() -> None:
    trainer = a_trainer()
    lose_round(trainer, 1, 1, 1, 1)
    open_round(trainer)
    train(trainer, 2, 2, 2, 2)
    assert open_round(trainer, attempt=2) == []
    assert (held_by(trainer), carry_of(trainer)) == ([3, 3, 3, 3], None)
    merge(trainer, 7, 7, 7, 7)
    assert len(recalls_in(open_round(trainer, attempt=3))) == 1
    trainer.handle(DeltaRecalled(2, vector(2, 2, 2, 2)), 4.0)
    assert (held_by(trainer), carry_of(trainer)) == ([3, 3, 3, 3], None)


# -- a round that went on elsewhere -----------------------------------------------------------------------------------


def test_a_model_on_its_way_is_fetched_to_its_end_although_the_mesh_has_a_later_one() -> None:
    trainer = a_trainer()
    first, later = (CatchUp(1, 3 + more, digest_of(ELSEWHERE + more), ANN, (START,), ("ann",)) for more in (0, 1))
    say(trainer, first, 6.0)
    trainer.handle(TransferProgressed(BOB, 8, 16), 6.1)
    say(trainer, later, 6.2)
    assert trainer.catching_up_to == later, "nothing of the first one has come"
    trainer.handle(TransferProgressed(ANN, 8, 16), 6.5)
    say(trainer, first, 7.0)
    assert trainer.catching_up_to == later, "a late word about an older model"
    newest = replace(later, round_id=5)
    say(trainer, newest, 11.0)
    assert trainer.catching_up_to == later
    say(trainer, newest, 12.0)
    assert trainer.catching_up_to == newest, "no more of it has come for long"


def test_who_missed_the_end_of_a_round_that_counted_it_carries_nothing() -> None:
    trainer = a_trainer()
    open_round(trainer)
    train(trainer, 1, 2, 3, 4)
    counted = tuple(Counted(member, 1) for member in MEMBERS)
    assert recalls_in(move_on(trainer, 1, History((), ("ann", "bob", "me"), counted))) == []
    assert (trainer.round_id, carry_of(trainer)) == (1, None)


def test_merged_work_of_a_round_that_counted_it_is_not_even_recalled() -> None:
    trainer = a_trainer()
    open_round(trainer)
    train(trainer, 1, 2, 3, 4)
    merge(trainer, 3, 3, 3, 3)
    counted = tuple(Counted(member, 1) for member in MEMBERS)
    assert recalls_in(move_on(trainer, 1, History((), ("ann", "bob", "me"), counted))) == []


def test_who_missed_a_round_that_went_on_without_it_carries_its_delta() -> None:
    trainer = a_trainer()
    open_round(trainer)
    train(trainer, 1, 2, 3, 4)
    move_on(trainer, 1, History((), ("ann", "bob"), (Counted(ANN, 1), Counted(BOB, 1))))
    assert carry_of(trainer) == [1, 2, 3, 4]


def test_that_another_start_of_this_device_was_counted_is_not_this_ones_work() -> None:
    trainer = a_trainer()
    open_round(trainer)
    train(trainer, 1, 2, 3, 4)
    move_on(trainer, 1, History((), ("ann", "me"), (Counted(Contributor("me", 0), 1),)))
    assert carry_of(trainer) == [1, 2, 3, 4]


def test_merged_work_of_a_round_that_went_on_elsewhere_is_recalled_from_where_it_began() -> None:
    trainer = a_trainer()
    before = trainer.parameters
    open_round(trainer)
    train(trainer, 1, 2, 3, 4)
    merge(trainer, 3, 3, 3, 3)
    (recall,) = recalls_in(move_on(trainer, 4, History((), ("ann", "bob"), (Counted(ANN, 4), Counted(BOB, 4)))))
    assert (recall.round_id, recall.parameters is before) == (1, True)


def test_training_that_ends_while_the_model_is_fetched_waits_for_what_that_model_counted() -> None:
    for counted, carry in ((Counted(ME, 1), None), (Counted(ANN, 1), [1, 2, 3, 4])):
        trainer = a_trainer()
        open_round(trainer)
        history = History((), ("ann",), (counted,))
        say(trainer, CatchUp(1, 1, digest_of(ELSEWHERE), ANN, (), ("ann",)), 5.0)
        train(trainer, 1, 2, 3, 4)
        assert carry_of(trainer) is None
        say(trainer, ModelMessage(1, digest_of(ELSEWHERE), history), 6.1, ANN, ELSEWHERE)
        assert carry_of(trainer) == carry


def test_what_this_device_missed_was_only_the_word_so_it_applies_what_it_has_staged() -> None:
    trainer = a_trainer()
    open_round(trainer)
    train(trainer, 1, 2, 3, 4)
    stage(trainer, MEMBERS, 5, 5, 5, 5)
    applied = apply_delta(ZEROS, vector(5, 5, 5, 5), 1.0)
    base = ("ann", "bob", "me")
    effects = say(trainer, CatchUp(1, 1, digest_of(applied), ANN, base=base), 6.0)
    assert not any(isinstance(effect, Send) for effect in effects)
    assert (trainer.round_id, trainer.digest, carry_of(trainer), trainer.base) == (1, digest_of(applied), None, base)


def test_a_staged_result_of_other_contributors_is_not_applied_though_its_digest_is_the_same() -> None:
    """Where nobody's model changes all results are zeros; but who decides on the next round depends on them."""
    trainer = a_trainer()
    open_round(trainer)
    train(trainer, 0, 0, 0, 0)
    stage(trainer, MEMBERS, 0, 0, 0, 0)
    effects = say(trainer, CatchUp(1, 1, digest_of(ZEROS), ANN, base=("ann", "bob")), 6.0)
    assert [effect.message for effect in effects if isinstance(effect, Send)] == [ModelWanted(1)]
    assert trainer.round_id == 0


def test_a_staged_result_that_is_not_what_the_others_applied_is_not_applied() -> None:
    trainer = a_trainer()
    open_round(trainer)
    train(trainer, 1, 2, 3, 4)
    stage(trainer, MEMBERS, 5, 5, 5, 5)
    move_on(trainer, 1, History((), ("ann", "bob"), (Counted(ANN, 1), Counted(BOB, 1))))
    assert (trainer.digest, carry_of(trainer)) == (digest_of(ELSEWHERE), [1, 2, 3, 4])


def test_a_model_of_another_lineage_than_the_agent_named_is_not_taken() -> None:
    trainer = a_trainer()
    say(trainer, CatchUp(1, 4, digest_of(ELSEWHERE), ANN, (START,)), 5.0)
    say(trainer, ModelMessage(4, digest_of(ELSEWHERE), History((SPLIT,))), 5.1, ANN, ELSEWHERE)
    assert trainer.round_id == 0
    say(trainer, ModelMessage(4, digest_of(ELSEWHERE), History((START,))), 5.2, ANN, ELSEWHERE)
    assert (trainer.round_id, trainer.model_state.lineage) == (4, (START,))


def test_the_same_model_on_another_lineage_is_taken_over_without_fetching_it() -> None:
    trainer = a_trainer()
    effects = say(trainer, CatchUp(1, 0, trainer.digest, ANN, (START,), ("ann", "bob")), 5.0)
    assert not any(isinstance(effect, Send) for effect in effects)
    assert (trainer.model_state.lineage, trainer.model_state.base) == ((START,), ("ann", "bob"))


# -- forks ------------------------------------------------------------------------------------------------------------


def _forked() -> Trainer:
    """It has trained one round with the mesh and two on its own, after a cut."""
    trainer = a_trainer()
    open_round(trainer, (START,))
    train(trainer, 1, 1, 1, 1)
    close_round(trainer, MEMBERS, 1, 1, 1, 1)
    for number, lineage in enumerate([(START, SPLIT), (START, SPLIT)]):
        open_round(trainer, lineage)
        train(trainer, 2 + number, 0, 0, 0)
        close_round(trainer, (ME,), 2 + number, 0, 0, 0)
    assert (trainer.round_id, trainer.model_state.lineage) == (3, (START, SPLIT))
    return trainer


def test_rule_8_when_the_cut_heals_a_minoritys_rounds_enter_the_next_one_once() -> None:
    trainer = _forked()
    move_on(trainer, 5, History((START,), ("ann", "bob"), (Counted(ANN, 5), Counted(ME, 1))))
    assert (trainer.model_state.lineage, carry_of(trainer)) == ((START,), [5, 0, 0, 0])
    open_round(trainer)
    train(trainer, 1, 1, 1, 1)
    assert (held_by(trainer), carry_of(trainer)) == ([6, 1, 1, 1], None)
    close_round(trainer, MEMBERS, 0, 0, 0, 0)
    move_on(trainer, 9, History((START,), ("ann", "bob"), (Counted(ME, 6),)))
    assert carry_of(trainer) is None


def test_rule_8_an_open_round_of_the_fork_is_carried_too() -> None:
    trainer = _forked()
    open_round(trainer)
    train(trainer, 0, 7, 0, 0)
    move_on(trainer, 5, History((START,), ("ann", "bob"), (Counted(ANN, 5), Counted(ME, 1))))
    assert carry_of(trainer) == [5, 7, 0, 0]


def test_a_fork_that_turns_out_to_be_the_mesh_is_not_carried() -> None:
    trainer = _forked()
    move_on(trainer, 5, History((START, SPLIT), ("ann", "me"), (Counted(ME, 3),)))
    assert (trainer.round_id, carry_of(trainer)) == (5, None)


def test_a_round_number_that_another_lineage_has_too_does_not_count_this_devices_work() -> None:
    trainer = _forked()
    move_on(trainer, 3, History((START,), ("ann", "bob"), (Counted(ANN, 3), Counted(ME, 1))))
    assert not trainer.model_state.is_counted((START, SPLIT), 3)
    assert trainer.model_state.is_counted((START,), 1)


# -- a fork that began in the middle of a round -----------------------------------------------------------------------

ALL_COUNTED = History((START,), ("ann", "bob", "me"), tuple(Counted(member, 6) for member in MEMBERS))
LEFT_OUT = History((START,), ("ann", "bob"), (Counted(ANN, 6), Counted(BOB, 6), Counted(ME, 1)))


BOTH_WAYS = pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged away"])


@BOTH_WAYS
def test_a_fork_begins_with_what_was_given_away_before_the_cut(merged: bool) -> None:
    """Each device brings in its own work alone, so the others' count of it stays on their side."""
    trainer = cut_off(merged=merged)
    assert (held_by(trainer), carry_of(trainer)) == ([2, 0, 0, 0], None)
    close_round(trainer, (ME,), 2, 0, 0, 0)
    open_round(trainer)
    train(trainer, 0, 0, 3, 0)
    assert (held_by(trainer), carry_of(trainer)) == ([0, 0, 3, 0], None)


@BOTH_WAYS
@pytest.mark.parametrize(("history", "carry"), [(ALL_COUNTED, None), (LEFT_OUT, [2, 0, 0, 0])], ids=["counted", "not"])
def test_when_the_cut_heals_the_counts_tell_whether_it_was_in(
    merged: bool, history: History, carry: list[float] | None
) -> None:
    for closes in (False, True):
        trainer = cut_off(merged=merged)
        if closes:
            close_round(trainer, (ANN, ME), 1, 2, 0, 0)
        move_on(trainer, 6, history)
        assert carry_of(trainer) == carry


@pytest.mark.parametrize(("history", "own"), [(ALL_COUNTED, 0), (LEFT_OUT, 2)], ids=["counted", "not"])
def test_of_what_a_fork_did_after_such_a_cut_each_device_brings_its_own(history: History, own: float) -> None:
    trainer = cut_off()
    close_round(trainer, (ANN, ME), 1, 2, 0, 0)  # ann's own was [0, 4, 0, 0]
    open_round(trainer)
    train(trainer, 0, 0, 3, 0)
    close_round(trainer, (ME,), 0, 0, 3, 0)
    move_on(trainer, 8, history)
    assert carry_of(trainer) == [own, 0, 3, 0]


def test_what_the_others_did_not_count_enters_the_next_round() -> None:
    trainer = cut_off()
    close_round(trainer, (ME,), 2, 0, 0, 0)
    move_on(trainer, 6, LEFT_OUT)
    open_round(trainer)
    train(trainer, 0, 0, 0, 5)
    assert (held_by(trainer), carry_of(trainer)) == ([2, 0, 0, 5], None)


def test_a_fork_that_is_opened_again_before_the_delta_is_recalled_waits_for_it_too() -> None:
    trainer = a_trainer(5, BEFORE)
    open_round(trainer)
    train(trainer, 2, 0, 0, 0)
    merge(trainer, 0, 6, 0, 0)
    say(trainer, DeltaWanted(6, 1, 20), 3.0, BOB)
    open_round(trainer, (START, FORK), attempt=9)
    open_round(trainer, (START, FORK), attempt=10)
    trainer.handle(DeltaRecalled(6, vector(2, 0, 0, 0)), 4.0)
    assert held_by(trainer) == [2, 0, 0, 0]
    close_round(trainer, (ME,), 2, 0, 0, 0)
    move_on(trainer, 6, ALL_COUNTED)
    assert carry_of(trainer) is None


def _staged(trainer: Trainer) -> None:
    """It has the result of round 6, which is not closed."""
    open_round(trainer)
    train(trainer, 2, 0, 0, 0)
    order = BroadcastOrdered(1, 6, trainer.digest, 1, (ME, BOB), 1.0, (ME,), lineage=trainer.lineage, room=ROOM)
    say(trainer, order, 3.0)
    assert trainer.report(1, "agent", 3.0).staged is not None


def test_who_has_staged_a_result_and_has_it_no_more_does_not_decide_on_it_again() -> None:
    trainer = a_trainer(5, BEFORE, Ballot(begun=START.name))
    _staged(trainer)
    assert trainer.report(1, "agent", 3.0).votes
    open_round(trainer, (START, FORK), attempt=9)
    assert trainer.report(1, "agent", 4.0).votes  # on the fork it has promised nothing
    say(trainer, CatchUp(1, 5, trainer.digest, ANN, (START,), BEFORE.base), 5.0)
    assert trainer.model_state.lineage == (START,)
    assert not trainer.report(1, "agent", 5.0).votes


def test_a_promise_that_is_dropped_is_remembered_until_it_is_given_again() -> None:
    """It has staged round 6, is sent to a later model that never comes, and is to begin round 6 afresh."""
    trainer = a_trainer(5, BEFORE, Ballot(begun=START.name))
    _staged(trainer)
    say(trainer, CatchUp(1, 8, b"w8", ANN, (START,), BEFORE.base), 4.0)
    report = trainer.report(1, "agent", 4.0)
    assert report.staged is None
    assert report.accepted is not None
    assert (report.votes, report.accepted.round_id) == (True, 6)
    open_round(trainer, attempt=9)
    assert trainer.report(9, "agent", 5.0).accepted == report.accepted
    order = BroadcastOrdered(9, 6, trainer.digest, 1, (ME, BOB), 1.0, (ME,), lineage=trainer.lineage, room=ROOM)
    say(trainer, order, 5.0)
    report = trainer.report(9, "agent", 5.0)
    assert report.staged is not None
    assert (report.votes, report.accepted) == (True, None)  # under the newer order


def test_what_was_trained_when_a_test_was_asked_for_is_kept_since_the_tested_model_takes_its_place() -> None:
    trainer, here = a_trainer(5, BEFORE), (START, Fork(5, 2, "ann.1.10"))
    assert any(isinstance(effect, TrainLocally) for effect in open_round(trainer))
    effects = say(trainer, CatchUp(1, 5, trainer.digest, ANN, here, ("ann",)), 2.0)
    assert any(isinstance(effect, Evaluate) for effect in effects)
    assert not any(isinstance(effect, TrainLocally) for effect in open_round(trainer, here, attempt=9))
    train(trainer, 2, 0, 0, 0)
    merge(trainer, 0, 6, 0, 0)
    assert recalls_in(close_round(trainer, (ANN, BOB), 0, 3, 0, 0)) == []
    assert carry_of(trainer) == [2, 0, 0, 0]


def test_what_was_trained_from_another_model_is_kept_since_it_cannot_be_recalled() -> None:
    trainer = a_trainer(5, BEFORE)
    open_round(trainer)
    move_on(trainer, 5, History((START, FORK), ("ann",)))
    assert open_round(trainer, attempt=9) == []  # round 6 is being trained, from the model that was left
    train(trainer, 2, 0, 0, 0, round_id=6)
    merge(trainer, 0, 6, 0, 0)
    assert recalls_in(close_round(trainer, (ANN, BOB), 0, 3, 0, 0)) == []
    assert carry_of(trainer) == [2, 0, 0, 0]


# -- back to where the others still are -------------------------------------------------------------------------------

BACK = History((START,), ("ann", "bob", "me"))


def _back_at_the_fork() -> Trainer:
    """It trained round 2, alone with a group; the others are still at w(1), and it comes back to them."""
    trainer = a_trainer(1, BACK)
    open_round(trainer, (START, SPLIT))
    train(trainer, 4, 4, 4, 4)
    close_round(trainer, (ME,), 4, 4, 4, 4)
    assert trainer.round_id == 2
    move_on(trainer, 1, BACK, ZEROS)
    return trainer


def test_a_round_that_a_fork_has_counted_is_not_trained_a_second_time_for_the_others() -> None:
    trainer = _back_at_the_fork()
    assert open_round(trainer, attempt=9) == []
    assert (held_by(trainer), carry_of(trainer)) == ([4, 4, 4, 4], None)
    close_round(trainer, MEMBERS, 3, 3, 3, 3)
    assert carry_of(trainer) is None
    assert any(isinstance(effect, TrainLocally) for effect in open_round(trainer))


def test_an_attempt_that_was_left_open_is_not_entered_again_however_many_rounds_a_fork_has_had_since() -> None:
    trainer = cut_off()
    for number in range(20):
        train(trainer, 1, 0, 0, 0)
        close_round(trainer, (ME,), 1, 0, 0, 0)
        open_round(trainer, attempt=10 + number)
    assert trainer.attempt() == (26, 29)
    move_on(trainer, 5, BEFORE, ZEROS)
    assert open_round(trainer, attempt=1) == []
    assert trainer.attempt() == (0, 0)


@BOTH_WAYS
@pytest.mark.parametrize("again", [False, True], ids=["at once", "by another fork"])
def test_an_own_delta_is_one_value_however_often_a_round_is_opened(merged: bool, again: bool) -> None:
    """The result may be of an attempt from before the fork, which holds nothing of what the fork has added since."""
    trainer = cut_off(merged=merged)
    close_round(trainer, (ME,), 2, 0, 0, 0)
    open_round(trainer)
    train(trainer, 0, 0, 3, 0)
    close_round(trainer, (ME,), 0, 0, 3, 0)
    move_on(trainer, 5, BEFORE, ZEROS)
    if again:
        open_round(trainer, (START, Fork(5, 2, "me.1.10")), attempt=20)
        assert (held_by(trainer), carry_of(trainer)) == ([2, 0, 3, 0], None)
        say(trainer, CatchUp(1, 5, trainer.digest, ANN, (START,), BEFORE.base), 6.0)
    open_round(trainer, attempt=21)
    assert (held_by(trainer), carry_of(trainer)) == ([2, 0, 0, 0], [0, 0, 3, 0])
    close_round(trainer, MEMBERS, 7, 0, 0, 0)
    assert carry_of(trainer) == [0, 0, 3, 0]


def test_what_was_not_trained_is_not_recalled_either_when_that_round_goes_on_without_it() -> None:
    trainer = _back_at_the_fork()
    open_round(trainer, attempt=9)
    merge(trainer, 1, 1, 1, 1)
    assert recalls_in(close_round(trainer, (ANN, BOB), 3, 3, 3, 3)) == []
    assert carry_of(trainer) == [4, 4, 4, 4]


def test_nor_when_it_is_opened_afresh_after_something_was_merged() -> None:
    trainer = _back_at_the_fork()
    open_round(trainer, attempt=9)
    merge(trainer, 1, 1, 1, 1)
    assert open_round(trainer, attempt=10) == []
    assert held_by(trainer) == [4, 4, 4, 4]


def test_another_forks_result_staged_as_a_vote_here_would_count_work_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two starts of a mesh, at the same w; this device has gone over from one to the other when a late order comes."""
    here, there = (Fork(0, 3, "ann.1.1"),), (Fork(0, 3, "bob.1.2"),)
    follow = RoundProgress.take_place

    def close_theirs() -> Trainer:
        trainer = a_trainer()
        open_round(trainer, there)
        train(trainer, 1, 2, 3, 4)
        say(trainer, CatchUp(1, 0, trainer.digest, ANN, here, ("ann", "bob", "me")), 3.0)
        say(trainer, RoundClosed(1, 1, stage(trainer, MEMBERS, 5, 5, 5, 5, lineage=there)), 5.2)
        return trainer

    trainer = close_theirs()
    assert (trainer.round_id, carry_of(trainer)) == (0, [1, 2, 3, 4])
    monkeypatch.setattr(
        RoundProgress, "take_place", lambda self, order, now: follow(self, replace(order, lineage=here), now)
    )
    trainer = close_theirs()
    assert (trainer.round_id, carry_of(trainer)) == (1, [1, 2, 3, 4])  # which the result holds already


@pytest.mark.parametrize(
    ("small_bytes", "members", "carry"),
    [(0, MEMBERS, [3.0, 3, 3, 3]), (1 << 20, MEMBERS, [5.0, 5, 5, 5]), (0, (ANN, ME), [5.0, 5, 5, 5])],
)
def test_a_last_round_is_remembered_until_all_who_are_in_it_train_from_it_and_one_longer_if_the_model_is_small(
    monkeypatch: pytest.MonkeyPatch, small_bytes: int, members: tuple[Contributor, ...], carry: list[float]
) -> None:
    """Where bob is missing he may stand on a fork that began before that round, and draw the others there.

    So he may after he died before the round was on his disk, though he was in the next one.
    """
    monkeypatch.setattr(model_state, "_SMALL_BYTES", small_bytes)
    trainer = a_trainer(5, History((START,), ("ann", "bob", "me")))
    open_round(trainer)
    train(trainer, 2, 2, 2, 2)
    assert RecallDelta in map(type, close_round(trainer, MEMBERS, 1, 1, 1, 1))
    trainer.handle(DeltaRecalled(6, vector(2, 2, 2, 2)), 5.3)
    say(trainer, RoundOpened(2, 7, trainer.digest, members, 2, trainer.lineage, room=ROOM))
    train(trainer, 3, 3, 3, 3)
    move_on(trainer, 6, History((START, Fork(5, 1, "bob.1.9")), ("bob",)))
    assert carry_of(trainer) == carry


@pytest.mark.parametrize(("small_bytes", "carry"), [(1 << 20, [2.0 + 3 + 4, 9, 9, 9]), (0, [4.0, 4, 4, 4])])
def test_own_work_since_somebody_was_there_is_remembered_if_the_model_is_small(
    monkeypatch: pytest.MonkeyPatch, small_bytes: int, carry: list[float]
) -> None:
    """Bob was cut off after round 5, and is in a fork that began there; the others have gone on for two rounds."""
    monkeypatch.setattr(model_state, "_SMALL_BYTES", small_bytes)
    trainer = a_trainer(5, History((START,), ("ann", "bob", "me")))
    for round_id, members in ((6, MEMBERS), (7, (ANN, ME)), (8, (ANN, ME))):
        here = trainer.digest, members, round_id, trainer.lineage
        say(trainer, RoundOpened(round_id, round_id, *here, room=ROOM))
        train(trainer, *[float(round_id - 4)] * 4)
        close_round(trainer, (ANN, ME), 1, 1, 1, 1)
        trainer.handle(DeltaRecalled(round_id, vector(*[float(round_id - 4)] * 4)), 5.3)
    move_on(trainer, 6, History((START, Fork(5, 1, "bob.1.9")), ("bob",)))
    assert carry_of(trainer) == carry
