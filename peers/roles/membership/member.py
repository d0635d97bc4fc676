"""One trainer as the agent hears it, and the changes in each of its reports: compared once, for all that act on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from mdl.peers.roles.membership.silence import Arrivals
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.vocabulary import Activity, Lineage
from mdl.scheduler.policies.device_book import DeviceBook

Position: TypeAlias = tuple[Lineage, int, bytes]  # lineage, round, digest of w(round)

# Looked up once: see peers/roles/agent/phase.py.
_LEFT, _TRAINING = Activity.LEFT, Activity.TRAINING


@dataclass
class Member:
    """One trainer as the agent hears it. problem: the reason, for the user, why it cannot take part. at: its place.

    late_since: time at which the agent first waited for it to come to the mesh's model, until it stands there.
    moved_at: time at which values that it fetches were last seen to arrive.
    """

    contributor: Contributor
    report: PeerReport
    arrivals: Arrivals
    joined_at: float
    problem: str = ""
    late_since: float | None = None
    moved_at: float = 0.0
    device: DeviceBook = field(default_factory=DeviceBook)
    alive: bool = field(init=False)
    at: Position = field(init=False)

    def __post_init__(self) -> None:
        self.peer_id = self.contributor.peer_id
        self._note(self.report)

    def take(self, report: PeerReport) -> Change:
        """Take its next report; return what that changes."""
        before, stood_at, was_alive = self.report, self.at, self.alive
        self._note(report)
        if not was_alive:
            self.late_since = None  # it was away: the wait for it begins anew
            return Change(self, report, presence=self.alive)
        return _compare(self, before, stood_at, report)

    def obeys(self, agent: str, term: int) -> bool:
        """Return True if it follows this agent since this term, and so nobody else's orders any more."""
        return self.report.agent == agent and self.report.term >= term

    @property
    def heard_at(self) -> float:
        return self.arrivals.heard_at

    @property
    def is_busy(self) -> bool:
        """True if its resources say so (`mdl.scheduler.policies.device_book.is_busy`), or its owner: it comes last."""
        return self.device.busy_since is not None or bool(self.report.away)

    @property
    def has_left(self) -> bool:
        """True if it said that it leaves: nobody waits for it."""
        return self.report.activity is _LEFT

    def _note(self, report: PeerReport) -> None:
        self.report = report
        self.at = report.lineage, report.round_id, report.digest
        self.alive = report.activity is not _LEFT


class Change(msgspec.Struct, frozen=True):
    """One report, and its differences from the device's last one; all differ, if the device was not there before.

    Values that are measured all the time (`PeerReport.resources`, `sent_bytes`, `bugs`, `unheard`) and the sequence are
    no difference.
    """

    member: Member
    # Its words now.
    report: PeerReport
    # Its words before. None: it is new, was started anew, had left or was taken for lost.
    before: PeerReport | None = None
    # Its place before; None as above.
    stood_at: Position | None = None
    # It came, came back or left.
    presence: bool = True
    # Its model is of another schema or size.
    model: bool = True
    # It obeys another agent, or the same one under another term.
    agent: bool = True
    # It stands at another lineage, round or digest.
    standing: bool = True
    # It takes part in another round, or in another attempt at it.
    open_round: bool = True
    # It does something else: trains, holds, receives.
    activity: bool = True
    # Other contributors are in its partial sum, or it has given that away.
    holdings: bool = True
    # It has decided a hop.
    hops: bool = True
    # It has staged a result, under this order.
    staged: bool = True
    # Anything else: a vote, the base, the goal, a loss, a weight, an evaluation, an announcement, an order heard, a
    # pause, an accusation.
    rest: bool = True
    # More values have come in.
    transfer: bool = True

    @property
    def is_news(self) -> bool:
        """True if it says anything that an agent acts on."""
        return (
            self.before is None
            or self.holdings
            or self.activity
            or self.agent
            or self.hops
            or self.staged
            or self.open_round
            or self.standing
            or self.rest
            or self.presence
            or self.model
        )

    @property
    def is_place(self) -> bool:
        """True if it belongs elsewhere now: it came or left, or obeys, stands or takes part as it did not before."""
        return self.presence or self.agent or self.standing or self.open_round

    @property
    def is_progress(self) -> bool:
        """True if the device gets on: it trains, does something else than before, or receives values."""
        return self.activity or self.transfer or self.report.activity is _TRAINING


def _compare(member: Member, before: PeerReport, stood_at: Position, report: PeerReport) -> Change:
    return Change(
        member,
        report,
        before,
        stood_at,
        presence=not member.alive,
        model=report.size != before.size or report.schema_hash != before.schema_hash,
        agent=report.agent != before.agent or report.term != before.term,
        standing=member.at != stood_at,
        open_round=report.open_round != before.open_round or report.open_term != before.open_term,
        activity=report.activity is not before.activity,
        holdings=report.holdings != before.holdings,
        hops=report.hops != before.hops,
        staged=report.staged != before.staged,
        rest=report.votes is not before.votes
        or report.accepted != before.accepted
        or report.forgotten != before.forgotten
        or report.open_as != before.open_as
        or report.training != before.training
        or report.theta != before.theta
        or report.room != before.room
        or report.evaluation != before.evaluation
        or report.incoming != before.incoming
        or report.entered != before.entered
        or report.exchange != before.exchange
        or report.lacking != before.lacking
        or report.base != before.base
        or report.goal != before.goal
        or report.model != before.model
        or report.away != before.away
        or report.accused != before.accused
        or report.workers != before.workers
        or report.channels != before.channels,
        transfer=report.transfer is not None and report.transfer != before.transfer,
    )


def digests_here(members: Collection[Member]) -> set[bytes]:
    """Return the digests of the results that some of these have staged."""
    return {member.report.staged.digest for member in members if member.report.staged}


def newest_ballot(members: Collection[Member]) -> tuple[int, int]:
    """Return the ballot of the latest result that any of these has accepted and some of them have; (0, 0): of none."""
    had, here = digests_here(members), [member.report for member in members]
    accepted = [each for report in here if (each := report.staged or report.accepted) and each.digest in had]
    return max(((each.term, each.version) for each in accepted), default=(0, 0))


def voters(members: Collection[Member]) -> set[str]:
    """Return the peer ids with votes that count, if these and nobody else are here.

    A device that has accepted a result and lost it says its name. It votes if that result, or a later one, is here to
    be proposed (docs/protocol-disk.md, rule 6).
    """
    newest, had = newest_ballot(members), digests_here(members)
    return {
        member.peer_id
        for member in members
        if member.report.votes
        and ((it := member.report.accepted) is None or it.digest in had or (it.term, it.version) < newest)
    }


def newest_position(members: list[Member]) -> Position:
    """Return the latest position of these, with the digest most of them have there. members: of one lineage."""
    latest = max(member.report.round_id for member in members)
    digests = Counter(member.report.digest for member in members if member.report.round_id == latest)
    digest = max(digests, key=lambda digest: (digests[digest], digest))
    return members[0].report.lineage, latest, digest


def poverty(member: Member | None) -> tuple[bool, bool, float, float, str]:
    """Return the key that sorts the resource-richest first: at ease, not on a low battery, fast link, much memory."""
    if member is None or member.report.resources is None:
        return True, True, 0.0, 0.0, ""
    resources = member.report.resources
    low = resources.battery_percent is not None and resources.battery_percent < 30 and not resources.charging
    link_mb_s = member.device.link_mb_s or 0.0
    return member.is_busy, low, -link_mb_s, -resources.free_memory_bytes, member.contributor.peer_id
