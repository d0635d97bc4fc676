"""Events and effects of the cloud and of its learners (`mdl.protocol.machine` has all the others)."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from mdl.protocol.bulk import Packed
from mdl.protocol.cloud_messages import LessonMessage, UpdateMessage, VectorMessage
from mdl.protocol.delta import Contributor


class UpdateReady(msgspec.Struct, frozen=True):
    """This device has an update for the cloud.

    number: of the StudyLesson that it answers.
    update: the small model's, packed.
    version: as in UpdateOffered.
    group: as in UpdateOffered.
    """

    number: int
    update: Packed
    version: int = 0
    group: int = -1


class UpdateStored(msgspec.Struct, frozen=True):
    """The cloud has an update on its disk, or has refused it.

    sender: the device that it is of.
    update: the message that carried it.
    problem: why it was refused, in one line; "": it is kept.
    pull_again: the device is to fetch the present lesson before it sends another.
    """

    sender: Contributor
    update: UpdateMessage
    problem: str = ""
    pull_again: bool = False


class CycleTaught(msgspec.Struct, frozen=True):
    """The cloud has learned from its pupils, and its new lessons are on its disk.

    version: of these lessons.
    lessons: small models by the group's number in decimal, "-1" is the base.
    groups: pupil -> the number of its group.
    learned: pupil -> the digest of its update that is in it.
    pairs: as lessons, each with its large model.
    """

    version: int
    lessons: dict[str, Packed]
    groups: dict[str, int]
    learned: dict[str, bytes]
    pairs: dict[str, Packed] = {}


class StudyLesson(msgspec.Struct, frozen=True):
    """A learner has the cloud's model: learn from it. A device by itself answers UpdateReady.

    number: comes back in UpdateReady.
    lesson: the message that carried the model.
    model: packed.
    """

    number: int
    lesson: LessonMessage
    model: Packed


class StoreUpdate(msgspec.Struct, frozen=True):
    """The cloud has received an update: check it and keep it; answers UpdateStored.

    sender: the device that it is of.
    update: the message that carried it.
    packed: the update itself.
    """

    sender: Contributor
    update: UpdateMessage
    packed: Packed


class VectorReceived(msgspec.Struct, frozen=True):
    """One vector that came to a cloud of recommenders.

    sender: the device that it is of.
    message: with the vector.
    """

    sender: Contributor
    message: VectorMessage


class KeepVectors(msgspec.Struct, frozen=True):
    """A cloud of recommenders: check these vectors and keep them, all with one write; answers VectorsKept.

    vectors: at most one a device.
    """

    vectors: tuple[VectorReceived, ...]


class VectorJudged(msgspec.Struct, frozen=True):
    """The outcome for a vector.

    received: as it came.
    problem: why it was refused, in one line; "": it is kept.
    pull_again: the device is to fetch the present lesson before it sends another.
    """

    received: VectorReceived
    problem: str = ""
    pull_again: bool = False


class VectorsKept(msgspec.Struct, frozen=True):
    """Vectors are on the disk, or refused.

    judged: each vector of the KeepVectors that it answers.
    fresh: vectors on the disk that no version has learned from yet.
    """

    judged: tuple[VectorJudged, ...]
    fresh: int


class TeachCycle(msgspec.Struct, frozen=True):
    """The cloud: make the next version of its lessons, from the updates on its disk; answers CycleTaught.

    version: the number of that; 1: from its own data alone.
    """

    version: int


CloudEffect: TypeAlias = StudyLesson | StoreUpdate | KeepVectors | TeachCycle
CloudEvent: TypeAlias = UpdateReady | UpdateStored | CycleTaught | VectorsKept
