"""The steps of a device through the run: it opens a round, follows the broadcast, applies the result, catches up.

Each step moves the model (`Standing`), the part in the open round and the own work together, so that no round counts
the device's work twice or not at all. Knows no messages but the agent's orders, and sends nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from mdl.bounds import printable
from mdl.errors import RemoteProtocolError
from mdl.peers.roles.trainer.catch_up import CatchingUp, Way
from mdl.peers.roles.trainer.guard import Guard
from mdl.peers.roles.trainer.model_state import Standing
from mdl.peers.roles.trainer.own_delta import OwnWork
from mdl.peers.roles.trainer.reports import Reports
from mdl.peers.roles.trainer.round_state import Part
from mdl.peers.roles.trainer.staging import Staging
from mdl.peers.roles.trainer.voice import Voice
from mdl.peers.roles.trainer.works import Work
from mdl.protocol.delta import Contributor, PartialSum
from mdl.protocol.grid import Vector
from mdl.protocol.machine import (
    DeltaRecalled,
    Effect,
    Evaluate,
    KeepDelta,
    LocalDeltaReady,
    SaveModel,
)
from mdl.protocol.round_messages import BroadcastOrdered, CatchUp, ModelMessage, RoundOpened
from mdl.protocol.vector_work import ApplyDelta, DeltaApplied
from mdl.protocol.vocabulary import History, TrainingReport

# While a device of the last so many rounds is away, own work since then is remembered if the model is small: that takes
# five vectors more. A large model's is of the last round only, until a round begins with all devices that made it.
# A small model's last rounds always are (`_SMALL_ROUNDS` in model_state.py).
_LATELY = 16


@dataclass(frozen=True)
class _Applying:
    """A result that is being applied. rounded: the remainder of its exchange's coding. target: see `apply`."""

    part: Part
    result: PartialSum
    rounded: Vector | None
    target: CatchUp | None


class Progress:
    """See the module. part: in the open round, if any. keeps, overlaps, theta: as in `TrainerSettings`."""

    def __init__(
        self,
        me: Contributor,
        standing: Standing,
        reports: Reports,
        voice: Voice,
        staging: Staging,
        keeps: bool,
        overlaps: bool,
        guard: Guard,
        theta: float = 1.0,
    ) -> None:
        self.standing = standing
        self.part: Part | None = None
        self._me = me
        self._reports = reports
        self._voice = voice
        self._staging = staging
        self._keeps = keeps
        self._guard = guard
        self._own = OwnWork(me, standing, keeps, overlaps, theta)
        self._catching_up = CatchingUp(standing)
        self._seen: dict[str, int] = {}  # peer id -> the last w from which a round was begun with it
        self._applying: _Applying | None = None

    @property
    def training(self) -> TrainingReport | None:
        """The training report of the open round."""
        return self._own.training

    @property
    def theta(self) -> float:
        """The weight of its next delta."""
        return self._own.theta

    @property
    def ahead(self) -> Vector | None:
        """The delta trained ahead, for the round after the open one."""
        return self._own.ahead

    @property
    def target(self) -> CatchUp | None:
        """The place where the mesh stands, as long as this device fetches the model."""
        return self._catching_up.target

    def attempt(self) -> tuple[int, int]:
        """Return the round this device takes part in and the term that opened it; zeros for none."""
        return (self.part.round_id, self.part.attempt) if self.part else (0, 0)

    def open(self, opened: RoundOpened, now: float) -> list[Effect]:
        """Train for the round, or go on with what was trained for another attempt at it."""
        standing = self.standing
        current = opened.round_id == standing.round_id + 1 and opened.digest == standing.digest
        if not current or self._me not in opened.members or self._reports.has_left or not self._is_on(opened):
            return []
        self._reports.note_opened(opened, now)
        self._guard.told = ""
        members = frozenset(opened.members)
        if (part := self.part) and self.attempt() == (opened.round_id, opened.attempt):
            part.members |= members  # another agent, perhaps more devices
            part.announced, part.announced_to = opened.term, members
            return []
        if self._reports.has_entered(opened.round_id, opened.attempt):
            return []  # it was sent elsewhere meanwhile, and begun afresh it would decide its hops a second time
        missed = self._catching_up.end()
        before, lineage = self.part or missed, standing.lineage
        standing.follow(opened.lineage, opened.base)
        if len(members) > 1 and self._are_all_here({member.peer_id for member in members}):
            standing.share()
        self.part = Part(opened.round_id, opened.attempt, members, now, opened.term, members, opened.room)
        self._reports.note_entry(opened.round_id, opened.attempt)
        if before and not before.attempt and lineage == opened.lineage and before.spread.stays(opened.term):
            self.part.spread = before.spread  # it came in by a broadcast, and only now hears of the round
        else:
            self._voice.ask_at = self._voice.transfer = None
        return self._own.begin(self.part, before, lineage, self._reports.taken.goal)

    def _are_all_here(self, here: set[str]) -> bool:
        """Return True if all devices of the latest rounds are in this one: none can go on from before w, as a fork."""
        standing, round_id = self.standing, self.standing.round_id
        rounds = _LATELY if standing.is_small else 1
        self._seen |= dict.fromkeys([*standing.base, *here], round_id)
        self._seen = {peer_id: at for peer_id, at in self._seen.items() if at > round_id - rounds}
        return self._seen.keys() <= here

    def take_place(self, order: BroadcastOrdered, now: float) -> list[Effect]:
        """Follow the order: a device late for the round takes the result, too, if it stands at w(round_id - 1)."""
        here = self.standing.round_id + 1, self.standing.digest, self.standing.lineage
        current = (order.round_id, order.base_digest, order.lineage) == here
        if not current or self._me not in order.order or self._reports.has_left:
            return []
        if self.part is None or self.part.round_id != order.round_id:
            self.part = self._catching_up.end() or Part(order.round_id, 0, frozenset(order.order), room=order.room)
        return self._staging.take_place(self.part, order, now)

    def take_trained(self, ready: LocalDeltaReady) -> list[Effect]:
        self._voice.has_changed = True
        return self._own.take_trained(ready, self.part, self._catching_up.missed, self._reports.taken.goal)

    def take_recalled(self, recalled: DeltaRecalled, now: float) -> list[Effect]:
        """Take a recalled own delta: its round went on without it, or a result had taken its place."""
        self._voice.has_changed = True
        goal, parts = self._reports.taken.goal, (self.part, self._catching_up.missed)
        asking = [part for part in parts if part and part.is_recalling and part.round_id == recalled.round_id]
        if not asking:
            return self._own.take_recalled(recalled, self.part, goal)
        self._own.take_again(asking[0], recalled)
        if asking[0] is not self.part:
            asking[0].spread.exchange = None
            return []
        return self._staging.take_own(self.part, now) if self.part.holds else self._own.resume(self.part, goal)

    def pause(self, reason: str) -> list[Effect]:
        """Stop training, or resume if the reason is ""; hops, broadcast, votes and catching up go on."""
        self._reports.away, self._own.is_paused = printable(reason), bool(reason)
        self._voice.has_changed = True
        return self._own.resume(self.part, self._reports.taken.goal)

    def give_up_training(self, round_id: int) -> list[Effect]:
        """Drop the training that a pause has cut off; train again if the pause is over by now."""
        self._own.give_up(round_id)
        return self._own.resume(self.part, self._reports.taken.goal)

    @property
    def is_applying(self) -> bool:
        """True while w(t + 1) is being computed: orders of the agent come too early meanwhile."""
        return self._applying is not None

    def apply(self, part: Part, target: CatchUp | None = None) -> list[Effect]:
        """Compute w(t + 1) = w(t) - eta * delta from the result that this device has staged.

        target: the place that w(t + 1) must match, if nothing else is known; without it the result is decided.
        """
        result, exchange = part.spread.staged, part.spread.exchange
        assert result is not None
        if self._applying:
            return []
        self._applying = _Applying(part, result, exchange.rounded if exchange else None, target)
        in_place = target is None and not self._keeps and self._is_free(part, result)
        part.is_spent, part.spread.exchange = part.lacks_own, None
        self._guard.note_global(result)
        if target is None and self._me in result.contributors and self.standing.is_settled():
            part.holds.clear()  # its own is counted, and can be recalled: room for w(t+1)
        return [ApplyDelta(part.round_id, self.standing.state, result, self.standing.outer, in_place)]

    def _is_free(self, part: Part, result: PartialSum) -> bool:
        """Return True if an applied result's values are free: not on their way, nor this device's own delta."""
        own = part.own_hold(self._me)
        return part.spread.is_handed_on() and (own is None or own.values is not result.values)

    def take_applied(self, applied: DeltaApplied, now: float) -> list[Effect]:
        """Take over w(t + 1); if it is not the target's model, fetch that instead."""
        applying, self._applying = self._applying, None
        if applying is None or applying.part is not self.part or applied.round_id != applying.part.round_id:
            return []
        part, result, before = applying.part, applying.result, self.standing.parameters
        if applying.target and applying.target.digest != applied.digest:
            return self._fetch(applying.target, now)
        is_free = self.standing.is_settled() and not (self.standing.is_given or self._keeps)
        self.standing.apply(result, applied.state, applied.digest)
        self._reports.note_applied(part.round_id)
        effects = self._own.give_back(part, before, self.standing.lineage, is_free)
        if self._me in result.contributors:
            here = self.standing.lineage, part.round_id
            cut_off = [each for each in (applying.rounded, part.clipped) if each is not None]
            self.standing.add(*(Work(values, rounded_in=here) for values in cut_off))
        if self._keeps:
            effects.append(KeepDelta(part.round_id, "global", result))
        self.part = None
        part.holds.clear()
        return effects + self._keep_standing()

    def catch_up_to(self, target: CatchUp, now: float) -> list[Effect]:
        """Go to where the mesh stands. A late message about an older round changes nothing."""
        if target.source.peer_id == self._me.peer_id:
            raise RemoteProtocolError("this device is to fetch what it lacks from itself")
        way = self._catching_up.find_way(target, self.part, now)
        if way is Way.STAY or self._reports.has_left:
            return []
        if way is Way.RENAME:
            history = History(target.lineage, target.base, self.standing.history().counted)
            return self._move_to(target.round_id, self.standing.state, target.digest, history)
        if way is Way.APPLY and self.part:
            return self.apply(self.part, target)
        return self._fetch(target, now)

    def note_moving(self, sender: Contributor, now: float) -> None:
        """Note that more of a vector has come from this device."""
        self._catching_up.note_moving(sender, now)

    def take_model(self, message: ModelMessage, values: Vector, digest: bytes) -> list[Effect]:
        """Take over another device's model, if it is wanted. Raises RemoteProtocolError if it is not as told."""
        if not self._catching_up.is_arrived(message, values, digest):
            return []
        return self._move_to(message.round_id, values, digest, message.history)

    def _fetch(self, target: CatchUp, now: float) -> list[Effect]:
        self._catching_up.go(target, self.part)
        self.part, self._voice.ask_at = None, now
        return []

    def _is_on(self, opened: RoundOpened) -> bool:
        """Return True if the round is of this device's lineage, or starts a fork of it here and now."""
        standing = self.standing
        if opened.lineage == standing.lineage:
            return True
        return opened.lineage[:-1] == standing.lineage and opened.lineage[-1].round_id == standing.round_id

    def _move_to(self, round_id: int, state: Vector, digest: bytes, history: History) -> list[Effect]:
        missed = self._catching_up.end() or self.part
        before, lineage = self.standing.parameters, self.standing.lineage
        self.standing.move_to(round_id, state, digest, history)
        self._voice.transfer = self.part = None
        effects = self._own.give_back(missed, before, lineage) if missed else []
        return effects + self._keep_standing()

    def _keep_standing(self) -> list[Effect]:
        standing = self.standing
        self._voice.has_changed = True
        self._voice.stop_asking()
        saved = (standing.round_id, standing.parameters, standing.digest, standing.history(), standing.momentum)
        effects: list[Effect] = [SaveModel(*saved, self._voice.link_mb_s)]
        self._own.note_test()  # in a pause nothing is tested, but w is another vector than it trained from
        if not self._own.is_paused:
            is_awaited = self._reports.waits_for_test(standing.round_id)
            effects.append(Evaluate(standing.round_id, standing.parameters, is_awaited))
        return effects
