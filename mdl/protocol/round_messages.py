"""The messages between the agent and the trainers of a mesh in a round: its hops, its segments, and its result.

The agent orders, cancels and frees a hop (MDLdroid 3.2.2); its receiver asks its sender. In segments a delta travels as
pieces to the segments' owners, and their results to all.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from mdl.bounds import (
    MAX_HOPS,
    MAX_MEMBERS,
    MAX_SEGMENTS,
    Bytes,
    Checksum,
    Count,
    Digest,
    HopId,
    PeerId,
    Place,
    RateMBs,
    Room,
    Round,
    SchemaHash,
    SegmentBits,
    SegmentCount,
    SegmentNumber,
    SomePeerId,
    Term,
    Text,
    Theta,
    ValueCount,
)
from mdl.channels import Told
from mdl.defence.limits import MOST_SUSPECTS, Accusation, Limits
from mdl.errors import RemoteProtocolError
from mdl.protocol.counts import Course
from mdl.protocol.delta import Contributor
from mdl.protocol.status_messages import RoundSummary
from mdl.protocol.vocabulary import (
    MAX_REACHED,
    Accepted,
    Activity,
    Contributors,
    History,
    Holding,
    HopDecision,
    Incoming,
    Lineage,
    LineagePoint,
    Message,
    Partials,
    PeerIds,
    ResourceState,
    RoundEvaluation,
    Staged,
    TrainingReport,
    Transfer,
)

# Peers named that one device does not hear: as many as a person would look at.
MOST_UNHEARD = 16
# Devices named with channels unlike all others': with more, nobody could say which are right.
MOST_UNLIKE = 16
ATTEMPTS_TOLD = 8  # that a device took part in, first of all those without an end that it has seen


class PeerReport(Message, frozen=True):
    """Device to its agent: its whole state; heartbeat, answer and confirmation in one.

    It goes to all, if the device has no agent, or leads and hears nobody.

    sequence: grows with every report of one start of the process, so that a late one never overwrites a newer one.
    term: the highest that the device has heard; it follows no order of an older one (its promise).
    round_id: t, where its model w(t) stands.
    digest: of w(t).
    schema_hash: of its model, task and classes.
    model: the same in one line for people.
    size: values of its model, P.
    activity: its present one (`ACTIVITY_MOVES`).
    open_round: the round it takes part in; 0: none.
    open_term: the term that opened that round.
    open_as: the term under which it has heard of that round last.
    room: of that round's grid.
    theta: weight of its next delta; at most twice as much will come.
    entered: terms that opened the last few attempts at any round that it took part in, above all those it has left.
    agent: the peer id it obeys; "": it knows none.
    lineage: the forks on the way to w(t).
    base: the peer ids with work in w(t): a majority of them decides on round t + 1.
    votes: it knows its promises on its lineage, and has or can name its result (docs/protocol-disk.md, rules 6, 7).
    forgotten: its furthest point on its lineage, if it has lost that model; all such points, if it stands nowhere.
    goal: the run's last round as it was told; 0: open.
    incoming: the hop that it receives at the moment.
    holding: its partial sum, also one that it has given away; None: it has none.
    hops: its decisions as a receiver in the open round.
    staged: the result it has and has not applied.
    exchange: the exchange in segments that it takes part in; None: in none.
    lacking: the peer ids of the contributors to that one with pieces that this owner still waits for, and of the lost
        ones with pieces in its sums that have told it no checksums.
    resources: as sampled last; None: not yet.
    training: the report on local training for the open round; None: it is not done.
    evaluation: the test of the last w that it tested.
    transfer: the progress of the values that it waits for.
    sent_bytes: since the process started.
    away: why it may not train now (`--when`), in words; "": it may. It does everything else of a round.
    accused: the devices with work that it has refused lately.
    workers: number of devices with work in w(t), as far as its history tells.
    bugs: messages that met a bug in this process.
    unheard: some of the peers that it does not hear for a while, since messages of theirs met a bug.
    channels: of its training windows, to one significant digit; (): it does not tell (`data.tell_values`).
    accepted: the result of the round after w(t) that it has staged last, and has no more; None: it has it, or none.
    checksum: of its own delta of the open round, as integers; None: it has none yet.
    link_mb_s: speed at which it has sent segments last, in MB/s, also before it was started anew; 0: not known.
    """

    sequence: Count
    term: Term
    round_id: Round
    digest: Digest
    schema_hash: SchemaHash
    model: Text
    size: ValueCount
    activity: Activity
    open_round: Round
    open_term: Term = 0
    open_as: Term = 0
    room: Room = 0
    theta: Theta = 1.0
    entered: Annotated[tuple[Term, ...], Meta(max_length=ATTEMPTS_TOLD)] = ()
    agent: SomePeerId = ""
    lineage: Lineage = ()
    base: PeerIds = ()
    votes: bool = False
    forgotten: Annotated[tuple[LineagePoint, ...], Meta(max_length=MAX_REACHED)] = ()
    goal: Round = 0
    incoming: Incoming | None = None
    holding: Holding | None = None
    hops: Annotated[tuple[HopDecision, ...], Meta(max_length=MAX_HOPS)] = ()
    staged: Staged | None = None
    exchange: Exchanging | None = None
    lacking: PeerIds = ()
    resources: ResourceState | None = None
    training: TrainingReport | None = None
    evaluation: RoundEvaluation | None = None
    transfer: Transfer | None = None
    sent_bytes: Bytes = 0
    away: Text = ""
    accused: Annotated[tuple[Accusation, ...], Meta(max_length=MOST_SUSPECTS)] = ()
    workers: Count = 0
    bugs: Count = 0
    unheard: Annotated[tuple[PeerId, ...], Meta(max_length=MOST_UNHEARD)] = ()
    channels: Told = ()
    accepted: Accepted | None = None
    checksum: Checksum | None = None
    link_mb_s: RateMBs = 0.0


class AgentMessage(Message, frozen=True):
    """A message that only the agent says. One of an older term is dropped (docs/protocol-hops.md, fault rule 6).

    term: the agent's.
    round_id: the round it speaks of.
    """

    term: Term
    round_id: Round


class AgentPresent(AgentMessage, frozen=True):
    """Agent to all, unless it hears nobody: its heartbeat, and its claim to the office.

    lineage: the mesh's, as the agent sees it.
    quorum: a majority of its lineage's members answers it.
    successors: the peer ids that take over if it falls silent, the resource-richest first: all that follow it.
    yields_to: another agent that it hears and would follow, but for that one's lower term; "": nobody.
    workers: number of devices with work in the mesh's model: of two meshes that meet, the one with more goes on.
    """

    lineage: Lineage = ()
    quorum: bool = False
    successors: PeerIds = ()
    yields_to: SomePeerId = ""
    workers: Count = 0


class AgentResigned(AgentMessage, frozen=True):
    """Agent to all: its device leaves, and a successor need not wait for its silence."""


class RoundOpened(AgentMessage, frozen=True):
    """Agent to the members: train from w(round_id - 1); only the members' deltas count.

    digest: of w(round_id - 1).
    members: the processes that take part.
    attempt: the term that first opened this round; another agent that goes on with it says so under its own term.
    lineage: the mesh's; one fork longer than a member's if that fork starts here.
    base: the peer ids that decide on this round.
    planned_rounds: the run's last round, which learning-rate schedules follow; 0: open.
    successors: as in AgentPresent.
    course: of a run that ends by itself, up to now; None: this one does not.
    unlike: in words, the devices with channels unlike all others'.
    room: of the round's grid (`mdl/protocol/grid.py`), the same for all of one attempt.
    """

    digest: Digest
    members: Contributors
    attempt: Term = 0
    lineage: Lineage = ()
    base: PeerIds = ()
    planned_rounds: Round = 0
    successors: PeerIds = ()
    course: Course | None = None
    unlike: Annotated[tuple[Text, ...], Meta(max_length=MOST_UNLIKE)] = ()
    room: Room = 0


class BroadcastOrdered(AgentMessage, frozen=True):
    """Agent to all at w(round_id - 1): a ballot. The result is at order[0], the root of a binomial tree over `order`.

    Each device fetches it from its parent (3.2.3). Or it is nowhere yet: contributors give each owner its pieces, which
    it merges, and gives the result of them to all.

    base_digest: of w(round_id - 1), which the result belongs to.
    version: grows within a term: a later order replaces an earlier one, never the other way round.
    order: all that are to have it, the root first.
    theta: summed weight of the contributors.
    contributors: the processes with deltas in it.
    digest: of the result; empty as long as the agent has not heard it.
    link_mb_s: megabytes a second of each device's link, as in `order`; 0: not known. A parent feeds its children by it.
    lineage: of w(round_id - 1); two forks may stand at the same w.
    owns: number of segments that each of `order` owns; empty: the result is at order[0].
    segment_values: values of one segment.
    began_term: the term of the order that this exchange began with; 0: this one's.
    began: the version of that order: a device that follows that one goes on; 0: this one's.
    lost: contributors lost since then, one after the other: others' segments stay, and theirs are begun anew.
    limits: the limits that pieces are judged by, if they are.
    thetas: of an exchange, the weight of each contributor's own delta, as in `contributors`; empty: not told.
    room: of the result's grid.
    checksum: of the sum of its contributors' deltas, where the result is that; None: not known.
    """

    base_digest: Digest
    version: Count
    order: Contributors
    theta: Theta
    contributors: Contributors
    digest: Digest = b""
    link_mb_s: Annotated[tuple[RateMBs, ...], Meta(max_length=MAX_MEMBERS)] = ()
    lineage: Lineage = ()
    owns: Annotated[tuple[SegmentCount, ...], Meta(max_length=MAX_MEMBERS)] = ()
    segment_values: ValueCount = 0
    began_term: Term = 0
    began: Count = 0
    lost: Annotated[tuple[Lost, ...], Meta(max_length=MAX_MEMBERS)] = ()
    limits: Limits = Limits()
    thetas: Annotated[tuple[Theta, ...], Meta(max_length=MAX_MEMBERS)] = ()
    room: Room = 0
    checksum: Checksum | None = None


def exchanging(order: BroadcastOrdered) -> Exchanging:
    """Return the exchange that this order is of."""
    return Exchanging(order.began_term or order.term, order.began or order.version, len(order.lost))


class RoundClosed(AgentMessage, frozen=True):
    """Agent to all that have staged the global delta: it is decided, apply it.

    digest: of the global delta.
    """

    digest: Digest


class CatchUp(AgentMessage, frozen=True):
    """Agent to a device that is not at w(round_id) with this digest on this lineage: fetch the parameters.

    digest: of w(round_id).
    source: a process that has them.
    lineage: the mesh's.
    base: the peer ids with work in w(round_id).
    """

    digest: Digest
    source: Contributor
    lineage: Lineage = ()
    base: PeerIds = ()


class MemberRefused(AgentMessage, frozen=True):
    """Agent to a device: you cannot take part; a different model, most often.

    reason: one line for the device's user.
    """

    reason: Text


class MemberQuarantined(AgentMessage, frozen=True):
    """Agent to a device: others have refused your work, this round goes without it; you get the model as before.

    reason: one line for the device's user.
    """

    reason: Text


class MeshFinished(AgentMessage, frozen=True):
    """Agent to all that follow it: the planned rounds are done, or it was asked to stop; save and leave.

    reason: why the run ends before them; "": it does not.
    course: of a run that ends by itself, with its last round.
    """

    reason: Text = ""
    course: Course | None = None


class RoundTold(AgentMessage, frozen=True):
    """Agent to all that follow it: a round is over, and every device keeps its line.

    summary: that line; without schedule, devices and confusion where it would be too long for a message.
    """

    summary: RoundSummary


class GlobalWanted(Message, frozen=True):
    """Child to parent in the broadcast tree: send the result, or the part of it that is lacking.

    round_id: the round it is the result of.
    start: the first value that is wanted.
    stop: the one behind the last; 0: all values are wanted.
    """

    round_id: Round
    start: ValueCount = 0
    stop: ValueCount = 0

    def check(self, size: int) -> None:
        """Raise RemoteProtocolError if that is nothing of a result of `size` values."""
        if (self.start, self.stop) != (0, 0) and not self.start < self.stop <= size:
            raise RemoteProtocolError(f"values {self.start} to {self.stop} wanted of {size}")


class GlobalTaken(Message, frozen=True):
    """Child to parent in the broadcast tree: it has the result, and the next child's turn has come.

    round_id: as in GlobalWanted.
    """

    round_id: Round


class GlobalMessage(Message, frozen=True):
    """Parent to child in the broadcast tree: the sum of all deltas; carries int32 values, all or those asked for.

    round_id: the round it is the result of.
    theta: summed weight of its contributors.
    contributors: the processes with deltas in it.
    term: of the order under which its sender has staged it.
    version: of that order.
    partial: the further contributors that are in some of its segments.
    start: the first value that it carries.
    stop: the one behind the last; 0: it carries all.
    """

    round_id: Round
    theta: Theta
    contributors: Contributors
    term: Term
    version: Count
    partial: Partials = ()
    start: ValueCount = 0
    stop: ValueCount = 0


class ModelWanted(Message, frozen=True):
    """A late peer to its source: send w(round_id).

    round_id: as in the CatchUp that named the source.
    """

    round_id: Round


class ModelMessage(Message, frozen=True):
    """The source to a late peer: w(round_id), with the outer optimizer's momentum if there is one.

    Carries values, float32, shape (P,) or (2 P,).

    round_id: of the parameters.
    digest: of these values.
    history: of the parameters.
    """

    round_id: Round
    digest: Digest
    history: History = History()


# A decision's reason begins with this if the delta is held for poison: the agent has another device judge it, too.
SUSPECT = "refused: suspect: "
# A receiver's reason to give up a hop if its sender cannot be reached any more; the agent looks for another way.
NOTHING_CAME = "nothing came"


class HopOrdered(AgentMessage, frozen=True):
    """To the receiver of a hop: fetch the sender's partial sum and merge it.

    hop_id: unique in the mesh: a term's own numbers.
    sender: the process that is to be asked.
    limits: the limits that it is judged by, if it is.
    is_look: measure it and tell, and merge nothing of it.
    theta: the weight that the sender has told for its partial sum; 0: not told.
    checksum: of that sum, as its contributors have told theirs; None: not all have.
    """

    hop_id: HopId
    sender: Contributor
    limits: Limits = Limits()
    is_look: bool = False
    theta: Theta = 0.0
    checksum: Checksum | None = None


class HopCancelled(AgentMessage, frozen=True):
    """To the receiver of a hop: abort it unless it is merged already, and report which (docs/protocol-hops.md).

    hop_id: as in HopOrdered.
    sender: as in HopOrdered, for a receiver that never heard of it.
    """

    hop_id: HopId
    sender: Contributor


class HopReleased(AgentMessage, frozen=True):
    """To the sender of a hop: it did not count, or its receiver is lost with it; hold again (docs/protocol-hops.md).

    hop_id: as in HopOrdered.
    """

    hop_id: HopId


class DeltaWanted(Message, frozen=True):
    """Receiver to sender: ready for your partial sum. Nothing is sent before this.

    round_id: the open round.
    attempt: the term that opened it.
    hop_id: the hop that the partial sum is given to, and to no other.
    """

    round_id: Round
    attempt: Term
    hop_id: HopId


class DeltaMessage(Message, frozen=True):
    """Sender to receiver of a hop: the partial sum; carries values, int32, shape (P,).

    round_id: the open round.
    hop_id: the hop it is given to.
    theta: summed weight of its contributors.
    contributors: the processes with deltas in it.
    """

    round_id: Round
    hop_id: HopId
    theta: Theta
    contributors: Contributors


class Lost(Struct, frozen=True):
    """A contributor that was lost in the middle of an exchange: its pieces stay where they are merged.

    contributor: the process.
    theta: the weight of its own delta.
    place: that it had in the order at first.
    owns: number of segments that it owned at first.
    """

    contributor: Contributor
    theta: Theta
    place: Place
    owns: SegmentCount


class Exchanging(Struct, frozen=True):
    """The exchange that a device takes part in, and how far it has followed it.

    term: of the order that it began with.
    version: of that order.
    lost: number of its devices that were lost since then.
    """

    term: Term
    version: Count
    lost: Count = 0

    def is_same(self, other: Exchanging) -> bool:
        """Return True if both began with the same order."""
        return (self.term, self.version) == (other.term, other.version)


class SegmentsReady(Message, frozen=True):
    """Receiver to sender: it follows this order; send what it needs. Nothing is sent before this.

    round_id: the round of the order.
    term: of the order.
    version: of the order.
    has: one bit for each segment, 1 if it need not come again. It is one of this device's own that has the other's
        piece, or one of the other's with its result here.
    checksums: of its own delta in each segment; (): it gives none, or coded ones.
    asks: it has not heard the checksums of the other one yet.
    """

    round_id: Round
    term: Term
    version: Count
    has: SegmentBits = b""
    checksums: Annotated[tuple[Checksum, ...], Meta(max_length=MAX_SEGMENTS)] = ()
    asks: bool = False


class PieceMessage(Message, frozen=True):
    """Contributor to owner: its own delta in one segment; carries int32 sums of its values.

    round_id: as in SegmentsReady.
    term: as in SegmentsReady.
    version: as in SegmentsReady.
    segment: of the model.
    theta: the weight of the sender's own delta.
    start: coordinate of the first value.
    is_packed: they travel packed (`mdl/protocol/coding.py`).
    """

    round_id: Round
    term: Term
    version: Count
    segment: SegmentNumber
    theta: Theta
    start: ValueCount = 0
    is_packed: bool = False


class SegmentMessage(Message, frozen=True):
    """Owner to all: the result in one segment; carries int32 sums of its values.

    round_id: as in SegmentsReady.
    term: as in SegmentsReady.
    version: as in SegmentsReady.
    segment: of the model.
    without: contributors with no piece in it, by their number among those that the order has lost.
    start: coordinate of the first value.
    is_packed: they travel packed (`mdl/protocol/coding.py`).
    """

    round_id: Round
    term: Term
    version: Count
    segment: SegmentNumber
    without: Annotated[tuple[Place, ...], Meta(max_length=MAX_MEMBERS)] = ()
    start: ValueCount = 0
    is_packed: bool = False


class SegmentTaken(Message, frozen=True):
    """Receiver to sender: the values are here; send what comes next.

    round_id: as in SegmentsReady.
    term: as in SegmentsReady.
    version: as in SegmentsReady.
    segment: of the model.
    is_result: a SegmentMessage was taken; else a PieceMessage.
    """

    round_id: Round
    term: Term
    version: Count
    segment: SegmentNumber
    is_result: bool = False
