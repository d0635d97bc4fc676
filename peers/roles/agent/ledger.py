"""The ledger of a round: the holdings, the hops that were ordered, and their decisions. Pure.

Rules kept here (docs/protocol-hops.md, fault rules 1 to 4): only a receiver decides a hop. A member is lost once, for
the whole round. The load of a lost member is searched for with everybody alive, however many hops it travelled. Its
senders are freed to send again only if nobody alive carries it, and no undecided hop can still bring it. An agent that
takes over builds the same ledger from the members' reports (`recover`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from functools import wraps
from typing import TypeVar

from mdl.peers.roles.membership.members import ReportChange
from mdl.protocol.checksum import add_up
from mdl.protocol.delta import THETA_ROUNDING, Contributor
from mdl.protocol.round_messages import SUSPECT, PeerReport
from mdl.protocol.vocabulary import MAX_PERIODS, Holding, HopDecision, HopOutcome

BusyPeriod = tuple[float, float | None]  # from, until; None: it still is
# Hop ids of different terms never meet, also not those of a round that is opened again.
_HOPS_PER_TERM = 1_000_000
# Two devices that failed so often to aggregate, either way, are out of each other's reach.
_TRIES = 2
OF_ANOTHER = "ordered by another agent"


class HopState(Enum):
    ORDERED = "ordered"
    MERGED = "merged"
    ABORTED = "aborted"
    LOOKED = "looked-at"


# Looked up once: see peers/roles/agent/conductor.py.
ORDERED, MERGED, ABORTED, LOOKED = HopState

# The legal moves of a hop: decided once, for ever.
HOP_MOVES: dict[HopState, dict[HopOutcome, HopState]] = {
    ORDERED: {HopOutcome.MERGED: MERGED, HopOutcome.ABORTED: ABORTED, HopOutcome.LOOKED: LOOKED},
    **{state: {} for state in (MERGED, ABORTED, LOOKED)},
}


@dataclass
class Hop:
    """W(j,i): the sender's partial sum goes to the receiver. is_look: it is to be looked at there, and not merged."""

    hop_id: int
    sender: Contributor
    receiver: Contributor
    reason: str
    ordered_at: float
    state: HopState = ORDERED
    decided_at: float | None = None
    decision: HopDecision | None = None
    is_look: bool = False


Answer = TypeVar("Answer")


def remembered(question: Callable[[RoundLedger], Answer]) -> Callable[[RoundLedger], Answer]:
    """Keep the answer of a question as long as it is true: each is asked several times between two changes."""

    @wraps(question)
    def ask(ledger: RoundLedger) -> Answer:
        known = ledger.answers.get(question)
        if known is None:
            known = ledger.answers[question] = question(ledger)
        return known  # type: ignore[return-value]

    return ask


@dataclass
class RoundLedger:
    """One round as the agent knows it from reports; every question below is answered from this state alone.

    attempt: the term that opened the round; reports of another attempt tell of one that was given up. term: of the
    agent that orders now. is_recovered: another agent began, and may have freed senders that are carried after all.
    hops: also those that an agent before this one has ordered, or one beside it, as soon as their receivers tell.
    answers: those given since a holding, a hop or a loss last changed; nobody changes an answer. room: of the round's
    grid. in_order: the members, sorted.
    """

    round_id: int
    members: frozenset[Contributor]
    attempt: int
    term: int = 0
    opened_at: float = 0.0
    lost: dict[Contributor, str] = field(default_factory=dict)
    reports: dict[Contributor, PeerReport] = field(default_factory=dict)
    ready_at: dict[Contributor, float] = field(default_factory=dict)
    hops: dict[int, Hop] = field(default_factory=dict)
    busy: dict[Contributor, list[BusyPeriod]] = field(default_factory=dict)
    is_recovered: bool = False
    answers: dict[object, object] = field(default_factory=dict, repr=False)
    room: int = 0
    in_order: list[Contributor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.in_order = sorted(self.members)
        self.term = self.term or self.attempt

    def hear(self, change: ReportChange, now: float) -> list[Hop]:
        """Take a member's report into account; return the hops that it newly decided."""
        peer = change.member.contributor
        if change.holding or change.hops or change.report.incoming or self._is_outdated(peer):
            return self.take(peer, change.report, now)
        if self._is_about_this(peer, change.report):
            self.reports[peer] = change.report
        return []

    def take(self, member: Contributor, report: PeerReport, now: float) -> list[Hop]:
        """Take a report into account that has been compared with nothing; return the newly decided hops."""
        if not self._is_about_this(member, report):
            return []
        self.reports[member] = report
        self.answers.clear()
        if report.holding:
            self.ready_at.setdefault(member, now)
        if coming := report.incoming:
            other = Hop(coming.hop_id, coming.sender, member, OF_ANOTHER, now)
            known = [hop for hop in self.hops.values() if hop.receiver == member and hop.reason == OF_ANOTHER]
            if all(hop.state is not ORDERED for hop in known):
                self.hops.setdefault(coming.hop_id, other)  # one at a time, whatever it says
        decided = []
        for decision in report.hops:
            hop = self.hops.get(decision.hop_id)
            if hop is None or decision.outcome not in HOP_MOVES[hop.state]:
                continue
            if (hop.sender, hop.receiver) == (decision.sender, member):
                hop.state = HOP_MOVES[hop.state][decision.outcome]
                hop.decision, hop.decided_at = decision, now
                decided.append(hop)
        return decided

    def note_busy(self, member: Contributor, busy: bool, now: float) -> None:
        """Remember when a device is seen busy, to explain later why it had to wait; this decides nothing."""
        if not busy and member not in self.busy:
            return
        periods = self.busy.setdefault(member, [])
        was_busy = bool(periods) and periods[-1][1] is None
        if busy and not was_busy and len(periods) < MAX_PERIODS:
            periods.append((now, None))
        elif was_busy and not busy:
            periods[-1] = (periods[-1][0], now)

    def order_hop(self, sender: Contributor, receiver: Contributor, reason: str, now: float) -> Hop:
        number = len(self.hops) + 1
        hop = Hop(self.term * _HOPS_PER_TERM + number, sender, receiver, reason, now)
        self.hops[hop.hop_id] = hop
        self.answers.clear()
        return hop

    def lose(self, member: Contributor, reason: str) -> None:
        """Take a member out of this round for good: it is not heard of, was restarted or has left."""
        if member not in self.lost:
            self.lost[member] = reason
            self.answers.clear()

    @remembered
    def live(self) -> list[Contributor]:
        return [member for member in self.in_order if member not in self.lost]

    def holding(self, member: Contributor) -> Holding | None:
        report = self.reports.get(member)
        return report.holding if report else None

    @remembered
    def held(self) -> dict[Contributor, Holding]:
        """Return what each live member holds or has given away, for those that have told."""
        return {member: holding for member in self.live() if (holding := self.holding(member))}

    @remembered
    def holders(self) -> list[Contributor]:
        """Return live members that answer for a partial sum. A merged sender does not, even if its report is late."""
        carried = self._carried()
        return [member for member, held in self.held().items() if held.sent_hop is None and member not in carried]

    @remembered
    def untold(self) -> list[Contributor]:
        """Return the live members that hold a partial sum, and do not tell the checksum of their own delta."""
        return [member for member in self.held() if self.reports[member].checksum is None]

    @remembered
    def unproven(self) -> list[Contributor]:
        """Return the live members with a sum that nobody can check; none if no others would be left.

        A lost member in it has told no checksum to this agent, which has taken over. A sum that has been given on is
        its receiver's.
        """
        told = {member for member, report in self.reports.items() if report.checksum is not None}
        known = told.union(self.live())
        sums = {member: held.contributors for member, held in self.held().items() if held.sent_hop is None}
        unproven = [member for member, contributors in sums.items() if not known.issuperset(contributors)]
        return unproven if len(unproven) < len(self.live()) else []

    @remembered
    def aborted(self) -> list[Hop]:
        return [hop for hop in self.hops.values() if hop.state is ABORTED]

    @remembered
    def undecided(self) -> list[Hop]:
        """Return the ordered hops with a live receiver: it will tell, or is asked."""
        return [hop for hop in self.hops.values() if hop.state is ORDERED and hop.receiver not in self.lost]

    @remembered
    def free(self) -> list[Contributor]:
        """Return the holders without a partner at this moment (one partner at a time, 3.2.2)."""
        engaged = {peer for hop in self.undecided() for peer in (hop.sender, hop.receiver)}
        return [member for member in self.holders() if member not in engaged]

    @remembered
    def to_cancel(self) -> list[Hop]:
        """Return undecided hops with a sender that is lost, or carried already: the receiver decides and tells.

        Another device than the receiver may have taken the load, having asked for it in the receiver's place: nothing
        comes any more by such a hop either.
        """
        carried = self._carried() if self.is_recovered else set()
        held = self.held().items()
        stray = {(member, each.sent_hop): each.sent_to for member, each in held if each.sent_hop}
        return [
            hop
            for hop in self.undecided()
            if not self._is_live(hop.sender)
            or hop.sender in carried
            or stray.get((hop.sender, hop.hop_id), hop.receiver) not in (None, hop.receiver)
        ]

    @remembered
    def to_release(self) -> list[Hop]:
        """Return the hops after which a live sender must hold again: no live member carries what it sent.

        A load may have travelled on from lost member to lost member. It may still arrive as long as a hop from one of
        those is undecided, or a member has told nothing since this agent spoke. No sender to a lost one is freed then.
        Nor is a sender to one that merged its load and has given it to a lost one, as long as any hop is undecided.
        """
        may_arrive = bool(self.to_cancel()) or (self.is_recovered and any(map(self._is_outdated, self.live())))
        carried = self._carried()
        hops = []
        for member, holding in self.held().items():
            if holding.sent_hop is None or member in carried:
                continue
            hop, to = self.hops.get(holding.sent_hop), holding.sent_to
            if hop is not None and hop.sender != member:
                hop = None  # another hop of this number: a device that asks for unordered hops may number them freely
            if not (hop and hop.decision) and (self._is_outdated(to) if to else hop is None):
                continue  # it asked for a hop that nobody ordered, which the sender cannot know; or it will tell
            state = ABORTED if to and self._is_live(to) else ORDERED
            hop = hop or Hop(holding.sent_hop, member, to or member, "not ordered", 0.0, state)
            is_gone = not self._is_live(hop.receiver) or (hop.state is MERGED and not self.undecided())
            if hop.state in (ABORTED, LOOKED) or (is_gone and not may_arrive):
                hops.append(hop)
        return hops

    def is_settled(self) -> bool:
        """Return True if only an order can change anything: no training, no transfer, no sender to hold again."""
        return len(self.held()) == len(self.live()) and not self.undecided() and not self.to_release()

    def result(self) -> Contributor | None:
        """Return the last holder, once its partial sum has every live member in it and nothing is under way."""
        holders = self.holders()
        if len(holders) != 1 or self.undecided():
            return None
        holding = self.holding(holders[0])
        assert holding is not None
        return holders[0] if set(holding.contributors) >= set(self.live()) else None

    def is_theta_right(self, holding: Holding) -> bool:
        """Return True if theta is the sum of its contributors' weights, as far as they have reported them."""
        reports = [self.reports.get(contributor) for contributor in holding.contributors]
        weights = [report.training.theta for report in reports if report and report.training]
        if len(weights) < len(holding.contributors):
            return True  # a contributor that is lost by now never told its own
        return abs(holding.theta - sum(weights)) <= THETA_ROUNDING * holding.theta

    def checksum(self, contributors: Collection[Contributor], is_judged: bool) -> int | None:
        """Return the checksum of the sum of these members' own deltas; None if it is not known.

        It is not if one of them has not told its own, or if a part of the sum may have been scaled down. is_judged:
        devices judge, and scale down what is too long.
        """
        told = [report.checksum for peer in contributors if (report := self.reports.get(peer))]
        known = [checksum for checksum in told if checksum is not None]
        is_scaled = any(hop.state is MERGED and hop.decision and hop.decision.reason for hop in self.hops.values())
        is_scaled |= is_judged and self.is_recovered  # the device that scaled it down may be lost
        return None if is_scaled or len(known) < len(contributors) else add_up(known)

    def failures(self, one: Contributor, other: Contributor) -> int:
        """Return how often hops between these two were tried in vain, either way."""
        return sum(hop.state is ABORTED and {hop.sender, hop.receiver} == {one, other} for hop in self.hops.values())

    def next_try(self, takers: Collection[str] | None = None) -> tuple[Contributor, Contributor]:
        """Return the pair of free holders that failed least; in the other direction than last time.

        takers: peer ids of those that may receive, at least one of them free; None: all may.
        """
        free = self.free()
        may_get = [peer for peer in free if takers is None or peer.peer_id in takers]
        pairs = [(one, other) for one in free for other in may_get if one != other]
        last = {(hop.sender, hop.receiver): number for number, hop in enumerate(self.hops.values())}
        return min(pairs, key=lambda pair: (self.failures(*pair), last.get(pair, -1), pair))

    def lose_the_unable(self) -> dict[Contributor, str]:
        """Lose the members that hold the round up; return them with the reason.

        Senders that their partner refused are lost. If nobody can merge two holders, the smaller is: they are out of
        each other's reach, or share contributors (two agents have ordered at the same time).
        """
        aborted, odds = self.aborted(), self._at_odds()
        if not aborted and not odds:
            return {}
        unable = {hop.sender: "its partial sum was refused" for hop in aborted if self._is_refused(hop)}
        unable |= odds
        free = sorted(self.free(), key=lambda peer: (-self._size(peer), peer)) if aborted else []
        if len(free) > 1 and self.failures(*(pair := self.next_try())) >= _TRIES:
            smaller = max(pair, key=free.index)
            unable.setdefault(smaller, "its partners are out of its reach")
        unable = {peer: reason for peer, reason in unable.items() if peer not in self.lost}
        for peer, reason in unable.items():
            self.lose(peer, reason)
        return unable

    def _is_live(self, member: Contributor) -> bool:
        return member in self.members and member not in self.lost

    def _is_outdated(self, member: Contributor) -> bool:
        """Return True if a live member may have merged for another agent since its report, before it heard this one."""
        if not self._is_live(member):
            return False
        return member not in self.reports or self.reports[member].open_as < self.term

    def _is_about_this(self, member: Contributor, report: PeerReport) -> bool:
        """Return True if a report is of a member that counts here, and about this attempt at the round."""
        return self._is_live(member) and report.open_round == self.round_id and report.open_term == self.attempt

    @remembered
    def _at_odds(self) -> dict[Contributor, str]:
        """Return the members, with the reason, that share contributors with a larger partial sum, and have others.

        A sender with a late report is none of them: all that it has is in its receiver's mean.
        """
        holdings = {peer: holding for peer, holding in self.held().items() if holding.sent_hop is None}
        everybody = [who for holding in holdings.values() for who in holding.contributors]
        if len(everybody) == len(set(everybody)):
            return {}
        held = {peer: set(holding.contributors) for peer, holding in holdings.items()}
        odds: dict[Contributor, str] = {}
        order = sorted(held, key=lambda peer: (-len(held[peer]), peer))
        for number, peer in enumerate(order):
            for larger in order[:number]:
                if larger not in odds and held[peer] & held[larger] and not held[peer] <= held[larger]:
                    odds[peer] = f"its partial sum overlaps with that of {larger.peer_id}"
        return odds

    def _is_refused(self, hop: Hop) -> bool:
        reason = hop.decision.reason if hop.decision else ""
        return reason.startswith("refused") and not reason.startswith(SUSPECT) and "count twice" not in reason

    def _size(self, member: Contributor) -> int:
        holding = self.holding(member)
        return len(holding.contributors) if holding else 0

    @remembered
    def _carried(self) -> set[Contributor]:
        """Return the members with a load that another live member has merged (contributors travel together).

        The load that a member has given away counts as long as it may have to hold it again: not if it is carried
        itself.
        If two have each other's load, since an agent has freed one of them, the larger counts.
        """
        carried: set[Contributor] = set()
        for member, holding in sorted(self.held().items(), key=_rank):
            if member not in carried:
                carried.update(who for who in holding.contributors if who != member)
        return carried


def _rank(held: tuple[Contributor, Holding]) -> tuple[bool, int, Contributor]:
    """Return the sort key: holders before those that have given away, larger loads before smaller ones."""
    member, holding = held
    return holding.sent_hop is not None, -len(holding.contributors), member
