"""What a cloud and those who learn from it say to each other."""

from __future__ import annotations

from mdl.bounds import Count, Digest, Group, PeerId, Round, SchemaHash, Text
from mdl.protocol.vocabulary import Message


class LessonWanted(Message, frozen=True):
    """A learner to the cloud (Colla, stage 2): is there anything newer than this version? 0: it has nothing yet.

    pupil: whose model it is, a device's or a whole mesh's; its members ask in its name. schema_hash, model: what the
    pupil's model is, for the cloud to compare with its own.
    """

    pupil: PeerId
    schema_hash: SchemaHash
    model: Text = ""
    version: Count = 0


class LessonCurrent(Message, frozen=True):
    """The cloud to a learner: this is the newest version there is for the pupil; 0 as long as it has nothing to teach.

    Sent as an answer, and to all who have been heard lately when a cycle ends. Version 1 is the base model; each cycle
    makes the next one. synchronous: a learner waits for a newer version before its next update.
    """

    pupil: PeerId
    version: Count
    synchronous: bool = False


class LessonMessage(Message, frozen=True):
    """The cloud's small model for the pupil's group; carries it packed. group -1: the base."""

    pupil: PeerId
    version: Count
    group: Group = -1
    synchronous: bool = False


class UpdateNamed(Message, frozen=True):
    """What names an update of a pupil (stage 3).

    digest: of its bytes. number: the pupil's count, a mesh's is the round.
    version, group: of the lesson that it is a change of; what a mesh uploads is whole, and has version 0.
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
    """The cloud: send it."""

    pupil: PeerId
    digest: Digest


class UpdateMessage(UpdateNamed, frozen=True):
    """What was offered; carries it as bytes."""


class UpdateTaken(Message, frozen=True):
    """The cloud has had this update on its disk: what it keeps of the pupil is that, or something newer."""

    pupil: PeerId
    digest: Digest


class PupilRefused(Message, frozen=True):
    """The cloud cannot use this model or update, and why. digest: of the update; empty if it is the model as such.

    pull_again: the lesson that it is a change of is too old; nothing is wrong with the learner.
    """

    pupil: PeerId
    reason: Text
    digest: Digest = b""
    pull_again: bool = False
