"""The mobile agent (MDLdroid 3.1, 3.3): opens rounds, orders the aggregations, hands the result to the broadcast tree.

It carries no model values: it hears reports, keeps the ledger of the round, and asks the policy for the next pair. All
it does follows from the state it knows (`_advance`), and is said again until a report shows that it was heard. Phases:
gathering -> aggregating -> broadcasting -> closing -> gathering ... -> finishing.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import cast

import msgspec

from mdl.delta import Contributor
from mdl.machine import Effect, Event, Finish, Received, RecordRound, Send, StopRequested
from mdl.messages import (
    Activity,
    AgentMessage,
    BroadcastOrdered,
    CatchUp,
    Holding,
    HopCancelled,
    HopOrdered,
    HopReleased,
    MemberRefused,
    MeshFinished,
    PeerReport,
    RoundClosed,
    RoundOpened,
    RoundSummary,
    Said,
    Staged,
    StatusWanted,
)
from peers.members import Member, Members
from peers.rounds import HopState, RoundLedger
from peers.status import add_evaluations, mesh_status, summarise_round
from peers.view import chain_view, order_broadcast
from scheduler.chain import Pair, Policy, Wait
from scheduler.devices import learn_from_hop

logger = logging.getLogger(__name__)

# Rounds kept for observers that ask what they missed.
_REMEMBERED_ROUNDS = 200
# How long a round waits for a newcomer to fetch the model; longer while its values are seen to arrive.
_JOIN_WINDOW_S = 10.0
_JOIN_TRANSFER_S = 120.0
# How long a round that everybody had the result of waits for one of them, when all are silent or gone.
_DESERTED_S = 30.0


class Phase(Enum):
    GATHERING = "gathering"
    AGGREGATING = "aggregating"
    BROADCASTING = "broadcasting"
    CLOSING = "closing"
    FINISHING = "finishing"
    FINISHED = "finished"


class AgentSettings(msgspec.Struct, frozen=True):
    """rounds: how many to run, 0 = until stopped. min_peers: how many must be there before the first round."""

    rounds: int = 0
    min_peers: int = 2
    lost_after_s: float = 4.0
    retry_s: float = 0.5
    stall_s: float = 15.0
    farewell_s: float = 20.0
    stop_s: float = 1.5


class MobileAgent:
    """See the module."""

    def __init__(self, me: Contributor, policy: Policy, settings: AgentSettings) -> None:
        self.me = me
        self.term = 1
        self.phase = Phase.GATHERING
        self.members = Members()
        self.ledger: RoundLedger | None = None
        self.waiting_for = ""
        self._policy = policy
        self._settings = settings
        self._model: tuple[int, bytes] | None = None
        self._rounds_done = 0
        self._result: Holding | Staged | None = None
        self._broadcast: BroadcastOrdered | None = None
        self._broadcast_version = 0
        self._marks: dict[str, float] = {}
        self._pending: RoundSummary | None = None
        self._finished: list[RoundSummary] = []
        self._said: dict[tuple[str, AgentMessage], float] = {}
        self._stopping = False
        self._tick_at = 0.0

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects: list[Effect] = []
        match event:
            case Received(sender=sender, message=PeerReport() as report):
                self._hear(sender, report, now)
                effects += self._flush(now, wait=True)  # at once, not at the end of the next round
            case Received(sender=sender, message=StatusWanted(since_round=since_round)):
                status = mesh_status(self, self._policy.name, self._goal(), self._finished, since_round, now)
                return [Send(sender.peer_id, status)]
            case StopRequested() if not self._stopping:
                self._stopping = True
                self.ledger = None  # an open round is given up: its deltas are one round's work
                self._enter(Phase.FINISHING, now)
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
            self._said.clear()
        if self.ledger is None:
            return
        for hop in self.ledger.hear(sender, report, now):
            logger.info("hop %d: %s -> %s %s", hop.hop_id, hop.sender.peer_id, hop.receiver.peer_id, hop.state.value)
            source = self.members.get(hop.sender)
            if hop.state is HopState.MERGED and hop.decision and source:
                learn_from_hop(source.device, member.device, hop.decision.size_bytes, hop.decision.seconds)

    # -- advancing ----------------------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Effect]:
        match self.phase:
            case Phase.GATHERING:
                return self._gather(now)
            case Phase.AGGREGATING:
                return self._aggregate(self._round(), now)
            case Phase.BROADCASTING:
                return self._spread(self._round(), now)
            case Phase.CLOSING:
                return self._close(self._round(), now)
            case Phase.FINISHING:
                return self._say_goodbye(now)
        return []

    def _gather(self, now: float) -> list[Effect]:
        """Bring everybody to the same w(t); open the next round when enough are there."""
        if self._settings.rounds and self._rounds_done >= self._settings.rounds:
            self._enter(Phase.FINISHING, now)
            return []
        effects: list[Effect] = []
        alive = self.members.alive()
        self._choose_model(alive, now)
        if not alive or self._model is None:
            self.waiting_for = "trainers"
            return effects
        current = [member for member in alive if member.at == self._model]
        effects += self._help_late(alive, current, now)
        needed = self._settings.min_peers if self._rounds_done == 0 else min(2, self._settings.min_peers)
        if len(current) < needed:
            self.waiting_for = f"{len(current)} of {needed} peers are ready"
            return effects
        if coming := [member for member in alive if self._is_coming(member, now)]:
            self.waiting_for = f"{len(coming)} peers still fetch the model"
            return effects
        self._open(current, now)
        return effects

    def _choose_model(self, alive: list[Member], now: float) -> None:
        """What the last round gave; the newest there is before the first, or when nobody is left who has it."""
        if any(member.at == self._model for member in alive):
            self._marks.pop("orphaned", None)
        elif alive and now - self._marks.setdefault("orphaned", now) < _JOIN_WINDOW_S and self._rounds_done:
            return  # somebody who has it may be about to come back
        if self._rounds_done == 0 or "orphaned" in self._marks:
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
        members = frozenset(member.contributor for member in current)
        self.ledger = RoundLedger(round_id, members, self.term, opened_at=now)
        self._marks = {"opened": now}
        self._result = self._broadcast = None
        self._broadcast_version = 0
        self._said.clear()
        self._enter(Phase.AGGREGATING, now)

    def _aggregate(self, ledger: RoundLedger, now: float) -> list[Effect]:
        """Order pairs until one holder has everybody in it."""
        self._lose_the_silent(ledger)
        if not ledger.live():
            return self._abandon(ledger, now)
        effects = self._announce(ledger, now)
        for hop in ledger.to_release():
            effects += self._tell(hop.sender, HopReleased(self.term, ledger.round_id, hop.segment, hop.hop_id), now)
        stalled = [hop for hop in ledger.undecided() if self._is_stalled(ledger, hop.receiver, hop.ordered_at, now)]
        for hop in ledger.to_cancel() + stalled:
            effects += self._tell(hop.receiver, HopCancelled(self.term, ledger.round_id, hop.segment, hop.hop_id), now)
        if result := self._find_result(ledger):
            self._result = result
            self._order_broadcast(ledger, now)
            self._enter(Phase.BROADCASTING, now)
            return effects
        self._pair_up(ledger, now)
        for hop in ledger.undecided():
            order = HopOrdered(self.term, ledger.round_id, hop.segment, hop.hop_id, hop.sender)
            effects += self._tell(hop.receiver, order, now)
        return effects

    def _spread(self, ledger: RoundLedger, now: float) -> list[Effect]:
        """The result goes down the tree; whoever has it reports it staged. It is applied only when all have it."""
        self._lose_the_silent(ledger)
        live, staged, order = ledger.live(), self._staged(ledger), self._broadcast
        if not live:
            return self._abandon(ledger, now)
        assert order is not None
        if not staged and order.order[0] in ledger.lost:
            self._enter(Phase.AGGREGATING, now)  # the result is lost with its only holder
            return []
        if len(staged) == len(live):
            self._enter(Phase.CLOSING, now)
            return []
        if any(peer in ledger.lost for peer in order.order):
            order = self._order_broadcast(ledger, now)
        effects: list[Effect] = []
        for peer in order.order:
            if peer not in staged:
                effects += self._tell(peer, order, now)
        return effects

    def _close(self, ledger: RoundLedger, now: float) -> list[Effect]:
        """Everybody alive has the global delta: let it be applied, then go on.

        The result stands, so whoever is silent is not lost but left behind; if all are, one may have applied it
        already, and the round must not be opened again before there was time to hear of it.
        """
        live = [peer for peer in ledger.live() if (member := self.members.get(peer)) and member.alive]
        if live:
            self._marks.pop("deserted", None)
        elif now - self._marks.setdefault("deserted", now) < _DESERTED_S:
            return []
        effects: list[Effect] = []
        applied = []
        for peer in live:
            member = self.members.get(peer)
            if member and member.report.round_id == ledger.round_id:
                applied.append(member)
            elif (report := ledger.reports.get(peer)) and report.staged:
                effects += self._tell(peer, RoundClosed(self.term, ledger.round_id, report.staged.digest), now)
        if live and len(applied) < len(live):
            return effects
        if not applied:
            return effects + self._abandon(ledger, now)
        self._marks["applied"] = now
        effects += self._flush(now, wait=False)
        assert self._result is not None
        self._model = applied[0].at
        self._pending = summarise_round(ledger, self._result, self._marks, self._model[1], applied)
        self._rounds_done += 1
        self.ledger = None
        self._enter(Phase.GATHERING, now)
        return effects

    def _say_goodbye(self, now: float) -> list[Effect]:
        """Wait for the last evaluations, then send everybody home and finish."""
        patience_s = self._settings.stop_s if self._stopping else self._settings.farewell_s
        late = now - self._marks["finishing"] >= patience_s
        effects = self._flush(now, wait=not late and not self._stopping)
        if self._pending:
            return effects
        alive = self.members.alive()
        round_id = self._model[0] if self._model else 0
        for member in alive:
            effects += self._tell(member.contributor, MeshFinished(self.term, round_id), now)
        if not alive or late:
            self._enter(Phase.FINISHED, now)
            effects.append(Finish(exit_code=130 if self._stopping else 0))
        return effects

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _pair_up(self, ledger: RoundLedger, now: float) -> None:
        while len(ledger.free()) >= 2:
            view = chain_view(ledger, self.members, now)
            decision = self._policy.decide(view)
            if isinstance(decision, Wait) and ledger.is_settled():
                sender, receiver = ledger.free()[:2]
                decision = Pair(sender.peer_id, receiver.peer_id, f"nobody else is to come ({decision.reason})")
            if isinstance(decision, Wait):
                self.waiting_for = decision.reason
                return
            by_id = {peer.peer_id: peer for peer in ledger.free()}
            hop = ledger.order_hop(by_id[decision.sender], by_id[decision.receiver], decision.reason, now)
            self._marks.setdefault("first_hop", now)
            logger.info("hop %d: %s -> %s: %s", hop.hop_id, decision.sender, decision.receiver, decision.reason)

    def _find_result(self, ledger: RoundLedger) -> Holding | Staged | None:
        """The last holder's partial mean; or, after a root was lost, what a live member has staged of it."""
        for peer in ledger.live():
            report = ledger.reports.get(peer)
            if report and report.staged:
                return report.staged
        last = ledger.result()
        return ledger.holding(last) if last else None

    def _order_broadcast(self, ledger: RoundLedger, now: float) -> BroadcastOrdered:
        """The root is a holder of the result; the richest of the rest are the inner nodes (3.2.3)."""
        result = self._result
        assert result is not None
        self._marks.setdefault("reduced", now)
        sources = self._staged(ledger) or [peer for peer in ledger.holders() if peer in result.contributors]
        order = order_broadcast(ledger, sources, self.members)
        self._broadcast_version += 1
        self._broadcast = BroadcastOrdered(
            self.term, ledger.round_id, self._broadcast_version, order, result.theta, result.contributors
        )
        return self._broadcast

    def _announce(self, ledger: RoundLedger, now: float) -> list[Effect]:
        assert self._model is not None
        effects: list[Effect] = []
        members = tuple(sorted(ledger.members))
        opened = RoundOpened(self.term, ledger.round_id, self._model[1], members, self._goal())
        for peer in ledger.live():
            if peer not in ledger.reports:
                effects += self._tell(peer, opened, now)
        return effects

    def _lose_the_silent(self, ledger: RoundLedger) -> None:
        for peer in ledger.live():
            member = self.members.get(peer)
            if member is None:
                ledger.lose(peer, "restarted")
            elif not member.alive:
                ledger.lose(peer, "left" if member.report.activity is Activity.LEFT else "silent")

    def _abandon(self, ledger: RoundLedger, now: float) -> list[Effect]:
        logger.warning("round %d: nobody is left of %d members", ledger.round_id, len(ledger.members))
        self.ledger = None
        self._enter(Phase.GATHERING, now)
        return []

    def _staged(self, ledger: RoundLedger) -> list[Contributor]:
        """Live members that have this result, staged or applied already."""
        wanted = self._result.contributors if self._result else None
        staged = []
        for peer in ledger.live():
            member, report = self.members.get(peer), ledger.reports.get(peer)
            has_it = report is not None and report.staged is not None and report.staged.contributors == wanted
            has_applied = member is not None and member.report.round_id == ledger.round_id
            if has_it or has_applied:
                staged.append(peer)
        return staged

    def _is_stalled(self, ledger: RoundLedger, receiver: Contributor, ordered_at: float, now: float) -> bool:
        """The receiver has shown no sign of this hop for long: neither progress nor a decision."""
        report = ledger.reports.get(receiver)
        receiving = report is not None and report.activity is Activity.RECEIVING
        return not receiving and now - ordered_at >= self._settings.stall_s

    def _help_late(self, alive: list[Member], current: list[Member], now: float) -> list[Effect]:
        effects: list[Effect] = []
        if not current or self._model is None:
            return effects
        source = current[0].contributor
        for member in alive:
            if member.at != self._model:
                effects += self._tell(member.contributor, CatchUp(self.term, *self._model, source), now)
        return effects

    def _refuse(self, now: float) -> list[Effect]:
        self.members.refuse_other_models()
        effects: list[Effect] = []
        for member in self.members.everyone():
            if member.problem and member.alive:
                refusal = MemberRefused(self.term, member.report.round_id, member.problem)
                effects += self._tell(member.contributor, refusal, now)
        return effects

    def _flush(self, now: float, wait: bool) -> list[Effect]:
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

    def _tell(self, peer: Contributor, message: AgentMessage, now: float) -> list[Effect]:
        """Say it, but not again within `retry_s`: a report will show whether it was heard."""
        key = (peer.peer_id, message)
        if now - self._said.get(key, -1e9) < self._settings.retry_s:
            return []
        self._said[key] = now
        return [Send(peer.peer_id, cast(Said, message))]

    def _enter(self, phase: Phase, now: float) -> None:
        logger.debug("%s -> %s", self.phase.value, phase.value)
        self.phase = phase
        self._marks[phase.value] = now

    def _round(self) -> RoundLedger:
        assert self.ledger is not None
        return self.ledger

    def _goal(self) -> int:
        """The last round of this run; 0 if it goes on until stopped."""
        if not self._settings.rounds or self._model is None:
            return self._settings.rounds
        return self._model[0] - self._rounds_done + self._settings.rounds
