"""The messages between a cloud and its learners."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from mdl.bounds import Count, Digest, Group, PeerId, Round, SchemaHash, Text
from mdl.protocol.vocabulary import Message

# A vector of 160 numbers, so that the whole message stays below 1 KB.
MAX_VECTOR_BYTES = 656


class LessonWanted(Message, frozen=True):
    """A learner to the cloud (Colla, stage 2): is there anything newer than this version?

    pupil: the model's owner, a device or a whole mesh; its members ask in its name.
    schema_hash: of the pupil's model, for the cloud to compare with its own.
    model: the same in one line for people.
    version: of the lesson that the learner has; 0: none.
    with_teacher: the large model too, of which a device by itself learns.
    """

    pupil: PeerId
    schema_hash: SchemaHash
    model: Text = ""
    version: Count = 0
    with_teacher: bool = False


class LessonCurrent(Message, frozen=True):
    """The cloud to a learner: an answer, and said to all that have been heard lately when a cycle ends.

    pupil: as in LessonWanted.
    version: the newest there is for the pupil: 1 is the base model, each cycle makes the next; 0: nothing to teach yet.
    synchronous: a learner waits for a newer version before its next update.
    """

    pupil: PeerId
    version: Count
    synchronous: bool = False


class LessonMessage(Message, frozen=True):
    """The cloud to a learner: the small model of the pupil's group, or that and the large one; carries it packed.

    pupil: as in LessonWanted.
    version: of the lesson.
    group: of the pupil; -1: the base.
    synchronous: as in LessonCurrent.
    """

    pupil: PeerId
    version: Count
    group: Group = -1
    synchronous: bool = False


class UpdateNamed(Message, frozen=True):
    """The name of an update of a pupil (stage 3).

    pupil: the owner of the changed model.
    schema_hash: of that model.
    number: the pupil's own count; a mesh's is the round.
    digest: of the update's bytes.
    version: of the lesson that it is a change of; 0: it is a whole model, as a mesh's are.
    group: of that lesson.
    """

    pupil: PeerId
    schema_hash: SchemaHash
    number: Round
    digest: Digest
    version: Count = 0
    group: Group = -1


class UpdateOffered(UpdateNamed, frozen=True):
    """A learner to the cloud: the pupil's model has changed; asked again until it is taken or refused."""


class UpdateWanted(Message, frozen=True):
    """The cloud to a learner: send it.

    pupil: as it was offered.
    digest: as it was offered.
    """

    pupil: PeerId
    digest: Digest


class UpdateMessage(UpdateNamed, frozen=True):
    """A learner to the cloud: the update that was offered; carries it as bytes."""


class VectorMessage(UpdateNamed, frozen=True):
    """A device to a cloud of recommenders (DCCL, Algorithm 1): the vector it learned, said again until it is taken.

    values: the vector and what it generates patches by, packed (`mdl.peers.dccl.model.lesson`).
    """

    values: Annotated[bytes, Meta(max_length=MAX_VECTOR_BYTES)] = b""


class UpdateTaken(Message, frozen=True):
    """The cloud to a learner: it has had this update on its disk, and keeps that, or something newer of the pupil.

    pupil: as it was offered.
    digest: as it was offered.
    """

    pupil: PeerId
    digest: Digest


class PupilRefused(Message, frozen=True):
    """The cloud to a learner: it cannot use this model or update.

    pupil: as it was named.
    reason: one line for the learner's user.
    digest: of the update; empty: it is the model as such.
    pull_again: the lesson that it is a change of is too old; nothing is wrong with the learner.
    """

    pupil: PeerId
    reason: Text
    digest: Digest = b""
    pull_again: bool = False
