"""The agent's messages for people: the line that ends a round, and the status that an observer asks for."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from mdl.bounds import (
    MAX_MEMBERS,
    MAX_NUMBERS,
    Bytes,
    Count,
    HexDigest,
    HopId,
    Incarnation,
    Loss,
    PeerId,
    Percent,
    RateMBs,
    Round,
    Seconds,
    SegmentCount,
    Share,
    SomePeerId,
    Term,
    Text,
    Theta,
    ValueCount,
    Word,
)
from mdl.protocol.counts import Confusion, Fit, Labelling, Score
from mdl.protocol.vocabulary import MAX_PERIODS, Activity, Message, PeerIds, ResourceState, Transfer
from mdl.task import Targets

# Hops of a round that are told: N - 1 count, and few of them take more than one try.
MAX_SCHEDULE = 4 * MAX_MEMBERS
# Phases of a round with their seconds: five today.
MAX_PHASES = 16
# The reason why a round went on without a device begins so if that has its work, which comes with a later round.
LEFT_OUT = "left out: "
# Pairs of devices that are known not to reach each other: with more, the network is down rather than cut somewhere.
MAX_CUTS = 64


class HopSummary(msgspec.Struct, frozen=True):
    """One hop of a round as the agent saw it.

    hop_id: as in HopOrdered.
    sender: peer id.
    receiver: peer id.
    outcome: ordered, merged, aborted, looked-at or lost.
    ordered_s: seconds since the round was opened, by the agent's clock.
    decided_s: the same, when its report came; None: not decided yet.
    reason: why it was ordered, or why it was aborted.
    size_bytes: of its values.
    transfer_s: seconds that the receiver measured, from asking to having the values.
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

    Defaults are not written: they would be the same in each of thousands of lines.

    peer_id: the device.
    ready_s: it held its own delta; None: it never did.
    link_mb_s: megabytes a second of its link, as hops have shown it; None: not known.
    battery_percent: as it told; None: it has no battery.
    charging: as it told; None: it has no battery.
    busy: (start, end) of each time it was seen busy; an end of None: until the round's end.
    lost: why the round went on without it; "": it did not.
    kind: of use, by the busy periods of all rounds: 0 idle, 1 sync, 2 interactive, 3 call, 4 bimodal.
    merge_mb_s: megabytes a second, as its merges have shown it; None: not known.
    loss: of its training, in nats; None: not told.
    accuracy: of the round's model on its own test windows; None: it has not tested.
    score: likewise R² of numbers, or micro F1 of labels.
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
    loss: Loss | None = None
    accuracy: Share | None = None
    score: Score | None = None


Schedule: TypeAlias = Annotated[tuple[HopSummary, ...], Meta(max_length=MAX_SCHEDULE)]
Shares: TypeAlias = Annotated[dict[PeerId, SegmentCount], Meta(max_length=MAX_MEMBERS)]
Cuts: TypeAlias = Annotated[tuple[Text, ...], Meta(max_length=MAX_CUTS)]
DeviceRecords: TypeAlias = Annotated[tuple[DeviceRecord, ...], Meta(max_length=MAX_MEMBERS)]


class RoundSummary(msgspec.Struct, frozen=True):
    """One line of metrics.jsonl.

    round: its number.
    theta: summed weight of its contributors.
    contributors: peer ids with deltas in it.
    hops: (sender, receiver) of those that were merged.
    seconds: by phase and in all ("total"), by the agent's clock.
    bytes: of model values that were sent, as they were coded, nothing else.
    loss: mean training loss of the members, in nats; None: none was told.
    accuracy: of w(round) on the test windows of all that tested; None: nobody did, or it gives no classes.
    macro_f1: as accuracy, and of labels.
    lost: peer ids that the round went on without.
    digest: of w(round), in hexadecimal.
    schedule: all hops that were ordered, with times and reasons; empty in lines of older versions.
    devices: their state meanwhile; empty in lines of older versions.
    cuts: in words, which devices did not reach each other.
    shares: peer id -> segments that it owned, of a round that went in segments; else empty.
    plan: the reason for those, in words; or for hops, if the round might have gone in segments.
    bound_s: seconds that the links allow at best for their exchange, as they were known before it; 0: not known.
    partial: peer id lost in the middle of the exchange -> the share of the model that has its work.
    confusion: of w(round), test windows by true class (rows) and predicted class; () in lines of older versions, and
        over more classes than 32.
    quarantined: peer id -> why the round was opened without it: others had refused its work.
    fits: of w(round) on the test windows of all that tested, one for each number that it predicts; else empty.
    labelling: likewise of labels; else None.
    size: values of the model, P; 0 in lines of older versions.
    doubts: in words, what devices hold against each other.
    agent: peer id of the device that led it; "" in lines of older versions.
    clipped: peer id -> values of its delta beyond their share of the sum, if there are any.
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
    shares: Shares = {}
    plan: Text = ""
    bound_s: Seconds = 0.0
    partial: Annotated[dict[PeerId, Share], Meta(max_length=MAX_MEMBERS)] = {}
    confusion: Confusion = ()
    quarantined: Annotated[dict[PeerId, Text], Meta(max_length=MAX_MEMBERS)] = {}
    fits: Annotated[tuple[Fit, ...], Meta(max_length=MAX_NUMBERS)] = ()
    labelling: Labelling | None = None
    size: ValueCount = 0
    doubts: Cuts = ()
    agent: SomePeerId = ""
    clipped: Annotated[dict[PeerId, ValueCount], Meta(max_length=MAX_MEMBERS)] = {}

    @property
    def notices(self) -> tuple[str, ...]:
        """Cuts, doubts and clipped values, in words."""
        clipped = (f"{values:,} of {self.size:,} values of {who} clipped" for who, values in self.clipped.items())
        return *self.cuts, *self.doubts, *clipped

    @property
    def targets(self) -> Targets:
        """The kind of test that w(round) had; classes if nobody tested."""
        return "numbers" if self.fits else "labels" if self.labelling else "classes"

    @property
    def score(self) -> float | None:
        """The score on the test windows of all that tested, by the measure of its targets (`MEASURES`)."""
        if self.labelling:
            return self.labelling.micro_f1
        known = [fit.r2 for fit in self.fits if fit.r2 is not None]
        return sum(known) / len(known) if known else self.accuracy

    @property
    def left_out(self) -> list[str]:
        """The devices that the round did not wait for: their work comes with a later one."""
        return [each.peer_id for each in self.devices if each.lost.startswith(LEFT_OUT)]

    @property
    def present(self) -> tuple[str, ...]:
        """The contributors, and the devices that the round did not wait for."""
        return (*self.contributors, *self.left_out)

    def tell_lost(self) -> list[str]:
        """Return the devices that it went on without, each with the part of its work that counts.

        "ann (60 % counts)" was lost in the middle; the work of "bob (later)" comes with a later round.
        """
        counts = {peer_id: f" ({share:.0%} counts)".replace("%", " %") for peer_id, share in self.partial.items()}
        counts |= dict.fromkeys(self.left_out, " (later)")
        return [peer_id + counts.get(peer_id, "") for peer_id in self.lost]

    @property
    def exchange_s(self) -> float:
        """Seconds of a round in segments, from the order until all had the result."""
        return self.seconds.get("broadcast", 0.0)

    @property
    def total_s(self) -> float:
        """Seconds from its opening until all had applied it."""
        return self.seconds.get("total", 0.0)


class MemberStatus(msgspec.Struct, frozen=True):
    """One member as the agent knows it.

    peer_id: the device.
    incarnation: of its process.
    alive: it was heard lately.
    activity: as it told last.
    round_id: of its model.
    heard_s_ago: seconds since its last report.
    theta: of the partial sum that it holds; 0: none.
    resources: as it told last; None: not yet.
    transfer: the progress of the values that it waits for.
    loss: of its last training, in nats; None: not told.
    problem: why it takes no part; "": it does.
    link_mb_s: megabytes a second of its link, as hops have shown it; None: not known.
    merge_mb_s: likewise of its merges.
    bugs: messages that met a bug in its process.
    took_part: rounds of the last ones with work of it.
    of_rounds: number of these, at most ten; 0: the agent has closed none yet.
    """

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
    link_mb_s: RateMBs | None = None
    merge_mb_s: RateMBs | None = None
    bugs: Count = 0
    took_part: Count = 0
    of_rounds: Count = 0


class StatusWanted(Message, frozen=True):
    """An observer to the agent: what is going on?

    since_round: the last round that the observer has a summary of.
    """

    since_round: Round = 0


class MeshStatus(Message, frozen=True):
    """The agent to an observer: the mesh as it sees it; `mdl status` and the live view show it.

    term: the agent's.
    round_id: the open round, or the last one.
    rounds: the run's last round; 0: open.
    phase: of the mesh, and what it waits for, in words.
    policy: the name of the agent's.
    members: all that were heard.
    hops: of the open round.
    finished: summaries since the round that the observer named; only the last of them tells its schedule and confusion.
    agent: the agent's peer id.
    devices: of the open round.
    elapsed_s: seconds since that round was opened.
    cuts: as in RoundSummary.
    shares: of the open round while it goes in segments, as in RoundSummary.
    plan: of those, likewise.
    bound_s: of those, likewise.
    exchanging_s: seconds that they have been on their way, or were.
    doubts: as in RoundSummary.
    unlike: as in RoundOpened.
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
    shares: Shares = msgspec.field(default_factory=dict)
    plan: Text = ""
    bound_s: Seconds = 0.0
    exchanging_s: Seconds = 0.0
    doubts: Cuts = ()
    unlike: Cuts = ()


class PageServed(Message, frozen=True):
    """An observer tells another one that it serves a page about the mesh, so that a page can go on at the other one.

    port: TCP port of the page.
    """

    port: Annotated[int, Meta(ge=1, le=65535)]
