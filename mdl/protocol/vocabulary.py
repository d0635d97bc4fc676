"""The parts of messages: devices, rounds, hops, models, and promises; and the load beside a message.

A ballot as a device's disk keeps it, and how much of it the next start of that device may rely on.

A disk may lose its last writes when the power goes, also those that it called safe. A file may be an older copy that
somebody has put back. In both cases the device may have promised more than it reads now.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from mdl.bounds import (
    MAX_MEMBERS,
    Bytes,
    Celsius,
    Count,
    Digest,
    HopId,
    Incarnation,
    Joules,
    Length,
    Loss,
    PeerId,
    Percent,
    RateMBs,
    Room,
    Round,
    SchemaHash,
    Seconds,
    SegmentBits,
    SomeHost,
    SomePeerId,
    Term,
    Text,
    Theta,
    ValueCount,
    Word,
    parse_host,
)
from mdl.defence.limits import OwnDeltaSeen
from mdl.protocol.counts import Evaluation
from mdl.protocol.delta import Contributor, Partial
from mdl.protocol.grid import Vector
from mdl.protocol.statements import Proof


class Packed(bytes):
    """A model or an update of a cloud, as bytes. A type of its own, so that a story can tell its length instead."""

    __slots__ = ()


Bulk: TypeAlias = Vector | Packed


# Busy periods of one device in one round that are kept: far more than a person would look at.
MAX_PERIODS = 64
# A mesh that has forked so often in its life (a lineage never gets shorter) waits for a majority from then on: three
# years of one device alone each night. Each report tells the lineage, 50 bytes a fork.
MAX_FORKS = 1024
# Lineages on which a device knows its furthest round: the last ones, also those that were left again. A ballot, which
# is written in place, has room for so many.
MAX_REACHED = 256
# Starts that a ballot names. A device that starts more often without any work counted has no vote until some is.
MAX_STARTS = 64
Nonce: TypeAlias = Annotated[bytes, Meta(max_length=16)]  # nobody guesses 16 random bytes
ForkName: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{0,128}\Z")]  # PEER.INCARNATION.TERM of the agent
Contributors: TypeAlias = Annotated[tuple[Contributor, ...], Meta(max_length=MAX_MEMBERS)]
Partials: TypeAlias = Annotated[tuple[Partial, ...], Meta(max_length=MAX_MEMBERS)]
PeerIds: TypeAlias = Annotated[tuple[PeerId, ...], Meta(max_length=MAX_MEMBERS)]


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of everything that travels."""


class Role(Enum):
    TRAINER = "trainer"
    AGENT = "agent"
    OBSERVER = "observer"


class PeerInfo(msgspec.Struct, frozen=True):
    """The address and the identity of a peer, as mDNS and other members introduce it.

    peer_id: the name of its device in the mesh.
    incarnation: of its process.
    role: its part in the mesh.
    host: IP address; "": not known yet.
    port: TCP port that admits: where a stranger with the join code, and `--join`, come in.
    schema_hash: of its model; "": it has none, or it is not known.
    proof: that its device says so; None without encryption.
    """

    peer_id: PeerId
    incarnation: Incarnation
    role: Role
    host: SomeHost
    port: Annotated[int, Meta(ge=1, le=65535)]
    schema_hash: SchemaHash = ""
    proof: Proof | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless the host is an address: a decoder refuses the message then."""
        if self.host:
            parse_host(self.host)


class ResourceState(msgspec.Struct, frozen=True):
    """The state that a device tells of itself (3.3.1). None where it has no such sensor.

    free_memory_bytes: that a program may take.
    cpu_percent: of the processor, taken by other processes.
    battery_percent: of a full charge.
    charging: it is on its charger.
    in_use: somebody is using it.
    merge_mb_s: megabytes a second that it merged the last time, the transfer left out; None before its first merge.
    memory_left_bytes: rest of the memory that its owner offers (M_max of Eq. 4); None without such a limit.
    battery_left_percent: rest of the charge that its owner offers (B_max), likewise.
    temperature_c: of its warmest sensor.
    energy_j: since mdl started on it; None from older versions.
    round_energy_j: of its last round; None before the first one has ended.
    energy_from: the source of these joules, a key of `mdl.devices.energy.HOW`.
    """

    free_memory_bytes: Bytes
    cpu_percent: Percent
    battery_percent: Percent | None = None
    charging: bool | None = None
    in_use: bool | None = None
    merge_mb_s: RateMBs | None = None
    memory_left_bytes: Bytes | None = None
    battery_left_percent: Percent | None = None
    temperature_c: Celsius | None = None
    energy_j: Joules | None = None
    round_energy_j: Joules | None = None
    energy_from: Word = ""

    def is_spent(self) -> bool:
        """Return True if it has used the charge that its owner offers."""
        return self.battery_left_percent == 0.0

    def may_take(self, size_bytes: int) -> bool:
        """Return True if its owner's limits leave room for one more delta of this size."""
        return not self.is_spent() and (self.memory_left_bytes is None or self.memory_left_bytes >= size_bytes)


class Activity(Enum):
    """The activity of a trainer; `ACTIVITY_MOVES` has the legal moves."""

    WAITING = "waiting"
    TRAINING = "training"
    HOLDING = "holding"
    RECEIVING = "receiving"
    SENT = "sent"
    STAGED = "staged"
    LEFT = "left"


_WAITING, _TRAINING, _HOLDING, _RECEIVING, _SENT, _STAGED, _LEFT = Activity
# The legal moves of one device. Into waiting: it has applied the result, or stands elsewhere now. Into training: the
# round is opened afresh. From staged back to holding or sent: it follows an order of another result. From waiting at
# once to holding, sent or staged: its training is known, or it comes late.
ACTIVITY_MOVES = {
    _WAITING: {_TRAINING, _HOLDING, _SENT, _STAGED, _LEFT},
    _TRAINING: {_HOLDING, _STAGED, _WAITING, _LEFT},
    _HOLDING: {_RECEIVING, _SENT, _STAGED, _WAITING, _TRAINING, _LEFT},
    _RECEIVING: {_HOLDING, _STAGED, _WAITING, _TRAINING, _LEFT},
    _SENT: {_HOLDING, _STAGED, _WAITING, _TRAINING, _LEFT},
    _STAGED: {_WAITING, _HOLDING, _SENT, _TRAINING, _LEFT},
    _LEFT: set[Activity](),
}


class HopOutcome(Enum):
    """A receiver's decision of a hop, once and for ever (docs/protocol-hops.md, fault rule 1)."""

    MERGED = "merged"
    ABORTED = "aborted"
    LOOKED = "looked-at"


class Fork(msgspec.Struct, frozen=True):
    """The point where a group that was cut off from a majority went on by itself.

    round_id: the last round before that.
    size: devices of the group.
    name: PEER.INCARNATION.TERM of the agent that began it.
    """

    round_id: Round
    size: Count
    name: ForkName


Lineage: TypeAlias = Annotated[tuple[Fork, ...], Meta(max_length=MAX_FORKS)]


class Counted(msgspec.Struct, frozen=True):
    """The last round that a device's work was counted in.

    contributor: the process.
    round_id: of that round.
    segment_values: values of one segment of that round; 0: all of its work is counted.
    lacks: one bit for each segment, 1 where its work is not counted.
    """

    contributor: Contributor
    round_id: Round
    segment_values: ValueCount = 0
    lacks: SegmentBits = b""


class History(msgspec.Struct, frozen=True):
    """The history of w(t); the same on all that stand there.

    lineage: the forks on the way.
    base: the peer ids that contributed to w(t), and so decide on w(t + 1).
    counted: one per peer id.
    """

    lineage: Lineage = ()
    base: PeerIds = ()
    counted: Annotated[tuple[Counted, ...], Meta(max_length=MAX_MEMBERS)] = ()


class LineagePoint(msgspec.Struct, frozen=True):
    """The furthest point of a device on one lineage.

    fork: the name of the last fork of that lineage; "": it has none.
    round_id: the last round of which the device has had the result there, staged or applied.
    """

    fork: ForkName
    round_id: Round


class Accepted(msgspec.Struct, frozen=True):
    """The name of the last result that a device has staged: its vote.

    fork: the name of the last fork of the lineage.
    round_id: the round of which it is the result.
    digest: of the result.
    term: of the order under which it was staged last.
    version: of that order.
    """

    fork: ForkName
    round_id: Round
    digest: Digest
    term: Term
    version: Count


class Ballot(msgspec.Struct, frozen=True):
    """The promises that a device must still know after a restart (docs/protocol-disk.md).

    term: no order of an older one is followed.
    reached: per lineage, so that no round is decided on twice.
    agent: the one to follow after a restart under this very term; "": none, as a result was staged under it.
    starts: the last ones of this device of which nothing is forgotten; none from before a ballot was lost.
    begun: the fork that the device has seen begin last, so that nothing of it is forgotten.
    accepted: the result that the device has staged last, which must be proposed if anything is; None: no result yet.
    """

    term: Term = 0
    reached: Annotated[tuple[LineagePoint, ...], Meta(max_length=MAX_REACHED)] = ()
    agent: SomePeerId = ""
    starts: Annotated[tuple[Incarnation, ...], Meta(max_length=MAX_STARTS)] = ()
    begun: ForkName = ""
    accepted: Accepted | None = None


class HopDecision(msgspec.Struct, frozen=True):
    """A receiver's decision of one hop.

    hop_id: as it was ordered.
    sender: of the partial sum.
    outcome: merged, aborted or looked-at.
    seconds: from asking for the values to the decision.
    size_bytes: of the values; 0: none were merged.
    reason: why it was aborted, or merged in part; "": neither.
    seen: measurements of it, if it was the own delta of one device, and judged.
    """

    hop_id: HopId
    sender: Contributor
    outcome: HopOutcome
    seconds: Seconds = 0.0
    size_bytes: Bytes = 0
    reason: Text = ""
    seen: OwnDeltaSeen | None = None


class Incoming(msgspec.Struct, frozen=True):
    """A hop that this device receives at the moment, not decided yet.

    hop_id: as it was ordered.
    sender: of the partial sum that it asks for.
    """

    hop_id: HopId
    sender: Contributor


class Holding(msgspec.Struct, frozen=True):
    """The partial sum on one device.

    theta: summed weight of its contributors.
    contributors: the processes with deltas in it.
    sent_hop: the hop it has been given away by; None: it has not.
    sent_to: the receiver of that hop; None: as above.
    """

    theta: Theta
    contributors: Contributors
    sent_hop: HopId | None = None
    sent_to: Contributor | None = None


class Transfer(msgspec.Struct, frozen=True):
    """The progress of a bulk transfer to this device.

    sender: peer id.
    received_bytes: so far.
    size_bytes: in all.
    """

    sender: PeerId
    received_bytes: Bytes
    size_bytes: Bytes


class TrainingReport(msgspec.Struct, frozen=True):
    """The report on a local training.

    loss: mean, in nats.
    samples: windows it trained on.
    seconds: it took.
    theta: the weight that this device's own delta starts with.
    length: of that delta, Euclidean; 0.0: not known.
    clipped: values of that delta beyond their share of the sum; the rest of them comes with the next delta.
    """

    loss: Loss
    samples: Count
    seconds: Seconds
    theta: Theta = 1.0
    length: Length = 0.0
    clipped: ValueCount = 0


class RoundEvaluation(msgspec.Struct, frozen=True):
    """The test of w(round_id) on this device's share of the test windows.

    round_id: of the parameters.
    evaluation: counts by class.
    """

    round_id: Round
    evaluation: Evaluation


class Staged(msgspec.Struct, frozen=True):
    """The global delta of a round as one device has it, not yet applied.

    digest: of the global delta.
    theta: summed weight of its contributors.
    contributors: the processes with deltas in it.
    term: of the order it follows.
    version: of that order.
    partial: the further contributors that are in some of its segments.
    room: of its grid.
    """

    digest: Digest
    theta: Theta
    contributors: Contributors
    term: Term = 0
    version: Count = 0
    partial: Partials = ()
    room: Room = 0


# A file that was changed so long after its last ballot was written was changed by something else.
LATE_S = 30.0
# A boot without a name is known by its time. Systems tell that with a second's error; no machine boots so quickly.
_SAME_BOOT_S = 5.0


class KeptBallot(Struct, frozen=True):
    """One write of a ballot.

    number: grows by one with each write, so that the newest is known.
    ballot: the promises of the device by then.
    boot: the start of the machine during which it was written; "": not known.
    is_last: the process wrote it as its last word, so it has promised nothing since.
    at_s: the time of writing, by the clock that dates files; 0.0: not known.
    """

    number: int
    ballot: Ballot
    boot: str = ""
    is_last: bool = False
    at_s: float = 0.0

    def why_doubted(self, boot: str, changed_s: float) -> str:
        """Return, in words for people, why this may not be the last ballot that the device wrote; "" if it is.

        boot: of this start. changed_s: when the file was changed last, by the clock of at_s; 0.0: not known.
        """
        if self.at_s and changed_s > self.at_s + LATE_S:
            return "its files were put back or changed"
        if self.is_last or not self.boot or not boot or is_same_boot(self.boot, boot):
            return ""
        return "its machine has lost power or crashed"


def is_same_boot(one: str, other: str) -> bool:
    """Return True if two names, or times in seconds, are of one start of a machine."""
    try:
        return abs(float(one) - float(other)) <= _SAME_BOOT_S
    except ValueError:
        return one == other


def doubted(ballot: Ballot) -> Ballot:
    """Return the part of a ballot that still holds when later ones may be lost: all promises that it tells of.

    It names no start of which nothing is forgotten, so the device has no vote until its new work is counted
    (docs/protocol-disk.md, rule 7).
    """
    return replace(ballot, agent="", starts=(), begun="")
