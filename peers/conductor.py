"""One open round, from RoundOpened until everybody alive has applied its result: the agent's part of Algorithm 1.

aggregating: order pairs until one holder has everybody in it (3.2.2); broadcasting: its partial mean goes down the tree
(3.2.3) and is staged, not applied; closing: all alive have it, so it stands, and is applied. What to do next follows
from the ledger alone, and is said again until a report shows that it was heard. Knows nothing of other rounds.
"""

from __future__ import annotations

import logging

from mdl.delta import Contributor
from mdl.machine import Effect
from mdl.messages import (
    Activity,
    BroadcastOrdered,
    Holding,
    HopCancelled,
    HopOrdered,
    HopReleased,
    PeerReport,
    RoundClosed,
    RoundOpened,
    Staged,
)
from peers.members import Member, Members
from peers.phase import Phase
from peers.repeater import Repeater
from peers.rounds import HopState, RoundLedger
from peers.view import chain_view, order_broadcast
from scheduler.chain import Pair, Policy, Wait
from scheduler.devices import learn_from_hop

logger = logging.getLogger(__name__)

# How long a round that everybody had the result of waits for one of them, when all are silent or gone.
_DESERTED_S = 30.0


class Conductor:
    """See the module. phase: CLOSED when it is done, ABANDONED when nobody is left. marks: phase -> when it began."""

    def __init__(
        self,
        ledger: RoundLedger,
        opened: RoundOpened,
        members: Members,
        policy: Policy,
        repeater: Repeater,
        stall_s: float,
    ) -> None:
        self.ledger = ledger
        self.phase = Phase.AGGREGATING
        self.marks = {"opened": ledger.opened_at}
        self.result: Holding | Staged | None = None
        self.applied: list[Member] = []
        self.waiting_for = ""
        self._opened = opened
        self._members = members
        self._policy = policy
        self._repeater = repeater
        self._stall_s = stall_s
        self._broadcast: BroadcastOrdered | None = None

    def hear(self, member: Member, report: PeerReport, now: float) -> None:
        """A member's report: the ledger takes it in, and the devices' books learn from hops that were merged."""
        for hop in self.ledger.hear(member.contributor, report, now):
            logger.info("hop %d: %s -> %s %s", hop.hop_id, hop.sender.peer_id, hop.receiver.peer_id, hop.state.value)
            source = self._members.get(hop.sender)
            if hop.state is HopState.MERGED and hop.decision and source:
                learn_from_hop(source.device, member.device, hop.decision.size_bytes, hop.decision.seconds)

    def advance(self, now: float) -> list[Effect]:
        """Do what the ledger asks for; call again until the phase stays."""
        match self.phase:
            case Phase.AGGREGATING:
                return self._aggregate(now)
            case Phase.BROADCASTING:
                return self._spread(now)
            case Phase.CLOSING:
                return self._close(now)
        return []

    def _aggregate(self, now: float) -> list[Effect]:
        self._lose_the_silent()
        if not self.ledger.live():
            return self._abandon(now)
        effects = self._announce(now) + self._mend(now)
        if result := self._find_result():
            self.result = result
            self._order_broadcast(result, now)
            self._enter(Phase.BROADCASTING, now)
            return effects
        self._pair_up(now)
        for hop in self.ledger.undecided():
            order = HopOrdered(self.ledger.term, self.ledger.round_id, hop.segment, hop.hop_id, hop.sender)
            effects += self._repeater.say(hop.receiver, order, now)
        return effects

    def _spread(self, now: float) -> list[Effect]:
        self._lose_the_silent()
        live, staged, order, result = self.ledger.live(), self._staged(), self._broadcast, self.result
        if not live:
            return self._abandon(now)
        assert order is not None
        assert result is not None
        if not staged and order.order[0] in self.ledger.lost:
            self._enter(Phase.AGGREGATING, now)  # the result is lost with its only holder
            return []
        if len(staged) == len(live):
            self._enter(Phase.CLOSING, now)
            return []
        if any(peer in self.ledger.lost for peer in order.order):
            order = self._order_broadcast(result, now)
        effects: list[Effect] = []
        for peer in order.order:
            if peer not in staged:
                effects += self._repeater.say(peer, order, now)
        return effects

    def _close(self, now: float) -> list[Effect]:
        """The result stands, so whoever is silent is not lost but left behind.

        If all are, one may have applied it already: the round must not be opened again before there was time to hear.
        """
        live = [peer for peer in self.ledger.live() if (member := self._members.get(peer)) and member.alive]
        if live:
            self.marks.pop("deserted", None)
        elif now - self.marks.setdefault("deserted", now) < _DESERTED_S:
            return []
        effects: list[Effect] = []
        applied = []
        for peer in live:
            member = self._members.get(peer)
            if member and member.report.round_id == self.ledger.round_id:
                applied.append(member)
            elif (report := self.ledger.reports.get(peer)) and report.staged:
                closed = RoundClosed(self.ledger.term, self.ledger.round_id, report.staged.digest)
                effects += self._repeater.say(peer, closed, now)
        if not live:
            return effects + self._abandon(now)
        if len(applied) == len(live):
            self.applied = applied
            self._enter(Phase.CLOSED, now)
        return effects

    # -- aggregating --------------------------------------------------------------------------------------------------

    def _announce(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for peer in self.ledger.live():
            if peer not in self.ledger.reports:
                effects += self._repeater.say(peer, self._opened, now)
        return effects

    def _mend(self, now: float) -> list[Effect]:
        """What a fault left behind: senders that must hold again, hops that their receiver has to decide."""
        term, round_id = self.ledger.term, self.ledger.round_id
        effects: list[Effect] = []
        for hop in self.ledger.to_release():
            effects += self._repeater.say(hop.sender, HopReleased(term, round_id, hop.segment, hop.hop_id), now)
        stalled = [hop for hop in self.ledger.undecided() if self._is_stalled(hop.receiver, hop.ordered_at, now)]
        for hop in self.ledger.to_cancel() + stalled:
            effects += self._repeater.say(hop.receiver, HopCancelled(term, round_id, hop.segment, hop.hop_id), now)
        return effects

    def _is_stalled(self, receiver: Contributor, ordered_at: float, now: float) -> bool:
        """The receiver has shown no sign of this hop for long: neither progress nor a decision."""
        report = self.ledger.reports.get(receiver)
        receiving = report is not None and report.activity is Activity.RECEIVING
        return not receiving and now - ordered_at >= self._stall_s

    def _pair_up(self, now: float) -> None:
        """Ask the policy for pairs as long as it has any."""
        while len(self.ledger.free()) >= 2:
            decision = self._policy.decide(chain_view(self.ledger, self._members, now))
            if isinstance(decision, Wait) and self.ledger.is_settled():
                sender, receiver = self.ledger.free()[:2]
                decision = Pair(sender.peer_id, receiver.peer_id, f"nobody else is to come ({decision.reason})")
            if isinstance(decision, Wait):
                self.waiting_for = decision.reason
                return
            by_id = {peer.peer_id: peer for peer in self.ledger.free()}
            hop = self.ledger.order_hop(by_id[decision.sender], by_id[decision.receiver], decision.reason, now)
            logger.info("hop %d: %s -> %s: %s", hop.hop_id, decision.sender, decision.receiver, decision.reason)

    def _find_result(self) -> Holding | Staged | None:
        """The last holder's partial mean; or, after a root was lost, what a live member has staged of it.

        Its theta must be the sum of its contributors' weights; a holder whose theta is not is out of the round.
        """
        for peer in self.ledger.live():
            report = self.ledger.reports.get(peer)
            if report and report.staged:
                return report.staged
        last = self.ledger.result()
        holding = self.ledger.holding(last) if last else None
        if last and holding and not self.ledger.is_theta_right(holding):
            logger.error("%s: theta %g is not the sum of its contributors' weights", last.peer_id, holding.theta)
            self.ledger.lose(last, "wrong theta")
            return None
        return holding

    # -- broadcasting -------------------------------------------------------------------------------------------------

    def _order_broadcast(self, result: Holding | Staged, now: float) -> BroadcastOrdered:
        """The root is a holder of the result; the richest of the rest are the inner nodes (3.2.3)."""
        self.marks.setdefault("reduced", now)
        sources = self._staged() or [peer for peer in self.ledger.holders() if peer in result.contributors]
        order = order_broadcast(self.ledger, sources, self._members)
        version = self._broadcast.version + 1 if self._broadcast else 1
        self._broadcast = BroadcastOrdered(
            self.ledger.term, self.ledger.round_id, version, order, result.theta, result.contributors
        )
        return self._broadcast

    def _staged(self) -> list[Contributor]:
        """Live members that have this result, staged or applied already."""
        wanted = self.result.contributors if self.result else None
        staged = []
        for peer in self.ledger.live():
            member, report = self._members.get(peer), self.ledger.reports.get(peer)
            has_it = report is not None and report.staged is not None and report.staged.contributors == wanted
            has_applied = member is not None and member.report.round_id == self.ledger.round_id
            if has_it or has_applied:
                staged.append(peer)
        return staged

    # -- all phases ---------------------------------------------------------------------------------------------------

    def _lose_the_silent(self) -> None:
        for peer in self.ledger.live():
            member = self._members.get(peer)
            if member is None:
                self.ledger.lose(peer, "restarted")
            elif not member.alive:
                self.ledger.lose(peer, "left" if member.report.activity is Activity.LEFT else "silent")

    def _abandon(self, now: float) -> list[Effect]:
        logger.warning("round %d: nobody is left of %d members", self.ledger.round_id, len(self.ledger.members))
        self._enter(Phase.ABANDONED, now)
        return []

    def _enter(self, phase: Phase, now: float) -> None:
        self.phase = phase
        self.marks[phase.value] = now
