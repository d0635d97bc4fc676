"""One open round, from RoundOpened until everybody alive has applied its result: the agent's part of Algorithm 1.

aggregating: order pairs until one holder has everybody in it (3.2.2); broadcasting: its partial mean goes down the tree
(3.2.3) and is staged, not applied; closing: everybody alive, and a majority of those who decide, has it, so it stands
and is applied. What to do next follows from the ledger and the reports alone, and is said again until a report shows
that it was heard. Knows nothing of other rounds.
"""

from __future__ import annotations

import logging

import msgspec

from mdl.errors import LocalProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect
from mdl.protocol.round_messages import (
    HopCancelled,
    HopOrdered,
    HopReleased,
    RoundClosed,
    RoundOpened,
)
from mdl.protocol.vocabulary import NOTHING_CAME, Activity, Holding, Staged
from peers.roles.agent.chain_view import chain_view
from peers.roles.agent.distribution import Distribution
from peers.roles.agent.ledger import ABORTED, MERGED, RoundLedger
from peers.roles.agent.phase import ABANDONED, AGGREGATING, BROADCASTING, CLOSED, CLOSING, PHASE_MOVES, Phase
from peers.roles.agent.repeater import Repeater
from peers.roles.membership.majority import has_quorum
from peers.roles.membership.member import Change, Member, Position
from peers.roles.membership.members import Members
from scheduler.policies.chain import Pair, Policy, Wait
from scheduler.policies.detour import go_around
from scheduler.policies.device_book import learn_from_hop

logger = logging.getLogger(__name__)

_RECEIVING = Activity.RECEIVING


class TimeLimit(msgspec.Struct, frozen=True):
    """A round goes on without devices that train for longer, if this share of its members is ready. 0: no limit.

    spared: who was left out of the round before; nobody is left out twice in a row.
    """

    deadline_s: float = 0.0
    quorum: float = 0.75
    spared: frozenset[Contributor] = frozenset()


class Conductor:
    """See the module. phase: CLOSED when it is done, ABANDONED when it cannot be. marks: phase -> when it began.

    position: where the members stand until it is closed. me: the agent's peer id. office_term: since when the members
    obey it. lacking_since: since then all that is missing is a majority; None if it is there.
    """

    def __init__(
        self,
        me: str,
        office_term: int,
        ledger: RoundLedger,
        opened: RoundOpened,
        members: Members,
        policy: Policy,
        repeater: Repeater,
        stall_s: float,
        limit: TimeLimit,
    ) -> None:
        self.ledger = ledger
        self.phase = AGGREGATING
        self.marks = {"opened": ledger.opened_at}
        self.applied: list[Member] = []
        self.waiting_for = ""
        self.lacking_since: float | None = None
        self.progressed_at = ledger.opened_at
        self.position: Position = (opened.lineage, ledger.round_id - 1, opened.digest)
        self._before_fork: Position = (opened.lineage[:-1], ledger.round_id - 1, opened.digest)
        self._me = me
        self._office_term = office_term
        self._opened = opened
        self._members = members
        self._policy = policy
        self._repeater = repeater
        self._stall_s = stall_s
        self._limit = limit
        self.left_out: set[Contributor] = set()
        self._distribution = Distribution(me, office_term, ledger, opened, members, stall_s)
        self._is_applied_by_some = False

    @property
    def result(self) -> Holding | Staged | None:
        """What the round comes to, once it is there."""
        return self._distribution.result

    @property
    def base(self) -> tuple[str, ...]:
        """Whose majority the round needs."""
        return self._opened.base

    def hear(self, change: Change, now: float) -> bool:
        """What a member's report changes; whether anything can follow from it before the next repetition."""
        if change.report.agent == self._me:
            self._take(change, now)
        if change.is_place:
            self.look_at(change.member)
        return change.is_news and self._is_waited_for(change)

    def look_at(self, member: Member) -> None:
        """A member came, left, fell silent or moved: is it out of the round, or has it applied the result already?"""
        if self.phase is CLOSING:
            return  # the result stands: whoever is away is not lost but left behind
        for peer in self.ledger.live():
            if peer.peer_id == member.peer_id and (reason := self._why_out(peer, member)):
                self.ledger.lose(peer, reason)
        if self._is_applied(member) and member in self._following():
            self._is_applied_by_some = True

    def advance(self, now: float) -> list[Effect]:
        """Do what the ledger asks for; call again until the phase stays."""
        if self.phase is AGGREGATING:
            return self._aggregate(now)
        if self.phase is BROADCASTING:
            return self._spread(now)
        return self._close(now) if self.phase is CLOSING else []

    # -- aggregating --------------------------------------------------------------------------------------------------

    def _aggregate(self, now: float) -> list[Effect]:
        if self._is_applied_by_some:
            return self._abandon(now, "another agent has closed it, perhaps with another result")
        if staged := newest_staged(self._distribution.recipients()):
            return self._propose(staged, now)  # it may be closed: nothing else may become of this round
        if not self.ledger.live():
            return self._abandon(now, "nobody is left")
        self._leave_out_the_slow(now)
        effects = self._announce(now) + self._mend(now)
        if result := self._find_result():
            return effects + self._propose(result, now)
        self._pair_up(now)
        for hop in self.ledger.undecided():
            order = HopOrdered(self.ledger.term, self.ledger.round_id, hop.segment, hop.hop_id, hop.sender)
            effects += self._repeater.say(hop.receiver, order, now)
        return effects

    def _leave_out_the_slow(self, now: float) -> None:
        """Past the deadline: what they train is carried into a later round, as if they had been away (Standing)."""
        ledger, limit = self.ledger, self._limit
        if not limit.deadline_s or now - ledger.opened_at < limit.deadline_s:
            return
        training = [peer for peer in ledger.live() if ledger.holding(peer) is None]
        if len(ledger.members) - len(training) >= max(1.0, limit.quorum * len(ledger.members)):
            for peer in set(training) - limit.spared:
                self.left_out.add(peer)
                logger.info("round %d goes on without %s: it still trains", ledger.round_id, peer.peer_id)
                ledger.lose(peer, "left out: it still trained at the deadline")

    def _announce(self, now: float) -> list[Effect]:
        """Also to those who have it open from an earlier agent: its members may be others now."""
        reports, term = self.ledger.reports, self._opened.term
        deaf = [peer for peer in self.ledger.live() if (report := reports.get(peer)) is None or report.open_as < term]
        if not deaf:
            return []
        opened = msgspec.structs.replace(self._opened, term=self.ledger.term)
        return [effect for peer in deaf for effect in self._repeater.say(peer, opened, now)]

    def _mend(self, now: float) -> list[Effect]:
        """What a fault left behind: senders that must hold again, hops that their receiver has to decide."""
        term, round_id = self.ledger.term, self.ledger.round_id
        for peer, reason in self.ledger.lose_the_unable().items():
            logger.warning("round %d goes on without %s: %s", round_id, peer.peer_id, reason)
        effects: list[Effect] = []
        for hop in self.ledger.to_release():
            effects += self._repeater.say(hop.sender, HopReleased(term, round_id, hop.segment, hop.hop_id), now)
        stalled = [hop for hop in self.ledger.undecided() if self._is_stalled(hop.receiver, hop.ordered_at, now)]
        for hop in [*self.ledger.to_cancel(), *stalled]:
            cancelled = HopCancelled(term, round_id, hop.segment, hop.hop_id, hop.sender)
            effects += self._repeater.say(hop.receiver, cancelled, now)
        return effects

    def _is_stalled(self, receiver: Contributor, ordered_at: float, now: float) -> bool:
        """The receiver has shown no sign of this hop for long: neither progress nor a decision."""
        if now - ordered_at < self._stall_s:
            return False
        report = self.ledger.reports.get(receiver)
        return report is None or report.activity is not _RECEIVING

    def _pair_up(self, now: float) -> None:
        """Ask the policy for pairs as long as it has any."""
        while len(self.ledger.free()) >= 2:
            view = chain_view(self.ledger, self._members, now)
            decision = go_around(view, self._policy.decide(view))
            if isinstance(decision, Wait) and self.ledger.is_settled():
                sender, receiver = self.ledger.free()[:2]
                reason = f"nobody else is to come, so the first two ({decision.reason})"
                decision = go_around(view, Pair(sender.peer_id, receiver.peer_id, reason))
            if isinstance(decision, Wait):
                self.waiting_for = decision.reason
                return
            by_id = {peer.peer_id: peer for peer in self.ledger.free()}
            sender, receiver, reason = by_id[decision.sender], by_id[decision.receiver], decision.reason
            if self.ledger.failures(sender, receiver):
                sender, receiver = self.ledger.next_try()
                reason = f"{decision.sender} and {decision.receiver} could not aggregate, so the two that failed least"
            hop = self.ledger.order_hop(sender, receiver, reason, now)
            logger.info("hop %d: %s -> %s: %s", hop.hop_id, sender.peer_id, receiver.peer_id, reason)

    def _propose(self, result: Holding | Staged, now: float) -> list[Effect]:
        """Broadcast it, once a majority of those who decide follows no older order any more (the promise of Paxos).

        What they have staged by then is known, and the newest of it is what is proposed.
        """
        term = self.ledger.term
        promised = {
            member.peer_id
            for member in self._distribution.recipients()
            if member.report.votes and member.report.term >= term
        }
        if self._has_majority(promised, now):
            self._begin_broadcast(result, now)
        return []

    def _has_majority(self, voters: set[str], now: float) -> bool:
        """Whether these may decide on the round; notes since when they may not."""
        base = self._opened.base
        if has_quorum(base, voters):
            self.lacking_since = None
            return True
        self.lacking_since = now if self.lacking_since is None else self.lacking_since
        missing = sorted(set(base) - voters)
        self.waiting_for = f"a majority: {', '.join(missing)} of {len(base)} members are missing"
        return False

    def _find_result(self) -> Holding | None:
        """The last holder's partial mean.

        Its theta must be the sum of its contributors' weights; a holder whose theta is not is out of the round.
        """
        last = self.ledger.result()
        holding = self.ledger.holding(last) if last else None
        if last and holding and not self.ledger.is_theta_right(holding):
            logger.error("%s: theta %g is not the sum of its contributors' weights", last.peer_id, holding.theta)
            self.ledger.lose(last, "wrong theta")
            return None
        return holding

    # -- broadcasting -------------------------------------------------------------------------------------------------

    def _begin_broadcast(self, result: Holding | Staged, now: float) -> None:
        self.marks.setdefault("reduced", now)
        self._distribution.begin(result, now)
        self._enter(BROADCASTING, now)

    def _spread(self, now: float) -> list[Effect]:
        """Until everybody alive has staged the result, those included who were too late to contribute to it."""
        if self._is_applied_by_some:
            return self._abandon(now, "another agent has closed it, perhaps with another result")
        distribution = self._distribution
        recipients = distribution.recipients()
        if not recipients:
            return self._abandon(now, "nobody is left")
        if not distribution.sources():
            return self._lose_result(now)
        distribution.leave_the_stalled_behind(recipients, now)
        order, late = distribution.order_late(now)
        if not late:
            return self._decide(distribution.recipients(), now)
        return [effect for member in late for effect in self._repeater.say(member.contributor, order, now)]

    def _decide(self, staged: list[Member], now: float) -> list[Effect]:
        """Everybody alive has the result; with a majority of those who decide it stands."""
        voters = {member.peer_id for member in staged if member.report.votes}
        if not self._has_majority(voters, now):
            deaf = [member for member in self._following() if member.contributor in self._distribution.left_behind]
            if has_quorum(self._opened.base, {member.peer_id for member in deaf if member.report.votes}):
                return self._leave_the_staged_behind(staged, now)
            return []
        assert staged[0].report.staged is not None
        self._distribution.digest = staged[0].report.staged.digest
        self._enter(CLOSING, now)
        return []

    def _leave_the_staged_behind(self, staged: list[Member], now: float) -> list[Effect]:
        """A majority is out of reach of all who have the result: it goes on without them, and without the result."""
        effects = self._lose_result(now)
        for member in staged:
            self.ledger.lose(member.contributor, "its partners are out of its reach")
            self._distribution.left_behind.add(member.contributor)
        return effects

    def _lose_result(self, now: float) -> list[Effect]:
        """The result is lost with its only holder: aggregate again what the others still have."""
        if not self.ledger.attempt:
            return self._abandon(now, "its result is lost")
        self._distribution.lose()
        self._enter(AGGREGATING, now)
        return []

    # -- closing ------------------------------------------------------------------------------------------------------

    def _close(self, now: float) -> list[Effect]:
        """The result stands, so whoever is silent is not lost but left behind: it will catch up."""
        effects: list[Effect] = []
        applied = [member for member in self._following() if self._is_applied(member)]
        waiting = [
            member
            for member in self._distribution.recipients()
            if self._distribution.has(member) and not self._is_applied(member)
        ]
        for member in waiting:
            assert member.report.staged is not None
            closed = RoundClosed(self.ledger.term, self.ledger.round_id, member.report.staged.digest)
            effects += self._repeater.say(member.contributor, closed, now)
        if waiting:
            return effects
        if not applied:
            return self._abandon(now, "nobody is left")
        self.applied = applied
        self._enter(CLOSED, now)
        return effects

    def _is_applied(self, member: Member) -> bool:
        return member.report.round_id == self.ledger.round_id and member.report.lineage == self._opened.lineage

    # -- all phases ---------------------------------------------------------------------------------------------------

    def _following(self) -> list[Member]:
        return self._members.following(self._me, self._office_term)

    def _stands_here(self, member: Member) -> bool:
        """At w(round_id - 1), on this lineage or just where it forks."""
        return member.at in (self.position, self._before_fork)

    def _take(self, change: Change, now: float) -> None:
        """The ledger takes a report in, and the devices' books learn from hops that were merged."""
        member, report, ledger = change.member, change.report, self.ledger
        peer = member.contributor
        is_first = peer not in ledger.reports
        ledger.note_busy(peer, member.is_busy, now)
        if report.holdings and peer not in ledger.ready_at:
            member.device.learn_training(now - ledger.opened_at)
        for hop in ledger.hear(change, now):
            self.progressed_at = now
            logger.info("hop %d: %s -> %s %s", hop.hop_id, hop.sender.peer_id, hop.receiver.peer_id, hop.state.value)
            source = self._members.get(hop.sender)
            if hop.state is MERGED and hop.decision and source:
                learn_from_hop(source.device, member.device, hop.decision.size_bytes, hop.decision.seconds)
                self._members.reach.succeed(hop.sender, hop.receiver)
            if hop.state is ABORTED and hop.decision and hop.decision.reason.startswith(NOTHING_CAME):
                holding = ledger.holding(hop.sender)  # if it has heard that it was asked, the way back is cut
                is_given = holding is not None and holding.sent_hop == hop.hop_id
                ways = (hop.sender, hop.receiver) if is_given else (hop.receiver, hop.sender)
                self._members.reach.fail(*ways, now)
        if ledger.reports.get(peer) is report and (is_first or change.is_progress):
            self.progressed_at = now

    def _is_waited_for(self, change: Change) -> bool:
        """In each phase most of what members say is one of many parts: others are waited for, or it has only begun."""
        member, before = change.member, change.before
        was_here = before and before.agent == self._me and change.stood_at in (self.position, self._before_fork)
        if not (was_here and member.alive and member.obeys(self._me, self._office_term)):
            return True
        if self.phase is CLOSING and self._is_applied(member):
            return not any(self._distribution.has(other) for other in self._distribution.recipients())
        attempt = self.ledger.attempt
        if member.at != self.position or (before and before.open_term == attempt != change.report.open_term):
            return True
        if self.phase is AGGREGATING:
            return change.agent or change.holdings or change.hops or change.staged
        return self.phase is not BROADCASTING or all(
            self._distribution.has_staged(other) for other in self._distribution.recipients()
        )

    def _why_out(self, peer: Contributor, member: Member) -> str:
        """Why this peer of the round does not count in it any more; "" if it does. member: the process of its name."""
        if member.contributor != peer:
            return "restarted"
        if not member.alive:
            return "left" if member.has_left else "silent"
        if peer in self.ledger.reports and member.report.open_term != self.ledger.attempt:
            return "gave the round up"
        if member.problem:
            return "refused"
        if not member.obeys(self._me, self._office_term):
            return "obeys another agent"
        return "" if self._stands_here(member) else "stands elsewhere"

    def _abandon(self, now: float, reason: str) -> list[Effect]:
        logger.warning("round %d of %d members: %s", self.ledger.round_id, len(self.ledger.members), reason)
        self._enter(ABANDONED, now)
        return []

    def _enter(self, phase: Phase, now: float) -> None:
        if phase not in PHASE_MOVES[self.phase]:
            raise LocalProtocolError(f"round {self.ledger.round_id}: {phase.value} after {self.phase.value}")
        self.phase, self.waiting_for = phase, ""
        self.marks[phase.value] = now
        self.progressed_at = now


def newest_staged(members: list[Member]) -> Staged | None:
    """What must become the round's result if anyone has staged anything: the latest order's, which may be closed."""
    staged = [member.report.staged for member in members if member.report.staged]
    if not staged:
        return None
    return max(staged, key=lambda result: (result.term, result.version, result.digest))
