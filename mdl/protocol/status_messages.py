"""What an agent tells people: the line that ends a round, and the status that an observer asks for."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from mdl.bounds import (
    MAX_MEMBERS,
    Bytes,
    HexDigest,
    HopId,
    Incarnation,
    Loss,
    PeerId,
    Percent,
    RateMBs,
    Round,
    Seconds,
    Share,
    SomePeerId,
    Term,
    Text,
    Theta,
    Word,
)
from mdl.protocol.vocabulary import MAX_PERIODS, Activity, Message, PeerIds, ResourceState, Transfer

# Hops of a round that are told: N - 1 count, and few of them take more than one try.
MAX_SCHEDULE = 4 * MAX_MEMBERS
# Phases of a round with their seconds: five today.
MAX_PHASES = 16
# Pairs of devices that are known not to reach each other: with more, the network is down rather than cut somewhere.
MAX_CUTS = 64


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
