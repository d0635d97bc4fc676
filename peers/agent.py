"""The mobile agent (MDLdroid 3.1, 3.3): brings the members to one model and opens one round after the other.

It carries no model values: it hears reports and says what follows from them. An open round is the conductor's. Phases:
`peers/phase.py`.
"""

from __future__ import annotations

import logging

import msgspec

from mdl.delta import Contributor
from mdl.machine import Effect, Event, Finish, Received, RecordRound, Send, StopRequested
from mdl.messages import (
    CatchUp,
    MemberRefused,
    MeshFinished,
    PeerReport,
    RoundOpened,
    RoundSummary,
    StatusWanted,
)
from peers.conductor import Conductor
from peers.members import Member, Members
from peers.phase import Phase
from peers.repeater import Repeater
from peers.rounds import RoundLedger
from peers.status import add_evaluations, mesh_status, summarise_round
from scheduler.chain import Policy

logger = logging.getLogger(__name__)

# Rounds kept for observers that ask what they missed; a status with all of them stays far below a message's limit.
_REMEMBERED_ROUNDS = 100
# How long a round waits for a newcomer to fetch the model; longer while its values are seen to arrive.
_JOIN_WINDOW_S = 10.0
_JOIN_TRANSFER_S = 120.0


class AgentSettings(msgspec.Struct, frozen=True):
    """rounds: how many to run, 0 = until stopped. min_peers: how many must be there before the first round.

    A peer that is not heard for lost_after_s is lost; a hop without any sign for stall_s is cancelled.
    """

    rounds: int = 0
    min_peers: int = 2
    lost_after_s: float = 4.0
    retry_s: float = 0.5
    stall_s: float = 15.0
    farewell_s: float = 20.0
    stop_s: float = 1.5


class MobileAgent:
    """See the module. round: the open one, if any."""

    def __init__(self, me: Contributor, policy: Policy, settings: AgentSettings) -> None:
        self.me = me
        self.term = 1
        self.members = Members()
        self.round: Conductor | None = None
        self._policy = policy
        self._settings = settings
        self._between = Phase.GATHERING
        self._waiting_for = ""
        self._model: tuple[int, bytes] | None = None
        self._orphaned_at: float | None = None
        self._rounds_done = 0
        self._pending: RoundSummary | None = None
        self._finished: list[RoundSummary] = []
        self._repeater = Repeater(settings.retry_s)
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

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case Received(sender=sender, message=PeerReport() as report):
                self._hear(sender, report, now)
                effects += self._flush(wait=True)  # at once, not at the end of the next round
            case Received(sender=sender, message=StatusWanted(since_round=since_round)):
                status = mesh_status(self, self._policy.name, self._goal(), self._finished, since_round, now)
                return [Send(sender.peer_id, status)]
            case StopRequested() if not self._stopping:
                self._stopping = True
                self.round = None  # an open round is given up: its deltas are one round's work
                self._finish_up(now)
        self.members.expire(now, self._settings.lost_after_s)
        effects += self._refuse(now)
        while True:
            phase = self.phase
            effects += self._advance(now)
            if self.phase is phase:
                break
        if now >= self._tick_at:
            self._tick_at = now + self._settings.retry_s / 2
        return effects

    def deadline(self) -> float | None:
        return None if self.phase is Phase.FINISHED else self._tick_at

    def rounds_closed(self) -> int:
        return self._rounds_done

    def attempt(self) -> tuple[int, int]:
        """The open round and the term that opened it; zeros for none."""
        return (self.ledger.round_id, self.ledger.term) if self.ledger else (0, 0)

    def live_members(self) -> list[Contributor]:
        """Who still counts in the open round."""
        return self.ledger.live() if self.ledger else []

    # -- hearing ------------------------------------------------------------------------------------------------------

    def _hear(self, sender: Contributor, report: PeerReport, now: float) -> None:
        member = self.members.hear(sender, report, now)
        if member is None:
            return
        if report.term > self.term:
            self.term = report.term + 1  # an agent that was restarted speaks above its former self
            self._repeater.clear()
        if self.round:
            self.round.hear(member, report, now)

    # -- advancing ----------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Effect]:
        if self.round is None:
            match self._between:
                case Phase.GATHERING:
                    return self._gather(now)
                case Phase.FINISHING:
                    return self._say_goodbye(now)
            return []
        effects = self.round.advance(now)
        if self.round.phase is Phase.CLOSED:
            effects += self._close(self.round, now)
        if self.round.phase in (Phase.CLOSED, Phase.ABANDONED):
            self.round = None
        return effects

    def _gather(self, now: float) -> list[Effect]:
        """Bring everybody to the same w(t); open the next round when enough are there."""
        if self._settings.rounds and self._rounds_done >= self._settings.rounds:
            self._finish_up(now)
            return []
        effects: list[Effect] = []
        alive = self.members.alive()
        self._choose_model(alive, now)
        if not alive or self._model is None:
            self._waiting_for = "trainers"
            return effects
        current = [member for member in alive if member.at == self._model]
        effects += self._help_late(alive, current, now)
        needed = self._settings.min_peers if self._rounds_done == 0 else min(2, self._settings.min_peers)
        if len(current) < needed:
            self._waiting_for = f"{len(current)} of {needed} peers are ready"
            return effects
        if coming := [member for member in alive if self._is_coming(member, now)]:
            self._waiting_for = f"{len(coming)} more to fetch the model"
            return effects
        self._open(current, now)
        return effects

    def _choose_model(self, alive: list[Member], now: float) -> None:
        """What the last round gave; the newest there is before the first, or when nobody is left who has it."""
        if any(member.at == self._model for member in alive):
            self._orphaned_at = None
        elif alive and self._rounds_done:
            self._orphaned_at = now if self._orphaned_at is None else self._orphaned_at
            if now - self._orphaned_at < _JOIN_WINDOW_S:
                return  # somebody who has it may be about to come back
        if self._rounds_done == 0 or self._orphaned_at is not None:
            self._model = self.members.newest_model()

    def _is_coming(self, member: Member, now: float) -> bool:
        """Whether this member is about to stand at the mesh's model, so that it can be in the next round."""
        assert self._model is not None
        if member.at == self._model:
            member.late_since = None
            return False
        if member.late_since is None:
            member.late_since = now
        patience_s = _JOIN_TRANSFER_S if member.report.transfer else _JOIN_WINDOW_S
        return member.at[0] <= self._model[0] and now - member.late_since < patience_s

    def _open(self, current: list[Member], now: float) -> None:
        """A round is opened under a term of its own: whoever has it open from an older one begins it afresh."""
        assert self._model is not None
        self.term += 1
        round_id = self._model[0] + 1
        members = tuple(sorted(member.contributor for member in current))
        ledger = RoundLedger(round_id, frozenset(members), self.term, opened_at=now)
        opened = RoundOpened(self.term, round_id, self._model[1], members, self._goal())
        self._repeater.clear()
        self.round = Conductor(ledger, opened, self.members, self._policy, self._repeater, self._settings.stall_s)

    def _close(self, closed: Conductor, now: float) -> list[Effect]:
        """Everybody alive has applied the result: it is the mesh's model now."""
        assert closed.result is not None
        effects = self._flush(wait=False)
        self._model = closed.applied[0].at
        self._pending = summarise_round(closed.ledger, closed.result, closed.marks, self._model[1], closed.applied)
        self._rounds_done += 1
        return effects

    def _say_goodbye(self, now: float) -> list[Effect]:
        """Wait for the last evaluations, then send everybody home and finish."""
        patience_s = self._settings.stop_s if self._stopping else self._settings.farewell_s
        late = now - self._finishing_at >= patience_s
        effects = self._flush(wait=not late and not self._stopping)
        if self._pending:
            return effects
        alive = self.members.alive()
        round_id = self._model[0] if self._model else 0
        for member in alive:
            effects += self._repeater.say(member.contributor, MeshFinished(self.term, round_id), now)
        if not alive or late:
            self._between = Phase.FINISHED
            effects.append(Finish(exit_code=130 if self._stopping else 0))
        return effects

    def _finish_up(self, now: float) -> None:
        self._between, self._finishing_at = Phase.FINISHING, now

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _help_late(self, alive: list[Member], current: list[Member], now: float) -> list[Effect]:
        effects: list[Effect] = []
        if not current or self._model is None:
            return effects
        source = current[0].contributor
        for member in alive:
            if member.at != self._model:
                effects += self._repeater.say(member.contributor, CatchUp(self.term, *self._model, source), now)
        return effects

    def _refuse(self, now: float) -> list[Effect]:
        self.members.refuse_other_models()
        effects: list[Effect] = []
        for member in self.members.everyone():
            if member.problem and member.alive:
                refusal = MemberRefused(self.term, member.report.round_id, member.problem)
                effects += self._repeater.say(member.contributor, refusal, now)
        return effects

    def _flush(self, wait: bool) -> list[Effect]:
        """Record the last round once everybody's evaluation of it is there, or now if it cannot wait."""
        if self._pending is None:
            return []
        reports = [member.report for member in self.members.alive()]
        summary, complete = add_evaluations(self._pending, reports)
        if wait and not complete:
            return []
        self._pending = None
        self._finished = [*self._finished, summary][-_REMEMBERED_ROUNDS:]
        return [RecordRound(summary)]

    def _goal(self) -> int:
        """The last round of this run; 0 if it goes on until stopped."""
        if not self._settings.rounds or self._model is None:
            return self._settings.rounds
        return self._model[0] - self._rounds_done + self._settings.rounds
