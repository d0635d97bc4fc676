"""One open round, from RoundOpened until everybody alive has applied its result: the agent's part of Algorithm 1.

aggregating: order pairs until one holder has everybody in it (3.2.2); broadcasting: its partial mean goes down the tree
(3.2.3) and is staged, not applied; closing: everybody alive, and a majority of those who decide, has it, so it stands
and is applied. What to do next follows from the ledger and the reports alone, and is said again until a report shows
that it was heard. Knows nothing of other rounds.
"""

from __future__ import annotations

import logging

import msgspec

from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect
from mdl.protocol.round_messages import (
    BroadcastOrdered,
    HopCancelled,
    HopOrdered,
    HopReleased,
    PeerReport,
    RoundClosed,
    RoundOpened,
)
from mdl.protocol.tree import tree_children, tree_parent
from mdl.protocol.vocabulary import NOTHING_CAME, Activity, Contributors, Holding, Staged
from peers.roles.agent.chain_view import around_cuts, chain_view, order_broadcast
from peers.roles.agent.ledger import ABORTED, MERGED, RoundLedger
from peers.roles.agent.phase import ABANDONED, AGGREGATING, BROADCASTING, CLOSED, CLOSING, Phase
from peers.roles.agent.repeater import Repeater
from peers.roles.membership.majority import has_quorum
from peers.roles.membership.members import Member, Members, Position
from scheduler.policies.chain import Pair, Policy, Wait
from scheduler.policies.detour import go_around
from scheduler.policies.device_book import learn_from_hop

logger = logging.getLogger(__name__)

_TRAINING, _RECEIVING = Activity.TRAINING, Activity.RECEIVING


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
        self.result: Holding | Staged | None = None
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
        self._broadcast: BroadcastOrdered | None = None
        self._version = 0
        self._since = 0  # the version from which on orders name this result
        self._left_behind: set[Contributor] = set()
        self._waited_since: dict[Contributor, tuple[float, tuple[object, ...]]] = {}
        self._stalled_once: set[Contributor] = set()
        self._digest = b""
        self._looked_at = -1
        self._is_applied_by_some = False

    @property
    def base(self) -> tuple[str, ...]:
        """Whose majority the round needs."""
        return self._opened.base

    def hear(self, member: Member, report: PeerReport, now: float) -> None:
        """A member's report: the ledger takes it in, and the devices' books learn from hops that were merged."""
        before = self.ledger.reports.get(member.contributor)
        self.ledger.note_busy(member.contributor, member.is_busy, now)
        if report.holdings and member.contributor not in self.ledger.ready_at:
            member.device.learn_training(now - self.ledger.opened_at)
        for hop in self.ledger.hear(member.contributor, report, now):
            self.progressed_at = now
            logger.info("hop %d: %s -> %s %s", hop.hop_id, hop.sender.peer_id, hop.receiver.peer_id, hop.state.value)
            source = self._members.get(hop.sender)
            if hop.state is MERGED and hop.decision and source:
                learn_from_hop(source.device, member.device, hop.decision.size_bytes, hop.decision.seconds)
                self._members.reach.succeed(hop.sender, hop.receiver)
            if hop.state is ABORTED and hop.decision and hop.decision.reason.startswith(NOTHING_CAME):
                holding = self.ledger.holding(hop.sender)  # if it has heard that it was asked, the way back is cut
                is_given = holding is not None and holding.sent_hop == hop.hop_id
                self._note_cut(*((hop.sender, hop.receiver) if is_given else (hop.receiver, hop.sender)), now)
        if self.ledger.reports.get(member.contributor) is report and _has_moved(before, report):
            self.progressed_at = now

    def _note_cut(self, sender: Contributor, receiver: Contributor, now: float) -> None:
        if told := self._members.reach.fail(sender, receiver, now):
            logger.warning("%s", told)

    def is_moved_by(self, member: Member, before: PeerReport) -> bool:
        """Whether this member's newest report can lead to anything; others are waited for, or it has only begun."""
        report = member.report
        stood_at = (before.lineage, before.round_id, before.digest)
        was_here = before.agent == self._me and stood_at in (self.position, self._before_fork)
        if not (was_here and member.alive and member.obeys(self._me, self._office_term)):
            return True
        if self.phase is CLOSING and self._is_applied(member):
            return not any(self._has(other) for other in self._recipients())
        if member.at != self.position or before.open_term == self.ledger.attempt != report.open_term:
            return True
        if self.phase is AGGREGATING:
            told = before.term, before.holdings, before.hops, before.staged
            return (report.term, report.holdings, report.hops, report.staged) != told
        return self.phase is not BROADCASTING or all(self._has_staged(other) for other in self._recipients())

    def advance(self, now: float) -> list[Effect]:
        """Do what the ledger asks for; call again until the phase stays."""
        if self.phase is AGGREGATING:
            return self._aggregate(now)
        if self.phase is BROADCASTING:
            return self._spread(now)
        return self._close(now) if self.phase is CLOSING else []

    # -- aggregating --------------------------------------------------------------------------------------------------

    def _aggregate(self, now: float) -> list[Effect]:
        self._look_around()
        if self._is_applied_by_some:
            return self._abandon(now, "another agent has closed it, perhaps with another result")
        if staged := newest_staged(self._recipients()):
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
            member.peer_id for member in self._recipients() if member.report.votes and member.report.term >= term
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
        self.result, self._digest = result, result.digest if isinstance(result, Staged) else b""
        self.marks.setdefault("reduced", now)
        self._since = self._version + 1
        self._order_broadcast(now)
        self._enter(BROADCASTING, now)

    def _order_broadcast(self, now: float) -> BroadcastOrdered:
        """The root is a holder of the result; the richest of the rest are the inner nodes (3.2.3)."""
        self._name_the_result()
        sources = self._sources()
        turn = len(self._stalled_once) % max(1, len(sources))  # who could not reach its parent gets another one
        sources = sources[turn:] + sources[:turn]
        return self._order_so(order_broadcast([m.contributor for m in self._recipients()], sources, self._members, now))

    def _order_so(self, order: tuple[Contributor, ...]) -> BroadcastOrdered:
        assert self.result is not None
        self._name_the_result()
        self._version += 1
        self._broadcast = BroadcastOrdered(
            self.ledger.term,
            self.ledger.round_id,
            self._opened.digest,
            self._version,
            order,
            self.result.theta,
            self.result.contributors,
            self._digest,
            tuple(member.device.link_mb_s or 0.0 if (member := self._members.get(peer)) else 0.0 for peer in order),
            self._opened.lineage,
        )
        return self._broadcast

    def _name_the_result(self) -> None:
        """By its digest, in the first order after somebody has staged it and in all that follow.

        Orders before named what their roots have: if there were several, that may be more than one result.
        """
        digests = self._staged_digests()
        if digests and not self._digest:
            self._digest = min(digests)
            if len(digests) > 1 or self._version > self._since:
                self._since = self._version + 1

    def _staged_digests(self) -> set[bytes]:
        having = [member for member in self._recipients() if self._has(member)]
        return {member.report.staged.digest for member in having if member.report.staged}

    def _sources(self) -> list[Contributor]:
        """Who can give the result: those who have staged it; before anybody has, whoever holds it."""
        assert self.result is not None
        recipients = self._recipients()
        if have := [member.contributor for member in recipients if self._has(member)]:
            return have
        contributors = set(self.result.contributors)
        return [
            member.contributor
            for member in recipients
            if (holding := self.ledger.holding(member.contributor)) and set(holding.contributors) == contributors
        ]

    def _spread(self, now: float) -> list[Effect]:
        """Until everybody alive has staged the result, those included who were too late to contribute to it."""
        self._look_around()
        if self._is_applied_by_some:
            return self._abandon(now, "another agent has closed it, perhaps with another result")
        recipients = self._recipients()
        if not recipients:
            return self._abandon(now, "nobody is left")
        having = [member for member in recipients if self._has(member)]
        if not having and not self._sources():
            return self._lose_result(now)
        self._leave_the_stalled_behind(recipients, now)
        recipients, order = self._recipients(), self._broadcast
        assert order is not None
        if len(self._staged_digests()) > 1:
            order = self._order_broadcast(now)
        if order.term != self.ledger.term or {member.contributor for member in recipients} != set(order.order):
            order = self._order_broadcast(now)
        late = [member for member in recipients if not self._has_staged(member)]
        if not late:
            return self._decide(recipients, now)
        have = {member.contributor for member in recipients if self._has(member)}
        around = around_cuts(
            order.order, have, [p for p, peer in enumerate(order.order) if peer in have], self._members, now
        )
        if around != order.order:
            order = self._order_so(around)
        effects: list[Effect] = []
        for member in late:
            effects += self._repeater.say(member.contributor, order, now)
        return effects

    def _decide(self, staged: list[Member], now: float) -> list[Effect]:
        """Everybody alive has the result; with a majority of those who decide it stands."""
        voters = {member.peer_id for member in staged if member.report.votes}
        if not self._has_majority(voters, now):
            deaf = [member for member in self._following() if member.contributor in self._left_behind]
            if has_quorum(self._opened.base, {member.peer_id for member in deaf if member.report.votes}):
                return self._leave_the_staged_behind(staged, now)
            return []
        assert staged[0].report.staged is not None
        self._digest = staged[0].report.staged.digest
        self._enter(CLOSING, now)
        return []

    def _leave_the_staged_behind(self, staged: list[Member], now: float) -> list[Effect]:
        """A majority is out of reach of all who have the result: it goes on without them, and without the result."""
        effects = self._lose_result(now)
        for member in staged:
            self.ledger.lose(member.contributor, "its partners are out of its reach")
            self._left_behind.add(member.contributor)
        return effects

    def _lose_result(self, now: float) -> list[Effect]:
        """The result is lost with its only holder: aggregate again what the others still have."""
        if not self.ledger.attempt:
            return self._abandon(now, "its result is lost")
        self.result = self._broadcast = None
        self._waited_since.clear()
        self._stalled_once.clear()
        self._left_behind.clear()
        self._enter(AGGREGATING, now)
        return []

    def _leave_the_stalled_behind(self, recipients: list[Member], now: float) -> None:
        """Who hears us but cannot reach its parent gets another one; then the round closes without it.

        A device that waits for its parent to have the result, or for a sibling to get it, waits rightly.
        """
        by_id = {member.contributor: member for member in recipients}
        for member in recipients:
            peer = member.contributor
            moves = () if self._has(member) else self._moves_above(peer, by_id)
            since, before = self._waited_since.get(peer, (now, None))
            if not moves:
                self._waited_since.pop(peer, None)
            elif moves != before:
                self._waited_since[peer] = now, moves
            elif now - since >= self._stall_s:
                del self._waited_since[peer]
                if parent := self._parent_of(member):
                    self._note_cut(parent.contributor, peer, now)
                if peer in self._stalled_once and len(recipients) > 1:
                    self._left_behind.add(peer)
                self._stalled_once.add(peer)
                self._order_broadcast(now)

    def _parent_of(self, member: Member) -> Member | None:
        order = self._broadcast.order if self._broadcast else ()
        place = tree_parent(order.index(member.contributor)) if member.contributor in order else None
        return None if place is None else self._members.get(order[place])

    def _moves_above(self, peer: Contributor, recipients: dict[Contributor, Member]) -> tuple[object, ...]:
        """How far those have come whom this device's parent feeds; empty while that one has nothing to give."""
        assert self._broadcast is not None
        order = self._broadcast.order
        parent = tree_parent(order.index(peer)) if peer in order else None
        if parent is None:
            fed = [peer]
        elif order[parent] in recipients and not self._has(recipients[order[parent]]):
            return ()
        else:
            fed = [order[child] for child in tree_children(parent, len(order))]
        return tuple(
            (other, self._has(recipients[other]), recipients[other].report.transfer)
            for other in fed
            if other in recipients
        )

    def _has(self, member: Member) -> bool:
        """Whether this member has staged the result, under whichever order."""
        staged = member.report.staged
        return bool(
            staged
            and self.result
            and member.report.open_round == self.ledger.round_id
            and self._digest in (b"", staged.digest)
            and are_the_same(staged.contributors, self.result.contributors)
        )

    def _has_staged(self, member: Member) -> bool:
        """Whether this member has promised it to this agent: what it promised to an earlier one must be given again.

        So must a promise under this term that was followed by an order of another result.
        """
        staged, ballot = member.report.staged, (self.ledger.term, self._since)
        return self._has(member) and staged is not None and (staged.term, staged.version) >= ballot

    # -- closing ------------------------------------------------------------------------------------------------------

    def _close(self, now: float) -> list[Effect]:
        """The result stands, so whoever is silent is not lost but left behind: it will catch up."""
        effects: list[Effect] = []
        applied = [member for member in self._following() if self._is_applied(member)]
        waiting = [member for member in self._recipients() if self._has(member) and not self._is_applied(member)]
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

    def _recipients(self) -> list[Member]:
        """Everybody alive who stands at w(round_id - 1), whether it contributed or not, and has entered the lineage."""
        position, left_behind = self.position, self._left_behind
        return [
            member for member in self._following() if member.at == position and member.contributor not in left_behind
        ]

    def _stands_here(self, member: Member) -> bool:
        """At w(round_id - 1), on this lineage or just where it forks."""
        return member.at in (self.position, self._before_fork)

    def _look_around(self) -> None:
        """Who is out of the round, and whether it is closed already; as long as nobody has moved, that is known."""
        if self._looked_at == self._members.changes:
            return
        self._looked_at = self._members.changes
        self._lose_the_absent()
        self._is_applied_by_some = any(self._is_applied(member) for member in self._following())

    def _lose_the_absent(self) -> None:
        for peer in self.ledger.live():
            member = self._members.get(peer)
            if member is None:
                self.ledger.lose(peer, "restarted")
            elif not member.alive:
                self.ledger.lose(peer, "left" if member.report.activity is Activity.LEFT else "silent")
            elif peer in self.ledger.reports and member.report.open_term != self.ledger.attempt:
                self.ledger.lose(peer, "gave the round up")
            elif member.problem:
                self.ledger.lose(peer, "refused")
            elif not member.obeys(self._me, self._office_term):
                self.ledger.lose(peer, "obeys another agent")
            elif not self._stands_here(member):
                self.ledger.lose(peer, "stands elsewhere")

    def _abandon(self, now: float, reason: str) -> list[Effect]:
        logger.warning("round %d of %d members: %s", self.ledger.round_id, len(self.ledger.members), reason)
        self._enter(ABANDONED, now)
        return []

    def _enter(self, phase: Phase, now: float) -> None:
        self.phase, self.waiting_for = phase, ""
        self.marks[phase.value] = now
        self.progressed_at = now


def newest_staged(members: list[Member]) -> Staged | None:
    """What must become the round's result if anyone has staged anything: the latest order's, which may be closed."""
    staged = [member.report.staged for member in members if member.report.staged]
    if not staged:
        return None
    return max(staged, key=lambda result: (result.term, result.version, result.digest))


def are_the_same(some: Contributors, others: Contributors) -> bool:
    """In whatever order."""
    return some == others or set(some) == set(others)


def _has_moved(before: PeerReport | None, report: PeerReport) -> bool:
    """Whether this device gets on: it trains, does something else than before, or receives values."""
    if before is None or report.activity is _TRAINING or report.activity is not before.activity:
        return True
    return report.transfer is not None and report.transfer != before.transfer
