"""Who belongs to the mesh: the agent's table of trainers, their last reports, and where each of them stands."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from mdl.bounds import MAX_MEMBERS, printable
from mdl.config import BusySection
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.vocabulary import Activity, Lineage
from mdl.task import task_difference
from peers.roles.membership.reach import Reach
from peers.roles.membership.silence import Arrivals
from scheduler.policies.device_book import DeviceBook, is_busy

Position: TypeAlias = tuple[Lineage, int, bytes]  # lineage, round, digest of w(round)

_LEFT = Activity.LEFT
# No silence shorter than this many reports is taken for a loss.
_REPORTS_MISSED = 4
# A later start that is gone for so long gives way to an earlier one that still reports: a copied data directory.
_GONE_S = 5.0


@dataclass
class Member:
    """One trainer as the agent hears it. problem: why it cannot take part, for the user. at: where it stands.

    late_since: when the agent first waited for it to come to the mesh's model, until it stands there.
    """

    contributor: Contributor
    report: PeerReport
    arrivals: Arrivals
    joined_at: float
    alive: bool = True
    problem: str = ""
    late_since: float | None = None
    device: DeviceBook = field(default_factory=DeviceBook)
    at: Position = field(init=False)

    def __post_init__(self) -> None:
        self.peer_id = self.contributor.peer_id
        self.take(self.report)

    def take(self, report: PeerReport) -> None:
        self.report = report
        self.at = report.lineage, report.round_id, report.digest

    def obeys(self, agent: str, term: int) -> bool:
        """Whether it follows this agent since this term, and so nobody else's orders any more."""
        return self.report.agent == agent and self.report.term >= term

    @property
    def heard_at(self) -> float:
        return self.arrivals.heard_at

    @property
    def is_busy(self) -> bool:
        """Its resources say so (`scheduler.policies.device_book.is_busy`): it comes last."""
        return self.device.busy_since is not None

    @property
    def has_left(self) -> bool:
        """It said so: nobody waits for it."""
        return self.report.activity is _LEFT


class Members:
    """peer id -> Member. A restarted peer replaces its old incarnation and keeps its device's book.

    The other way round only if the later one is gone, and has been for some seconds: it was a copy of the earlier one.
    lost_after_s: no silence is longer without being taken for a loss; on a good network shorter ones are. busy: when a
    device counts as busy. Who is alive and whom they follow is asked far more often than it changes, so the lists are
    kept; callers do not change them. has_refused: whether somebody's model did not fit. reach: who lately could not
    reach whom. changes: grows whenever somebody appears, is lost, follows another agent, stands elsewhere or opens
    another round.
    """

    def __init__(self, lost_after_s: float, report_s: float = 0.5, busy: BusySection | None = None) -> None:
        self._table: dict[str, Member] = {}
        self._sorted: list[Member] = []
        self._alive: list[Member] | None = None
        self._followed: tuple[str, int] | None = None
        self._followers: list[Member] = []
        self._is_one_model = False
        self.has_refused = False
        self.reach = Reach()
        self._silent_at = inf
        self.changes = 0
        self._busy = busy or BusySection()
        self._longest_s = lost_after_s
        self._shortest_s = min(lost_after_s, _REPORTS_MISSED * report_s)

    def hear(self, sender: Contributor, report: PeerReport, now: float) -> Member | None:
        """The member, or None if the report is older than what is known."""
        known = self._table.get(sender.peer_id)
        if known and known.contributor == sender:
            if report.sequence <= known.report.sequence:
                return None
            resources = known.report.resources
            self._hear_again(known, report, now)
            if report.resources is not resources:
                self._note_use(known, now)
            return known
        is_outdated = known and known.contributor.incarnation > sender.incarnation
        if known and is_outdated and (known.alive or now - known.heard_at < _GONE_S):
            return None
        if known is None and len(self._table) >= MAX_MEMBERS:
            return None
        device = known.device if known else DeviceBook()
        alive = report.activity is not _LEFT
        arrivals = Arrivals(now, self._shortest_s, self._longest_s)
        member = Member(sender, report, arrivals, now, alive, device=device)
        self._note_use(member, now)
        self._table[sender.peer_id] = member
        self._sorted = [self._table[peer_id] for peer_id in sorted(self._table)]
        self._silent_at = min(self._silent_at, arrivals.silent_at)
        self._forget_lists()
        return member

    def _note_use(self, member: Member, now: float) -> None:
        if resources := member.report.resources:
            member.device.note_use(is_busy(resources, self._busy), now)
            member.device.learn_merge(resources.merge_mb_s)

    def expire(self, now: float) -> None:
        if now < self._silent_at:
            return
        for member in self._table.values():
            if member.alive and member.arrivals.is_silent(now):
                member.alive = False
                self._forget_lists()
        self._silent_at = min(
            (member.arrivals.silent_at for member in self._table.values() if member.alive), default=inf
        )

    def forgive(self, seconds: float) -> None:
        """This process was suspended so long itself: nobody was silent."""
        for member in self._table.values():
            member.arrivals.forgive(seconds)

    def everyone(self) -> list[Member]:
        return self._sorted

    def alive(self) -> list[Member]:
        """Those heard lately whose model fits."""
        if self._alive is None:
            self._alive = [member for member in self._sorted if member.alive and not member.problem]
        return self._alive

    def following(self, agent: str, term: int) -> list[Member]:
        """Those alive who obey this agent since this term."""
        if self._followed == (agent, term):
            return self._followers
        self._followed = (agent, term)
        self._followers = [member for member in self.alive() if member.obeys(agent, term)]
        return self._followers

    def get(self, contributor: Contributor) -> Member | None:
        member = self._table.get(contributor.peer_id)
        return member if member and member.contributor == contributor else None

    def refuse_other_models(self, lineage: Lineage = ()) -> None:
        """The mesh's model stands, others are refused.

        It is the one that several devices have trained, then one that a device has trained alone; of two of these that
        of the mesh which is running, on `lineage`, as long as there is one; then what most have, then the first.
        """
        if self._is_one_model:
            return
        alive = self.alive()
        kinds: dict[tuple[str, int], list[Member]] = {}
        for member in alive:
            kinds.setdefault((member.report.schema_hash, member.report.size), []).append(member)
        if len(kinds) < 2:
            self._is_one_model = True
            return
        first = min(kinds.values(), key=lambda members: _claim_to_model(members, lineage))[0].report
        for member in alive:
            report = member.report
            if (report.schema_hash, report.size) != (first.schema_hash, first.size):
                self.has_refused = True
                member.problem = printable(
                    task_difference(report.model, first.model)
                    or f"your model ({report.model[:80]}, {report.size:,} values) differs from the mesh's "
                    f"({first.model[:80]}, {first.size:,} values)"
                )
        self._forget_lists()

    def _hear_again(self, known: Member, report: PeerReport, now: float) -> None:
        before, stood_at, alive = known.report, known.at, report.activity is not _LEFT
        known.take(report)
        known.arrivals.hear(now)
        if known.arrivals.silent_at < self._silent_at:
            self._silent_at = known.arrivals.silent_at
        same_model = report.size == before.size and report.schema_hash == before.schema_hash
        same_agent = report.agent == before.agent and report.term == before.term
        if alive is not known.alive or not (same_model and same_agent):
            known.alive = alive
            self._forget_lists()
        elif report.open_round != before.open_round or report.open_term != before.open_term or known.at != stood_at:
            self.changes += 1

    def _forget_lists(self) -> None:
        self.changes += 1
        self._alive, self._followed, self._is_one_model = None, None, False


def _claim_to_model(members: list[Member], lineage: Lineage) -> tuple[int, bool, int, float, Contributor]:
    """The smallest claim wins. members: all of one model."""
    reports = [member.report for member in members]
    trained = max(_trained_by(report) for report in reports)
    is_running = bool(lineage) and any(report.lineage == lineage for report in reports)
    joined_at, who = min((member.joined_at, member.contributor) for member in members)
    return -trained, not is_running, -len(members), joined_at, who


def _trained_by(report: PeerReport) -> int:
    """0: nobody has trained this model yet; 1: one device by itself; 2: several."""
    if not report.lineage:
        return 0
    return min(2, max(len(report.base), *(fork.size for fork in report.lineage)))


def newest_position(members: list[Member]) -> Position:
    """The latest round that any of these is at, and the digest most of them have there. members: of one lineage."""
    latest = max(member.report.round_id for member in members)
    digests = Counter(member.report.digest for member in members if member.report.round_id == latest)
    digest = max(digests, key=lambda digest: (digests[digest], digest))
    return members[0].report.lineage, latest, digest


def poverty(member: Member | None) -> tuple[bool, bool, float, float, str]:
    """Sorts the resource-richest first: at ease, not on a low battery, fast link, much memory."""
    if member is None or member.report.resources is None:
        return True, True, 0.0, 0.0, ""
    resources = member.report.resources
    low = resources.battery_percent is not None and resources.battery_percent < 30 and not resources.charging
    link_mb_s = member.device.link_mb_s or 0.0
    return member.is_busy, low, -link_mb_s, -resources.free_memory_bytes, member.contributor.peer_id
