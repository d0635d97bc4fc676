"""What the agent and the trainers of a mesh say to each other in a round."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from mdl.bounds import (
    MAX_HOPS,
    MAX_MEMBERS,
    Bytes,
    Count,
    Digest,
    HopId,
    RateMBs,
    Round,
    SchemaHash,
    Segment,
    SomePeerId,
    Term,
    Text,
    Theta,
    ValueCount,
)
from mdl.protocol.delta import Contributor
from mdl.protocol.vocabulary import (
    Activity,
    Contributors,
    History,
    Holding,
    HopDecision,
    Incoming,
    Lineage,
    Message,
    PeerIds,
    ResourceState,
    RoundEvaluation,
    Staged,
    TrainingReport,
    Transfer,
)

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
