"""One open round, from RoundOpened until everybody alive has applied its result: the agent's part of Algorithm 1.

aggregating: order pairs until one holder has everybody in it (3.2.2). broadcasting: its partial sum goes down the tree
(3.2.3) and is staged, not applied. closing: all that are waited for, and enough of the deciding devices, have it, so it
stands and is applied. The next step follows from the ledger and the reports alone, and is said again until a report
shows that it was heard. Knows nothing of other rounds.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from enum import Enum

from mdl.bounds import first_few
from mdl.defence.limits import accusers_needed
from mdl.errors import LocalProtocolError
from mdl.peers.roles.agent.aggregation import Aggregation, OpenRound
from mdl.peers.roles.agent.distribution import Distribution, newest_staged
from mdl.peers.roles.agent.round_summary import summarise_round
from mdl.peers.roles.membership.majority import has_quorum
from mdl.peers.roles.membership.members import Position, ReportChange, TrainerSeen, voters
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect
from mdl.protocol.round_messages import BroadcastOrdered, RoundClosed
from mdl.protocol.status_messages import RoundSummary
from mdl.protocol.vocabulary import Activity, Holding, Staged
from mdl.scheduler.policies.device_book import learn_from_exchange
from mdl.scheduler.policies.segment_plan import SegmentPlan

logger = logging.getLogger(__name__)


class Phase(Enum):
    """Between rounds: gathering, finishing, finished; in an open round: the others. Legal moves: `PHASE_MOVES`."""

    GATHERING = "gathering"
    AGGREGATING = "aggregating"
    BROADCASTING = "broadcasting"
    CLOSING = "closing"
    CLOSED = "closed"
    ABANDONED = "abandoned"
    FINISHING = "finishing"
    FINISHED = "finished"


# Looked up once: asking an enum for a member costs a quarter of a microsecond (CPython 3.11), and an agent asks often.
GATHERING, AGGREGATING, BROADCASTING, CLOSING, CLOSED, ABANDONED, FINISHING, FINISHED = Phase

# The legal moves. From broadcasting back to aggregating: the result is lost with its only holder. From an open round to
# gathering: it is given up for want of a majority, or taken up anew under a higher term; to finishing: the agent stops.
PHASE_MOVES = {
    GATHERING: {AGGREGATING, FINISHING},
    AGGREGATING: {BROADCASTING, ABANDONED, GATHERING, FINISHING},
    BROADCASTING: {CLOSING, AGGREGATING, ABANDONED, GATHERING, FINISHING},
    CLOSING: {CLOSED, ABANDONED, GATHERING, FINISHING},
    CLOSED: {GATHERING},
    ABANDONED: {GATHERING},
    FINISHING: {FINISHED},
    FINISHED: set[Phase](),
}


# A round in which nothing at all has happened for so many stalls is opened afresh.
_STALLS = 4


class Conductor:
    """See the module. phase: CLOSED when it is done, ABANDONED when it cannot be. marks: phase -> time it began.

    position: the members' place until it is closed. me: the agent's peer id. office_term: the members obey the agent
    since this term. lacking_since: a majority is all that is missing since then; None if it is there.
    going: the segments that an earlier agent has ordered, as this device knows them.
    """

    def __init__(self, me: str, office_term: int, round_: OpenRound, going: BroadcastOrdered | None = None) -> None:
        ledger, opened = round_.ledger, round_.opened
        self.ledger = ledger
        self.phase = AGGREGATING
        self.marks = {"opened": ledger.opened_at}
        self.applied: list[TrainerSeen] = []
        self.waiting_for = ""
        self.lacking_since: float | None = None
        self.progressed_at = ledger.opened_at
        self.position: Position = (opened.lineage, ledger.round_id - 1, opened.digest)
        self._before_fork: Position = (opened.lineage[:-1], ledger.round_id - 1, opened.digest)
        self._me = me
        self._office_term = office_term
        self._opened = opened
        self._members = round_.members
        self._repeater = round_.repeater
        self._settings = round_.settings
        self._enough_at: float | None = None  # enough devices have the result since then
        self._is_planned_anew = False
        self._dropped_at = 0.0  # the segments went on without a slow device last
        self._stall_s = round_.settings.stall_s
        self._aggregation = Aggregation(round_, going)
        self.judging = round_.judging
        self._distribution = Distribution(me, office_term, round_)
        self._is_applied_by_some = False

    @property
    def result(self) -> Holding | Staged | None:
        """The result of the round, once it is there."""
        return self._distribution.result

    @property
    def plan(self) -> SegmentPlan | None:
        """The segments that the result comes about in at the moment."""
        return self._distribution.plan

    @property
    def left_behind(self) -> set[Contributor]:
        """The devices that hear the agent, and did not have the result when the round was closed."""
        return self._distribution.left_behind

    @property
    def base(self) -> tuple[str, ...]:
        """The devices of which the round needs a majority."""
        return self._opened.base

    def hear(self, change: ReportChange, now: float) -> bool:
        """Take in a member's report; return True if anything can follow from it before the next repetition."""
        if change.report.agent == self._me and self._aggregation.hear(change, now):
            self.progressed_at = now
        if change.is_place:
            self.look_at(change.member)
        is_accusing = change.rest and bool(change.report.accused)
        return change.is_news and (is_accusing or self._is_waited_for(change))

    def look_at(self, member: TrainerSeen) -> None:
        """Take a member that left, fell silent or moved out of the round; note if it has applied the result."""
        if self.phase is CLOSING:
            return  # the result stands: a device that is away is not lost but left behind
        for peer in self.ledger.live():
            if peer.peer_id == member.peer_id and (reason := self._why_out(peer, member)):
                self.ledger.lose(peer, reason)
        if self._is_applied(member) and member in self._following():
            self._is_applied_by_some = True

    def is_stuck(self, now: float) -> bool:
        """Return True if nothing at all has happened for long, nobody trains, and no majority is missing."""
        if self.lacking_since is not None or now - self.progressed_at < _STALLS * self._stall_s:
            return False
        return all(member.report.activity is not Activity.TRAINING for member in self._following())

    def summarise(self, vanished: frozenset[str], now: float) -> RoundSummary:
        """Return the closed round in one line. vanished: devices gone when it was opened (`summarise_round`)."""
        assert self.result is not None
        digest, cuts = self.applied[0].report.digest, self._members.reach.describe(now)
        plan, partial = self._distribution.plan, self._distribution.partial
        why_hops = self._aggregation.why_hops
        return summarise_round(
            self.ledger,
            self.result,
            self.marks,
            digest,
            self.applied,
            vanished,
            cuts,
            plan,
            partial,
            why_hops,
            self._me,
        )

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
        result, effects = self._aggregation.advance(now)
        if result:
            return effects + self._propose(result, now, self._aggregation.plan, self._aggregation.going)
        self.waiting_for = self._aggregation.waiting_for
        return effects

    def _propose(
        self,
        result: Holding | Staged,
        now: float,
        plan: SegmentPlan | None = None,
        going: BroadcastOrdered | None = None,
    ) -> list[Effect]:
        """Broadcast it, once a majority of the deciding devices follows no older order any more (the promise of Paxos).

        Results that they have staged by then are known, and the newest is proposed. plan: how the result comes about,
        if nobody has it yet. going: the order by which it does so already.
        """
        recipients, base = self._distribution.recipients(), self._opened.base
        if not self._has_majority(voters(recipients), now):
            return []
        promised = [member for member in recipients if member.report.term >= self.ledger.term]
        if has_quorum(base, voters(promised)):
            self._begin_broadcast(result, now, plan, going)
        else:
            self.waiting_for = "the promises of a majority"  # it is here, and has not answered yet
        return []

    def _has_majority(self, voters: set[str], now: float) -> bool:
        """Return True if these may decide on the round; note since when they may not."""
        base = self._opened.base
        if has_quorum(base, voters):
            self.lacking_since = None
            return True
        self.lacking_since = now if self.lacking_since is None else self.lacking_since
        missing = sorted(set(base) - voters)
        self.waiting_for = f"a majority: {', '.join(missing)} of {len(base)} members are missing"
        return False

    # -- broadcasting -------------------------------------------------------------------------------------------------

    def _begin_broadcast(
        self, result: Holding | Staged, now: float, plan: SegmentPlan | None, going: BroadcastOrdered | None
    ) -> None:
        self.marks.setdefault("reduced", now)
        self._distribution.begin(result, now, plan, going)
        self._aggregation.going = None
        self._enter(BROADCASTING, now)

    def _spread(self, now: float) -> list[Effect]:
        """Repeat the order until all that are waited for have staged it, also devices too late to contribute."""
        if self._is_applied_by_some:
            return self._abandon(now, "another agent has closed it, perhaps with another result")
        distribution = self._distribution
        if distribution.later and not has_quorum(self._opened.base, voters(distribution.recipients())):
            distribution.wait_for_all()
        recipients = distribution.recipients()
        if not recipients:
            return self._abandon(now, "nobody is left")
        if distribution.is_exchanging:
            holders = [member for member in recipients if distribution.has(member)]
            is_refused = self._is_poisoned() and all(map(self._is_refused, holders))
            if is_refused and self._can_decide_without(holders):
                self._aggregation.is_whole = True  # by hops, where whole deltas are judged
                return self._leave_the_staged_behind(holders, now, "others refuse its part of the segments")
            if distribution.is_unproven() and self._can_decide_without(holders):
                return self._leave_the_staged_behind(holders, now, "a lost device did not tell all its checksums")
            if slow := self._find_slow(recipients, now):
                distribution.left_behind.add(slow.contributor)
            lost, stands_still = distribution.lost_contributors(), distribution.is_at_a_standstill(now)
            goes_on = bool(lost) and not distribution.sources() and distribution.go_on_without(lost, now)
            if stands_still and not goes_on:
                self._members.reach.fail_segments(distribution.find_apart(), now)
            if (lost or stands_still) and not goes_on:
                if not distribution.sources():
                    return self._lose_result(now)
                distribution.order(now)  # devices that have all of it give it to the others
            elif self._is_better_planned_anew(now):
                return self._lose_result(now)
        elif not distribution.sources():
            return self._lose_result(now)
        elif distribution.is_refused():
            holders = [member for member in recipients if distribution.has(member)]
            if self._can_decide_without(holders):
                return self._leave_the_staged_behind(holders, now, "others refuse its result")
        if distribution.leave_the_stalled_behind(recipients, now):
            self.progressed_at = now  # at most twice a device
        order, late = distribution.order_late(now)
        if late:
            behind = [member for member in distribution.recipients() if not distribution.has_staged(member)]
            if self._goes_on_without(behind, now):
                distribution.left_behind.update(member.contributor for member in behind)
                late = []
        if not late:
            return self._decide(distribution.recipients(), now)
        self.waiting_for = f"{first_few([member.peer_id for member in late])} to have the result"
        return self._repeater.say_to_all([member.contributor for member in late], order, now)

    def _is_better_planned_anew(self, now: float) -> bool:
        """Return True, once a round, if its segments were planned without any link, and are over sooner with those.

        The pieces that a lost device has given would be lost with the plan.
        """
        plan, last = self._distribution.plan, self._distribution.last
        if self._is_planned_anew or plan is None or plan.bound_s or last is None or last.lost:
            return False
        if self._distribution.sources():
            return False
        elapsed_s = now - self.marks[BROADCASTING.value]
        self._is_planned_anew = self._aggregation.is_better_anew(plan, elapsed_s, now)
        if self._is_planned_anew:
            logger.info(
                "round %d: its segments are planned anew, by the links that are known now", self.ledger.round_id
            )
        return self._is_planned_anew

    def _find_slow(self, recipients: list[TrainerSeen], now: float) -> TrainerSeen | None:
        """Return the device that most owners wait for, once the segments take twice their planned time and the grace.

        They go on without it, as if it was lost: its pieces that are merged stay, the rest comes with a later round.
        """
        plan, limit = self._distribution.plan, self._settings.limit
        if limit.is_for_all or plan is None or not plan.bound_s or self._distribution.sources():
            return None
        if now - max(self.marks[BROADCASTING.value], self._dropped_at) <= 2.0 * plan.bound_s + limit.grace_s:
            return None
        named = Counter(name for member in recipients for name in member.report.lacking if name != member.peer_id)
        most = named.most_common(1)[0][0] if named else ""
        slow = next((member for member in recipients if member.peer_id == most), None)
        if slow is None or slow.contributor in limit.spared:
            return None
        others = [member for member in recipients if member is not slow]
        owners = sum(1 for member in others if plan.owns.get(member.peer_id, 0))
        if 2 * named[slow.peer_id] <= owners or not has_quorum(self._opened.base, voters(others)):
            return None
        self._dropped_at = now
        slow.device.learn_slow()
        logger.info("round %d goes on without %s: most owners wait for it", self.ledger.round_id, slow.peer_id)
        return slow

    def _goes_on_without(self, late: list[TrainerSeen], now: float) -> bool:
        """Return True if the round closes although these do not have the result yet: they fetch the model later.

        They have as long again as it took until a majority of those that decide on this round, and on the next one, had
        the result, and the grace. While devices have different results, all are waited for: what they tell names one.
        """
        limit, distribution = self._settings.limit, self._distribution
        assert distribution.result is not None
        is_late = {member.contributor for member in late}
        staged = [member for member in distribution.recipients() if member.contributor not in is_late]
        digests = {member.report.staged.digest for member in staged if member.report.staged}
        contributors = {contributor.peer_id for contributor in distribution.result.contributors}
        here = {member.peer_id for member in staged}
        is_enough = (
            len(digests) == 1 and has_quorum(self._opened.base, voters(staged)) and has_quorum(contributors, here)
        )
        if limit.is_for_all or not is_enough or any(member.contributor in limit.spared for member in late):
            self._enough_at = None
            return False
        self._enough_at = now if self._enough_at is None else self._enough_at
        took_s = self._enough_at - self.marks[BROADCASTING.value]
        if now - self._enough_at < took_s + limit.grace_s:
            return False
        names = first_few([member.peer_id for member in late])
        logger.info("round %d closes while %s fetch its result", self.ledger.round_id, names)
        return True

    def _is_poisoned(self) -> bool:
        """Return True if a device holds a piece of these segments for poison: nobody gets the result without it."""
        return any(
            each.round_id == self.ledger.round_id for member in self._following() for each in member.report.accused
        )

    def _is_refused(self, holder: TrainerSeen) -> bool:
        """Return True if enough devices refuse, in this round, what this one gives."""
        refusing = sum(self._distribution.refuses(member, holder.contributor) for member in self._following())
        return refusing >= accusers_needed(len(self.ledger.members))

    def _can_decide_without(self, holders: list[TrainerSeen]) -> bool:
        """Return True if the round does not need these to be decided, or there are none."""
        if not holders:
            return True
        others = [member for member in self._distribution.recipients() if member not in holders]
        return has_quorum(self._opened.base, voters(others))

    def _decide(self, staged: list[TrainerSeen], now: float) -> list[Effect]:
        """Decide the round, if a majority of the deciding devices has the result; everybody alive has it."""
        if not self._has_majority(voters(staged), now):
            deaf = [member for member in self._following() if member.contributor in self._distribution.left_behind]
            if has_quorum(self._opened.base, voters(deaf)):
                return self._leave_the_staged_behind(staged, now, "its partners are out of its reach")
            return []
        plan = self._distribution.plan
        for member in staged:
            if plan:
                learn_from_exchange(member.device, *plan.work_of(member.peer_id, member.report.size))
        if plan:
            self._members.reach.succeed_segments()
        assert staged[0].report.staged is not None
        self._distribution.digest = staged[0].report.staged.digest
        self._distribution.partial = staged[0].report.staged.partial
        self._enter(CLOSING, now)
        return []

    def _leave_the_staged_behind(self, staged: list[TrainerSeen], now: float, why: str) -> list[Effect]:
        """Go on without the result and those that have it: a majority of the others cannot have it, or refuses it."""
        effects = self._lose_result(now, staged)
        self.lacking_since = None  # a majority is here
        for member in staged:
            self.ledger.lose(member.contributor, why)
        return effects

    def _lose_result(self, now: float, without: Iterable[TrainerSeen] = ()) -> list[Effect]:
        """Aggregate again what the others still have: it is lost with its only holder, or `without` holds it."""
        if not self.ledger.attempt:
            return self._abandon(now, "its result is lost")
        self._distribution.lose(member.contributor for member in without)
        self._enter(AGGREGATING, now)
        return []

    # -- closing ------------------------------------------------------------------------------------------------------

    def _close(self, now: float) -> list[Effect]:
        """Close: the result stands, so a silent device is not lost but left behind, and will catch up."""
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

    def _is_applied(self, member: TrainerSeen) -> bool:
        return member.report.round_id == self.ledger.round_id and member.report.lineage == self._opened.lineage

    # -- all phases ---------------------------------------------------------------------------------------------------

    def _following(self) -> list[TrainerSeen]:
        return self._members.following(self._me, self._office_term)

    def _stands_here(self, member: TrainerSeen) -> bool:
        """Return True if it is at w(round_id - 1), on this lineage or just where it forks."""
        return member.at in (self.position, self._before_fork)

    def _is_waited_for(self, change: ReportChange) -> bool:
        """Return True if something may follow from this change now.

        In each phase most reports are one of many parts: others are awaited, or it has only begun.
        """
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
            return change.agent or change.holding or change.hops or change.staged
        return self.phase is not BROADCASTING or all(
            self._distribution.has_staged(other) for other in self._distribution.recipients()
        )

    def _why_out(self, peer: Contributor, member: TrainerSeen) -> str:
        """Return why this peer of the round counts no more; "" if it does. member: the process of its name."""
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
