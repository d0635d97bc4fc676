"""The mobile agent (MDLdroid 3.1, 3.3): brings the members to one model and opens one round after the other.

It carries no model values: it hears reports and says what follows from them. An open round is the conductor's; the
agent goes on with one that an earlier agent has left open. `peers/roles/membership/succession.py` decides which device
is the agent, and for how long.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec

from mdl.channels import Told, unlike_channels
from mdl.peers.roles.agent.aggregation import Attendance, OpenRound, Repeater
from mdl.peers.roles.agent.conductor import (
    ABANDONED,
    BROADCASTING,
    CLOSED,
    CLOSING,
    FINISHED,
    FINISHING,
    GATHERING,
    Conductor,
    Phase,
)
from mdl.peers.roles.agent.doubt import JudgedDevices
from mdl.peers.roles.agent.gathering import Gathering, Latecomers, common_goal, gather, open_ledger
from mdl.peers.roles.agent.ledger import RoundLedger
from mdl.peers.roles.agent.mesh_status import Asking, mesh_status, tell_round
from mdl.peers.roles.agent.round_summary import RoundRecords
from mdl.peers.roles.agent.settings import AgentSettings
from mdl.peers.roles.membership.majority import is_senior, next_term
from mdl.peers.roles.membership.members import Distrust, Members, Position, TrainerSeen, newest_position, poverty
from mdl.peers.roles.run_end import UNKNOWN, Ending, RunKnowledge
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Effect, Event, Finish, Received, Send, StopRequested
from mdl.protocol.round_messages import MOST_UNLIKE, BroadcastOrdered, MeshFinished, PeerReport, RoundOpened
from mdl.protocol.status_messages import RoundSummary, StatusWanted
from mdl.protocol.vocabulary import Fork, Lineage
from mdl.scheduler.policies.chain import Policy
from mdl.task import channels_of

logger = logging.getLogger(__name__)

# Limit of the phases that may follow from one event; the next event goes on.
_STEPS = 8


class MobileAgent:
    """See the module. members: known also from before it took office. term: of its orders; grows with each round.

    taken: its knowledge of the run: the end and the pace. lineage, round_id: the place of the devices it leads;
    workers: the number of devices with work in that model. quorum: they are a majority of the deciding devices.
    lacking_since: time since which they are none, under this agent and those before it.
    going: the order of an exchange that this device took part in when it took office. distrust: of these devices.
    ending: of the run. unlike: the devices with channels unlike all others', in words.
    """

    def __init__(
        self,
        me: Contributor,
        policy: Policy,
        settings: AgentSettings,
        members: Members | None = None,
        term: int = 1,
        taken: RunKnowledge = UNKNOWN,
        lineage: Lineage = (),
        now: float = 0.0,
        lacking_since: float | None = None,
        going: BroadcastOrdered | None = None,
    ) -> None:
        self.me = me
        self.term = term
        self.members = members or Members(settings.lost_after_s, busy=settings.busy, avoid_s=settings.avoid_s)
        self.round: Conductor | None = None
        self.lineage = lineage
        self.round_id, self.quorum, self.resigned = 0, False, False
        self.workers = 0
        self._office_term = term
        self._in_office_since = now
        self._policy = policy
        self._settings = settings
        self._between = GATHERING
        self._goal, self.ending = taken.goal, Ending(settings.end, taken.course, now)
        self.attendance = Attendance()
        self._judged, self._vanished = JudgedDevices(settings.judges), frozenset[str]()
        self.distrust = Distrust(settings.quarantine)
        self.unlike: tuple[str, ...] = ()
        self._compared: dict[str, Told] = {}
        self._records = RoundRecords(self.members, self.ending, self._send_line)
        self._repeater = Repeater(settings.retry_s)
        self._gathering = Gathering(self.members, settings, lacking_since, taken.opened_at)
        self._latecomers = Latecomers(self.members, self._repeater, settings.partition_s)
        self._going = going
        self._stopping = False
        self._finishing_at = self._tick_at = 0.0
        self._asking = Asking()

    @property
    def phase(self) -> Phase:
        return self.round.phase if self.round else self._between

    @property
    def ledger(self) -> RoundLedger | None:
        return self.round.ledger if self.round else None

    @property
    def waiting_for(self) -> str:
        """The reason why nothing happens at this moment, in words."""
        return self.round.waiting_for if self.round else self._gathering.waiting_for

    @property
    def lacking_since(self) -> float | None:
        return self.round.lacking_since if self.round else self._gathering.lacking_since

    @property
    def held_up_by(self) -> str:
        """The obstacle that holds up the mesh, and for how long at most; "" while it goes on."""
        if self.lacking_since is None:
            return "" if self.round else self.waiting_for
        return f"{self.waiting_for}; {self._gathering.tell_patience()}"

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case Received(sender=sender, message=PeerReport() as report):
                is_moved = self._hear(sender, report, now)
                effects += self._records.hear(report)
                if not is_moved and not effects and now < self._tick_at:
                    return effects  # nothing follows from it, and nothing is due
            case Received(sender=sender, message=StatusWanted(since_round=since_round)):
                if not self._asking.may(sender.peer_id, now):
                    return []
                status = mesh_status(self, self._policy.name, self._goal, self._records.finished, since_round, now)
                return [Send(sender.peer_id, status)]
            case StopRequested() if not self._stopping:
                self._stopping = True
                self.round = None  # an open round is given up: its deltas are one round's work
                self._between, self._finishing_at = FINISHING, now
        for member in [*self.members.expire(now), *self.members.refuse_other_models(self.lineage)]:
            if self.round:
                self.round.look_at(member)
        effects += self._latecomers.refuse(self.term, now)
        for _ in range(_STEPS):
            phase, effects = self.phase, effects + self._advance(now)
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
        """Use this policy from the next round on."""
        self._policy = policy

    def attempt(self) -> tuple[int, int]:
        """Return the open round and the term that first opened it; zeros for none."""
        return (self.ledger.round_id, self.ledger.attempt) if self.ledger else (0, 0)

    def authority(self) -> tuple[int, str]:
        return self.term, self.me.peer_id

    def live_members(self) -> list[Contributor]:
        """Return the members that still count in the open round."""
        return self.ledger.live() if self.ledger else []

    def is_settled(self) -> bool:
        """Return True if holders may share contributors: in a result, or by two agents' orders (`lose_the_unable`)."""
        return self.phase in (BROADCASTING, CLOSING) or (self.ledger is not None and self.ledger.is_recovered)

    def following(self) -> list[TrainerSeen]:
        """Return the live members that have obeyed this agent since it took office."""
        return self.members.following(self.me.peer_id, self._office_term)

    def successors(self) -> tuple[str, ...]:
        """Return the devices that take over if this agent falls silent, the resource-richest first."""
        return tuple(member.peer_id for member in sorted(self.following(), key=poverty))

    def rise_above(self, term: int, now: float) -> None:
        """Speak under a higher term: an agent on another lineage does, or the open round does not get on.

        Promises and reports under the former term are awaited anew; then the open round is taken up.
        """
        self.term = next_term(max(self.term, term), self.me)
        self._repeater.clear()
        if self.round and self.round.phase is CLOSING:
            self.round.ledger.term = self.term
        else:
            self.round, self._office_term, self._in_office_since = None, self.term, now

    def forgive(self, seconds: float) -> None:
        """Discount a suspension of this process: nobody was missing in these seconds."""
        waits = self.round or self._gathering
        if waits.lacking_since is not None:
            waits.lacking_since += seconds

    def make_way(self, now: float) -> None:
        """Open no round for a while: a senior agent is heard under a lower term, and has to rise above this one.

        A device that trains alone may open rounds, each under a higher term, faster than messages pass between the two.
        """
        self._gathering.make_way(now)

    # -- hearing ------------------------------------------------------------------------------------------------------

    def _hear(self, sender: Contributor, report: PeerReport, now: float) -> bool:
        """Take in a report. Return True if anything can follow now; the next repetition sees what is overlooked."""
        change = self.members.hear(sender, report, now)
        if change is None:
            return False
        if report.term > self.term and not report.agent == sender.peer_id != self.me.peer_id:
            self._hear_higher_term(report, now)  # not from an agent: it claims its term itself, unless it hears nobody
        return self.round.hear(change, now) if self.round else change.is_news

    def _hear_higher_term(self, report: PeerReport, now: float) -> None:
        """Resign, or rise above: another agent led the reporting device, or we did before a restart."""
        if report.agent == self.me.peer_id:
            self.rise_above(report.term, now)
            return
        rounds, workers = (report.round_id, self.round_id), (report.workers, self.workers)
        is_junior = is_senior(report.lineage, self.lineage, *rounds, *workers)
        if report.lineage == self.lineage or (is_junior and not self.quorum):
            self.resigned = True
        else:
            self.rise_above(report.term, now)

    # -- advancing ----------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Effect]:
        if self.round is None:
            if self._between is GATHERING:
                return self._gather(now)
            return self._say_goodbye(now) if self._between is FINISHING else []
        effects = self.round.advance(now)
        self.quorum = self.round.lacking_since is None
        if self.round.phase is CLOSED:
            effects += self._close(self.round, now)
        if self.round.phase in (CLOSED, ABANDONED) or self._gathering.gives_up(self.round, self.following(), now):
            self.round = None
        elif self.round.is_stuck(now):
            logger.warning("round %d makes no progress: it is taken up anew", self.round.ledger.round_id)
            self.round = None
            self.rise_above(self.term, now)
        else:
            effects += self._help_late(self.round.position, now, self.round.ledger.live())
        return effects

    def _gather(self, now: float) -> list[Effect]:
        """Bring everybody to the same w(t); open the next round when enough are there."""
        following, gathering = self.following(), self._gathering
        if gathering.waits_for_answers(self.me.peer_id, self._office_term, self._in_office_since, now):
            return []
        if not following:
            gathering.waiting_for, gathering.lacking_since = "trainers", None
            return []
        found = gather(following)
        self.lineage, self.round_id, _ = found.position
        self.workers = found.current[0].report.workers
        self._goal = self._goal or common_goal(found.standing)
        effects = self._records.wait(now, self._settings.farewell_s) if self.ending.waits_for_tests else []
        if self._records.pending and self.ending.waits_for_tests:
            gathering.waiting_for = "the tests of the last round"
            return effects + self._help_late(found.position, now)
        if (self._goal and self.round_id >= self._goal) or self.ending.is_over(now):
            self._between, self._finishing_at = FINISHING, now
            return effects
        effects += self._help_late(found.position, now)
        self.quorum = found.quorum
        if gathering.are_enough(found, now):
            coming = [
                member
                for member in following
                if self._latecomers.is_coming(member, found.position, now) and self._is_waited_for(member, now)
            ]
            if not gathering.waits_for_others(found, coming, now):
                self._open(found.position, found.current, found.base, now)
                effects += self._latecomers.tell_left_out(self.distrust, self.term, self.round_id + 1, now)
        return effects

    def _open(self, position: Position, current: list[TrainerSeen], base: tuple[str, ...], now: float) -> None:
        """Open a round, or go on with one that another agent has left open.

        A round is opened under a term of its own: a device that has it open from an older one begins it afresh. Without
        a majority on this lineage a fork begins, with all that are here.
        """
        self.term = next_term(self.term, self.me)
        lineage, round_id, digest = position
        self.distrust.look(self.following(), self._judged.peer_ids, self._judged.left_out(round_id + 1), round_id + 1)
        contributed_last, is_fork = frozenset(base), not self.quorum
        if is_fork:
            lineage = self._begin_fork(lineage, round_id, len(current))
            base = tuple(sorted(member.peer_id for member in current))
        if self._settings.rounds and not self._goal:
            self._goal = round_id + self._settings.rounds
        compress = self._settings.coding if self._settings.exchange != "chain" else "none"
        ledger = open_ledger(round_id + 1, current, self.term, is_fork, now, self.distrust, compress)
        self._vanished = contributed_last.difference([member.peer_id for member in ledger.members], self.distrust.out)
        members = tuple(sorted(ledger.members))
        self._gathering.opened_at = now
        self.ending.begin(now)
        opened = RoundOpened(self.term, round_id + 1, digest, members, ledger.attempt, lineage, base, self._goal)
        self._compare_channels(members)
        course, unlike = self.ending.course, self.unlike
        successors, room = self.successors(), ledger.room
        opened = msgspec.structs.replace(opened, successors=successors, course=course, unlike=unlike, room=room)
        self._conduct(ledger, opened)

    def _compare_channels(self, members: tuple[Contributor, ...]) -> None:
        """Name the devices with channels unlike all others'; each trainer logs it, as it hears of the round.

        It costs milliseconds, so it is done only if a device came or tells something else.
        """
        reports = {member.peer_id: member.report for who in members if (member := self.members.get(who))}
        told = {peer_id: report.channels for peer_id, report in reports.items()}
        if told == self._compared:
            return
        self._compared, before = told, self.unlike
        names = channels_of(next(iter(reports.values())).model) if reports else []
        self.unlike = tuple(unlike_channels(told, names).values())[:MOST_UNLIKE]
        if self.me not in members:
            for line in self.unlike:
                if line not in before:
                    logger.warning("%s", line)

    def _begin_fork(self, lineage: Lineage, round_id: int, size: int) -> Lineage:
        """Begin the lineage of the devices that go on without a majority from w(round_id)."""
        name = f"{self.me.peer_id}.{self.me.incarnation}.{self.term}"
        self.lineage, self.quorum = (*lineage, Fork(round_id, size, name)), True
        self._gathering.lacking_since = None
        logger.info("round %d begins lineage %s with %d devices", round_id + 1, name, size)
        return self.lineage

    def _conduct(self, ledger: RoundLedger, opened: RoundOpened) -> None:
        self._repeater.clear()
        most = self._settings.limit.left_out_at_most
        spared = frozenset(peer for peer in ledger.members if self.attendance.left_out(peer.peer_id) >= most)
        limit = msgspec.structs.replace(self._settings.limit, spared=spared)
        settings = msgspec.structs.replace(self._settings, limit=limit)
        judging = self._judged.prepare(ledger, opened.digest, self.distrust.doubted)
        self.attendance.open(ledger.members, ledger.opened_at)
        round_ = OpenRound(
            ledger, opened, self.members, self._policy, self._repeater, settings, judging, self.attendance
        )
        going = self._going if self._going and self._going.round_id == ledger.round_id else None
        self.round, self._going = Conductor(self.me.peer_id, self._office_term, round_, going), None

    def _close(self, closed: Conductor, now: float) -> list[Effect]:
        """Record the closed round: everybody alive has applied the result, which is the mesh's model now."""
        effects = self._records.tell(wait=False)
        summary = closed.summarise(self._vanished, now)
        doubts = self.distrust.doubts(self.members.everyone(), summary.round)
        self._records.note(msgspec.structs.replace(summary, quarantined=dict(self.distrust.out), doubts=doubts), now)
        assert closed.result is not None
        here = [member.peer_id for member in self.following() if not member.report.away]
        self.attendance.close(closed.result.contributors, closed.left_behind, here)
        self._judged.note(closed.judging, closed.result)
        return effects

    def _is_waited_for(self, member: TrainerSeen, now: float) -> bool:
        """Return True if the next round waits for a device that fetches the model.

        A round that does not wait for everybody waits for a newcomer as long as the grace, and without that limit for a
        device that as many rounds as may have gone on without.
        """
        limit, rounds = self._settings.limit, self.attendance.left_out(member.peer_id)
        if limit.is_for_all or rounds >= limit.left_out_at_most:
            return True
        return rounds == 0 and member.late_since is not None and now - member.late_since < limit.grace_s

    def _say_goodbye(self, now: float) -> list[Effect]:
        """Wait for the last tests and for devices without the last model; then send everybody home and finish."""
        patience_s = self._settings.stop_s if self._stopping else self._settings.farewell_s
        late = now - self._finishing_at >= patience_s
        effects = self._records.tell(wait=not late and not self._stopping)
        if self._records.pending:
            return effects
        following = self.following()
        others = [member for member in following if member.peer_id != self.me.peer_id]
        standing = [member for member in following if member.report.lineage == self.lineage]
        if standing and not (late or self._stopping):
            position = newest_position(standing)
            if any(member.at != position for member in following):
                return effects + self._help_late(position, now)  # nobody leaves without the last model
        for member in others:
            end = MeshFinished(self.term, member.report.round_id, self.ending.reason, self.ending.course)
            effects += self._repeater.say(member.contributor, end, now)
        if not others or late:
            self._between = FINISHED
            effects.append(Finish(exit_code=130 if self._stopping else 0))
        return effects

    def _send_line(self, summary: RoundSummary) -> list[Effect]:
        told, me = tell_round(summary, self.term), self.me.peer_id
        return [Send(member.peer_id, told) for member in self.following() if member.peer_id != me]

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _help_late(self, position: Position, now: float, taking_part: Collection[Contributor] = ()) -> list[Effect]:
        return self._latecomers.help(self.following(), position, self.term, now, taking_part)
