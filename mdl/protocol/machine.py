"""The machine vocabulary: a role takes one event and the time, changes only itself, and returns effects.

Two drivers run the same machines: `mdl.transport.runtime` over ZeroMQ and `mdl.sim.mesh.driver` in virtual time. Slow
work (training, evaluation, disk) is an effect; its result comes back as an event, so that a report never waits for a
training step. Work on whole vectors stands in `mdl.protocol.vector_work`. Here the work of clouds and their learners
comes first, then that of devices that share windows, then all the rest.
"""

from __future__ import annotations

from typing import Annotated, Protocol, TypeAlias

import msgspec

from mdl.bounds import Checksum, PeerId, Room, Seconds, Text, Theta
from mdl.protocol.checksum import checksums_by_piece
from mdl.protocol.cloud_messages import LessonMessage, UpdateMessage, VectorMessage
from mdl.protocol.counts import Evaluation
from mdl.protocol.delta import Contributor, ModelDelta, PartialSum
from mdl.protocol.grid import Vector
from mdl.protocol.messages import Said
from mdl.protocol.sharing_messages import Offer, WindowsOffered
from mdl.protocol.status_messages import RoundSummary
from mdl.protocol.vector_work import Held, VectorWork, VectorWorkDone, hold_own
from mdl.protocol.vocabulary import Ballot, Bulk, History, Packed, PeerInfo, ResourceState, TrainingReport


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


class CutWindows(msgspec.Struct, frozen=True):
    """The giver: divide the data, write each share down, answer WindowsCut.

    offers: each with the key of the device that asked, 32 bytes.
    """

    offers: tuple[tuple[bytes, Offer], ...]


class WindowsCut(msgspec.Struct, frozen=True):
    """The shares are on the disk.

    parcels: each with the key of the device that it is for; a share without windows is not among them.
    """

    parcels: tuple[tuple[bytes, WindowsOffered], ...]


class ReadPart(msgspec.Struct, frozen=True):
    """The giver: read one part of a parcel, answer PartRead.

    receiver: the peer that wants it.
    sharing_id: of the parcel.
    part: counted from 0.
    """

    receiver: str
    sharing_id: bytes
    part: int


class PartRead(msgspec.Struct, frozen=True):
    """One part of a parcel is there.

    receiver: as in ReadPart.
    sharing_id: as in ReadPart.
    part: as in ReadPart.
    content: its bytes.
    """

    receiver: str
    sharing_id: bytes
    part: int
    content: Packed


class ForgetShare(msgspec.Struct, frozen=True):
    """The giver: a taker has deleted its windows; nothing is left to be told.

    sharing_id: of that.
    """

    sharing_id: bytes


class StorePart(msgspec.Struct, frozen=True):
    """The taker: keep a part; with the last one check the whole. Answers PartStored.

    offered: the parcel.
    part: counted from 0; they come in order.
    content: its bytes.
    """

    offered: WindowsOffered
    part: int
    content: Packed


class PartStored(msgspec.Struct, frozen=True):
    """A part is on the disk.

    sharing_id: of its parcel.
    part: as in StorePart.
    is_whole: all of the parcel is there, and is what was announced.
    """

    sharing_id: bytes
    part: int
    is_whole: bool


class DeleteShared(msgspec.Struct, frozen=True):
    """The taker: delete the windows that it was given. Answers SharedDeleted.

    reason: why, for the user.
    """

    reason: str


class SharedDeleted(msgspec.Struct, frozen=True):
    """The windows are deleted, and so is what was fetched so far."""


SharingEffect: TypeAlias = CutWindows | ReadPart | ForgetShare | StorePart | DeleteShared
SharingEvent: TypeAlias = WindowsCut | PartRead | PartStored | SharedDeleted


# The bound holds for a story that somebody else has made, too: so many zeros are made of it.
MAX_VECTORS = 64
Vectors: TypeAlias = Annotated[tuple[Vector, ...], msgspec.Meta(max_length=MAX_VECTORS)]


class Tick(msgspec.Struct, frozen=True):
    """The machine's deadline has come."""


class Received(msgspec.Struct, frozen=True):
    """A message that was checked.

    sender: the process that said it, as its connection has shown.
    message: its content.
    values: announced by a carrier message, owned by the machine from now on: float32 (P,), or packed bytes if it is
        one of PACKED. Those of one of SEGMENTS are read-only: they lie in the memory of the message.
    digest: of the values, if messages of this kind are compared with one (DIGESTED): they are finite then; else empty.
    checksum: of the values, if they are (a part of) a sum that came as integers (SUMMED).
    """

    sender: Contributor
    message: Said
    values: Bulk | None = None
    digest: bytes = b""
    checksum: Checksum = 0


class PeerFound(msgspec.Struct, frozen=True):
    """Discovery introduced a peer of this mesh; only its messages tell whether it lives.

    info: its identity, and its address.
    """

    info: PeerInfo


class PeerRevoked(msgspec.Struct, frozen=True):
    """A device is not in the mesh any more: nothing that it says comes, nothing goes to it.

    peer_id: of the device; this node's own if it is out itself.
    reason: why, in words.
    """

    peer_id: PeerId
    reason: Text = ""


class NameTaken(msgspec.Struct, frozen=True):
    """Another live process of this mesh has our peer id: its data directory is a copy of ours, or ours of its.

    other: by its incarnation; the higher one was started later.
    address: HOST:PORT, "" if it is not known.
    """

    other: Contributor
    address: str = ""


class TransferProgressed(msgspec.Struct, frozen=True):
    """Part of a carrier message has arrived; comes at most about once a second.

    sender: of the message.
    received_bytes: of its values, so far.
    size_bytes: of all its values.
    """

    sender: Contributor
    received_bytes: int
    size_bytes: int


class ResourcesSampled(msgspec.Struct, frozen=True):
    """The device has looked at itself.

    resources: its resources, and their use.
    sent_bytes: over all connections since the process started.
    ways_s: peer id -> the quickest round trip of a small word lately, in seconds, as far as it is known.
    bugs: messages that met a bug in this process.
    unheard: peer ids that are not heard for a while, since messages of theirs met a bug.
    """

    resources: ResourceState
    sent_bytes: int = 0
    ways_s: dict[PeerId, Seconds] = {}
    bugs: int = 0
    unheard: tuple[PeerId, ...] = ()


class LocalDeltaReady(msgspec.Struct, frozen=True):
    """Local training is done.

    round_id: of the TrainLocally that it answers.
    delta: w(t) - w_i, theta and this device as the only contributor.
    training: the report on it.
    held: the delta and the earlier work of the TrainLocally, on the grid of the round; None: nobody has rounded it.
    """

    round_id: int
    delta: ModelDelta
    training: TrainingReport
    held: Held | None = None


class DeltaRecalled(msgspec.Struct, frozen=True):
    """The own delta of a round once more.

    round_id: of the RecallDelta that it answers.
    values: float32 (P,); None if it is not known any longer.
    held: the same on the grid of the round, if the RecallDelta asked for that.
    """

    round_id: int
    values: Vector | None
    held: Held | None = None


class Evaluated(msgspec.Struct, frozen=True):
    """A model was tested on this device's share of the test windows.

    round_id: of the Evaluate that it answers.
    evaluation: the result of the test.
    """

    round_id: int
    evaluation: Evaluation


class WorkFailed(msgspec.Struct, frozen=True):
    """An effect could not be carried out.

    effect: the name of its kind.
    problem: one line for the user.
    """

    effect: str
    problem: str


class HeldUp(msgspec.Struct, frozen=True):
    """The driver's loop could neither hear nor say anything for so long: its own work took the time.

    seconds: the time.
    disk_s: the part of it in which the loop waited for its disk.
    """

    seconds: Seconds
    disk_s: Seconds


class PauseChanged(msgspec.Struct, frozen=True):
    """This device may train no more, or again (`--when`).

    reason: the obstacle, in words; "" when it may again.
    """

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
    | PeerRevoked
    | NameTaken
    | TransferProgressed
    | ResourcesSampled
    | LocalDeltaReady
    | DeltaRecalled
    | Evaluated
    | VectorWorkDone
    | WorkFailed
    | HeldUp
    | PolicyLearned
    | CloudEvent
    | SharingEvent
    | PauseChanged
    | TrainingPaused
    | StopRequested
)


class Send(msgspec.Struct, frozen=True):
    """Send a message, best effort: it may be lost or come twice.

    receiver: the peer id.
    message: its content.
    values: with a carrier or a segment only; nobody changes them afterwards.
    """

    receiver: str
    message: Said
    values: Bulk | None = None


class TrainLocally(msgspec.Struct, frozen=True):
    """Train for a round; answers LocalDeltaReady.

    round_id: t + 1, the round that it is for.
    parameters: w(t), float32 (P,).
    planned_rounds: the run's last round; 0: open.
    ahead: the delta of the round before, float32 (P,), if it goes on from there and w(t) does not hold that yet.
    earlier: own work that is likely to come in with the delta, float32 (P,) each.
    room: of the round's grid, to which the delta is rounded; None: it is not known yet.
    """

    round_id: int
    parameters: Vector
    planned_rounds: int = 0
    ahead: Vector | None = None
    earlier: Vectors = ()
    room: Room | None = None


class HeldAs(msgspec.Struct, frozen=True):
    """The form in which a recalled own delta is held on the round's grid.

    theta: its weight.
    me: its device.
    room: of the grid.
    """

    theta: Theta
    me: Contributor
    room: Room


class RecallDelta(msgspec.Struct, frozen=True):
    """Give the delta of a local training once more; answers DeltaRecalled.

    Merging needs the memory of the own delta; the trained model still has it.

    round_id: t + 1, the round that was trained for.
    parameters: w(t) that it began at, float32 (P,).
    in_place: nobody needs them any more: the own delta may take their memory.
    held_as: the weight, the device and the room with which it is to be held on the round's grid; None: it is not.
    """

    round_id: int
    parameters: Vector
    in_place: bool = False
    held_as: HeldAs | None = None


class Evaluate(msgspec.Struct, frozen=True):
    """Test a model on this device's share of the test windows; answers Evaluated.

    round_id: t.
    parameters: w(t), float32 (P,).
    is_awaited: the run goes on, or ends, only when the answer is there; else it may be made beside the next training.
    """

    round_id: int
    parameters: Vector
    is_awaited: bool = False


class SaveModel(msgspec.Struct, frozen=True):
    """Write a model and its history to the file cache.

    round_id: t.
    parameters: w(t), float32 (P,).
    digest: of w(t), and of the momentum behind it.
    history: the forks on the way to w(t), and the devices with work in it.
    momentum: of the outer optimizer, float32 (P,); None if it has none.
    link_mb_s: speed of this device's link, in MB/s; 0: not known.
    """

    round_id: int
    parameters: Vector
    digest: bytes
    history: History = History()
    momentum: Vector | None = None
    link_mb_s: float = 0.0


class SaveBallot(msgspec.Struct, frozen=True):
    """Write the promises of this device to the disk, before any message of the same event is sent.

    ballot: all of them; replaces the one written before.
    """

    ballot: Ballot


class KeepDelta(msgspec.Struct, frozen=True):
    """Write a delta beside the results (`--verify`).

    round_id: the round that it is of.
    name: "own" or "global".
    delta: the sum of one device or of all, with its theta and contributors.
    """

    round_id: int
    name: str
    delta: PartialSum


class RecordRound(msgspec.Struct, frozen=True):
    """A round is over: append its line to metrics.jsonl.

    summary: that line.
    has_led: this device led the round; else its agent has told it.
    """

    summary: RoundSummary
    has_led: bool = True


class Finish(msgspec.Struct, frozen=True):
    """This machine is done; the driver lets queued work and messages out, then stops.

    problem: one line for the user, empty if all is well.
    exit_code: as in the errors, 2 if the user's input is wrong.
    """

    problem: str = ""
    exit_code: int = 0


Effect: TypeAlias = (
    Send
    | TrainLocally
    | RecallDelta
    | VectorWork
    | Evaluate
    | SaveModel
    | SaveBallot
    | KeepDelta
    | RecordRound
    | CloudEffect
    | SharingEffect
    | Finish
)


def hold_trained(effect: TrainLocally, delta: ModelDelta) -> Held | None:
    """Return the integers of a trained delta, and their checksums, where the effect asks for them."""
    if effect.room is None:
        return None
    held = hold_own(effect.parameters, delta, effect.room, effect.earlier)
    return msgspec.structs.replace(held, checksums=checksums_by_piece(held.sum.values))


def hold_recalled(effect: RecallDelta, done: DeltaRecalled) -> DeltaRecalled:
    """Return the recalled delta with its integers, where the effect asks for them."""
    if effect.held_as is None or done.values is None:
        return done
    held_as = effect.held_as
    delta = ModelDelta(done.values, held_as.theta, frozenset([held_as.me]))
    return msgspec.structs.replace(done, held=hold_own(effect.parameters, delta, held_as.room))


class Machine(Protocol):
    """A role. `handle` never sleeps, sends, reads a clock or draws global random numbers; `now` is in seconds."""

    def handle(self, event: Event, now: float) -> list[Effect]: ...

    def deadline(self) -> float | None: ...
