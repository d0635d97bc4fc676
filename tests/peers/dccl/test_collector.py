"""The cloud of recommenders as a machine: vectors, rounds, refusals; no sockets, no files."""

from __future__ import annotations

from typing import Any

import pytest

from mdl.peers.cloud.machine import CLOUD, CloudSettings, Learner, LearnerSettings
from mdl.peers.dccl.machine import TASK, Collector
from mdl.protocol.cloud_messages import (
    LessonCurrent,
    LessonMessage,
    LessonWanted,
    PupilRefused,
    UpdateTaken,
    VectorMessage,
)
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    CycleTaught,
    Effect,
    Event,
    Finish,
    KeepVectors,
    Received,
    Send,
    StopRequested,
    StudyLesson,
    TeachCycle,
    Tick,
    UpdateReady,
    VectorJudged,
    VectorsKept,
    WorkFailed,
)
from mdl.protocol.vocabulary import Packed

ANN, BOB, CAT = (Contributor(name, 1) for name in ("ann", "bob", "cat"))
LESSON = Packed(b"lesson 1")
FIRST = CycleTaught(1, {"-1": LESSON}, {}, {})


def _collector(updates: int = 2, taught: CycleTaught | None = FIRST) -> Collector:
    return Collector(CloudSettings(updates=updates, patience_s=30.0), taught, 0, 0.0)


def _vector(sender: Contributor, number: int = 1, version: int = 1) -> Received:
    name = sender.peer_id
    return Received(sender, VectorMessage(name, TASK, number, f"{name}{number}".encode(), version, values=b"16 bytes"))


def _kept(effects: list[Effect], fresh: int, **problems: str) -> VectorsKept:
    (effect,) = [effect for effect in effects if isinstance(effect, KeepVectors)]
    return VectorsKept(
        tuple(VectorJudged(each, problems.get(each.message.pupil, "")) for each in effect.vectors), fresh
    )


def _said(effects: list[Effect]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def test_the_first_lesson_needs_no_vectors_and_then_everybody_who_asks_gets_it() -> None:
    collector = _collector(taught=None)
    wanted = Received(ANN, LessonWanted("ann", TASK))
    effects = collector.handle(wanted, 0.0)
    assert effects == [Send("ann", LessonCurrent("ann", 0)), TeachCycle(1)]
    assert _said(collector.handle(FIRST, 5.0)) == [LessonCurrent("ann", 1)]
    assert collector.handle(wanted, 6.0) == [Send("ann", LessonMessage("ann", 1), LESSON)]
    greedy = Received(ANN, LessonWanted("ann", TASK, with_teacher=True))  # there is none here
    assert collector.handle(greedy, 6.5) == [Send("ann", LessonMessage("ann", 1), LESSON)]
    known = Received(ANN, LessonWanted("ann", TASK, version=1))
    assert _said(collector.handle(known, 7.0)) == [LessonCurrent("ann", 1)]


def test_a_vector_is_answered_when_it_is_on_the_disk() -> None:
    collector = _collector()
    effects = collector.handle(_vector(ANN), 1.0)
    assert not _said(effects)
    assert _said(collector.handle(_kept(effects, 1), 2.0)) == [UpdateTaken("ann", b"ann1")]


def test_what_comes_during_a_write_goes_into_the_next_one_each_device_once() -> None:
    collector = _collector(updates=9)
    first = collector.handle(_vector(ANN), 1.0)
    for each in (_vector(BOB), _vector(CAT), _vector(BOB), _vector(BOB, number=2)):
        assert collector.handle(each, 1.1) == []
    second = collector.handle(_kept(first, 1), 2.0)
    (keep,) = [effect for effect in second if isinstance(effect, KeepVectors)]
    assert [(each.message.pupil, each.message.number) for each in keep.vectors] == [("bob", 2), ("cat", 1)]


def test_enough_vectors_start_a_round_or_patience_does() -> None:
    collector = _collector(updates=2)
    collector.handle(_kept(collector.handle(_vector(ANN), 1.0), 1), 1.0)
    assert collector.deadline() == 31.0
    assert collector.handle(Tick(), 30.9) == []
    assert collector.handle(Tick(), 31.0) == [TeachCycle(2)]
    collector = _collector(updates=2)
    collector.handle(_kept(collector.handle(_vector(ANN), 1.0), 1), 1.0)
    effects = collector.handle(_kept(collector.handle(_vector(BOB), 1.0), 2), 2.0)
    assert effects[-1] == TeachCycle(2)


def test_while_a_round_is_learned_no_vector_is_answered_and_then_it_is_of_an_older_lesson() -> None:
    collector = _collector(updates=1)
    effects = collector.handle(_kept(collector.handle(_vector(ANN), 1.0), 1), 1.0)
    assert TeachCycle(2) in effects
    assert collector.handle(_vector(BOB), 2.0) == []
    effects = collector.handle(CycleTaught(2, {"-1": LESSON}, {}, {}), 9.0)
    assert {type(effect) for effect in effects} == {Send, KeepVectors}
    stale = VectorsKept(
        tuple(VectorJudged(each, "old", True) for each in effects[-1].vectors),  # type: ignore[union-attr]
        0,
    )
    assert _said(collector.handle(stale, 9.1)) == [PupilRefused("bob", "old", b"bob1", True)]
    assert not collector.refusals


def test_a_refused_vector_is_remembered_by_name_until_a_good_one_comes() -> None:
    collector = _collector(updates=9)
    effects = collector.handle(_kept(collector.handle(_vector(ANN), 1.0), 0, ann="the vector holds NaN"), 1.0)
    assert _said(effects) == [PupilRefused("ann", "the vector holds NaN", b"ann1")]
    assert collector.refusals == {"ann": "the vector holds NaN"}
    collector.handle(_kept(collector.handle(_vector(ANN, 2), 2.0), 1), 2.0)
    assert not collector.refusals
    assert collector.taken == 1


def test_another_task_is_refused_and_a_vector_of_another_cloud_pulls_again() -> None:
    collector = _collector()
    (refused,) = _said(collector.handle(Received(ANN, LessonWanted("ann", "lenet")), 1.0))
    assert refused.reason.startswith("another task")
    (refused,) = _said(collector.handle(_vector(BOB, version=7), 1.0))
    assert refused.pull_again


def test_a_write_that_failed_is_answered_to_nobody_and_they_say_it_again() -> None:
    collector = _collector()
    collector.handle(_vector(ANN), 1.0)
    assert _said(collector.handle(WorkFailed("KeepVectors", "disk full"), 2.0)) == []
    assert any(isinstance(effect, KeepVectors) for effect in collector.handle(_vector(ANN), 3.0))


def test_a_round_that_failed_is_tried_again_later_and_a_first_lesson_that_failed_ends() -> None:
    collector = _collector(updates=1)
    collector.handle(_kept(collector.handle(_vector(ANN), 1.0), 1), 1.0)
    assert collector.handle(WorkFailed("TeachCycle", "no"), 2.0) == []
    assert collector.handle(Tick(), 61.9) == []
    assert collector.handle(Tick(), 62.0) == [TeachCycle(2)]
    beginner = _collector(taught=None)
    beginner.handle(Tick(), 0.0)
    assert beginner.handle(WorkFailed("TeachCycle", "no data"), 2.0) == [Finish("no data", 4)]
    assert beginner.handle(StopRequested(), 2.0) == [Finish()]


@pytest.mark.parametrize("loses", [0, 3])
def test_a_device_says_its_vector_until_it_is_taken(loses: int) -> None:
    """With a learner at the other end, of whose first messages some are lost."""
    settings = LearnerSettings(studies=1, sends_vectors=True)
    learner, collector = Learner("ann", TASK, "", settings, 0.0, number=10), _collector()
    now, lost, finished = 0.0, 0, False
    to_learner: list[Event] = []
    for _ in range(60):
        now += 0.5
        effects = [effect for event in [*to_learner, Tick()] for effect in learner.handle(event, now)]
        to_learner = []
        for effect in effects:
            if isinstance(effect, StudyLesson):
                to_learner.append(UpdateReady(effect.number, Packed(b"vector"), effect.lesson.version))
            elif isinstance(effect, Send) and lost < loses:
                lost += 1
            elif isinstance(effect, Send):
                answers = collector.handle(Received(ANN, effect.message), now)
                if any(isinstance(answer, KeepVectors) for answer in answers):
                    answers += collector.handle(_kept(answers, 1), now)
                to_learner += [
                    Received(Contributor(CLOUD, 1), answer.message, answer.values)
                    for answer in answers
                    if isinstance(answer, Send)
                ]
            finished |= effect == Finish()
    assert finished
    assert (learner.taken, collector.taken) == (1, 1)
