"""The members of the mesh: the agent's table of trainers, their last reports, and the place of each of them."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from mdl.bounds import MAX_MEMBERS, printable
from mdl.config import BusySection
from mdl.peers.roles.membership.member import Change, Member
from mdl.peers.roles.membership.reach import AVOID_S, Reach
from mdl.peers.roles.membership.silence import Arrivals
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.vocabulary import Lineage, PeerInfo
from mdl.scheduler.policies.device_book import DeviceBook, is_busy
from mdl.task import task_difference

# No silence shorter than this many reports is taken for a loss.
_REPORTS_MISSED = 4
# A later start that is gone for so long gives way to an earlier one that still reports: a copied data directory.
_GONE_S = 5.0


class Members:
    """The members, by peer id. A restarted peer replaces its old incarnation and keeps its device's book.

    An earlier one replaces a later one only if the later has been gone for some seconds: it was a copy.
    At most MAX_MEMBERS: a new one takes the place of the one gone for longest, and is not heard if nobody is gone.
    lost_after_s: no silence is longer without being taken for a loss; on a good network shorter ones are. busy:
    conditions under which a device counts as busy. The lists of those alive, and of those that follow an agent, are
    asked for far more often than they change, so they are kept; callers do not change them. found: devices that
    discovery has introduced, by peer id. has_refused: a member's model did not fit. reach: pairs that lately could not
    reach each other; avoid_s: time for which that counts.
    """

    def __init__(
        self,
        lost_after_s: float,
        report_s: float = 0.5,
        busy: BusySection | None = None,
        avoid_s: float = AVOID_S,
    ) -> None:
        self._table: dict[str, Member] = {}
        self._sorted: list[Member] = []
        self._alive: list[Member] | None = None
        self._followed: tuple[str, int] | None = None
        self._followers: list[Member] = []
        self._is_one_model = False
        self.has_refused = False
        self.found: Mapping[str, PeerInfo] = {}
        self.reach = Reach(avoid_s)
        self._silent_at = inf
        self._busy = busy or BusySection()
        self._longest_s = lost_after_s
        self._shortest_s = min(lost_after_s, _REPORTS_MISSED * report_s)

    def hear(self, sender: Contributor, report: PeerReport, now: float) -> Change | None:
        """Return what this report changes, for all that act on it; None if it, or its sender's start, is outdated."""
        known = self._table.get(sender.peer_id)
        if known and known.contributor == sender:
            if report.sequence <= known.report.sequence:
                return None
            change = self._hear_again(known, report, now)
        elif self._may_enter(known, sender, now):
            change = self._enter(known, sender, report, now)
        else:
            return None
        if change.presence or change.model or change.agent:
            self._forget_lists()
        return change

    def expire(self, now: float) -> list[Member]:
        """Return the members that have been silent for too long; each once."""
        if now < self._silent_at:
            return []
        lost = [member for member in self._table.values() if member.alive and member.arrivals.is_silent(now)]
        for member in lost:
            member.alive = False
            self._forget_lists()
        self._silent_at = min(
            (member.arrivals.silent_at for member in self._table.values() if member.alive), default=inf
        )
        return lost

    def silence(self, peer_id: str, now: float) -> None:
        """Lose it at the next look: nothing will come from it any more."""
        if (member := self._table.get(peer_id)) and member.alive:
            member.arrivals.silent_at = now
            self._silent_at = min(self._silent_at, now)

    def forgive(self, seconds: float) -> None:
        """Discount a suspension of this process: nobody was silent in these seconds."""
        for member in self._table.values():
            member.arrivals.forgive(seconds)

    def everyone(self) -> list[Member]:
        return self._sorted

    def alive(self) -> list[Member]:
        """Return the members heard lately with a model that fits."""
        if self._alive is None:
            self._alive = [member for member in self._sorted if member.alive and not member.problem]
        return self._alive

    def following(self, agent: str, term: int) -> list[Member]:
        """Return the members alive that obey this agent since this term."""
        if self._followed == (agent, term):
            return self._followers
        self._followed = (agent, term)
        self._followers = [member for member in self.alive() if member.obeys(agent, term)]
        return self._followers

    def get(self, contributor: Contributor) -> Member | None:
        member = self._table.get(contributor.peer_id)
        return member if member and member.contributor == contributor else None

    def refuse_other_models(self, lineage: Lineage = ()) -> list[Member]:
        """Refuse members with another model than the mesh's; return those that were refused just now.

        The mesh's model is the one that several devices have trained, then one that a device has trained alone. Among
        equals it is that of the running mesh, on `lineage`, as long as there is one; then the one that most have, then
        the first.
        """
        if self._is_one_model:
            return []
        alive = self.alive()
        kinds: dict[tuple[str, int], list[Member]] = {}
        for member in alive:
            kinds.setdefault((member.report.schema_hash, member.report.size), []).append(member)
        if len(kinds) < 2:
            self._is_one_model = True
            return []
        first = min(kinds.values(), key=lambda members: _claim_to_model(members, lineage))[0].report
        refused = [
            member
            for member in alive
            if (member.report.schema_hash, member.report.size) != (first.schema_hash, first.size)
        ]
        for member in refused:
            self.has_refused, report = True, member.report
            member.problem = printable(
                task_difference(report.model, first.model)
                or f"your model ({report.model[:80]}, {report.size:,} values) differs from the mesh's "
                f"({first.model[:80]}, {first.size:,} values)"
            )
        self._forget_lists()
        return refused

    def _hear_again(self, known: Member, report: PeerReport, now: float) -> Change:
        resources = known.report.resources
        if report.transfer != known.report.transfer:
            known.moved_at = now
        known.device.hear_link(report.link_mb_s)
        change = known.take(report)
        known.arrivals.hear(now)
        if known.arrivals.silent_at < self._silent_at:
            self._silent_at = known.arrivals.silent_at
        if report.resources is not resources:
            self._note_use(known, now)
        return change

    def _may_enter(self, known: Member | None, sender: Contributor, now: float) -> bool:
        """Return True if this process is the member of its name from now on. known: the present one."""
        if known is None:
            return len(self._table) < MAX_MEMBERS or self._forget_one()
        is_outdated = known.contributor.incarnation > sender.incarnation
        return not is_outdated or not (known.alive or now - known.heard_at < _GONE_S)

    def _forget_one(self) -> bool:
        gone = [member for member in self._table.values() if not member.alive]
        if gone:
            del self._table[min(gone, key=lambda member: member.heard_at).peer_id]
        return bool(gone)

    def _enter(self, known: Member | None, sender: Contributor, report: PeerReport, now: float) -> Change:
        arrivals = Arrivals(now, self._shortest_s, self._longest_s)
        member = Member(sender, report, arrivals, now, device=known.device if known else DeviceBook())
        member.device.hear_link(report.link_mb_s)
        self._note_use(member, now)
        self._table[sender.peer_id] = member
        self._sorted = [self._table[peer_id] for peer_id in sorted(self._table)]
        self._silent_at = min(self._silent_at, arrivals.silent_at)
        return Change(member, report)

    def _note_use(self, member: Member, now: float) -> None:
        if resources := member.report.resources:
            member.device.note_use(is_busy(resources, self._busy), now)
            member.device.learn_merge(resources.merge_mb_s)

    def _forget_lists(self) -> None:
        self._alive, self._followed, self._is_one_model = None, None, False


def _claim_to_model(members: list[Member], lineage: Lineage) -> tuple[int, bool, int, float, Contributor]:
    """Return the claim of these to be the mesh's model: the smallest wins. members: all of one model."""
    reports = [member.report for member in members]
    trained = max(_trained_by(report) for report in reports)
    is_running = bool(lineage) and any(report.lineage == lineage for report in reports)
    joined_at, who = min((member.joined_at, member.contributor) for member in members)
    return -trained, not is_running, -len(members), joined_at, who


def _trained_by(report: PeerReport) -> int:
    """Return 0 if nobody has trained this model yet; 1: one device by itself; 2: several."""
    if not report.lineage:
        return 0
    return min(2, max(len(report.base), *(fork.size for fork in report.lineage)))
