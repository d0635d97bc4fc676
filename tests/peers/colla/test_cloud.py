"""The cloud and its learners as machines: every step in chosen time, with losses, deaths and garbage; no sockets."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from mdl.peers.cloud.machine import CLOUD, MAX_PUPILS, CloudSettings, Learner, LearnerSettings
from mdl.peers.colla.machine import Cloud, CloudState
from mdl.protocol.cloud_messages import (
    LessonCurrent,
    LessonMessage,
    LessonWanted,
    PupilRefused,
    UpdateMessage,
    UpdateOffered,
    UpdateTaken,
    UpdateWanted,
)
from mdl.protocol.delta import Contributor, digest_of
from mdl.protocol.machine import (
    CycleTaught,
    Effect,
    Event,
    Finish,
    PauseChanged,
    Received,
    Send,
    StopRequested,
    StoreUpdate,
    StudyLesson,
    TeachCycle,
    Tick,
    TransferProgressed,
    UpdateReady,
    UpdateStored,
    WorkFailed,
)
from mdl.protocol.vocabulary import Packed

ANN, BOB, CAT = (Contributor(name, 1) for name in ("ann", "bob", "cat"))
BASE = Packed(b"base!")  # bytes are of any length
TAUGHT = CycleTaught(1, {"-1": BASE}, {}, {}, {"-1": BASE})


def _update(*numbers: int) -> Packed:
    return Packed(repr(numbers).encode())


def _cloud(settings: CloudSettings | None = None, state: CloudState | None = None) -> Cloud:
    return Cloud("schema", "lenet", settings or CloudSettings(), state or CloudState(TAUGHT), 0.0)


def _offer(pupil: str, values: Packed, number: int = 1) -> UpdateOffered:
    return UpdateOffered(pupil, "schema", number, digest_of(values), 1)


def _message(offered: UpdateOffered) -> UpdateMessage:
    return UpdateMessage(**msgspec.structs.asdict(offered))


def _said(effects: list[Effect], receiver: str) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Send) and effect.receiver == receiver]


def _take(cloud: Cloud, sender: Contributor, pupil: str, values: Packed, now: float) -> list[Effect]:
    """The pupil's update, offered, sent and stored."""
    offered = _offer(pupil, values)
    assert _said(cloud.handle(Received(sender, offered), now), sender.peer_id) == [UpdateWanted(pupil, offered.digest)]
    (store,) = cloud.handle(Received(sender, _message(offered), values), now)
    assert isinstance(store, StoreUpdate)
    return cloud.handle(UpdateStored(sender, store.update), now)


# -- the cloud --------------------------------------------------------------------------------------------------------


def test_a_new_cloud_first_learns_from_its_own_data_and_tells_who_asks_that_it_has_nothing_yet() -> None:
    cloud = _cloud(state=CloudState())
    assert cloud.handle(Tick(), 0.0) == [TeachCycle(1)]
    wanted = Received(ANN, LessonWanted("ann", "schema"))
    assert cloud.handle(wanted, 1.0) == [Send("ann", LessonCurrent("ann", 0))]
    assert cloud.handle(TAUGHT, 9.0) == [Send("ann", LessonCurrent("ann", 1))]
    assert cloud.handle(wanted, 9.5) == [Send("ann", LessonMessage("ann", 1), BASE)]
    assert cloud.handle(Received(ANN, LessonWanted("ann", "schema", version=1)), 9.6) == [
        Send("ann", LessonCurrent("ann", 1))
    ]


def test_a_pupil_gets_the_lesson_of_its_group_and_a_new_one_the_base() -> None:
    taught = CycleTaught(2, {"-1": BASE, "0": Packed(b"0"), "1": Packed(b"1")}, {"ann": 1, "bob": 0}, {})
    cloud = _cloud(state=CloudState(taught))
    for who, group in ((ANN, 1), (BOB, 0), (CAT, -1)):
        (send,) = cloud.handle(Received(who, LessonWanted(who.peer_id, "schema")), 1.0)
        assert isinstance(send, Send)
        assert send.message == LessonMessage(who.peer_id, 2, group)
        assert send.values is taught.lessons[str(group)]


def test_3_1_a_device_by_itself_gets_the_large_model_of_its_group_too() -> None:
    taught = CycleTaught(2, {"-1": BASE, "0": Packed(b"0")}, {"ann": 0}, {}, {"-1": BASE, "0": Packed(b"pair")})
    (send,) = _cloud(state=CloudState(taught)).handle(
        Received(ANN, LessonWanted("ann", "schema", with_teacher=True)), 1.0
    )
    assert isinstance(send, Send)
    assert send.values == b"pair"
    for studies in (0, 1):
        (asked,) = _said(_learner(studies=studies).handle(Tick(), 0.0), CLOUD)
        assert asked == LessonWanted("ann", "schema", "lenet", 0, with_teacher=studies > 0)


def test_an_update_is_taken_when_it_is_on_the_disk_and_not_before() -> None:
    cloud, values, offered = _cloud(), _update(1, 2), _offer("ann", _update(1, 2))
    assert cloud.handle(Received(ANN, offered), 1.0) == [Send("ann", UpdateWanted("ann", offered.digest))]
    effects = cloud.handle(Received(ANN, _message(offered), values), 1.1)
    assert effects == [StoreUpdate(ANN, _message(offered), values)]
    assert not _said(cloud.handle(Received(ANN, offered), 1.2), "ann") or cloud.stored == {}
    assert cloud.handle(UpdateStored(ANN, _message(offered)), 1.3) == [Send("ann", UpdateTaken("ann", offered.digest))]
    assert cloud.pending() == ["ann"]
    # Its word was lost: the learner offers again, and hears it again.
    assert cloud.handle(Received(ANN, offered), 2.0) == [Send("ann", UpdateTaken("ann", offered.digest))]


def test_of_a_meshs_members_one_sends_the_model_and_all_hear_that_it_is_taken() -> None:
    cloud, values = _cloud(CloudSettings(updates=9)), _update(3)
    offered = _offer("home", values, number=4)
    assert _said(cloud.handle(Received(ANN, offered), 1.0), "ann") == [UpdateWanted("home", offered.digest)]
    assert cloud.handle(Received(BOB, offered), 1.1) == []
    cloud.handle(Received(ANN, _message(offered), values), 1.2)
    cloud.handle(UpdateStored(ANN, _message(offered)), 1.3)
    assert cloud.handle(Received(BOB, offered), 1.4) == [Send("bob", UpdateTaken("home", offered.digest))]


def test_when_the_member_that_was_asked_dies_another_one_is_asked() -> None:
    cloud, offered = _cloud(), _offer("home", _update(3))
    cloud.handle(Received(ANN, offered), 1.0)
    assert cloud.handle(Received(BOB, offered), 15.9) == []
    assert cloud.handle(Received(BOB, offered), 16.1) == [Send("bob", UpdateWanted("home", offered.digest))]


def test_no_more_updates_are_on_their_way_than_a_node_takes_in() -> None:
    cloud = _cloud()
    for who in (ANN, BOB):
        assert cloud.handle(Received(who, _offer(who.peer_id, _update(1))), 1.0)
    assert cloud.handle(Received(CAT, _offer("cat", _update(1))), 1.0) == []
    cloud.handle(UpdateStored(ANN, _message(_offer("ann", _update(1)))), 2.0)
    assert cloud.handle(Received(CAT, _offer("cat", _update(1))), 2.1)


def test_offers_alone_hold_no_place_and_whoever_waits_longest_is_next() -> None:
    """Two learners that offered again and again, ever new digests, once held both places for good."""
    cloud, number, turns = _cloud(), 0, []
    for tenth in range(1, 400):
        for who in (ANN, BOB):
            number += 1
            cloud.handle(Received(who, _offer(who.peer_id, _update(number))), tenth / 10)
        if tenth % 10 == 0:
            turns += cloud.handle(Received(CAT, _offer("cat", _update(1))), tenth / 10)
    assert turns
    assert turns[0] == Send("cat", UpdateWanted("cat", _offer("cat", _update(1)).digest))


def test_a_learner_has_one_place_whatever_pupils_it_speaks_for() -> None:
    cloud = _cloud()
    wanted = [cloud.handle(Received(ANN, _offer(pupil, _update(1))), 1.0) for pupil in ("one", "two", "three")]
    assert [len(effects) for effects in wanted] == [1, 0, 0]
    assert cloud.handle(Received(BOB, _offer("bob", _update(1))), 1.1)


def test_only_new_bytes_keep_a_place() -> None:
    cloud, now = _cloud(CloudSettings(updates=9)), 1.0
    cloud.handle(Received(ANN, _offer("home", _update(1))), now)
    for size in (10, 20, 30):  # a slow link
        now += 14.0
        cloud.handle(TransferProgressed(ANN, size, 1000), now)
        assert cloud.handle(Received(BOB, _offer("home", _update(1))), now) == []
    for _ in range(2):  # something else, begun again and again
        now += 7.6
        cloud.handle(TransferProgressed(ANN, 30, 1000), now)
    assert cloud.handle(Received(BOB, _offer("home", _update(1))), now)


def test_members_of_one_mesh_do_not_keep_another_from_a_free_place() -> None:
    cloud = _cloud()
    for number in range(5):
        cloud.handle(Received(Contributor(f"of home {number}", 1), _offer("home", _update(1))), 1.0 + number / 10)
    assert cloud.handle(Received(CAT, _offer("cat", _update(1))), 2.0)


def test_an_update_that_nobody_asked_for_is_not_stored() -> None:
    cloud, offered = _cloud(), _offer("ann", _update(1))
    assert cloud.handle(Received(ANN, _message(offered), _update(1)), 1.0) == []
    cloud.handle(Received(ANN, offered), 1.0)
    assert cloud.handle(Received(BOB, _message(offered), _update(1)), 1.0) == []


def test_an_update_that_is_sent_again_and_again_is_stored_once() -> None:
    """66 of them once waited for the disk, which ended the cloud."""
    cloud, offered = _cloud(CloudSettings(updates=9)), _offer("ann", _update(1))
    cloud.handle(Received(ANN, offered), 1.0)
    came = Received(ANN, _message(offered), _update(1))
    assert len(cloud.handle(came, 1.1)) == 1
    for again in range(100):
        assert cloud.handle(came, 2.0 + again) == []
        assert cloud.handle(Received(ANN, _offer("ann", _update(2))), 2.5 + again) == [], "nor is another one asked for"
    assert _said(cloud.handle(UpdateStored(ANN, _message(offered)), 200.0), "ann") == [
        UpdateTaken("ann", offered.digest)
    ]
    _take(cloud, ANN, "ann", _update(2), 201.0)


def test_an_update_that_the_disk_has_refused_is_asked_for_again_and_only_that_one() -> None:
    cloud, offers = _cloud(CloudSettings(updates=9)), {who: _offer(who.peer_id, _update(1)) for who in (ANN, BOB)}
    for who, offered in offers.items():
        cloud.handle(Received(who, offered), 1.0)
    for who in (BOB, ANN):  # the order in which they come counts
        assert len(cloud.handle(Received(who, _message(offers[who]), _update(1)), 2.0)) == 1
    cloud.handle(WorkFailed("StoreUpdate", "disk full"), 3.0)
    assert cloud.handle(Received(ANN, offers[ANN]), 3.1) == []
    assert _said(cloud.handle(Received(BOB, offers[BOB]), 3.1), "bob") == [UpdateWanted("bob", offers[BOB].digest)]


def test_another_task_is_refused_by_what_it_is() -> None:
    cloud = _cloud()
    (refused,) = _said(cloud.handle(Received(ANN, LessonWanted("ann", "other", "cnn-lstm 6x64")), 1.0), "ann")
    assert "cnn-lstm 6x64" in refused.reason
    assert "lenet" in refused.reason
    assert list(cloud.refusals) == ["ann"]
    offered = msgspec.structs.replace(_offer("ann", _update(1)), schema_hash="other")
    assert isinstance(_said(cloud.handle(Received(ANN, offered), 1.0), "ann")[0], PupilRefused)
    assert cloud.stored == {}


def test_garbage_is_refused_named_and_forgotten_when_something_better_comes() -> None:
    cloud, offered = _cloud(), _offer("ann", _update(1))
    cloud.handle(Received(ANN, offered), 1.0)
    cloud.handle(Received(ANN, _message(offered), _update(1)), 1.1)
    effects = cloud.handle(UpdateStored(ANN, _message(offered), "values holds NaN"), 1.2)
    assert _said(effects, "ann") == [PupilRefused("ann", "values holds NaN", offered.digest)]
    assert cloud.refusals == {"ann": "values holds NaN"}
    assert cloud.pending() == []
    _take(cloud, ANN, "ann", _update(2), 2.0)
    assert not cloud.refusals


@pytest.mark.parametrize("name", ["../etc", "", "a/b", ".hidden", "x" * 65])
def test_a_name_that_could_leave_the_folder_is_refused(name: str) -> None:
    (refused,) = _said(_cloud().handle(Received(ANN, LessonWanted(name, "schema")), 1.0), "ann")
    assert "no name" in refused.reason


def test_a_learner_that_is_refused_in_ever_new_words_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    cloud = _cloud()
    for number in range(5000):
        cloud.handle(Received(ANN, LessonWanted(f"a pupil of no name {number}", "schema")), number / 1000)
    assert 3 <= len(caplog.messages) <= 4
    cloud.handle(Tick(), 20.0)
    assert "and 4,997 more in the last" in caplog.messages[-1]


def test_there_are_only_so_many_pupils() -> None:
    stored = {f"pupil-{number}": b"d" for number in range(MAX_PUPILS)}
    cloud = _cloud(CloudSettings(updates=9, patience_s=1e9), CloudState(TAUGHT, stored))
    (refused,) = _said(cloud.handle(Received(ANN, _offer("ann", _update(1))), 1.0), "ann")
    assert isinstance(refused, PupilRefused)
    assert cloud.handle(Received(ANN, _offer("pupil-3", _update(1))), 1.0)


def test_a_cycle_begins_with_enough_updates_or_after_some_patience() -> None:
    cloud = _cloud(CloudSettings(updates=2, patience_s=30.0))
    assert not any(isinstance(effect, TeachCycle) for effect in _take(cloud, ANN, "ann", _update(1), 1.0))
    assert cloud.deadline() == 31.0
    assert cloud.handle(Tick(), 30.9) == []
    assert TeachCycle(2) in _take(cloud, BOB, "bob", _update(2), 30.95)
    assert cloud.deadline() is None
    learned = {"ann": digest_of(_update(1)), "bob": digest_of(_update(2))}
    cloud.handle(CycleTaught(2, {"-1": BASE}, {}, learned), 40.0)
    assert cloud.pending() == []
    _take(cloud, ANN, "ann", _update(3), 50.0)
    assert cloud.handle(Tick(), 80.0) == [TeachCycle(3)]


def test_what_comes_during_a_cycle_is_in_the_next_one() -> None:
    cloud = _cloud(CloudSettings(updates=1))
    assert TeachCycle(2) in _take(cloud, ANN, "ann", _update(1), 1.0)
    assert not any(isinstance(effect, TeachCycle) for effect in _take(cloud, ANN, "ann", _update(2), 2.0))
    effects = cloud.handle(CycleTaught(2, {"-1": BASE}, {}, {"ann": digest_of(_update(1))}), 3.0)
    assert TeachCycle(3) in effects


def test_a_synchronous_cycle_waits_for_all_who_are_there() -> None:
    cloud = _cloud(CloudSettings(updates=1, patience_s=100.0, synchronous=True))
    for who in (ANN, BOB):
        (send,) = cloud.handle(Received(who, LessonWanted(who.peer_id, "schema")), 1.0)
        assert isinstance(send, Send)
        assert isinstance(send.message, LessonMessage)
        assert send.message.synchronous
    assert not any(isinstance(effect, TeachCycle) for effect in _take(cloud, ANN, "ann", _update(1), 2.0))
    assert TeachCycle(2) in _take(cloud, BOB, "bob", _update(2), 20.0)


def test_a_cloud_that_comes_back_goes_on_with_the_updates_it_had_stored() -> None:
    state = CloudState(CycleTaught(3, {"-1": BASE}, {}, {"ann": b"old"}), {"ann": b"new", "bob": b"b"})
    cloud = _cloud(CloudSettings(updates=2), state)
    assert cloud.handle(Tick(), 0.0) == [TeachCycle(4)]
    offered = UpdateOffered("ann", "schema", 7, b"new", 3)
    assert _said(cloud.handle(Received(ANN, offered), 1.0), "ann") == [UpdateTaken("ann", b"new")]


def test_a_cycle_that_failed_is_done_again_later_and_a_first_one_that_failed_ends_the_cloud() -> None:
    cloud = _cloud(CloudSettings(updates=1))
    _take(cloud, ANN, "ann", _update(1), 1.0)
    assert cloud.handle(WorkFailed("TeachCycle", "disk full"), 2.0) == []
    assert cloud.deadline() == 62.0
    assert cloud.handle(Tick(), 62.0) == [TeachCycle(2)]
    fresh = _cloud(state=CloudState())
    fresh.handle(Tick(), 0.0)
    assert fresh.handle(WorkFailed("TeachCycle", "no data"), 1.0)[0] == Finish("no data", 4)


# -- a learner --------------------------------------------------------------------------------------------------------


def _learner(**settings: Any) -> Learner:
    return Learner("ann", "schema", "lenet", LearnerSettings(**settings), 0.0)


def _heard(message: Any, values: Packed | None = None) -> Received:
    return Received(Contributor(CLOUD, 1), message, values)


def test_a_learner_asks_until_it_is_answered_and_then_now_and_then() -> None:
    learner = _learner(retry_s=1.0, poll_s=5.0)
    asked = [now / 10 for now in range(30) if _said(learner.handle(Tick(), now / 10), CLOUD)]
    assert asked == [0.0, 1.0, 2.0]
    lesson = LessonMessage("ann", 1)
    assert learner.handle(_heard(lesson, BASE), 3.0) == [StudyLesson(1, lesson, BASE)]
    asked = [3 + now / 10 for now in range(111) if _said(learner.handle(Tick(), 3 + now / 10), CLOUD)]
    assert asked == [8.0, 13.0]


def test_a_lesson_that_comes_twice_is_studied_once_and_a_newer_one_again() -> None:
    learner = _learner()
    for version, studies in ((1, 1), (1, 0), (2, 1), (1, 0)):
        effects = learner.handle(_heard(LessonMessage("ann", version), BASE), float(version))
        assert sum(isinstance(effect, StudyLesson) for effect in effects) == studies
    assert learner.version == 2


def test_a_cloud_that_has_lost_its_memory_teaches_from_its_first_version_on() -> None:
    learner = _learner()
    learner.handle(_heard(LessonMessage("ann", 7), BASE), 1.0)
    (wanted,) = _said(learner.handle(_heard(LessonCurrent("ann", 1)), 2.0), CLOUD)
    assert wanted.version == 0
    assert any(isinstance(e, StudyLesson) for e in learner.handle(_heard(LessonMessage("ann", 1), BASE), 2.5))


def test_an_update_is_offered_until_the_cloud_has_it() -> None:
    learner, values = _learner(), _update(1, 2)
    offered = UpdateOffered("ann", "schema", 4, digest_of(values))
    assert _said(learner.handle(UpdateReady(4, values), 1.0), CLOUD) == [offered]
    assert _said(learner.handle(Tick(), 1.5), CLOUD) == []
    assert _said(learner.handle(Tick(), 2.0), CLOUD) == [offered]
    (send,) = learner.handle(_heard(UpdateWanted("ann", offered.digest)), 2.1)
    assert isinstance(send, Send)
    assert send.message == _message(offered)
    assert send.values is values
    assert _said(learner.handle(Tick(), 3.1), CLOUD) == [offered]
    assert not any(
        isinstance(said, UpdateOffered)
        for said in _said(learner.handle(_heard(UpdateTaken("ann", offered.digest)), 3.2), CLOUD)
    )
    assert learner.taken == 1


def test_a_newer_update_replaces_one_that_was_not_taken_yet() -> None:
    learner = _learner()
    learner.handle(UpdateReady(2, _update(1)), 1.0)
    learner.handle(UpdateReady(4, _update(2)), 2.0)
    learner.handle(_heard(UpdateTaken("ann", digest_of(_update(1)))), 2.1)
    (offered,) = _said(learner.handle(Tick(), 3.1), CLOUD)
    assert (offered.number, offered.digest) == (4, digest_of(_update(2)))


def test_a_device_by_itself_studies_offers_waits_for_news_and_ends_with_its_last_update() -> None:
    learner = _learner(studies=2)
    learner.handle(Tick(), 0.0)
    for version in (1, 2):
        lesson = LessonMessage("ann", version)
        assert StudyLesson(version, lesson, BASE) in learner.handle(_heard(lesson, BASE), 2.0 * version)
        assert not any(
            isinstance(effect, StudyLesson)
            for effect in learner.handle(_heard(LessonMessage("ann", 9), BASE), 2.0 * version)
        )
        values = _update(version)
        learner.handle(UpdateReady(version, values, version), 2.0 * version + 1)
        ended = learner.handle(_heard(UpdateTaken("ann", digest_of(values))), 2.0 * version + 1.1)
        assert (Finish() in ended) == (version == 2)


def test_a_device_by_itself_goes_on_with_the_same_lesson_unless_the_cloud_is_synchronous() -> None:
    for synchronous in (False, True):
        learner = _learner(studies=2, patience_s=60.0, poll_s=5.0)
        learner.handle(_heard(LessonMessage("ann", 1, synchronous=synchronous), BASE), 1.0)
        learner.handle(UpdateReady(1, _update(1), 1), 2.0)
        learner.handle(_heard(UpdateTaken("ann", digest_of(_update(1)))), 3.0)
        asked = [said.version for now in range(4, 70) for said in _said(learner.handle(Tick(), float(now)), CLOUD)]
        assert (0 in asked) != synchronous
        again = learner.handle(_heard(LessonMessage("ann", 1), BASE), 70.0)
        assert any(isinstance(effect, StudyLesson) for effect in again) != synchronous


def test_a_refused_device_ends_and_a_refused_mesh_trains_on() -> None:
    refused = _heard(PupilRefused("ann", "another task"))
    assert _learner(studies=1).handle(refused, 1.0) == [Finish("the cloud refused: another task", 2)]
    member = _learner()
    assert not any(isinstance(effect, Finish) for effect in member.handle(refused, 1.0))
    assert member.refused == "another task"


def test_an_update_of_a_lesson_that_is_too_old_makes_a_learner_pull_again() -> None:
    learner = _learner(studies=1)
    learner.handle(_heard(LessonMessage("ann", 1), BASE), 1.0)
    learner.handle(UpdateReady(1, _update(1), 1), 2.0)
    old = PupilRefused("ann", "version 1 is not kept any more", digest_of(_update(1)), pull_again=True)
    assert _said(learner.handle(_heard(old), 3.0), CLOUD) == [LessonWanted("ann", "schema", "lenet", 0, True)]


def test_a_paused_learner_says_nothing_and_goes_on_where_it_was() -> None:
    learner = Learner("ann", "schema", "lenet", LearnerSettings(studies=2, gives_up_s=20.0), 0.0)
    assert learner.handle(PauseChanged("on battery"), 0.0) == []
    assert learner.deadline() is None
    assert learner.handle(Tick(), 3600.0) == []
    (asked,) = learner.handle(PauseChanged(), 36_000.0)
    assert isinstance(asked, Send)
    assert isinstance(asked.message, LessonWanted)
    (study,) = learner.handle(Received(Contributor(CLOUD, 1), LessonMessage("ann", 1), BASE), 36_001.0)
    assert isinstance(study, StudyLesson)
    # What was being learned when the pause came is offered after it.
    learner.handle(PauseChanged("in use"), 36_002.0)
    assert learner.handle(UpdateReady(1, _update(1, 2), 1), 36_003.0) == []
    assert learner.deadline() is None
    (offered,) = learner.handle(PauseChanged(), 40_000.0)
    assert isinstance(offered, Send)
    assert isinstance(offered.message, UpdateOffered)


def test_a_paused_learner_ends_at_once_and_whoever_goes_on_gives_up_as_late_as_a_new_one() -> None:
    learner = Learner("ann", "schema", "lenet", LearnerSettings(studies=1, gives_up_s=20.0), 0.0)
    learner.handle(PauseChanged("in use"), 1.0)
    learner.handle(PauseChanged(), 100.0)
    assert not any(isinstance(effect, Finish) for effect in learner.handle(Tick(), 119.0))
    assert learner.handle(Tick(), 120.0) == [Finish("no cloud answered for 20 s", 3)]
    learner = Learner("ann", "schema", "lenet", LearnerSettings(studies=1), 0.0)
    learner.handle(PauseChanged("in use"), 1.0)
    assert learner.handle(StopRequested(), 2.0) == [Finish(exit_code=130)]


def test_nobody_at_the_address_is_said_after_a_while() -> None:
    learner = _learner(studies=1, gives_up_s=20.0)
    learner.handle(Tick(), 0.0)
    assert learner.deadline() <= 20.0
    (finish,) = learner.handle(Tick(), 20.0)
    assert finish == Finish("no cloud answered for 20 s", 3)
    assert learner.handle(StopRequested(), 21.0) == [Finish(exit_code=130)]


# -- both, with everything that can go wrong between them -------------------------------------------------------------


class Star:
    """A cloud with a disk, and learners; messages are lost, doubled and late, the cloud dies at any step."""

    def __init__(self, seed: int, learners: int, studies: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.disk: dict[str, tuple[bytes, Packed]] = {}
        self.taught: CycleTaught | None = None
        self.used: dict[str, set[bytes]] = {}
        self.made: dict[str, list[bytes]] = {}
        self.told: set[tuple[str, bytes]] = set()
        self.on_the_way: list[tuple[float, str, Event]] = []
        self.cloud: Cloud | None = None
        self.names = [f"dev-{number}" for number in range(learners)]
        settings = LearnerSettings(studies=studies, patience_s=20.0)
        self.learners = {name: Learner(name, "schema", "m", settings, 0.0) for name in self.names}
        self.ended: set[str] = set()
        self.start_cloud()

    def start_cloud(self) -> None:
        stored = {name: digest for name, (digest, _) in self.disk.items()}
        state = CloudState(self.taught, stored)
        self.cloud = Cloud("schema", "m", CloudSettings(updates=2, patience_s=10.0), state, self.now)
        self.step(CLOUD, Tick())

    def run(self, until_s: float, faults_until_s: float) -> None:
        while self.now < until_s and len(self.ended) < len(self.learners):
            self.now = round(self.now + 0.1, 1)
            faulty = self.now < faults_until_s
            if faulty and self.chance.random() < 0.02:
                self.cloud = None
                self.on_the_way = [item for item in self.on_the_way if item[1] != CLOUD]
            elif self.cloud is None and (not faulty or self.chance.random() < 0.2):
                self.start_cloud()
            due = [item for item in self.on_the_way if item[0] <= self.now]
            self.on_the_way = [item for item in self.on_the_way if item[0] > self.now]
            for _, receiver, event in due:
                if not isinstance(event, Received) or not faulty or self.chance.random() > 0.3:
                    self.step(receiver, event)
            for name in [CLOUD, *self.names]:
                self.step(name, Tick())

    def step(self, name: str, event: Event) -> None:
        machine = self.cloud if name == CLOUD else self.learners[name]
        if machine is None or name in self.ended:
            return
        for effect in machine.handle(event, self.now):
            self.carry_out(name, effect)

    def carry_out(self, name: str, effect: Effect) -> None:
        late = lambda: self.now + self.chance.random()  # noqa: E731
        match effect:
            case Send(receiver=receiver, message=message, values=values):
                if isinstance(message, UpdateTaken):
                    self.told.add((message.pupil, message.digest))
                for _ in range(2 if self.chance.random() < 0.1 else 1):
                    received = Received(Contributor(name, 1), message, values)
                    self.on_the_way.append((late(), receiver, received))
            case StudyLesson(number=number, lesson=lesson):
                values = _update(self.names.index(name), lesson.version, number)
                self.made.setdefault(name, []).append(digest_of(values))
                self.on_the_way.append((late(), name, UpdateReady(number, values, lesson.version, lesson.group)))
            case StoreUpdate(sender=sender, update=update, packed=values):
                assert digest_of(values) == update.digest
                self.disk[update.pupil] = update.digest, values
                self.on_the_way.append((late(), CLOUD, UpdateStored(sender, update)))
            case TeachCycle(version=version):
                learned = {pupil: digest for pupil, (digest, _) in self.disk.items()}
                self.on_the_way.append((self.now + 3, CLOUD, self.finish_cycle(version, learned)))
            case Finish(problem=problem):
                assert not problem
                self.ended.add(name)

    def finish_cycle(self, version: int, learned: dict[str, bytes]) -> CycleTaught:
        """Written when it arrives, which it does not if the cloud dies before."""
        lessons = {"-1": BASE, "0": BASE}
        return CycleTaught(version, lessons, dict.fromkeys(learned, 0), learned, lessons)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_lost_every_learner_ends_and_what_the_cloud_said_it_has_it_has(seed: int) -> None:
    star = Star(seed, learners=4, studies=3)
    plain_step = star.step

    def step(name: str, event: Event) -> None:
        if name == CLOUD and isinstance(event, CycleTaught) and star.cloud is not None:
            star.taught = event
        plain_step(name, event)

    star.step = step  # type: ignore[method-assign]
    star.run(until_s=600.0, faults_until_s=60.0)
    assert star.ended == set(star.names)
    for name in star.names:
        last = star.made[name][-1]
        assert (name, last) in star.told
        assert star.disk[name][0] == last


def test_a_learner_of_a_synchronous_cloud_waits_for_it_without_being_due() -> None:
    learner = Learner("me", "s", "m", LearnerSettings(studies=2, patience_s=60.0), 0.0)
    cloud = Contributor("cloud", 1)
    lesson = LessonMessage("me", 1, -1, True)
    learner.handle(Received(cloud, lesson, BASE), 1.0)
    learner.handle(UpdateReady(1, _update(1), 1, -1), 2.0)
    learner.handle(Received(cloud, UpdateTaken("me", digest_of(_update(1)))), 3.0)
    for now in (70.0, 100.0):
        learner.handle(Tick(), now)
        assert (learner.deadline() or 0.0) > now
