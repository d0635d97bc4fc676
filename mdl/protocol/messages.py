"""What peers say to one another. Frozen structs: the decoder checks every type; random bytes do not become a message.

Some messages announce bulk values (`CARRIERS`): those travel as raw little-endian float32 beside the header.
A report is the sender's whole state, not a change: whoever missed ten reports knows everything after the eleventh.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from mdl.bounds import (
    MAX_HOPS,
    MAX_MEMBERS,
    Bytes,
    Count,
    Digest,
    Group,
    HexDigest,
    HopId,
    Incarnation,
    Loss,
    PeerId,
    Percent,
    RateMBs,
    Round,
    SchemaHash,
    Seconds,
    Segment,
    Share,
    SomePeerId,
    Term,
    Text,
    Theta,
    ValueCount,
    Word,
)
from mdl.protocol.counts import Evaluation
from mdl.protocol.delta import Contributor

PROTOCOL_VERSION = 2
# Busy periods of one device in one round that are kept: far more than a person would look at.
MAX_PERIODS = 64
# Hops of a round that are told: N - 1 count, and few of them take more than one try.
MAX_SCHEDULE = 4 * MAX_MEMBERS
# Phases of a round with their seconds: five today.
MAX_PHASES = 16
# Pairs of devices that are known not to reach each other: with more, the network is down rather than cut somewhere.
MAX_CUTS = 64
# A mesh that has forked so often in its life (a lineage never gets shorter) waits for a majority from then on.
MAX_FORKS = 64
# Lineages of which a device knows how far it has been: all that a mesh can have, and those that were left again.
MAX_REACHED = 4 * MAX_FORKS

# Nobody guesses 16 random bytes.
Nonce: TypeAlias = Annotated[bytes, Meta(max_length=16)]
# PEER.INCARNATION.TERM of who began it.
ForkName: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{0,128}\Z")]
Contributors: TypeAlias = Annotated[tuple[Contributor, ...], Meta(max_length=MAX_MEMBERS)]
PeerIds: TypeAlias = Annotated[tuple[PeerId, ...], Meta(max_length=MAX_MEMBERS)]


class Message(msgspec.Struct, frozen=True, tag=True):
    """Base of everything that travels."""


class Role(Enum):
    TRAINER = "trainer"
    AGENT = "agent"
    OBSERVER = "observer"


class PeerInfo(msgspec.Struct, frozen=True):
    """How a peer is reached and who it is, as mDNS and other members introduce it."""

    peer_id: PeerId
    incarnation: Incarnation
    role: Role
    host: Text
    port: Annotated[int, Meta(ge=1, le=65535)]
    schema_hash: SchemaHash = ""


class ResourceState(msgspec.Struct, frozen=True):
    """What a device tells about itself (3.3.1). None where it has no such sensor. cpu_percent: of other processes.

    merge_mb_s: how fast it merged the last time, the transfer left out; None before its first merge.
    """

    free_memory_bytes: Bytes
    cpu_percent: Percent
    battery_percent: Percent | None = None
    charging: bool | None = None
    in_use: bool | None = None
    merge_mb_s: RateMBs | None = None


class Activity(Enum):
    """What a trainer is doing; `peers/roles/trainer/trainer.py` has the legal moves."""

    WAITING = "waiting"
    TRAINING = "training"
    HOLDING = "holding"
    RECEIVING = "receiving"
    SENT = "sent"
    STAGED = "staged"
    LEFT = "left"


class HopOutcome(Enum):
    """How a receiver decided a hop, once and for ever (fault rule 1)."""

    MERGED = "merged"
    ABORTED = "aborted"


class Fork(msgspec.Struct, frozen=True):
    """Where a group that was cut off from a majority went on by itself: after round_id, with `size` devices."""

    round_id: Round
    size: Count
    name: ForkName


Lineage: TypeAlias = Annotated[tuple[Fork, ...], Meta(max_length=MAX_FORKS)]


class Counted(msgspec.Struct, frozen=True):
    """The last round that a device's work was counted in."""

    contributor: Contributor
    round_id: Round


class History(msgspec.Struct, frozen=True):
    """How w(t) came about; the same on all who stand there.

    lineage: the forks on the way. base: who contributed to w(t), and so decides on w(t + 1). counted: one per peer id.
    """

    lineage: Lineage = ()
    base: PeerIds = ()
    counted: Annotated[tuple[Counted, ...], Meta(max_length=MAX_MEMBERS)] = ()


class Reached(msgspec.Struct, frozen=True):
    """The last round whose result a device has had, staged or applied, on the lineage that ends in this fork."""

    fork: ForkName
    round_id: Round


class Ballot(msgspec.Struct, frozen=True):
    """What a device has promised, and must still know after a restart (docs/protocol.md).

    term: no order of an older one is followed. reached: per lineage, so that no round is decided on twice. agent: whom
    a restarted process may follow under this very term; "" once it has had a result under it, since an older order of
    the same term could come again. since: the first start of this device of which nothing is forgotten; later than its
    first one if a ballot was lost.
    """

    term: Term = 0
    reached: Annotated[tuple[Reached, ...], Meta(max_length=MAX_REACHED)] = ()
    agent: SomePeerId = ""
    since: Incarnation = 0


class HopDecision(msgspec.Struct, frozen=True):
    segment: Segment
    hop_id: HopId
    sender: Contributor
    outcome: HopOutcome
    seconds: Seconds = 0.0
    size_bytes: Bytes = 0
    reason: Text = ""


class Incoming(msgspec.Struct, frozen=True):
    """A hop that this device receives at the moment, not decided yet."""

    segment: Segment
    hop_id: HopId
    sender: Contributor


class Holding(msgspec.Struct, frozen=True):
    """The partial mean of one segment on one device. sent_hop, sent_to: the hop it has been given away by, if any."""

    segment: Segment
    theta: Theta
    contributors: Contributors
    sent_hop: HopId | None = None
    sent_to: Contributor | None = None


class Transfer(msgspec.Struct, frozen=True):
    """How far a bulk transfer to this device has come."""

    sender: PeerId
    received_bytes: Bytes
    size_bytes: Bytes


class TrainingReport(msgspec.Struct, frozen=True):
    """How local training went. loss: mean, in nats. theta: the weight that this device's own delta starts with."""

    loss: Loss
    samples: Count
    seconds: Seconds
    theta: Theta = 1.0


class RoundEvaluation(msgspec.Struct, frozen=True):
    """How w(round_id) did on this device's share of the test windows."""

    round_id: Round
    evaluation: Evaluation


class Staged(msgspec.Struct, frozen=True):
    """The global delta of a round as one device has it, not yet applied. term, version: of the order it follows."""

    digest: Digest
    theta: Theta
    contributors: Contributors
    term: Term = 0
    version: Count = 0


# Of the attempts a device has taken part in: more do not come up between two that an agent may go on with.
ATTEMPTS_TOLD = 4


class PeerReport(Message, frozen=True):
    """A trainer's whole state: heartbeat, answer and confirmation in one.

    sequence grows with every report of one incarnation, so that a late one never overwrites a newer one. agent: whom it
    obeys, empty if it knows none. votes: it knows what it has promised on its lineage, and has no later result
    lost (docs/protocol.md, rules 6 and 7). open_round and open_term name the round it takes part in, open_as the term
    in which it heard of it last; entered are the last attempts at any round that it took part in.
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
    entered: Annotated[tuple[Term, ...], Meta(max_length=ATTEMPTS_TOLD)] = ()
    agent: SomePeerId = ""
    lineage: Lineage = ()
    base: PeerIds = ()
    votes: bool = False
    goal: Round = 0
    incoming: Incoming | None = None
    holdings: Annotated[tuple[Holding, ...], Meta(max_length=MAX_MEMBERS)] = ()
    hops: Annotated[tuple[HopDecision, ...], Meta(max_length=MAX_HOPS)] = ()
    staged: Staged | None = None
    resources: ResourceState | None = None
    training: TrainingReport | None = None
    evaluation: RoundEvaluation | None = None
    transfer: Transfer | None = None
    sent_bytes: Bytes = 0


class AgentMessage(Message, frozen=True):
    """What only the agent says. A message of an older term is dropped (fault rule 6)."""

    term: Term
    round_id: Round


class AgentPresent(AgentMessage, frozen=True):
    """The agent's heartbeat, and its claim to the office. quorum: a majority of its lineage's members answers it.

    successors: who takes over if it falls silent, the resource-richest first.
    """

    lineage: Lineage = ()
    quorum: bool = False
    successors: PeerIds = ()


class AgentResigned(AgentMessage, frozen=True):
    """The agent's device leaves: a successor need not wait for its silence."""


class RoundOpened(AgentMessage, frozen=True):
    """Train from w(round_id - 1), whose digest is given; only the members' deltas count.

    attempt: the term that first opened this round; another agent that goes on with it says it again under its own term.
    lineage: the mesh's; one fork longer than a member's if it starts here; base: who decides on this round.
    planned_rounds: how far the run will go, 0 if it is open; learning-rate schedules follow it.
    """

    digest: Digest
    members: Contributors
    attempt: Term = 0
    lineage: Lineage = ()
    base: PeerIds = ()
    planned_rounds: Round = 0
    successors: PeerIds = ()


class HopOrdered(AgentMessage, frozen=True):
    """To the receiver of a hop: fetch the sender's partial mean and merge it."""

    segment: Segment
    hop_id: HopId
    sender: Contributor


class HopCancelled(AgentMessage, frozen=True):
    """To the receiver of a hop: abort it unless it is merged already, and report which (fault rule 1)."""

    segment: Segment
    hop_id: HopId
    sender: Contributor


class HopReleased(AgentMessage, frozen=True):
    """To the sender of a hop: it did not count, or its receiver is lost with it; hold again (fault rule 3)."""

    segment: Segment
    hop_id: HopId


class BroadcastOrdered(AgentMessage, frozen=True):
    """The result is at order[0]; everyone fetches it from its parent in the binomial tree over `order` (3.2.3).

    base_digest, lineage: of w(round_id - 1), which it belongs to; two forks may stand at the same w. version grows
    within a term: a later order replaces an earlier one, never the other way round. digest: of the result, empty as
    long as the agent has not heard it. link_mb_s: how fast the link of each device in `order` is, 0.0 where it is not
    known; a parent feeds its children accordingly.
    """

    base_digest: Digest
    version: Count
    order: Contributors
    theta: Theta
    contributors: Contributors
    digest: Digest = b""
    link_mb_s: Annotated[tuple[RateMBs, ...], Meta(max_length=MAX_MEMBERS)] = ()
    lineage: Lineage = ()


class RoundClosed(AgentMessage, frozen=True):
    """Every live member has the global delta: apply it. `digest` is the global delta's."""

    digest: Digest


class CatchUp(AgentMessage, frozen=True):
    """You are not at w(round_id) with this digest on this lineage: fetch the parameters from `source`."""

    digest: Digest
    source: Contributor
    lineage: Lineage = ()
    base: PeerIds = ()


class MemberRefused(AgentMessage, frozen=True):
    """You cannot take part, and why: a different model, most often."""

    reason: Text


class MeshFinished(AgentMessage, frozen=True):
    """The planned rounds are done (or the agent was asked to stop): save and leave."""


class DeltaWanted(Message, frozen=True):
    """Receiver to sender: ready for your partial mean. Nothing is sent before this (4.3). attempt: as it was opened."""

    round_id: Round
    attempt: Term
    segment: Segment
    hop_id: HopId


class DeltaMessage(Message, frozen=True):
    """The partial mean of a hop; carries values, float32, shape (P,)."""

    round_id: Round
    segment: Segment
    hop_id: HopId
    theta: Theta
    contributors: Contributors


class GlobalWanted(Message, frozen=True):
    """Child to parent in the broadcast tree."""

    round_id: Round


class GlobalTaken(Message, frozen=True):
    """Child to parent in the broadcast tree: it has the result, and the next child's turn has come."""

    round_id: Round


class GlobalMessage(Message, frozen=True):
    """The global delta of a round; carries values, float32, shape (P,).

    term, version: of the order under which its sender has staged it.
    """

    round_id: Round
    theta: Theta
    contributors: Contributors
    term: Term
    version: Count


class ModelWanted(Message, frozen=True):
    """A late peer to its source: send w(round_id)."""

    round_id: Round


class ModelMessage(Message, frozen=True):
    """The parameters w(round_id); carries values, float32, shape (P,)."""

    round_id: Round
    digest: Digest
    history: History = History()


class HopSummary(msgspec.Struct, frozen=True):
    """One hop of a round as the agent saw it. outcome: ordered, merged, aborted or lost.

    ordered_s, decided_s: since the round was opened, by the agent's clock. transfer_s: what the receiver measured, from
    asking to having the values.
    """

    hop_id: HopId
    sender: PeerId
    receiver: PeerId
    outcome: Word
    ordered_s: Seconds
    decided_s: Seconds | None
    reason: Text
    size_bytes: Bytes = 0
    transfer_s: Seconds = 0.0


class DeviceRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device in a round as the agent saw it; seconds since the round was opened, by the agent's clock.

    What is as here is not written: it would be the same in each of thousands of lines.

    ready_s: it held its own delta; None if it never did. busy: when it was seen busy; an end of None: until the round's
    end. lost: why the round went on without it, empty if it did not. kind: how it is used, by the busy periods seen in
    all rounds: 0 idle, 1 sync, 2 interactive, 3 call, 4 bimodal. merge_mb_s: as its merges have shown it.
    """

    peer_id: PeerId
    ready_s: Seconds | None = None
    link_mb_s: RateMBs | None = None
    battery_percent: Percent | None = None
    charging: bool | None = None
    busy: Annotated[tuple[tuple[Seconds, Seconds | None], ...], Meta(max_length=MAX_PERIODS)] = ()
    lost: Text = ""
    kind: Annotated[int, Meta(ge=0, lt=16)] = 0
    merge_mb_s: RateMBs | None = None


Schedule: TypeAlias = Annotated[tuple[HopSummary, ...], Meta(max_length=MAX_SCHEDULE)]
Cuts: TypeAlias = Annotated[tuple[Text, ...], Meta(max_length=MAX_CUTS)]
DeviceRecords: TypeAlias = Annotated[tuple[DeviceRecord, ...], Meta(max_length=MAX_MEMBERS)]


class RoundSummary(msgspec.Struct, frozen=True):
    """One line of metrics.jsonl. Seconds are measured by the agent's clock, bytes are of model values alone.

    hops: those that were merged. schedule: all that were ordered, with times and reasons; devices: what they were like
    meanwhile. Both are empty in lines of older versions. cuts: in words, which devices did not reach each other.
    """

    round: Round
    theta: Theta
    contributors: PeerIds
    hops: Annotated[tuple[tuple[PeerId, PeerId], ...], Meta(max_length=MAX_SCHEDULE)]
    seconds: Annotated[dict[Word, Seconds], Meta(max_length=MAX_PHASES)]
    bytes: Bytes
    loss: Loss | None
    accuracy: Share | None = None
    macro_f1: Share | None = None
    lost: PeerIds = ()
    digest: HexDigest = ""
    schedule: Schedule = ()
    devices: DeviceRecords = ()
    cuts: Cuts = ()

    @property
    def total_s(self) -> float:
        """From its opening until all had applied it."""
        return self.seconds.get("total", 0.0)


class MemberStatus(msgspec.Struct, frozen=True):
    peer_id: PeerId
    incarnation: Incarnation
    alive: bool
    activity: Activity
    round_id: Round
    heard_s_ago: Seconds
    theta: Theta = 0.0
    resources: ResourceState | None = None
    transfer: Transfer | None = None
    loss: Loss | None = None
    problem: Text = ""


class StatusWanted(Message, frozen=True):
    """An observer asks the agent what is going on. since_round: rounds it knows already."""

    since_round: Round = 0


class MeshStatus(Message, frozen=True):
    """The mesh as the agent sees it: what `mdl peers` and the live view show.

    devices, elapsed_s: of the open round, as its hops. finished: only the last of them tells its schedule. cuts: as in
    RoundSummary.
    """

    term: Term
    round_id: Round
    rounds: Round
    phase: Text
    policy: Text
    members: Annotated[tuple[MemberStatus, ...], Meta(max_length=MAX_MEMBERS)] = ()
    hops: Schedule = ()
    finished: Annotated[tuple[RoundSummary, ...], Meta(max_length=MAX_MEMBERS)] = ()
    agent: SomePeerId = ""
    devices: DeviceRecords = ()
    elapsed_s: Seconds = 0.0
    cuts: Cuts = ()


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
    """The cloud's small model for the pupil's group; carries its packed bytes as float32 words. group -1: the base."""

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
    """What was offered; carries its bytes as float32 words."""


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


class Hello(Message, frozen=True):
    """A node introduces itself to an address it was given (`--join`), or to a peer it found.

    challenge: to another process of the same name: say this back, from where you listen. answer: what it asked for.
    """

    me: PeerInfo
    challenge: Nonce = b""
    answer: Nonce = b""


class PeersKnown(Message, frozen=True):
    """Members pass on the addresses they know."""

    peers: Annotated[tuple[PeerInfo, ...], Meta(max_length=MAX_MEMBERS)]


Said: TypeAlias = (
    PeerReport
    | AgentPresent
    | AgentResigned
    | RoundOpened
    | HopOrdered
    | HopCancelled
    | HopReleased
    | BroadcastOrdered
    | RoundClosed
    | CatchUp
    | MemberRefused
    | MeshFinished
    | DeltaWanted
    | DeltaMessage
    | GlobalWanted
    | GlobalTaken
    | GlobalMessage
    | ModelWanted
    | ModelMessage
    | StatusWanted
    | MeshStatus
    | LessonWanted
    | LessonCurrent
    | LessonMessage
    | UpdateOffered
    | UpdateWanted
    | UpdateMessage
    | UpdateTaken
    | PupilRefused
    | Hello
    | PeersKnown
)
# Carriers whose values the receiver compares with a digest: they are hashed on arrival, and never again.
DIGESTED = (GlobalMessage, ModelMessage)
CARRIERS = (DeltaMessage, GlobalMessage, ModelMessage, LessonMessage, UpdateMessage)
# Each is answered with a carrier.
ASKS = (DeltaWanted, GlobalWanted, ModelWanted, LessonWanted, UpdateWanted)


# Why a hop is given up by its receiver, where the sender is to be reached no more; the agent looks for another way.
NOTHING_CAME = "nothing came"
