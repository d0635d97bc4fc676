"""Work that no round has counted enters the next own delta, once (fault rules 7 and 8)."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from mdl.protocol.delta import Contributor, ModelDelta, Vector, apply_delta, digest_of
from mdl.protocol.hop_messages import DeltaMessage, DeltaWanted, HopOrdered
from mdl.protocol.machine import (
    DeltaRecalled,
    Effect,
    Evaluate,
    LocalDeltaReady,
    RecallDelta,
    Received,
    Send,
    TrainLocally,
)
from mdl.protocol.messages import Said
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    CatchUp,
    GlobalMessage,
    ModelMessage,
    ModelWanted,
    RoundClosed,
    RoundOpened,
)
from mdl.protocol.vocabulary import Ballot, Counted, Fork, History, Lineage, TrainingReport
from peers.roles.trainer import model_state
from peers.roles.trainer.progress import Progress
from peers.roles.trainer.trainer import Trainer, TrainerSettings
from tests.peers.roles.at_once import TrainerAtOnce

AGENT = Contributor("agent", 1)
ME, ANN, BOB = Contributor("me", 1), Contributor("ann", 1), Contributor("bob", 1)
MEMBERS = (ANN, BOB, ME)
ZEROS = np.zeros(4, np.float32)
START = Fork(0, 3, "agent.1.1")
SPLIT = Fork(1, 1, "me.1.9")
ELSEWHERE = np.full(4, 9, np.float32)


def _vector(*values: float) -> Vector:
    return np.array(values, np.float32)


def _trainer(round_id: int = 0, history: History | None = None, ballot: Ballot | None = None) -> Trainer:
    return TrainerAtOnce(ME, ZEROS, "schema", "lenet", TrainerSettings(), round_id, history, ballot)


def _say(
    trainer: Trainer, message: Said, now: float = 1.0, sender: Contributor = AGENT, values: Vector | None = None
) -> list[Effect]:
    return trainer.handle(Received(sender, message, values), now)


def _open(trainer: Trainer, lineage: Lineage | None = None, attempt: int = 1) -> list[Effect]:
    lineage = trainer.standing.lineage if lineage is None else lineage
    return _say(trainer, RoundOpened(attempt, trainer.round_id + 1, trainer.digest, MEMBERS, attempt, lineage))


def _train(trainer: Trainer, *values: float, round_id: int | None = None) -> None:
    """What the driver answers to TrainLocally."""
    delta = ModelDelta(_vector(*values), 1.0, frozenset([ME]))
    trainer.handle(LocalDeltaReady(round_id or trainer.round_id + 1, delta, TrainingReport(0.5, 8, 1.0)), 2.0)


def _merge(trainer: Trainer, *values: float) -> None:
    """ann's delta comes in, and the own one is gone."""
    _say(trainer, HopOrdered(1, trainer.round_id + 1, 0, 10, ANN), 3.0)
    message = DeltaMessage(trainer.round_id + 1, 0, 10, 1.0, (ANN,))
    trainer.handle(Received(ANN, message, _vector(*values)), 3.1)


def _close(trainer: Trainer, contributors: tuple[Contributor, ...], *values: float) -> list[Effect]:
    """The round's result comes from bob and stands."""
    result, theta = _vector(*values), float(len(contributors))
    round_id = trainer.round_id + 1
    here = trainer.digest, trainer.lineage
    _say(trainer, BroadcastOrdered(1, round_id, here[0], 1, (BOB, ME), theta, contributors, lineage=here[1]), 5.0)
    _say(trainer, GlobalMessage(round_id, theta, contributors, 1, 1), 5.1, BOB, result)
    return _say(trainer, RoundClosed(1, round_id, digest_of(result)), 5.2)


def _move(trainer: Trainer, round_id: int, history: History, values: Vector = ELSEWHERE) -> list[Effect]:
    """The agent sends it to another model, and ann gives it."""
    target = CatchUp(1, round_id, digest_of(values), ANN, history.lineage, history.base)
    effects = _say(trainer, target, 6.0)
    assert Send("ann", ModelWanted(round_id)) in effects
    return _say(trainer, ModelMessage(round_id, digest_of(values), history), 6.1, ANN, values)


def _carry(trainer: Trainer) -> list[float] | None:
    carry = trainer.carry
    return None if carry is None else list(carry)


def _held(trainer: Trainer) -> list[float]:
    return list(trainer.holdings()[0].values)


def _recalls(effects: list[Effect]) -> list[RecallDelta]:
    return [effect for effect in effects if isinstance(effect, RecallDelta)]


# -- a round that closed without this device --------------------------------------------------------------------------


def test_what_a_round_left_out_is_in_the_next_own_delta_and_only_there() -> None:
    trainer = _trainer()
    _open(trainer)
    _train(trainer, 1, 2, 3, 4)
    _close(trainer, (ANN, BOB), 5, 5, 5, 5)
    assert _carry(trainer) == [1, 2, 3, 4]
    _open(trainer)
    _train(trainer, 10, 10, 10, 10)
    assert (_held(trainer), _carry(trainer)) == ([11, 12, 13, 14], None)
    assert trainer.holdings()[0].theta == 1.0
    _close(trainer, MEMBERS, 0, 0, 0, 0)
    _open(trainer)
    _train(trainer, 10, 10, 10, 10)
    assert _held(trainer) == [10, 10, 10, 10]


def test_what_a_round_counted_is_not_carried() -> None:
    trainer = _trainer()
    _open(trainer)
    _train(trainer, 1, 2, 3, 4)
    assert _recalls(_close(trainer, MEMBERS, 5, 5, 5, 5)) == []
    assert _carry(trainer) is None


def test_work_that_was_left_out_again_and_again_adds_up() -> None:
    trainer = _trainer()
    for _ in range(3):
        _open(trainer)
        _train(trainer, 1, 2, 3, 4)
        _close(trainer, (ANN, BOB), 0, 0, 0, 0)
    assert _carry(trainer) == [3, 6, 9, 12]


def test_an_own_delta_that_was_merged_away_is_recalled_when_the_round_left_it_out() -> None:
    trainer = _trainer()
    before = trainer.parameters
    _open(trainer)
    _train(trainer, 1, 2, 3, 4)
    _merge(trainer, 3, 3, 3, 3)
    (recall,) = _recalls(_close(trainer, (ANN, BOB), 5, 5, 5, 5))
    assert (recall.round_id, recall.parameters is before) == (1, True)
    assert _carry(trainer) is None
    trainer.handle(DeltaRecalled(1, _vector(1, 2, 3, 4)), 6.0)
    assert _carry(trainer) == [1, 2, 3, 4]


def test_a_recalled_delta_that_is_not_known_any_longer_is_no_work_and_no_error() -> None:
    trainer = _trainer()
    _open(trainer)
    _train(trainer, 1, 2, 3, 4)
    _merge(trainer, 3, 3, 3, 3)
    _close(trainer, (ANN, BOB), 5, 5, 5, 5)
    assert trainer.handle(DeltaRecalled(1, None), 6.0) == []
    assert _carry(trainer) is None


def test_earlier_work_in_a_delta_that_was_merged_away_is_carried_on_with_the_recalled_part() -> None:
    trainer = _trainer()
    _open(trainer)
    _train(trainer, 1, 1, 1, 1)
    _close(trainer, (ANN, BOB), 0, 0, 0, 0)
    _open(trainer)
    _train(trainer, 2, 2, 2, 2)
    _merge(trainer, 3, 3, 3, 3)
    _close(trainer, (ANN, BOB), 0, 0, 0, 0)
    assert _carry(trainer) == [1, 1, 1, 1]
    trainer.handle(DeltaRecalled(2, _vector(2, 2, 2, 2)), 6.0)
    assert _carry(trainer) == [3, 3, 3, 3]


def test_training_that_ends_after_its_round_is_carried() -> None:
    trainer = _trainer()
    _open(trainer)
    _close(trainer, (ANN, BOB), 5, 5, 5, 5)
    assert trainer.round_id == 1
    _train(trainer, 1, 2, 3, 4, round_id=1)
    assert _carry(trainer) == [1, 2, 3, 4]


def test_training_that_ends_in_the_middle_of_the_next_round_is_carried_to_the_one_after() -> None:
    trainer = _trainer()
    _open(trainer)
    _close(trainer, (ANN, BOB), 5, 5, 5, 5)
    (work,) = _open(trainer)
    assert isinstance(work, TrainLocally)
    _train(trainer, 1, 2, 3, 4, round_id=1)
    _train(trainer, 10, 10, 10, 10, round_id=2)
    assert (_held(trainer), _carry(trainer)) == ([11, 12, 13, 14], None)


def test_a_round_begun_afresh_brings_the_earlier_work_in_once() -> None:
    trainer = _trainer()
    _open(trainer)
    _train(trainer, 1, 1, 1, 1)
    _close(trainer, (ANN, BOB), 0, 0, 0, 0)
    _open(trainer)
    _train(trainer, 2, 2, 2, 2)
    assert _open(trainer, attempt=2) == []
    assert (_held(trainer), _carry(trainer)) == ([3, 3, 3, 3], None)
    _merge(trainer, 7, 7, 7, 7)
    assert len(_recalls(_open(trainer, attempt=3))) == 1
    trainer.handle(DeltaRecalled(2, _vector(2, 2, 2, 2)), 4.0)
    assert (_held(trainer), _carry(trainer)) == ([3, 3, 3, 3], None)


# -- a round that went on elsewhere -----------------------------------------------------------------------------------


def test_who_missed_the_end_of_a_round_that_counted_it_carries_nothing() -> None:
    trainer = _trainer()
    _open(trainer)
    _train(trainer, 1, 2, 3, 4)
    counted = tuple(Counted(member, 1) for member in MEMBERS)
    assert _recalls(_move(trainer, 1, History((), ("ann", "bob", "me"), counted))) == []
    assert (trainer.round_id, _carry(trainer)) == (1, None)


def test_merged_work_of_a_round_that_counted_it_is_not_even_recalled() -> None:
    trainer = _trainer()
    _open(trainer)
    _train(trainer, 1, 2, 3, 4)
    _merge(trainer, 3, 3, 3, 3)
    counted = tuple(Counted(member, 1) for member in MEMBERS)
    assert _recalls(_move(trainer, 1, History((), ("ann", "bob", "me"), counted))) == []


def test_who_missed_a_round_that_went_on_without_it_carries_its_delta() -> None:
    trainer = _trainer()
    _open(trainer)
    _train(trainer, 1, 2, 3, 4)
    _move(trainer, 1, History((), ("ann", "bob"), (Counted(ANN, 1), Counted(BOB, 1))))
    assert _carry(trainer) == [1, 2, 3, 4]


def test_that_another_start_of_this_device_was_counted_is_not_this_ones_work() -> None:
    trainer = _trainer()
    _open(trainer)
    _train(trainer, 1, 2, 3, 4)
    _move(trainer, 1, History((), ("ann", "me"), (Counted(Contributor("me", 0), 1),)))
    assert _carry(trainer) == [1, 2, 3, 4]


def test_merged_work_of_a_round_that_went_on_elsewhere_is_recalled_from_where_it_began() -> None:
    trainer = _trainer()
    before = trainer.parameters
    _open(trainer)
    _train(trainer, 1, 2, 3, 4)
    _merge(trainer, 3, 3, 3, 3)
    (recall,) = _recalls(_move(trainer, 4, History((), ("ann", "bob"), (Counted(ANN, 4), Counted(BOB, 4)))))
    assert (recall.round_id, recall.parameters is before) == (1, True)


def test_training_that_ends_while_the_model_is_fetched_waits_for_what_that_model_counted() -> None:
    for counted, carry in ((Counted(ME, 1), None), (Counted(ANN, 1), [1, 2, 3, 4])):
        trainer = _trainer()
        _open(trainer)
        history = History((), ("ann",), (counted,))
        _say(trainer, CatchUp(1, 1, digest_of(ELSEWHERE), ANN, (), ("ann",)), 5.0)
        _train(trainer, 1, 2, 3, 4)
        assert _carry(trainer) is None
        _say(trainer, ModelMessage(1, digest_of(ELSEWHERE), history), 6.1, ANN, ELSEWHERE)
        assert _carry(trainer) == carry


def test_what_this_device_missed_was_only_the_word_so_it_applies_what_it_has_staged() -> None:
    trainer = _trainer()
    _open(trainer)
    _train(trainer, 1, 2, 3, 4)
    result = _vector(5, 5, 5, 5)
    _say(trainer, BroadcastOrdered(1, 1, trainer.digest, 1, (BOB, ME), 3.0, MEMBERS, lineage=trainer.lineage), 5.0)
    _say(trainer, GlobalMessage(1, 3.0, MEMBERS, 1, 1), 5.1, BOB, result)
    applied = apply_delta(ZEROS, result, 1.0)
    base = ("ann", "bob", "me")
    effects = _say(trainer, CatchUp(1, 1, digest_of(applied), ANN, base=base), 6.0)
    assert not any(isinstance(effect, Send) for effect in effects)
    assert (trainer.round_id, trainer.digest, _carry(trainer), trainer.base) == (1, digest_of(applied), None, base)


def test_a_staged_result_of_other_contributors_is_not_applied_though_its_digest_is_the_same() -> None:
    """Where nobody's model changes all results are zeros; but who decides on the next round depends on them."""
    trainer = _trainer()
    _open(trainer)
    _train(trainer, 0, 0, 0, 0)
    _say(trainer, BroadcastOrdered(1, 1, trainer.digest, 1, (BOB, ME), 3.0, MEMBERS, lineage=trainer.lineage), 5.0)
    _say(trainer, GlobalMessage(1, 3.0, MEMBERS, 1, 1), 5.1, BOB, ZEROS)
    effects = _say(trainer, CatchUp(1, 1, digest_of(ZEROS), ANN, base=("ann", "bob")), 6.0)
    assert [effect.message for effect in effects if isinstance(effect, Send)] == [ModelWanted(1)]
    assert trainer.round_id == 0


def test_a_staged_result_that_is_not_what_the_others_applied_is_not_applied() -> None:
    trainer = _trainer()
    _open(trainer)
    _train(trainer, 1, 2, 3, 4)
    _say(trainer, BroadcastOrdered(1, 1, trainer.digest, 1, (BOB, ME), 3.0, MEMBERS, lineage=trainer.lineage), 5.0)
    _say(trainer, GlobalMessage(1, 3.0, MEMBERS, 1, 1), 5.1, BOB, _vector(5, 5, 5, 5))
    _move(trainer, 1, History((), ("ann", "bob"), (Counted(ANN, 1), Counted(BOB, 1))))
    assert (trainer.digest, _carry(trainer)) == (digest_of(ELSEWHERE), [1, 2, 3, 4])


def test_a_model_of_another_lineage_than_the_agent_named_is_not_taken() -> None:
    trainer = _trainer()
    _say(trainer, CatchUp(1, 4, digest_of(ELSEWHERE), ANN, (START,)), 5.0)
    _say(trainer, ModelMessage(4, digest_of(ELSEWHERE), History((SPLIT,))), 5.1, ANN, ELSEWHERE)
    assert trainer.round_id == 0
    _say(trainer, ModelMessage(4, digest_of(ELSEWHERE), History((START,))), 5.2, ANN, ELSEWHERE)
    assert (trainer.round_id, trainer.standing.lineage) == (4, (START,))


def test_the_same_model_on_another_lineage_is_taken_over_without_fetching_it() -> None:
    trainer = _trainer()
    effects = _say(trainer, CatchUp(1, 0, trainer.digest, ANN, (START,), ("ann", "bob")), 5.0)
    assert not any(isinstance(effect, Send) for effect in effects)
    assert (trainer.standing.lineage, trainer.standing.base) == ((START,), ("ann", "bob"))


# -- forks ------------------------------------------------------------------------------------------------------------


def _forked() -> Trainer:
    """It has trained one round with the mesh and two on its own, after a cut."""
    trainer = _trainer()
    _open(trainer, (START,))
    _train(trainer, 1, 1, 1, 1)
    _close(trainer, MEMBERS, 1, 1, 1, 1)
    for number, lineage in enumerate([(START, SPLIT), (START, SPLIT)]):
        _open(trainer, lineage)
        _train(trainer, 2 + number, 0, 0, 0)
        _close(trainer, (ME,), 2 + number, 0, 0, 0)
    assert (trainer.round_id, trainer.standing.lineage) == (3, (START, SPLIT))
    return trainer


def test_rule_8_when_the_cut_heals_a_minoritys_rounds_enter_the_next_one_once() -> None:
    trainer = _forked()
    _move(trainer, 5, History((START,), ("ann", "bob"), (Counted(ANN, 5), Counted(ME, 1))))
    assert (trainer.standing.lineage, _carry(trainer)) == ((START,), [5, 0, 0, 0])
    _open(trainer)
    _train(trainer, 1, 1, 1, 1)
    assert (_held(trainer), _carry(trainer)) == ([6, 1, 1, 1], None)
    _close(trainer, MEMBERS, 0, 0, 0, 0)
    _move(trainer, 9, History((START,), ("ann", "bob"), (Counted(ME, 6),)))
    assert _carry(trainer) is None


def test_rule_8_an_open_round_of_the_fork_is_carried_too() -> None:
    trainer = _forked()
    _open(trainer)
    _train(trainer, 0, 7, 0, 0)
    _move(trainer, 5, History((START,), ("ann", "bob"), (Counted(ANN, 5), Counted(ME, 1))))
    assert _carry(trainer) == [5, 7, 0, 0]


def test_a_fork_that_turns_out_to_be_the_mesh_is_not_carried() -> None:
    trainer = _forked()
    _move(trainer, 5, History((START, SPLIT), ("ann", "me"), (Counted(ME, 3),)))
    assert (trainer.round_id, _carry(trainer)) == (5, None)


def test_a_round_number_that_another_lineage_has_too_does_not_count_this_devices_work() -> None:
    trainer = _forked()
    _move(trainer, 3, History((START,), ("ann", "bob"), (Counted(ANN, 3), Counted(ME, 1))))
    assert not trainer.standing.is_counted((START, SPLIT), 3)
    assert trainer.standing.is_counted((START,), 1)


# -- a fork that began in the middle of a round -----------------------------------------------------------------------

FORK = Fork(5, 1, "me.1.9")
BEFORE = History((START,), ("ann", "bob", "me"))
ALL_COUNTED = History((START,), ("ann", "bob", "me"), tuple(Counted(member, 6) for member in MEMBERS))
LEFT_OUT = History((START,), ("ann", "bob"), (Counted(ANN, 6), Counted(BOB, 6), Counted(ME, 1)))


def _cut_off(*, merged: bool = False) -> Trainer:
    """It has given its delta of round 6 away, [2, 0, 0, 0], when the mesh is cut in two and its half forks."""
    trainer = _trainer(5, BEFORE)
    _open(trainer)
    _train(trainer, 2, 0, 0, 0)
    if merged:
        _merge(trainer, 0, 6, 0, 0)
    _say(trainer, DeltaWanted(6, 1, 0, 20), 3.0, BOB)
    effects = _open(trainer, (START, FORK), attempt=9)
    if merged:
        assert len(_recalls(effects)) == 1
        trainer.handle(DeltaRecalled(6, _vector(2, 0, 0, 0)), 4.0)
    return trainer


BOTH_WAYS = pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged away"])


@BOTH_WAYS
def test_a_fork_begins_with_what_was_given_away_before_the_cut(merged: bool) -> None:
    """Each device brings in its own work alone, so the others' count of it stays on their side."""
    trainer = _cut_off(merged=merged)
    assert (_held(trainer), _carry(trainer)) == ([2, 0, 0, 0], None)
    _close(trainer, (ME,), 2, 0, 0, 0)
    _open(trainer)
    _train(trainer, 0, 0, 3, 0)
    assert (_held(trainer), _carry(trainer)) == ([0, 0, 3, 0], None)


@BOTH_WAYS
@pytest.mark.parametrize(("history", "carry"), [(ALL_COUNTED, None), (LEFT_OUT, [2, 0, 0, 0])], ids=["counted", "not"])
def test_when_the_cut_heals_the_counts_tell_whether_it_was_in(
    merged: bool, history: History, carry: list[float] | None
) -> None:
    for closes in (False, True):
        trainer = _cut_off(merged=merged)
        if closes:
            _close(trainer, (ANN, ME), 1, 2, 0, 0)
        _move(trainer, 6, history)
        assert _carry(trainer) == carry


@pytest.mark.parametrize(("history", "own"), [(ALL_COUNTED, 0), (LEFT_OUT, 2)], ids=["counted", "not"])
def test_of_what_a_fork_did_after_such_a_cut_each_device_brings_its_own(history: History, own: float) -> None:
    trainer = _cut_off()
    _close(trainer, (ANN, ME), 1, 2, 0, 0)  # ann's own was [0, 4, 0, 0]
    _open(trainer)
    _train(trainer, 0, 0, 3, 0)
    _close(trainer, (ME,), 0, 0, 3, 0)
    _move(trainer, 8, history)
    assert _carry(trainer) == [own, 0, 3, 0]


def test_what_the_others_did_not_count_enters_the_next_round() -> None:
    trainer = _cut_off()
    _close(trainer, (ME,), 2, 0, 0, 0)
    _move(trainer, 6, LEFT_OUT)
    _open(trainer)
    _train(trainer, 0, 0, 0, 5)
    assert (_held(trainer), _carry(trainer)) == ([2, 0, 0, 5], None)


def test_a_fork_that_is_opened_again_before_the_delta_is_recalled_waits_for_it_too() -> None:
    trainer = _trainer(5, BEFORE)
    _open(trainer)
    _train(trainer, 2, 0, 0, 0)
    _merge(trainer, 0, 6, 0, 0)
    _say(trainer, DeltaWanted(6, 1, 0, 20), 3.0, BOB)
    _open(trainer, (START, FORK), attempt=9)
    _open(trainer, (START, FORK), attempt=10)
    trainer.handle(DeltaRecalled(6, _vector(2, 0, 0, 0)), 4.0)
    assert _held(trainer) == [2, 0, 0, 0]
    _close(trainer, (ME,), 2, 0, 0, 0)
    _move(trainer, 6, ALL_COUNTED)
    assert _carry(trainer) is None


def _staged(trainer: Trainer) -> None:
    """It has the result of round 6, which is not closed."""
    _open(trainer)
    _train(trainer, 2, 0, 0, 0)
    _say(trainer, BroadcastOrdered(1, 6, trainer.digest, 1, (ME, BOB), 1.0, (ME,), lineage=trainer.lineage), 3.0)
    assert trainer.report(1, "agent", 3.0).staged is not None


def test_who_has_staged_a_result_and_has_it_no_more_does_not_decide_on_it_again() -> None:
    trainer = _trainer(5, BEFORE, Ballot())
    _staged(trainer)
    assert trainer.report(1, "agent", 3.0).votes
    _open(trainer, (START, FORK), attempt=9)
    assert trainer.report(1, "agent", 4.0).votes  # on the fork it has promised nothing
    _say(trainer, CatchUp(1, 5, trainer.digest, ANN, (START,), BEFORE.base), 5.0)
    assert trainer.standing.lineage == (START,)
    assert not trainer.report(1, "agent", 5.0).votes


def test_a_promise_that_is_dropped_is_remembered_until_it_is_given_again() -> None:
    """It has staged round 6, is sent to a later model that never comes, and is to begin round 6 afresh."""
    trainer = _trainer(5, BEFORE, Ballot())
    _staged(trainer)
    _say(trainer, CatchUp(1, 8, b"w8", ANN, (START,), BEFORE.base), 4.0)
    report = trainer.report(1, "agent", 4.0)
    assert (report.votes, report.staged) == (False, None)
    _open(trainer, attempt=9)
    assert not trainer.report(9, "agent", 5.0).votes
    order = BroadcastOrdered(9, 6, trainer.digest, 1, (ME, BOB), 1.0, (ME,), lineage=trainer.lineage)
    _say(trainer, order, 5.0)
    report = trainer.report(9, "agent", 5.0)
    assert report.staged is not None
    assert report.votes  # under the newer order, whose agent has heard of what is newer than the dropped promise


def test_what_was_trained_when_a_test_was_asked_for_is_kept_since_the_tested_model_takes_its_place() -> None:
    trainer, here = _trainer(5, BEFORE), (START, Fork(5, 2, "ann.1.10"))
    assert any(isinstance(effect, TrainLocally) for effect in _open(trainer))
    effects = _say(trainer, CatchUp(1, 5, trainer.digest, ANN, here, ("ann",)), 2.0)
    assert any(isinstance(effect, Evaluate) for effect in effects)
    assert not any(isinstance(effect, TrainLocally) for effect in _open(trainer, here, attempt=9))
    _train(trainer, 2, 0, 0, 0)
    _merge(trainer, 0, 6, 0, 0)
    assert _recalls(_close(trainer, (ANN, BOB), 0, 3, 0, 0)) == []
    assert _carry(trainer) == [2, 0, 0, 0]


def test_what_was_trained_from_another_model_is_kept_since_it_cannot_be_recalled() -> None:
    trainer = _trainer(5, BEFORE)
    _open(trainer)
    _move(trainer, 5, History((START, FORK), ("ann",)))
    assert _open(trainer, attempt=9) == []  # round 6 is being trained, from the model that was left
    _train(trainer, 2, 0, 0, 0, round_id=6)
    _merge(trainer, 0, 6, 0, 0)
    assert _recalls(_close(trainer, (ANN, BOB), 0, 3, 0, 0)) == []
    assert _carry(trainer) == [2, 0, 0, 0]


# -- back to where the others still are -------------------------------------------------------------------------------

BACK = History((START,), ("ann", "bob", "me"))


def _back_at_the_fork() -> Trainer:
    """It trained round 2, alone with a group; the others are still at w(1), and it comes back to them."""
    trainer = _trainer(1, BACK)
    _open(trainer, (START, SPLIT))
    _train(trainer, 4, 4, 4, 4)
    _close(trainer, (ME,), 4, 4, 4, 4)
    assert trainer.round_id == 2
    _move(trainer, 1, BACK, ZEROS)
    return trainer


def test_a_round_that_a_fork_has_counted_is_not_trained_a_second_time_for_the_others() -> None:
    trainer = _back_at_the_fork()
    assert _open(trainer, attempt=9) == []
    assert (_held(trainer), _carry(trainer)) == ([4, 4, 4, 4], None)
    _close(trainer, MEMBERS, 3, 3, 3, 3)
    assert _carry(trainer) is None
    assert any(isinstance(effect, TrainLocally) for effect in _open(trainer))


def test_an_attempt_that_was_left_open_is_not_entered_again_however_many_rounds_a_fork_has_had_since() -> None:
    trainer = _cut_off()
    for number in range(20):
        _train(trainer, 1, 0, 0, 0)
        _close(trainer, (ME,), 1, 0, 0, 0)
        _open(trainer, attempt=10 + number)
    assert trainer.attempt() == (26, 29)
    _move(trainer, 5, BEFORE, ZEROS)
    assert _open(trainer, attempt=1) == []
    assert trainer.attempt() == (0, 0)


@BOTH_WAYS
@pytest.mark.parametrize("again", [False, True], ids=["at once", "by another fork"])
def test_an_own_delta_is_one_value_however_often_a_round_is_opened(merged: bool, again: bool) -> None:
    """The result may be of an attempt from before the fork, which holds nothing of what the fork has added since."""
    trainer = _cut_off(merged=merged)
    _close(trainer, (ME,), 2, 0, 0, 0)
    _open(trainer)
    _train(trainer, 0, 0, 3, 0)
    _close(trainer, (ME,), 0, 0, 3, 0)
    _move(trainer, 5, BEFORE, ZEROS)
    if again:
        _open(trainer, (START, Fork(5, 2, "me.1.10")), attempt=20)
        assert (_held(trainer), _carry(trainer)) == ([2, 0, 3, 0], None)
        _say(trainer, CatchUp(1, 5, trainer.digest, ANN, (START,), BEFORE.base), 6.0)
    _open(trainer, attempt=21)
    assert (_held(trainer), _carry(trainer)) == ([2, 0, 0, 0], [0, 0, 3, 0])
    _close(trainer, MEMBERS, 7, 0, 0, 0)
    assert _carry(trainer) == [0, 0, 3, 0]


def test_what_was_not_trained_is_not_recalled_either_when_that_round_goes_on_without_it() -> None:
    trainer = _back_at_the_fork()
    _open(trainer, attempt=9)
    _merge(trainer, 1, 1, 1, 1)
    assert _recalls(_close(trainer, (ANN, BOB), 3, 3, 3, 3)) == []
    assert _carry(trainer) == [4, 4, 4, 4]


def test_nor_when_it_is_opened_afresh_after_something_was_merged() -> None:
    trainer = _back_at_the_fork()
    _open(trainer, attempt=9)
    _merge(trainer, 1, 1, 1, 1)
    assert _open(trainer, attempt=10) == []
    assert _held(trainer) == [4, 4, 4, 4]


def test_another_forks_result_staged_as_a_vote_here_would_count_work_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two starts of a mesh, at the same w; this device has gone over from one to the other when a late order comes."""
    here, there = (Fork(0, 3, "ann.1.1"),), (Fork(0, 3, "bob.1.2"),)
    result = _vector(5, 5, 5, 5)
    follow = Progress.take_place

    def close_theirs() -> Trainer:
        trainer = _trainer()
        _open(trainer, there)
        _train(trainer, 1, 2, 3, 4)
        _say(trainer, CatchUp(1, 0, trainer.digest, ANN, here, ("ann", "bob", "me")), 3.0)
        _say(trainer, BroadcastOrdered(1, 1, trainer.digest, 1, (BOB, ME), 3.0, MEMBERS, lineage=there), 4.0)
        _say(trainer, GlobalMessage(1, 3.0, MEMBERS, 1, 1), 4.1, BOB, result)
        _say(trainer, RoundClosed(1, 1, digest_of(result)), 4.2)
        return trainer

    trainer = close_theirs()
    assert (trainer.round_id, _carry(trainer)) == (0, [1, 2, 3, 4])
    monkeypatch.setattr(
        Progress, "take_place", lambda self, order, now: follow(self, replace(order, lineage=here), now)
    )
    trainer = close_theirs()
    assert (trainer.round_id, _carry(trainer)) == (1, [1, 2, 3, 4])  # which the result holds already


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
    trainer = _trainer(5, History((START,), ("ann", "bob", "me")))
    _open(trainer)
    _train(trainer, 2, 2, 2, 2)
    assert RecallDelta in map(type, _close(trainer, MEMBERS, 1, 1, 1, 1))
    trainer.handle(DeltaRecalled(6, _vector(2, 2, 2, 2)), 5.3)
    _say(trainer, RoundOpened(2, 7, trainer.digest, members, 2, trainer.lineage))
    _train(trainer, 3, 3, 3, 3)
    _move(trainer, 6, History((START, Fork(5, 1, "bob.1.9")), ("bob",)))
    assert _carry(trainer) == carry


@pytest.mark.parametrize(("small_bytes", "carry"), [(1 << 20, [2.0 + 3 + 4, 9, 9, 9]), (0, [4.0, 4, 4, 4])])
def test_own_work_since_somebody_was_there_is_remembered_if_the_model_is_small(
    monkeypatch: pytest.MonkeyPatch, small_bytes: int, carry: list[float]
) -> None:
    """Bob was cut off after round 5, and is in a fork that began there; the others have gone on for two rounds."""
    monkeypatch.setattr(model_state, "_SMALL_BYTES", small_bytes)
    trainer = _trainer(5, History((START,), ("ann", "bob", "me")))
    for round_id, members in ((6, MEMBERS), (7, (ANN, ME)), (8, (ANN, ME))):
        _say(trainer, RoundOpened(round_id, round_id, trainer.digest, members, round_id, trainer.lineage))
        _train(trainer, *[float(round_id - 4)] * 4)
        _close(trainer, (ANN, ME), 1, 1, 1, 1)
        trainer.handle(DeltaRecalled(round_id, _vector(*[float(round_id - 4)] * 4)), 5.3)
    _move(trainer, 6, History((START, Fork(5, 1, "bob.1.9")), ("bob",)))
    assert _carry(trainer) == carry
