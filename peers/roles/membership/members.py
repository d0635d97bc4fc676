"""The members of the mesh as the agent hears them: each one, the table of all, their cuts and suspicions. Pure.

`TrainerSeen` is one trainer; the changes in each of its reports are compared once, for all that act on them. `Members`
is the table, with the last report and the place of each.

`Arrivals` learns from the pauses that were seen after which silence a peer counts as lost: a fixed limit is too short
on a bad network and too long on a good one.

`Reach` keeps the pairs of devices that lately could not reach each other, so that values go another way. Two devices
may both hear the agent and not one another: an access point that isolates its clients, a firewall, a wall between them.
Values need both directions (they are asked for, and acknowledged), so it is the pair that is avoided. A cut heals: a
pair is tried again after a while, after twice as long if that fails too.

`Distrust` keeps the suspicions of members, and the devices that rounds leave out for them. All follows from the reports
alone, so that an agent that takes over comes to the same.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

import msgspec

from mdl.bounds import MAX_MEMBERS, MAX_TEXT, printable
from mdl.config import BusySection
from mdl.defence.limits import FAINT, Quarantine, Suspicion
from mdl.protocol.delta import Contributor
from mdl.protocol.round_messages import PeerReport
from mdl.protocol.status_messages import MAX_CUTS
from mdl.protocol.vocabulary import Activity, Lineage, PeerInfo
from mdl.scheduler.policies.device_book import DeviceBook, is_busy
from mdl.task import task_difference

logger = logging.getLogger(__name__)


# The longest pause fades slowly, so that a network that has become better is trusted again after some minutes.
_FADE = 0.98
# Silence of this many times the longest usual pause is no accident.
_PAUSES = 3.0


class Arrivals:
    """The times at which one peer was heard. silent_at: then it counts as lost, unless it is heard before."""

    def __init__(self, now: float, shortest_s: float, longest_s: float) -> None:
        self.heard_at = now
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._pause_s = 0.0
        self.silent_at = now + self.patience_s

    @property
    def patience_s(self) -> float:
        """The silence that is borne: shortest_s on a good network, up to longest_s on a bad one."""
        usual_s = _PAUSES * self._pause_s
        if usual_s < self._shortest_s:
            return self._shortest_s
        return usual_s if usual_s < self._longest_s else self._longest_s

    def hear(self, now: float) -> None:
        pause_s = now - self.heard_at
        self.heard_at = now
        if pause_s < self._longest_s:  # longer: it was away, which says nothing about the network
            faded_s = _FADE * self._pause_s
            self._pause_s = pause_s if pause_s > faded_s else faded_s
        self.silent_at = now + self.patience_s

    def forgive(self, seconds: float) -> None:
        """Discount a suspension of this process: nobody else was silent."""
        self.heard_at += seconds
        self.silent_at += seconds

    def is_silent(self, now: float) -> bool:
        return now >= self.silent_at


Position: TypeAlias = tuple[Lineage, int, bytes]  # lineage, round, digest of w(round)

# Looked up once: see peers/roles/agent/conductor.py.
_LEFT, _TRAINING = Activity.LEFT, Activity.TRAINING


@dataclass
class TrainerSeen:
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

    def take(self, report: PeerReport) -> ReportChange:
        """Take its next report; return what that changes."""
        before, stood_at, was_alive = self.report, self.at, self.alive
        self._note(report)
        if not was_alive:
            self.late_since = None  # it was away: the wait for it begins anew
            return ReportChange(self, report, presence=self.alive)
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


class ReportChange(msgspec.Struct, frozen=True):
    """One report, and its differences from the device's last one; all differ, if the device was not there before.

    Values that are measured all the time (`PeerReport.resources`, `sent_bytes`, `bugs`, `unheard`) and the sequence are
    no difference.
    """

    member: TrainerSeen
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
    holding: bool = True
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
            or self.holding
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


def _compare(member: TrainerSeen, before: PeerReport, stood_at: Position, report: PeerReport) -> ReportChange:
    return ReportChange(
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
        holding=report.holding != before.holding,
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


def digests_here(members: Collection[TrainerSeen]) -> set[bytes]:
    """Return the digests of the results that some of these have staged."""
    return {member.report.staged.digest for member in members if member.report.staged}


def newest_ballot(members: Collection[TrainerSeen]) -> tuple[int, int]:
    """Return the ballot of the latest result that any of these has accepted and some of them have; (0, 0): of none."""
    had, here = digests_here(members), [member.report for member in members]
    accepted = [each for report in here if (each := report.staged or report.accepted) and each.digest in had]
    return max(((each.term, each.version) for each in accepted), default=(0, 0))


def voters(members: Collection[TrainerSeen]) -> set[str]:
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


def newest_position(members: list[TrainerSeen]) -> Position:
    """Return the latest position of these, with the digest most of them have there. members: of one lineage."""
    latest = max(member.report.round_id for member in members)
    digests = Counter(member.report.digest for member in members if member.report.round_id == latest)
    digest = max(digests, key=lambda digest: (digests[digest], digest))
    return members[0].report.lineage, latest, digest


def poverty(member: TrainerSeen | None) -> tuple[bool, bool, float, float, str]:
    """Return the key that sorts the resource-richest first: at ease, not on a low battery, fast link, much memory."""
    if member is None or member.report.resources is None:
        return True, True, 0.0, 0.0, ""
    resources = member.report.resources
    low = resources.battery_percent is not None and resources.battery_percent < 30 and not resources.charging
    link_mb_s = member.device.link_mb_s or 0.0
    return member.is_busy, low, -link_mb_s, -resources.free_memory_bytes, member.contributor.peer_id


# Time for which a pair is avoided after its first failure: some rounds. A try in vain costs `stall_s` (10 s).
AVOID_S = 60.0
# The longest, in multiples of that: a cut that has healed is noticed within a quarter of an hour.
AT_MOST = 16.0


@dataclass
class _Failure:
    """A pair in which values did not arrive: how many times in a row, and until when it is avoided."""

    sender: Contributor
    receiver: Contributor
    until: float
    times: int = 1

    def describe(self) -> str:
        return f"{self.sender.peer_id} cannot reach {self.receiver.peer_id}: values go another way"[:MAX_TEXT]


class Reach:
    """See the module. At most MAX_CUTS pairs are kept, those that failed last; a restarted device begins afresh.

    In segments owners exchange with everybody. If they come to a standstill, reports tell which owner lacks the pieces
    of which device: neither of such a pair owns a segment for a while. If no report tells any, rounds go by hops for as
    long as a pair would be avoided, or until these find out which it is. avoid_s: after a first failure.
    """

    def __init__(self, avoid_s: float = AVOID_S) -> None:
        self._avoid_s = avoid_s
        self._failures: dict[frozenset[Contributor], _Failure] = {}
        self._standstills = 0
        self._hops_until = 0.0

    def fail_segments(self, pairs: Collection[tuple[Contributor, Contributor]], now: float) -> None:
        """Note that segments have come to a standstill. pairs: (contributor, owner that lacks its pieces), as told."""
        if pairs:
            for sender, receiver in pairs:
                self.fail(sender, receiver, now)
            return
        avoid_s = self._avoid_s * min(2.0**self._standstills, AT_MOST)
        self._standstills, self._hops_until = self._standstills + 1, now + avoid_s
        logger.warning("segments have come to a standstill: rounds go by hops for %.0f s", avoid_s)

    def succeed_segments(self) -> None:
        """Note that all got all of a round's segments."""
        self._standstills = 0

    def may_try_segments(self, now: float) -> bool:
        return now >= self._hops_until

    def fail(self, sender: Contributor, receiver: Contributor, now: float) -> str:
        """Note that nothing has got from one to the other for long. Return the log's words, "" if that is known."""
        pair = frozenset((sender, receiver))
        before = self._failures.pop(pair, None)
        if before and now < before.until:  # it was tried for want of another way
            self._failures[pair] = before
            return ""
        times = before.times + 1 if before else 1
        while len(self._failures) >= MAX_CUTS:
            del self._failures[next(iter(self._failures))]
        avoid_s = self._avoid_s * min(2.0 ** (times - 1), AT_MOST)
        self._failures[pair] = failure = _Failure(sender, receiver, now + avoid_s, times)
        self._hops_until = now
        logger.warning("%s", failure.describe())
        return failure.describe()

    def succeed(self, sender: Contributor, receiver: Contributor) -> None:
        """Note that values have got from one to the other."""
        if self._failures:
            self._failures.pop(frozenset((sender, receiver)), None)

    def are_apart(self, one: Contributor, other: Contributor, now: float) -> bool:
        if not self._failures:
            return False
        failure = self._failures.get(frozenset((one, other)))
        return failure is not None and now < failure.until

    def apart(self, now: float) -> list[tuple[Contributor, Contributor]]:
        """Return the pairs that are avoided now, each as (sender, receiver that it cannot reach)."""
        return [(failure.sender, failure.receiver) for failure in self._failures.values() if now < failure.until]

    def describe(self, now: float) -> tuple[str, ...]:
        """Return the same in words, for people."""
        return tuple(failure.describe() for failure in self._failures.values() if now < failure.until)


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
        self._table: dict[str, TrainerSeen] = {}
        self._sorted: list[TrainerSeen] = []
        self._alive: list[TrainerSeen] | None = None
        self._followed: tuple[str, int] | None = None
        self._followers: list[TrainerSeen] = []
        self._is_one_model = False
        self.has_refused = False
        self.found: Mapping[str, PeerInfo] = {}
        self.reach = Reach(avoid_s)
        self._silent_at = inf
        self._busy = busy or BusySection()
        self._longest_s = lost_after_s
        self._shortest_s = min(lost_after_s, _REPORTS_MISSED * report_s)

    def hear(self, sender: Contributor, report: PeerReport, now: float) -> ReportChange | None:
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

    def expire(self, now: float) -> list[TrainerSeen]:
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

    def everyone(self) -> list[TrainerSeen]:
        return self._sorted

    def alive(self) -> list[TrainerSeen]:
        """Return the members heard lately with a model that fits."""
        if self._alive is None:
            self._alive = [member for member in self._sorted if member.alive and not member.problem]
        return self._alive

    def following(self, agent: str, term: int) -> list[TrainerSeen]:
        """Return the members alive that obey this agent since this term."""
        if self._followed == (agent, term):
            return self._followers
        self._followed = (agent, term)
        self._followers = [member for member in self.alive() if member.obeys(agent, term)]
        return self._followers

    def get(self, contributor: Contributor) -> TrainerSeen | None:
        member = self._table.get(contributor.peer_id)
        return member if member and member.contributor == contributor else None

    def refuse_other_models(self, lineage: Lineage = ()) -> list[TrainerSeen]:
        """Refuse members with another model than the mesh's; return those that were refused just now.

        The mesh's model is the one that several devices have trained, then one that a device has trained alone. Among
        equals it is that of the running mesh, on `lineage`, as long as there is one; then the one that most have, then
        the first.
        """
        if self._is_one_model:
            return []
        alive = self.alive()
        kinds: dict[tuple[str, int], list[TrainerSeen]] = {}
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

    def _hear_again(self, known: TrainerSeen, report: PeerReport, now: float) -> ReportChange:
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

    def _may_enter(self, known: TrainerSeen | None, sender: Contributor, now: float) -> bool:
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

    def _enter(self, known: TrainerSeen | None, sender: Contributor, report: PeerReport, now: float) -> ReportChange:
        arrivals = Arrivals(now, self._shortest_s, self._longest_s)
        member = TrainerSeen(sender, report, arrivals, now, device=known.device if known else DeviceBook())
        member.device.hear_link(report.link_mb_s)
        self._note_use(member, now)
        self._table[sender.peer_id] = member
        self._sorted = [self._table[peer_id] for peer_id in sorted(self._table)]
        self._silent_at = min(self._silent_at, arrivals.silent_at)
        return ReportChange(member, report)

    def _note_use(self, member: TrainerSeen, now: float) -> None:
        if resources := member.report.resources:
            member.device.note_use(is_busy(resources, self._busy), now)
            member.device.learn_merge(resources.merge_mb_s)

    def _forget_lists(self) -> None:
        self._alive, self._followed, self._is_one_model = None, None, False


def _claim_to_model(members: list[TrainerSeen], lineage: Lineage) -> tuple[int, bool, int, float, Contributor]:
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


class Distrust:
    """See the module. doubted: peer ids with work refused lately: what they give next is judged first, as a whole.

    out: peer id -> why it is left out. is_on: devices are left out if several suspect them, or if they stood out.
    """

    def __init__(self, is_on: bool) -> None:
        self.doubted: frozenset[str] = frozenset()
        self.out: dict[str, str] = {}
        self._quarantine = Quarantine()
        self._is_on = is_on

    def look(self, members: list[TrainerSeen], judged: Collection[str], odd: Mapping[str, str], round_id: int) -> None:
        """Look at the reports before a round is opened. members: all that follow. odd: peer id -> why it stood out.

        judged: devices with an own delta that was taken in the last round. These are not doubted, even if a device
        refused them: that was its word against those that merged their work.
        """
        said, words = {member.peer_id: _suspects(member) for member in members}, self._words(members, round_id)
        accused = {peer_id for _, peer_id, _ in words}
        self.doubted = frozenset(accused.difference(judged))
        if not self._is_on:
            return
        before, self.out = self.out, {**odd, **self._quarantine.look(said, round_id)}
        for peer_id in self.out.keys() - before.keys():
            logger.warning("round %d and those after it leave %s out: %s", round_id, peer_id, self.out[peer_id])
        for peer_id in before.keys() - self.out.keys():
            logger.info("round %d takes %s in again", round_id, peer_id)

    def doubts(self, members: Iterable[TrainerSeen], round_id: int) -> tuple[str, ...]:
        """Return what these hold against each other, a line each for people."""
        words = sorted(self._words(members, round_id))[:MAX_CUTS]
        return tuple(printable(f"{one} says of {other}: {why}") for one, other, why in words)

    def admitted(self, current: list[TrainerSeen]) -> list[TrainerSeen]:
        """Return the members at the mesh's model that take part; all of them, if nobody would be left."""
        return [member for member in current if member.peer_id not in self.out] or current

    def tell(self, peer: Contributor) -> str:
        """Return the reason why this device is left out, in one line; "" if it is not."""
        return printable(self.out.get(peer.peer_id, ""))

    def _words(self, members: Iterable[TrainerSeen], round_id: int) -> list[tuple[str, str, str]]:
        """Return accuser, accused and reason of all that has not faded."""
        said = {member.peer_id: _suspects(member) for member in members}
        return [
            (accuser, peer_id, each.reason)
            for accuser, suspects in said.items()
            for peer_id, each in suspects.items()
            if peer_id != accuser and peer_id in said and each.now(round_id) >= FAINT
        ]


def _suspects(member: TrainerSeen) -> dict[str, Suspicion]:
    accused = member.report.accused
    return {each.peer_id: Suspicion(each.weight, each.round_id, each.reason) for each in accused}
