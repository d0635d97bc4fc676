"""The ledger of a round: who holds what, which hops were ordered and how they were decided. Pure.

Rules kept here (fault rules 1 to 4): only a receiver decides a hop; a member is lost once, for the whole round; the
load of a lost member is searched for along all its outgoing hops, as deep as they go; only if no live member carries
it, and no undecided hop can still bring it to one, are its senders freed to send again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from mdl.delta import Contributor
from mdl.messages import Holding, HopDecision, HopOutcome, PeerReport

HopKey = tuple[int, int]  # segment, hop
# Hop ids of different terms never meet, also not those of a round that is opened again.
_HOPS_PER_TERM = 1_000_000


class HopState(Enum):
    ORDERED = "ordered"
    MERGED = "merged"
    ABORTED = "aborted"


# The legal moves of a hop: decided once, for ever.
HOP_MOVES = {
    HopState.ORDERED: {HopOutcome.MERGED: HopState.MERGED, HopOutcome.ABORTED: HopState.ABORTED},
    HopState.MERGED: {},
    HopState.ABORTED: {},
}


@dataclass
class Hop:
    """W(j,i): the sender's partial mean goes to the receiver."""

    segment: int
    hop_id: int
    sender: Contributor
    receiver: Contributor
    reason: str
    ordered_at: float
    state: HopState = HopState.ORDERED
    decided_at: float | None = None
    decision: HopDecision | None = None


@dataclass
class RoundLedger:
    """One round as the agent knows it from reports; every question below is answered from this state alone.

    term: the agent's when it opened the round. Reports of an older term tell of a round that was given up.
    """

    round_id: int
    members: frozenset[Contributor]
    term: int
    opened_at: float = 0.0
    lost: dict[Contributor, str] = field(default_factory=dict)
    reports: dict[Contributor, PeerReport] = field(default_factory=dict)
    ready_at: dict[Contributor, float] = field(default_factory=dict)
    hops: dict[HopKey, Hop] = field(default_factory=dict)

    def hear(self, member: Contributor, report: PeerReport, now: float) -> list[Hop]:
        """Take a member's report into account; returns the hops that it decided, newly known."""
        if member not in self.members or member in self.lost:
            return []
        if report.open_round != self.round_id or report.term < self.term:
            return []
        self.reports[member] = report
        if report.holdings:
            self.ready_at.setdefault(member, now)
        decided = []
        for decision in report.hops:
            hop = self.hops.get((decision.segment, decision.hop_id))
            if hop and hop.receiver == member and decision.outcome in HOP_MOVES[hop.state]:
                hop.state = HOP_MOVES[hop.state][decision.outcome]
                hop.decision, hop.decided_at = decision, now
                decided.append(hop)
        return decided

    def order_hop(self, sender: Contributor, receiver: Contributor, reason: str, now: float) -> Hop:
        hop = Hop(0, self.term * _HOPS_PER_TERM + len(self.hops), sender, receiver, reason, now)
        self.hops[hop.segment, hop.hop_id] = hop
        return hop

    def lose(self, member: Contributor, reason: str) -> None:
        """Not heard of any more, restarted or left: out of this round for good."""
        self.lost.setdefault(member, reason)

    def live(self) -> list[Contributor]:
        return sorted(self.members - self.lost.keys())

    def holding(self, member: Contributor, segment: int = 0) -> Holding | None:
        report = self.reports.get(member)
        if report is None:
            return None
        return next((holding for holding in report.holdings if holding.segment == segment), None)

    def holders(self) -> list[Contributor]:
        """Live members that answer for a partial mean. A merged sender does not, even if its own report is late."""
        return [
            member
            for member in self.live()
            if (holding := self.holding(member)) and holding.sent_hop is None and not self._is_carried(member)
        ]

    def undecided(self) -> list[Hop]:
        """Ordered hops whose receiver lives: it will tell, or is asked."""
        return [hop for hop in self.hops.values() if hop.state is HopState.ORDERED and hop.receiver not in self.lost]

    def free(self) -> list[Contributor]:
        """Holders without a partner at this moment (one partner at a time, 3.2.2)."""
        engaged = {peer for hop in self.undecided() for peer in (hop.sender, hop.receiver)}
        return [member for member in self.holders() if member not in engaged]

    def to_cancel(self) -> list[Hop]:
        """Undecided hops whose sender is lost: the receiver merges what it has or aborts, and says which."""
        return [hop for hop in self.undecided() if hop.sender in self.lost]

    def to_release(self) -> list[Hop]:
        """Hops whose live sender must hold again, because no live member carries what it sent."""
        hops = []
        for member in self.live():
            holding = self.holding(member)
            if holding is None or holding.sent_hop is None or self._is_carried(member):
                continue
            hop = self.hops.get((holding.segment, holding.sent_hop))
            if hop and not self._may_still_arrive(hop, set()):
                hops.append(hop)
        return hops

    def is_settled(self) -> bool:
        """Nobody trains, nothing is under way and nobody is to hold again: only an order can change anything."""
        heard = all(self.holding(member) for member in self.live())
        return heard and not self.undecided() and not self.to_release()

    def result(self) -> Contributor | None:
        """The last holder, once its partial mean has every live member in it and nothing is under way."""
        holders = self.holders()
        if len(holders) != 1 or self.undecided():
            return None
        holding = self.holding(holders[0])
        assert holding is not None
        return holders[0] if set(holding.contributors) >= set(self.live()) else None

    def is_theta_right(self, holding: Holding) -> bool:
        """Whether theta is the sum of its contributors' weights, as far as they have reported them."""
        reports = [self.reports.get(contributor) for contributor in holding.contributors]
        weights = [report.training.theta for report in reports if report and report.training]
        if len(weights) < len(holding.contributors):
            return True  # a contributor that is lost by now never told its own
        return abs(holding.theta - sum(weights)) <= 1e-6 * holding.theta

    def _is_carried(self, member: Contributor) -> bool:
        """Whether a live member other than itself has merged this member's load (contributors travel together)."""
        for other in self.live():
            holding = self.holding(other)
            if other != member and holding and member in holding.contributors:
                return True
        return False

    def _may_still_arrive(self, hop: Hop, seen: set[HopKey]) -> bool:
        """Whether an undecided hop, this one or one behind a lost receiver, can bring the load to a live member."""
        if hop.state is HopState.ABORTED or (hop.segment, hop.hop_id) in seen:
            return False
        seen.add((hop.segment, hop.hop_id))
        if hop.receiver not in self.lost:
            return hop.state is HopState.ORDERED
        onward = [h for h in self.hops.values() if h.sender == hop.receiver and h.segment == hop.segment]
        return any(self._may_still_arrive(h, seen) for h in onward)
