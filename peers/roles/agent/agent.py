"""The mobile agent (MDLdroid 3.1, 3.3): brings the members to one model and opens one round after the other.

It carries no model values: it hears reports and says what follows from them. An open round is the conductor's; one that
an earlier agent has left open is gone on with. Who is the agent, and for how long,
`peers/roles/membership/succession.py` decides. Phases: `peers/roles/agent/phase.py`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection
from math import inf

import msgspec

from mdl.config import BusySection
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect, Event, Finish, Received, Send, StopRequested
from mdl.protocol.round_messages import MemberRefused, MeshFinished, PeerReport, RoundOpened
from mdl.protocol.status_messages import StatusWanted
from mdl.protocol.vocabulary import MAX_FORKS, Activity, Fork, Lineage
from peers.roles.agent.conductor import Conductor, TimeLimit, newest_staged
from peers.roles.agent.latecomers import Latecomers
from peers.roles.agent.ledger import RoundLedger
from peers.roles.agent.mesh_status import mesh_status
from peers.roles.agent.phase import ABANDONED, BROADCASTING, CLOSED, CLOSING, FINISHED, FINISHING, GATHERING, Phase
from peers.roles.agent.records import RoundRecords
from peers.roles.agent.recovery import has_been_left, recover
from peers.roles.agent.repeater import Repeater
from peers.roles.agent.round_summary import summarise_round
from peers.roles.membership.lineage_choice import choose_lineage, may_decide
from peers.roles.membership.majority import has_quorum, is_senior, next_term
from peers.roles.membership.member import Member, Position, newest_position, poverty
from peers.roles.membership.members import Members
from scheduler.policies.chain import Policy

logger = logging.getLogger(__name__)

# More phases do not follow from one event, as far as anybody can see; then the next event goes on.
_STEPS = 8
# A round in which nothing at all has happened for so many stalls is opened afresh.
_STALLS = 4


class AgentSettings(msgspec.Struct, frozen=True):
    """rounds: how many to run, 0 = until stopped. min_peers: how many must be there before the first round.

    lost_after_s: the longest silence before a peer counts as lost. stall_s: a hop without any sign for so long is
    cancelled. partition_s: how long a group that lacks a majority waits for it, before it goes on by itself;
    waits_for_majority: it never does. busy: when a device counts as busy. limit: for devices that train long.
    """

    rounds: int = 0
    min_peers: int = 2
    lost_after_s: float = 4.0
    retry_s: float = 0.5
    stall_s: float = 10.0
    partition_s: float = 15.0
    waits_for_majority: bool = False
    farewell_s: float = 20.0
    stop_s: float = 1.5
    busy: BusySection = BusySection()
    limit: TimeLimit = TimeLimit()


class MobileAgent:
    """See the module. members: what was heard, also before it took office. term: of its orders; grows with each round.

    goal: the last round, if an earlier agent has named one. lineage, round_id: where those it leads stand. quorum: they
    are a majority of those who decide. lacking_since: since then they are not, under this agent and those before it.
    """

    def __init__(
        self,
        me: Contributor,
        policy: Policy,
        settings: AgentSettings,
        members: Members | None = None,
        term: int = 1,
        goal: int = 0,
        lineage: Lineage = (),
        now: float = 0.0,
        lacking_since: float | None = None,
    ) -> None:
        self.me = me
        self.term = term
        self.members = members or Members(settings.lost_after_s, busy=settings.busy)
        self.round: Conductor | None = None
        self.lineage = lineage
        self.round_id = 0
        self.quorum = False
        self.resigned = False
        self._office_term = term
        self._in_office_since = now
        self._policy = policy
        self._settings = settings
        self._between = GATHERING
        self._waiting_for = ""
        self._goal = goal
        self._lacking_since = lacking_since
        self._left_out: frozenset[Contributor] = frozenset()
        self._vanished: frozenset[str] = frozenset()
        self._records = RoundRecords()
        self._repeater = Repeater(settings.retry_s)
        self._latecomers = Latecomers(self.members, self._repeater, settings.partition_s)
        self._made_way_at = -inf
        self._stopping = False
        self._finishing_at = 0.0
        self._tick_at = 0.0

    @property
    def phase(self) -> Phase:
        return self.round.phase if self.round else self._between

    @property
    def ledger(self) -> RoundLedger | None:
        return self.round.ledger if self.round else None

    @property
    def waiting_for(self) -> str:
        """Why nothing happens at this moment, in words."""
        return self.round.waiting_for if self.round else self._waiting_for

    @property
    def lacking_since(self) -> float | None:
        return self.round.lacking_since if self.round else self._lacking_since

    @property
    def held_up_by(self) -> str:
        """What keeps the mesh from going on, and for how long at most; "" while it goes on."""
        if self.lacking_since is None:
            return "" if self.round else self.waiting_for
        without = "then the mesh waits for a majority" if self._settings.waits_for_majority else "then without"
        return f"{self.waiting_for}; up to {self._settings.partition_s:g} s, {without}"

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case Received(sender=sender, message=PeerReport() as report):
                is_moved = self._hear(sender, report, now)
                pending = self._records.pending
                if pending and report.evaluation and report.evaluation.round_id == pending.round:
                    effects += self._tell_round(wait=True)  # at once, not at the end of the next round
                if not is_moved and now < self._tick_at:
                    return effects  # nothing follows from it, and nothing is due
            case Received(sender=sender, message=StatusWanted(since_round=since_round)):
                status = mesh_status(self, self._policy.name, self._goal, self._records.finished, since_round, now)
                return [Send(sender.peer_id, status)]
            case StopRequested() if not self._stopping:
                self._stopping = True
                self.round = None  # an open round is given up: its deltas are one round's work
                self._finish_up(now)
        for member in [*self.members.expire(now), *self.members.refuse_other_models(self.lineage)]:
            if self.round:
                self.round.look_at(member)
        effects += self._refuse(now)
        for _ in range(_STEPS):
            phase = self.phase
            effects += self._advance(now)
            if self.phase is phase:
                break
        if now >= self._tick_at:
            self._tick_at = now + self._settings.retry_s
        return effects

    def deadline(self) -> float | None:
        return None if self._between is FINISHED and self.round is None else self._tick_at

    def rounds_closed(self) -> int:
        return self._records.closed

    def use_policy(self, policy: Policy) -> None:
        """From the next round on."""
        self._policy = policy

    def attempt(self) -> tuple[int, int]:
        """The open round and the term that first opened it; zeros for none."""
        return (self.ledger.round_id, self.ledger.attempt) if self.ledger else (0, 0)

    def authority(self) -> tuple[int, str]:
        return self.term, self.me.peer_id

    def live_members(self) -> list[Contributor]:
        """Who still counts in the open round."""
        return self.ledger.live() if self.ledger else []

    def is_settled(self) -> bool:
        """Whether holders may share contributors: the round has its result, or another agent has begun it.

        What two agents have left behind is set right as soon as reports show it (`RoundLedger.lose_the_unable`).
        """
        return (
            self.phase is BROADCASTING
            or self.phase is CLOSING
            or (self.ledger is not None and self.ledger.is_recovered)
        )

    def following(self) -> list[Member]:
        """The live members who obey this agent, since it took office."""
        return self.members.following(self.me.peer_id, self._office_term)

    def successors(self) -> tuple[str, ...]:
        """Who takes over if this agent falls silent, the resource-richest first."""
        return tuple(member.peer_id for member in sorted(self.following(), key=poverty))

    def rise_above(self, term: int, now: float) -> None:
        """Speak under a higher term: somebody on another lineage does, or the open round does not get on.

        What was promised and reported to this agent was so under its former term: it waits for that again, and then
        takes the open round up.
        """
        self.term = next_term(max(self.term, term), self.me)
        self._repeater.clear()
        if self.round and self.round.phase is CLOSING:
            self.round.ledger.term = self.term
        else:
            self.round, self._office_term, self._in_office_since = None, self.term, now

    def make_way(self, now: float) -> None:
        """A senior agent is heard, under a lower term: for a while no round is opened here, so that it can rise above.

        A device that trains alone may open rounds, each under a higher term, faster than messages pass between the two.
        Not again before `partition_s`: the senior one may be deaf to this side, which then goes on without it.
        """
        if now - self._made_way_at >= self._settings.partition_s:
            self._made_way_at = now

    # -- hearing ------------------------------------------------------------------------------------------------------

    def _hear(self, sender: Contributor, report: PeerReport, now: float) -> bool:
        """Whether anything can follow from this report now; what is overlooked here is seen at the next repetition."""
        change = self.members.hear(sender, report, now)
        if change is None:
            return False
        if report.term > self.term:
            self._hear_higher_term(report, now)
        return self.round.hear(change, now) if self.round else change.is_news

    def _hear_higher_term(self, report: PeerReport, now: float) -> None:
        """Another agent spoke to this device, or we did before we were started anew."""
        if report.agent == self.me.peer_id:
            self.rise_above(report.term, now)
        elif report.lineage == self.lineage or (not self.quorum and self._is_junior_to(report)):
            self.resigned = True
        else:
            self.rise_above(report.term, now)

    def _is_junior_to(self, report: PeerReport) -> bool:
        return is_senior(report.lineage, self.lineage, report.round_id, self.round_id)

    # -- advancing ----------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Effect]:
        if self.round is None:
            if self._between is GATHERING:
                return self._gather(now)
            return self._say_goodbye(now) if self._between is FINISHING else []
        effects = self.round.advance(now)
        if self.round.phase is CLOSED:
            effects += self._close(self.round, now)
        if self.round.phase is CLOSED or self.round.phase is ABANDONED or self._is_given_up(self.round, now):
            self.round = None
        elif self._does_not_get_on(self.round, now):
            self.round = None
            self.rise_above(self.term, now)
        else:
            effects += self._help_late(self.round.position, now, self.round.ledger.live())
        return effects

    def _is_given_up(self, conducted: Conductor, now: float) -> bool:
        """It lacks a majority, and we may go on without."""
        self.quorum, self._lacking_since = conducted.lacking_since is None, conducted.lacking_since
        if conducted.lacking_since is None:
            return False
        return self._is_patience_over(conducted.base, conducted.lacking_since, now)

    def _does_not_get_on(self, conducted: Conductor, now: float) -> bool:
        """Nothing at all has happened for long."""
        if conducted.lacking_since is not None or now - conducted.progressed_at < _STALLS * self._settings.stall_s:
            return False
        if any(member.report.activity is Activity.TRAINING for member in self.following()):
            return False
        logger.warning("round %d does not get on: it is taken up anew", conducted.ledger.round_id)
        return True

    def _is_patience_over(self, base: tuple[str, ...], since: float, now: float) -> bool:
        """Whether what is missing, a majority or any partner, has been missing for so long that we go on without.

        Who is to wait for a majority waits for its presence: if it is here, but was started anew and so does not know
        what it voted for, the mesh goes on as a fork.
        """
        if now - since < self._settings.partition_s:
            return False
        present = {member.peer_id for member in self.following()}
        return not self._settings.waits_for_majority or has_quorum(base, present)

    def _gather(self, now: float) -> list[Effect]:
        """Bring everybody to the same w(t); open the next round when enough are there."""
        following = self.following()
        if hesitant := [member for member in self.members.alive() if self._hesitates(member, now)]:
            self._waiting_for = f"{hesitant[0].peer_id} to answer"
            return []
        if not following:
            self._waiting_for = "trainers"
            return []
        standing = choose_lineage(following)
        position = newest_position(standing)
        self.lineage, self.round_id, _ = position
        self._goal = self._goal or _common_goal(standing)
        if self._goal and self.round_id >= self._goal:
            self._finish_up(now)
            return []
        effects = self._help_late(position, now)
        current = [member for member in standing if member.at == position]
        base = current[0].report.base
        self.quorum = may_decide(standing)
        if not (self._may_go_on(following, current, base, now) if self.lineage else self._may_start(current)):
            return effects
        left_open = newest_staged(current) is not None or _newest_attempt(current) > 0
        coming = [member for member in following if self._latecomers.is_coming(member, position, now)]
        if coming and not left_open:
            self._waiting_for = f"{len(coming)} more to fetch the model"
            return effects
        if now - self._made_way_at < self._settings.lost_after_s:
            self._waiting_for = "the agent of an older mesh to take over"
            return effects
        self._open(position, current, base, now)
        return effects

    def _hesitates(self, member: Member, now: float) -> bool:
        """Heard, but not obeying yet: its state may still change under another agent's orders."""
        if member.obeys(self.me.peer_id, self._office_term):
            return False
        return now - max(member.joined_at, self._in_office_since) < self._settings.lost_after_s / 2

    def _may_start(self, current: list[Member]) -> bool:
        if len(current) >= self._settings.min_peers:
            return True
        self._waiting_for = f"{len(current)} of {self._settings.min_peers} peers are ready"
        return False

    def _may_go_on(self, following: list[Member], current: list[Member], base: tuple[str, ...], now: float) -> bool:
        """With a majority of those who decide, and a partner; without, only after a while, as a fork.

        Whoever took the last round alone has waited for a partner before, and goes on at its own pace until it hears
        somebody again.
        """
        has_partner = len(current) >= min(2, self._settings.min_peers)
        if self.quorum and (has_partner or self._was_alone(current, base, now)):
            self._lacking_since = None
            return True
        missing = sorted(set(base) - {member.peer_id for member in following})
        self._waiting_for = f"{', '.join(missing) or 'a partner'}: {len(current)} of {len(base)} members are here"
        self._lacking_since = now if self._lacking_since is None else self._lacking_since
        return self._is_patience_over(base, self._lacking_since, now) and (self.quorum or len(self.lineage) < MAX_FORKS)

    def _was_alone(self, current: list[Member], base: tuple[str, ...], now: float) -> bool:
        """Whether this one device took the last round by itself, and nobody else has been heard for a while."""
        if len(current) != 1 or base != (current[0].peer_id,):
            return False
        others = [member for member in self.members.everyone() if member is not current[0]]
        gone_s = self._settings.partition_s
        return all(member.has_left or now - member.heard_at >= gone_s for member in others)

    def _open(self, position: Position, current: list[Member], base: tuple[str, ...], now: float) -> None:
        """Open a round, or go on with the one that another agent has left open.

        A round is opened under a term of its own: whoever has it open from an older one begins it afresh. Without a
        majority on this lineage it is a fork that begins, with all who are here.
        """
        self.term = next_term(self.term, self.me)
        lineage, round_id, digest = position
        staged, attempt = newest_staged(current), _newest_attempt(current)
        reports = {member.contributor: member.report for member in current}
        if staged is None and has_been_left(round_id + 1, attempt, reports):
            attempt = 0
        contributed_last = frozenset(base)
        if not self.quorum:
            name = f"{self.me.peer_id}.{self.me.incarnation}.{self.term}"
            lineage = (*lineage, Fork(round_id, len(current), name))
            base = tuple(sorted(member.peer_id for member in current))
            staged, attempt = None, 0
            self.lineage, self.quorum, self._lacking_since = lineage, True, None
            logger.info("round %d begins lineage %s with %d devices", round_id + 1, name, len(current))
        if self._settings.rounds and not self._goal:
            self._goal = round_id + self._settings.rounds
        if attempt or staged:
            ledger = recover(round_id + 1, attempt, self.term, reports, now)
            logger.info("round %d goes on with %d members", round_id + 1, len(ledger.live()))
        else:
            members = frozenset(member.contributor for member in current)
            ledger = RoundLedger(round_id + 1, members, self.term, opened_at=now)
        self._vanished = contributed_last - {member.peer_id for member in ledger.members}
        opened = RoundOpened(
            self.term,
            round_id + 1,
            digest,
            tuple(sorted(ledger.members)),
            ledger.attempt,
            lineage,
            base,
            self._goal,
            self.successors(),
        )
        self._repeater.clear()
        self.round = Conductor(
            self.me.peer_id,
            self._office_term,
            ledger,
            opened,
            self.members,
            self._policy,
            self._repeater,
            self._settings.stall_s,
            msgspec.structs.replace(self._settings.limit, spared=self._left_out),
        )

    def _close(self, closed: Conductor, now: float) -> list[Effect]:
        """Everybody alive has applied the result: it is the mesh's model now."""
        assert closed.result is not None
        effects = self._tell_round(wait=False)
        digest = closed.applied[0].report.digest
        cuts = self.members.reach.describe(now)
        self._records.note(
            summarise_round(closed.ledger, closed.result, closed.marks, digest, closed.applied, self._vanished, cuts)
        )
        self._left_out = frozenset(closed.left_out)
        return effects

    def _say_goodbye(self, now: float) -> list[Effect]:
        """Wait for the last evaluations, then send everybody home and finish."""
        patience_s = self._settings.stop_s if self._stopping else self._settings.farewell_s
        late = now - self._finishing_at >= patience_s
        effects = self._tell_round(wait=not late and not self._stopping)
        if self._records.pending:
            return effects
        following = self.following()
        others = [member for member in following if member.peer_id != self.me.peer_id]
        if not others or late:
            self._between = FINISHED
            return [*effects, Finish(exit_code=130 if self._stopping else 0)]
        standing = [member for member in following if member.report.lineage == self.lineage]
        if standing and not self._stopping:
            position = newest_position(standing)
            if any(member.at != position for member in following):
                return effects + self._help_late(position, now)  # nobody leaves without the last model
        for member in others:
            effects += self._repeater.say(member.contributor, MeshFinished(self.term, member.report.round_id), now)
        return effects

    def _finish_up(self, now: float) -> None:
        self._between, self._finishing_at = FINISHING, now

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _help_late(self, position: Position, now: float, taking_part: Collection[Contributor] = ()) -> list[Effect]:
        return self._latecomers.help(self.following(), position, self.term, now, taking_part)

    def _tell_round(self, wait: bool) -> list[Effect]:
        return self._records.tell([member.report for member in self.members.alive()], wait)

    def _refuse(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if not self.members.has_refused:
            return effects
        for member in self.members.everyone():
            if member.problem and member.alive:
                refusal = MemberRefused(self.term, member.report.round_id, member.problem)
                effects += self._repeater.say(member.contributor, refusal, now)
        return effects


def _common_goal(members: list[Member]) -> int:
    """The run's last round as most of these know it, 0 if they know none: one of them alone does not end the run."""
    goal, count = Counter(member.report.goal for member in members).most_common(1)[0]
    return goal if 2 * count > len(members) else 0


def _newest_attempt(members: list[Member]) -> int:
    """The term that opened the round these have open; 0 if none has."""
    return max(member.report.open_term for member in members)
