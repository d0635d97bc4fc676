"""The machine vocabulary: a role takes one event and the time, changes only itself, and returns effects.

Two drivers run the same machines: `transport.runtime` over ZeroMQ and `sim.mesh.driver` in virtual time. Slow work
(training, evaluation, disk) is an effect; its result comes back as an event, so that a report never waits for a
training step.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import msgspec

from mdl.protocol.bulk import Bulk, Packed
from mdl.protocol.cloud_messages import LessonMessage, UpdateMessage
from mdl.protocol.counts import Evaluation
from mdl.protocol.delta import Contributor, ModelDelta, Vector
from mdl.protocol.messages import Said
from mdl.protocol.status_messages import RoundSummary
from mdl.protocol.vocabulary import Ballot, History, PeerInfo, ResourceState, TrainingReport


class Tick(msgspec.Struct, frozen=True):
    """The machine's deadline has come."""


class Received(msgspec.Struct, frozen=True):
    """A checked message. values: what a carrier message announced, owned by the machine from now on: float32 (P,), or
    packed bytes if it is one of PACKED. Those of one of SEGMENTS are read-only: they lie in the memory of the message.

    digest: of the values, if the message is one whose values are compared with a digest (DIGESTED); else empty.
    """

    sender: Contributor
    message: Said
    values: Bulk | None = None
    digest: bytes = b""


class PeerFound(msgspec.Struct, frozen=True):
    """Discovery introduced a peer of this mesh; whether it lives, only its messages tell."""

    info: PeerInfo


class NameTaken(msgspec.Struct, frozen=True):
    """Another live process of this mesh has our peer id: its data directory is a copy of ours, or ours of its.

    other: by its incarnation; the higher one was started later. address: HOST:PORT, "" if it is not known.
    """

    other: Contributor
    address: str = ""


class TransferProgressed(msgspec.Struct, frozen=True):
    """Part of a carrier message from `sender` has arrived; comes at most about once a second."""

    sender: Contributor
    received_bytes: int
    size_bytes: int


class ResourcesSampled(msgspec.Struct, frozen=True):
    resources: ResourceState
    sent_bytes: int = 0


class LocalDeltaReady(msgspec.Struct, frozen=True):
    """Local training is done: w(t) - w_i, theta and this device as the only contributor."""

    round_id: int
    delta: ModelDelta
    training: TrainingReport


class DeltaRecalled(msgspec.Struct, frozen=True):
    """The own delta of a round once more, float32 (P,); None if it is not known any longer."""

    round_id: int
    values: Vector | None


class Evaluated(msgspec.Struct, frozen=True):
    round_id: int
    evaluation: Evaluation


class WorkFailed(msgspec.Struct, frozen=True):
    """An effect could not be carried out; `problem` is one line for the user."""

    effect: str
    problem: str


class UpdateReady(msgspec.Struct, frozen=True):
    """This device has an update for the cloud. The other fields as in UpdateOffered."""

    number: int
    update: Packed
    version: int = 0
    group: int = -1


class UpdateStored(msgspec.Struct, frozen=True):
    """The cloud has an update on its disk, or has refused it: `problem` is then one line."""

    sender: Contributor
    update: UpdateMessage
    problem: str = ""
    pull_again: bool = False


class CycleTaught(msgspec.Struct, frozen=True):
    """The cloud has learned from its pupils, and what it can teach now is on its disk.

    lessons: small models by the group's number in decimal, "-1" is the base. pairs: the same, each with its large one.
    groups: of the pupils. learned: the digest of each pupil's update that is in it.
    """

    version: int
    lessons: dict[str, Packed]
    groups: dict[str, int]
    learned: dict[str, bytes]
    pairs: dict[str, Packed] = {}


class PauseChanged(msgspec.Struct, frozen=True):
    """Whether this device may train has changed (`--when`). reason: what forbids it, in words; "" when it may again."""

    reason: str = ""


class TrainingPaused(msgspec.Struct, frozen=True):
    """Local training was given up before its end, since the device may not train now: nothing of it is kept.

    round_id: of the TrainLocally that it answers.
    """

    round_id: int


class StopRequested(msgspec.Struct, frozen=True):
    """The user wants to stop: finish cleanly."""


class PolicyLearned(msgspec.Struct, frozen=True):
    """A better policy is there: rounds that are opened from now on are ordered by it."""


Event: TypeAlias = (
    Tick
    | Received
    | PeerFound
    | NameTaken
    | TransferProgressed
    | ResourcesSampled
    | LocalDeltaReady
    | DeltaRecalled
    | Evaluated
    | WorkFailed
    | PolicyLearned
    | UpdateReady
    | UpdateStored
    | CycleTaught
    | PauseChanged
    | TrainingPaused
    | StopRequested
)


class Send(msgspec.Struct, frozen=True):
    """Best effort: may be lost or come twice.

    values: with a carrier or a segment only; nobody changes them afterwards.
    """

    receiver: str
    message: Said
    values: Bulk | None = None


class TrainLocally(msgspec.Struct, frozen=True):
    """Train from `parameters` = w(round_id - 1), float32 (P,); answers LocalDeltaReady. planned_rounds: 0 if open."""

    round_id: int
    parameters: Vector
    planned_rounds: int = 0


class RecallDelta(msgspec.Struct, frozen=True):
    """What local training of round_id gave, from `parameters` = w(round_id - 1), once more; answers DeltaRecalled.

    Merging needs the memory of the own delta; the trained model still has it.
    """

    round_id: int
    parameters: Vector


class Evaluate(msgspec.Struct, frozen=True):
    """Test `parameters` = w(round_id) on this device's share of the test windows; answers Evaluated."""

    round_id: int
    parameters: Vector


class SaveModel(msgspec.Struct, frozen=True):
    """Write `parameters` = w(round_id) and how it came about to the file cache."""

    round_id: int
    parameters: Vector
    digest: bytes
    history: History = History()


class SaveBallot(msgspec.Struct, frozen=True):
    """Write what this device has promised to the disk, before any message of the same event is sent."""

    ballot: Ballot


class KeepDelta(msgspec.Struct, frozen=True):
    """Write a delta of this round beside the results (`--verify`). name: "own" or "global"."""

    round_id: int
    name: str
    delta: ModelDelta


class RecordRound(msgspec.Struct, frozen=True):
    """A round is over: append its line to metrics.jsonl."""

    summary: RoundSummary


class StudyLesson(msgspec.Struct, frozen=True):
    """A learner has the cloud's model: learn from it. A device by itself answers UpdateReady with this number."""

    number: int
    lesson: LessonMessage
    model: Packed


class StoreUpdate(msgspec.Struct, frozen=True):
    """The cloud has received an update: check it and keep it; answers UpdateStored. packed: the update itself."""

    sender: Contributor
    update: UpdateMessage
    packed: Packed


class TeachCycle(msgspec.Struct, frozen=True):
    """The cloud: make this version of what it teaches, from the updates on its disk; 1 from its own data alone.

    Answers CycleTaught.
    """

    version: int


class Finish(msgspec.Struct, frozen=True):
    """This machine is done; the driver lets queued work and messages out, then stops.

    problem: one line for the user, empty if all is well. exit_code: as in the errors, 2 if the user's input is wrong.
    """

    problem: str = ""
    exit_code: int = 0


Effect: TypeAlias = (
    Send
    | TrainLocally
    | RecallDelta
    | Evaluate
    | SaveModel
    | SaveBallot
    | KeepDelta
    | RecordRound
    | StudyLesson
    | StoreUpdate
    | TeachCycle
    | Finish
)


class Machine(Protocol):
    """A role. `handle` never sleeps, sends, reads a clock or draws global random numbers; `now` is in seconds."""

    def handle(self, event: Event, now: float) -> list[Effect]: ...

    def deadline(self) -> float | None: ...
