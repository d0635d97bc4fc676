"""A round's own delta is one value on a lineage, however often it is opened, and work that it lacks comes later."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mdl.peers.roles.trainer import model_state
from mdl.peers.roles.trainer.model_state import TrainedWork
from mdl.peers.roles.trainer.trainer import Trainer, TrainerSettings
from mdl.protocol.delta import digest_of
from mdl.protocol.machine import DeltaRecalled, PauseChanged, TrainLocally
from mdl.protocol.round_messages import BroadcastOrdered, CatchUp, GlobalMessage, ModelMessage, RoundClosed
from mdl.protocol.vector_work import Outer
from mdl.protocol.vocabulary import Counted, Fork, History
from tests.peers.roles.at_once import TrainerAtOnce, as_sent, name_of, sum_of
from tests.peers.roles.trainer.own_work import (
    ANN,
    BEFORE,
    BOB,
    ELSEWHERE,
    FORK,
    ME,
    MEMBERS,
    ROOM,
    START,
    ZEROS,
    a_trainer,
    carry_of,
    close_round,
    cut_off,
    held_by,
    merge,
    move_on,
    open_round,
    overlapping,
    recalls_in,
    say,
    train,
    vector,
)

# A fork that began before w(5), and has a w(5) of its own.
THERE = History((START, Fork(4, 2, "ann.1.7")), ("ann", "me"))


def _is_training(trainer: Trainer, attempt: int) -> bool:
    return any(isinstance(effect, TrainLocally) for effect in open_round(trainer, attempt=attempt))


def _back_from_a_fork() -> Trainer:
    """It gave [2, 0, 0, 0] to round 6, was sent to another fork, trains for its round 6, and is back at w(5)."""
    trainer = a_trainer(5, BEFORE)
    open_round(trainer)
    train(trainer, 2, 0, 0, 0)
    move_on(trainer, 5, THERE)
    assert carry_of(trainer) == [2, 0, 0, 0]
    assert _is_training(trainer, 8)
    move_on(trainer, 5, BEFORE, ZEROS)
    return trainer


def test_late_training_of_another_forks_round_is_no_part_of_this_rounds_result() -> None:
    trainer = _back_from_a_fork()
    here, result = (trainer.digest, trainer.lineage), sum_of((7, 0, 0, 0), MEMBERS, room=ROOM)
    say(trainer, BroadcastOrdered(9, 6, here[0], 1, (BOB, ME), 3.0, MEMBERS, lineage=here[1], room=ROOM), 5.0)
    train(trainer, 0, 0, 0, 5, round_id=6)
    say(trainer, GlobalMessage(6, 3.0, MEMBERS, 9, 1), 5.1, BOB, as_sent(result))
    say(trainer, RoundClosed(9, 6, name_of(result)), 5.2)
    assert trainer.round_id == 6
    assert carry_of(trainer) == [0, 0, 0, 5]


def test_nor_when_the_round_is_opened_anew() -> None:
    trainer = _back_from_a_fork()
    open_round(trainer, attempt=20)
    train(trainer, 0, 0, 0, 5, round_id=6)
    close_round(trainer, MEMBERS, 7, 0, 0, 0)  # of the first attempt
    assert carry_of(trainer) == [0, 0, 0, 5]


def test_nor_while_the_model_after_it_is_fetched() -> None:
    trainer = _back_from_a_fork()
    open_round(trainer, attempt=20)
    counted = History((START,), ("ann", "bob", "me"), tuple(Counted(member, 6) for member in MEMBERS))
    say(trainer, CatchUp(1, 6, digest_of(ELSEWHERE), ANN, (START,), counted.base), 5.0)
    train(trainer, 0, 0, 0, 5, round_id=6)
    say(trainer, ModelMessage(6, digest_of(ELSEWHERE), counted), 6.1, ANN, ELSEWHERE)
    assert carry_of(trainer) == [0, 0, 0, 5]


def test_what_was_trained_from_another_model_is_all_of_it() -> None:
    trainer = a_trainer(5, BEFORE)
    open_round(trainer)
    move_on(trainer, 5, History((START, FORK), ("ann",)))
    assert not _is_training(trainer, 9)
    train(trainer, 2, 0, 0, 0, round_id=6)
    merge(trainer, 0, 6, 0, 0)
    assert _is_training(trainer, 10)
    train(trainer, 0, 0, 0, 5, round_id=6)
    close_round(trainer, MEMBERS, 7, 0, 0, 0)  # of the attempt before
    assert carry_of(trainer) == [0, 0, 0, 5]


def test_a_fork_that_is_opened_again_gets_what_it_had() -> None:
    trainer = a_trainer(5, BEFORE)
    open_round(trainer, (START, FORK), attempt=9)
    train(trainer, 2, 0, 0, 0)
    close_round(trainer, (ME,), 2, 0, 0, 0)
    open_round(trainer)
    train(trainer, 0, 0, 3, 0)
    close_round(trainer, (ME,), 0, 0, 3, 0)
    move_on(trainer, 5, BEFORE, ZEROS)
    open_round(trainer, attempt=20)
    assert held_by(trainer) == [2, 0, 3, 0]
    open_round(trainer, (START, FORK), attempt=30)
    close_round(trainer, (ME,), 2, 0, 0, 0)
    lineage = (START, FORK, Fork(6, 2, "ann.1.40"))
    say(trainer, CatchUp(1, 6, trainer.digest, ANN, lineage, ("ann", "me")), 6.0)
    assert (trainer.lineage, carry_of(trainer)) == (lineage, [0, 0, 3, 0])


def test_what_is_new_is_no_part_of_a_round_that_has_counted_some_segments_before() -> None:
    trainer = a_trainer(5, BEFORE)
    open_round(trainer)
    train(trainer, 2, 2, 0, 0)
    partial = History((START,), ("ann", "bob"), (Counted(ANN, 6), Counted(BOB, 6), Counted(ME, 6, 1, b"\x02")))
    move_on(trainer, 6, partial)
    assert carry_of(trainer) == [0, 2, 0, 0]
    move_on(trainer, 4, History((START, Fork(4, 1, "x")), ("ann",)))
    open_round(trainer, attempt=50)
    train(trainer, 5, 0, 0, 0)
    close_round(trainer, (ANN,), 1, 0, 0, 0)
    assert carry_of(trainer) == [7, 2, 0, 0]
    move_on(trainer, 5, BEFORE, ZEROS)
    open_round(trainer, attempt=60)
    move_on(trainer, 6, partial)
    assert carry_of(trainer) == [5, 2, 0, 0]


def test_nor_of_the_first_round_of_a_sum_that_is_still_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_state, "_SMALL_BYTES", 0)
    trainer = a_trainer(5, BEFORE)
    for number in range(4):
        open_round(trainer, (START, FORK), attempt=10 + number)
        train(trainer, 2, 0, 0, 0)
        close_round(trainer, (ME, ANN), 1, 0, 0, 0)
        trainer.handle(DeltaRecalled(6 + number, vector(2, 0, 0, 0)), 5.3)
    move_on(trainer, 5, History((START, Fork(4, 1, "x")), ("ann",)))
    open_round(trainer, attempt=50)
    train(trainer, 0, 5, 0, 0)
    close_round(trainer, (ANN,), 1, 0, 0, 0)
    trainer.handle(DeltaRecalled(6, vector(0, 5, 0, 0)), 5.3)
    assert carry_of(trainer) == [8, 5, 0, 0]
    move_on(trainer, 5, History((START, FORK), ("ann", "me")), ZEROS)
    open_round(trainer, attempt=60)
    move_on(trainer, 6, History((START, FORK), ("ann", "me"), (Counted(ME, 6), Counted(ANN, 6))))
    assert sum(work.values[1] for work in trainer.model_state.uncounted) == 5


@pytest.mark.parametrize("build", [lambda: a_trainer(5, BEFORE), overlapping], ids=["by itself", "overlapping"])
def test_what_was_rounded_off_comes_with_work_that_a_round_has_left_out(build: Callable[[], Trainer]) -> None:
    trainer = build()
    trainer.model_state.add(TrainedWork(vector(0, 0, 0, 0.5), rounded_in=(trainer.lineage, trainer.round_id)))
    open_round(trainer)
    train(trainer, 2, 0, 0, 0)
    assert held_by(trainer) == [2, 0, 0, 0.5]
    close_round(trainer, (ANN, BOB), 7, 0, 0, 0)
    assert carry_of(trainer) == [2, 0, 0, 0.5]


def test_an_attempt_left_open_is_not_entered_again_though_each_round_since_was_opened_twice() -> None:
    trainer = cut_off()
    for number in range(9):
        train(trainer, 1, 0, 0, 0)
        close_round(trainer, (ME,), 1, 0, 0, 0)
        open_round(trainer, attempt=10 + 2 * number)
        open_round(trainer, attempt=11 + 2 * number)
    move_on(trainer, 5, BEFORE, ZEROS)
    assert open_round(trainer, attempt=1) == []
    assert trainer.attempt() == (0, 0)


# -- a pause in which w becomes another vector of the same values -----------------------------------------------------


def _recalled(trainer: Trainer, work: TrainLocally) -> None:
    """What the device answers that only knows what it trained from this very vector (`Device`, `Member`)."""
    merge(trainer, 0, 6, 0, 0)
    for recall in recalls_in(close_round(trainer, (ANN, BOB), 0, 3, 0, 0)):
        same = recall.parameters is work.parameters
        trainer.handle(DeltaRecalled(6, vector(2, 0, 0, 0) if same else None), 5.3)


def _begin_and_pause(trainer: Trainer) -> TrainLocally:
    (work,) = (effect for effect in open_round(trainer) if isinstance(effect, TrainLocally))
    trainer.handle(PauseChanged("in use"), 1.5)  # a loop of one's own is not cut off by it
    return work


def test_a_lineage_of_another_name_in_a_pause_loses_nothing() -> None:
    outer, here = Outer(1.0, 0.9), (START, Fork(5, 2, "ann.1.10"))
    trainer = TrainerAtOnce(ME, outer.begin(ZEROS), "schema", "lenet", TrainerSettings(outer=outer), 5, BEFORE)
    work = _begin_and_pause(trainer)
    say(trainer, CatchUp(1, 5, trainer.digest, ANN, here, ("ann",)), 2.0)
    trainer.handle(PauseChanged(""), 2.1)
    open_round(trainer, attempt=9)
    train(trainer, 2, 0, 0, 0)
    _recalled(trainer, work)
    assert carry_of(trainer) == [2, 0, 0, 0]


def test_nor_does_a_model_that_is_fetched_and_the_same() -> None:
    trainer = a_trainer(5, BEFORE)
    work = _begin_and_pause(trainer)
    move_on(trainer, 5, THERE, ZEROS.copy())
    trainer.handle(PauseChanged(""), 2.1)
    open_round(trainer, attempt=9)
    train(trainer, 2, 0, 0, 0)
    _recalled(trainer, work)
    assert carry_of(trainer) == [2, 0, 0, 0]
