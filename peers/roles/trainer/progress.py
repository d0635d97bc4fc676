"""The steps of a device through the run, and its reports: it opens a round, applies the result, catches up.

Each step moves the model (`ModelState`), the part in the open round and the own work together, so that no round counts
the device's work twice or not at all. A device that stands elsewhere than the mesh goes there by a word that it missed,
or with another's model (`CatchingUp`). A report is the whole state each time, so that a listener that missed ten knows
all after one. Knows no messages but the agent's orders, and sends nothing but reports.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from math import inf

from msgspec.structs import replace

from mdl.bounds import MAX_LOSS, ROUND_LEAP, printable, within
from mdl.channels import Told
from mdl.errors import RemoteProtocolError
from mdl.peers.roles.membership.majority import has_in_common
from mdl.peers.roles.run_end import RunKnowledge
from mdl.peers.roles.trainer.broadcast import Staging
from mdl.peers.roles.trainer.guard import DeltaGuard, Voice
from mdl.peers.roles.trainer.model_state import ModelState, TrainedWork, base_of
from mdl.peers.roles.trainer.own_delta import OwnWork
from mdl.peers.roles.trainer.round_state import RoundState
from mdl.protocol.checksum import add_up
from mdl.protocol.delta import Contributor, PartialSum, check_size
from mdl.protocol.grid import Vector
from mdl.protocol.machine import (
    DeltaRecalled,
    Effect,
    Evaluate,
    Evaluated,
    KeepDelta,
    LocalDeltaReady,
    ResourcesSampled,
    SaveModel,
)
from mdl.protocol.round_messages import (
    ATTEMPTS_TOLD,
    MOST_UNHEARD,
    BroadcastOrdered,
    CatchUp,
    MeshFinished,
    ModelMessage,
    PeerReport,
    RoundOpened,
    exchanging,
)
from mdl.protocol.vector_work import ApplyDelta, ChecksumsCounted, DeltaApplied
from mdl.protocol.vocabulary import Activity, History, Lineage, ResourceState, RoundEvaluation, TrainingReport

logger = logging.getLogger(__name__)


# A model on its way is fetched to its end, although the mesh has a later one by then, as long as some of it has come in
# so many seconds: where rounds are shorter than this device's transfers, it would never have a whole one.
_MOVING_S = 5.0


class Way(Enum):
    """The ways by which a device comes to where the mesh stands.

    stay: it is there, further, or under way. rename: it has the very same model, on another lineage. apply: it has
    staged the result, and missed only the word. fetch: it needs the model.
    """

    STAY = "stay"
    RENAME = "rename"
    APPLY = "apply"
    FETCH = "fetch"


class CatchingUp:
    """See the module. target: the place and source of the model it fetches. missed: its part in the round it missed."""

    def __init__(self, model_state: ModelState) -> None:
        self.target: CatchUp | None = None
        self.missed: RoundState | None = None
        self._model_state = model_state
        self._moved_at = -inf

    def note_moving(self, sender: Contributor, now: float) -> None:
        """Note that some of the model has come."""
        if self.target and sender == self.target.source:
            self._moved_at = now

    def find_way(self, target: CatchUp, part: RoundState | None, now: float) -> Way:
        """Return the way to the target. Raises RemoteProtocolError for a target that no mesh can have come to."""
        model_state = self._model_state
        same_lineage = target.lineage == model_state.lineage
        same_model = (target.round_id, target.digest) == (model_state.round_id, model_state.digest)
        late = same_lineage and (same_model or target.round_id < model_state.round_id)
        if target.round_id > model_state.round_id + ROUND_LEAP:
            raise RemoteProtocolError(f"round {target.round_id}, where this device stands at {model_state.round_id}")
        if late or self.target == target:
            return Way.STAY
        if self.target and target.lineage == self.target.lineage and now - self._moved_at < _MOVING_S:
            return Way.STAY
        if same_model and has_in_common(model_state.lineage, target.lineage, target.round_id):
            return Way.RENAME
        staged = part.broadcast.staged if part and part.round_id == target.round_id else None
        # If no device's model changes, results of other contributors have the same digest.
        if same_lineage and staged and base_of(staged) == target.base:
            return Way.APPLY  # if that gives the model that it should: see Progress.apply
        return Way.FETCH

    def go(self, target: CatchUp, part: RoundState | None) -> None:
        """Fetch the model; the open round goes on without this device."""
        self.target, self.missed, self._moved_at = target, part or self.missed, -inf

    def is_arrived(self, message: ModelMessage, values: Vector, digest: bytes) -> bool:
        """Return True if this is the wanted model. Raises RemoteProtocolError if values and message disagree."""
        wanted = self.target
        if wanted is None or (wanted.round_id, wanted.digest) != (message.round_id, message.digest):
            return False
        if message.history.lineage != wanted.lineage:
            return False
        check_size(values, self._model_state.state.size)
        if digest != message.digest:
            raise RemoteProtocolError("parameters that do not match their digest")
        return True

    def end(self) -> RoundState | None:
        """End catching up: the model is there, or the device is in a round after all. Return the part it missed."""
        missed, self.target, self.missed, self._moved_at = self.missed, None, None, -inf
        return missed


# Looked up once: see peers/roles/agent/conductor.py.
_WAITING, _TRAINING, _LEFT = Activity.WAITING, Activity.TRAINING, Activity.LEFT


class Reports:
    """See the module. schema_hash, model: identity of the model, and a line about it for people.

    channels: description of its windows' channels. taken: its knowledge of the run. has_left: it takes part no more.
    away: the reason why it may not train now.
    """

    def __init__(
        self,
        voice: Voice,
        model_state: ModelState,
        schema_hash: str,
        model: str,
        guard: DeltaGuard,
        channels: Told = (),
    ) -> None:
        self.schema_hash = schema_hash
        self.model = printable(model)
        self.taken = RunKnowledge()
        self.has_left = False
        self.away = ""
        self._voice = voice
        self._model_state = model_state
        self._guard = guard
        self._channels = channels
        self._unlike: frozenset[str] = frozenset()
        self._resources: ResourceState | None = None
        self._sent_bytes = self._bugs = 0
        self._unheard: tuple[str, ...] = ()
        self._evaluation: RoundEvaluation | None = None
        # (round, attempt) -> its lineage, None once its result has been applied here.
        self._entered: dict[tuple[int, int], Lineage | None] = {}
        self._sequence = 0

    def note_resources(self, sampled: ResourcesSampled) -> None:
        self._resources, self._sent_bytes = sampled.resources, sampled.sent_bytes
        self._bugs, self._unheard = sampled.bugs, sampled.unheard[:MOST_UNHEARD]

    def note_evaluation(self, done: Evaluated) -> None:
        most = MAX_LOSS * done.evaluation.n
        loss_sum = within(done.evaluation.loss_sum, -most, most)  # nobody would read it if it diverged
        self._evaluation = RoundEvaluation(done.round_id, replace(done.evaluation, loss_sum=loss_sum))
        if self.waits_for_test(done.round_id):
            self._voice.has_changed = True

    def waits_for_test(self, round_id: int) -> bool:
        """Return True if this round's test may end the run; else it can wait."""
        return round_id == self.taken.goal or self.taken.course is not None

    def note_opened(self, opened: RoundOpened, now: float) -> None:
        self.taken = RunKnowledge(opened.planned_rounds, opened.course, now)
        for line in opened.unlike:
            if line not in self._unlike:
                logger.warning("%s", line)
        self._unlike = frozenset(opened.unlike)

    def hear_end(self, end: MeshFinished) -> None:
        goal, round_id = self.taken.goal, self._model_state.round_id
        self.taken = replace(self.taken, course=end.course or self.taken.course, ended_by=end.reason)
        why = f": {end.reason}" if end.reason else f" of {goal}" * bool(goal)
        logger.info("the agent ends the mesh after round %d%s", round_id, why)

    def note_entry(self, round_id: int, attempt: int) -> None:
        self._entered[round_id, attempt] = self._model_state.lineage
        if len(self._entered) > ATTEMPTS_TOLD:
            over = (entry for entry, lineage in self._entered.items() if lineage is None)
            del self._entered[next(over, next(iter(self._entered)))]

    def note_applied(self, round_id: int) -> None:
        """Mark attempts at this round as over: their place is needed for rounds that others may still have open."""
        for entry, lineage in self._entered.items():
            if entry[0] == round_id and lineage == self._model_state.lineage:
                self._entered[entry] = None

    def has_entered(self, round_id: int, attempt: int) -> bool:
        """Return True if it takes part in this attempt at a round, or has left it."""
        return (round_id, attempt) in self._entered

    def make(
        self, part: RoundState | None, training: TrainingReport | None, theta: float, term: int, agent: str, now: float
    ) -> PeerReport:
        """Return the next report. training: of the open round. theta: weight of its next delta.

        term, agent: the ones that this device obeys.
        """
        model_state, voice = self._model_state, self._voice
        has_staged = part is not None and part.broadcast.staged is not None
        self._sequence += 1
        voice.has_changed, voice.report_at = False, now + voice.report_s
        # In steps: Python makes a dictionary of more than 15 names of one call, which costs more than all the rest.
        report = PeerReport(
            sequence=self._sequence,
            term=term,
            agent=agent,
            round_id=model_state.round_id,
            digest=model_state.digest,
            lineage=model_state.lineage,
            base=model_state.base,
            votes=model_state.votes(has_staged),
            goal=self.taken.goal,
            schema_hash=self.schema_hash,
            model=self.model,
            size=model_state.parameters.size,
            activity=self._activity(part),
            open_round=part.round_id if part else 0,
        )
        report = replace(
            report,
            entered=tuple(attempt for _, attempt in self._entered),
            forgotten=model_state.forgotten(),
            resources=self._resources,
            training=training,
            evaluation=self._evaluation,
            transfer=voice.transfer,
            sent_bytes=self._sent_bytes,
            bugs=self._bugs,
            unheard=self._unheard,
            away=self.away,
            accused=self._guard.accusations(),
            theta=theta,
            workers=model_state.count_workers(),
            channels=self._channels,
            link_mb_s=voice.link_mb_s,
            accepted=None if has_staged or not report.votes else model_state.recall(),
        )
        return _add_round(report, part) if part else report

    def _activity(self, part: RoundState | None) -> Activity:
        if self.has_left:
            return _LEFT
        if part is None:
            return _WAITING
        activity = part.activity()
        return _WAITING if activity is _TRAINING and self.away else activity  # it may not train for the round


def _add_round(report: PeerReport, part: RoundState) -> PeerReport:
    exchange = part.broadcast.exchange
    return replace(
        report,
        open_term=part.attempt,
        open_as=part.announced,
        room=part.room,
        incoming=part.report_incoming(),
        holding=part.report_holding(),
        hops=tuple(part.decisions.values()),
        staged=part.broadcast.report(),
        exchange=exchanging(exchange.order) if exchange else None,
        checksum=add_up(part.checksums) if part.checksums else None,
        lacking=exchange.lacking() if exchange else (),
    )


# While a device of the last so many rounds is away, own work since then is remembered if the model is small: that takes
# five vectors more. A large model's is of the last round only, until a round begins with all devices that made it.
# A small model's last rounds always are (`_SMALL_ROUNDS` in model_state.py).
_LATELY = 16


@dataclass(frozen=True)
class _Applying:
    """A result that is being applied. target: see `apply`."""

    part: RoundState
    result: PartialSum
    target: CatchUp | None


class RoundProgress:
    """See the module. part: in the open round, if any. keeps, overlaps, theta: as in `TrainerSettings`."""

    def __init__(
        self,
        me: Contributor,
        model_state: ModelState,
        reports: Reports,
        voice: Voice,
        staging: Staging,
        keeps: bool,
        overlaps: bool,
        guard: DeltaGuard,
        theta: float = 1.0,
    ) -> None:
        self.model_state = model_state
        self.part: RoundState | None = None
        self._me = me
        self._reports = reports
        self._voice = voice
        self._staging = staging
        self._keeps = keeps
        self._guard = guard
        self._own = OwnWork(me, model_state, keeps, overlaps, theta)
        self._catching_up = CatchingUp(model_state)
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
        model_state = self.model_state
        current = opened.round_id == model_state.round_id + 1 and opened.digest == model_state.digest
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
        before, lineage = self.part or missed, model_state.lineage
        model_state.follow(opened.lineage, opened.base)
        if len(members) > 1 and self._are_all_here({member.peer_id for member in members}):
            model_state.share()
        self.part = RoundState(opened.round_id, opened.attempt, members, now, opened.term, members, opened.room)
        self._reports.note_entry(opened.round_id, opened.attempt)
        if before and not before.attempt and lineage == opened.lineage and before.broadcast.stays(opened.term):
            self.part.broadcast = before.broadcast  # it came in by a broadcast, and only now hears of the round
        else:
            self._voice.ask_at = self._voice.transfer = None
        return self._own.begin(self.part, before, lineage, self._reports.taken.goal)

    def _are_all_here(self, here: set[str]) -> bool:
        """Return True if all devices of the latest rounds are in this one: none can go on from before w, as a fork."""
        model_state, round_id = self.model_state, self.model_state.round_id
        rounds = _LATELY if model_state.is_small else 1
        self._seen |= dict.fromkeys([*model_state.base, *here], round_id)
        self._seen = {peer_id: at for peer_id, at in self._seen.items() if at > round_id - rounds}
        return self._seen.keys() <= here

    def take_place(self, order: BroadcastOrdered, now: float) -> list[Effect]:
        """Follow the order: a device late for the round takes the result, too, if it stands at w(round_id - 1)."""
        here = self.model_state.round_id + 1, self.model_state.digest, self.model_state.lineage
        current = (order.round_id, order.base_digest, order.lineage) == here
        if not current or self._me not in order.order or self._reports.has_left:
            return []
        if self.part is None or self.part.round_id != order.round_id:
            self.part = self._catching_up.end() or RoundState(
                order.round_id, 0, frozenset(order.order), room=order.room
            )
        return self._staging.take_place(self.part, order, now)

    def take_trained(self, ready: LocalDeltaReady) -> list[Effect]:
        self._voice.has_changed = True
        return self._own.take_trained(ready, self.part, self._catching_up.missed, self._reports.taken.goal)

    def take_counted(self, counted: ChecksumsCounted) -> None:
        self._voice.has_changed |= self._own.take_counted(counted, self.part)

    def take_recalled(self, recalled: DeltaRecalled, now: float) -> list[Effect]:
        """Take a recalled own delta: its round went on without it, or a result had taken its place."""
        self._voice.has_changed = True
        goal, parts = self._reports.taken.goal, (self.part, self._catching_up.missed)
        asking = [part for part in parts if part and part.is_recalling and part.round_id == recalled.round_id]
        if not asking:
            return self._own.take_recalled(recalled, self.part, goal)
        self._own.take_again(asking[0], recalled)
        if asking[0] is not self.part:
            asking[0].broadcast.exchange = None
            return []
        return self._staging.take_own(self.part, now) if self.part.hold else self._own.resume(self.part, goal)

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

    def apply(self, part: RoundState, target: CatchUp | None = None) -> list[Effect]:
        """Compute w(t + 1) = w(t) - eta * delta from the result that this device has staged.

        target: the place that w(t + 1) must match, if nothing else is known; without it the result is decided.
        """
        result = part.broadcast.staged
        assert result is not None
        if self._applying:
            return []
        self._applying = _Applying(part, result, target)
        in_place = target is None and not self._keeps and self._is_free(part, result)
        part.is_spent, part.broadcast.exchange = part.lacks_own, None
        self._guard.note_global(result)
        if target is None and self._me in result.contributors and self.model_state.is_settled():
            part.hold = None  # its own is counted, and can be recalled: room for w(t+1)
        return [ApplyDelta(part.round_id, self.model_state.state, result, self.model_state.outer, in_place)]

    def _is_free(self, part: RoundState, result: PartialSum) -> bool:
        """Return True if an applied result's values are free: not on their way, nor this device's own delta."""
        own = part.own_hold(self._me)
        return part.broadcast.is_handed_on() and (own is None or own.values is not result.values)

    def take_applied(self, applied: DeltaApplied, now: float) -> list[Effect]:
        """Take over w(t + 1); if it is not the target's model, fetch that instead."""
        applying, self._applying = self._applying, None
        if applying is None or applying.part is not self.part or applied.round_id != applying.part.round_id:
            return []
        part, result, before = applying.part, applying.result, self.model_state.parameters
        if applying.target and applying.target.digest != applied.digest:
            return self._fetch(applying.target, now)
        is_free = self.model_state.is_settled() and not (self.model_state.is_given or self._keeps)
        self.model_state.apply(result, applied.state, applied.digest)
        self._reports.note_applied(part.round_id)
        effects = self._own.give_back(part, before, self.model_state.lineage, is_free)
        if self._me in result.contributors and part.rest is not None:
            self.model_state.add(TrainedWork(part.rest, rounded_in=(self.model_state.lineage, part.round_id)))
        if self._keeps:
            effects.append(KeepDelta(part.round_id, "global", result))
        self.part = None
        part.hold = None
        return effects + self._keep_model_state()

    def catch_up_to(self, target: CatchUp, now: float) -> list[Effect]:
        """Go to where the mesh stands. A late message about an older round changes nothing."""
        if target.source.peer_id == self._me.peer_id:
            raise RemoteProtocolError("this device is to fetch what it lacks from itself")
        way = self._catching_up.find_way(target, self.part, now)
        if way is Way.STAY or self._reports.has_left:
            return []
        if way is Way.RENAME:
            history = History(target.lineage, target.base, self.model_state.history().counted)
            return self._move_to(target.round_id, self.model_state.state, target.digest, history)
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
        model_state = self.model_state
        if opened.lineage == model_state.lineage:
            return True
        return opened.lineage[:-1] == model_state.lineage and opened.lineage[-1].round_id == model_state.round_id

    def _move_to(self, round_id: int, state: Vector, digest: bytes, history: History) -> list[Effect]:
        missed = self._catching_up.end() or self.part
        before, lineage = self.model_state.parameters, self.model_state.lineage
        self.model_state.move_to(round_id, state, digest, history)
        self._voice.transfer = self.part = None
        effects = self._own.give_back(missed, before, lineage) if missed else []
        return effects + self._keep_model_state()

    def _keep_model_state(self) -> list[Effect]:
        model_state = self.model_state
        self._voice.has_changed = True
        self._voice.stop_asking()
        saved = (
            model_state.round_id,
            model_state.parameters,
            model_state.digest,
            model_state.history(),
            model_state.momentum,
        )
        effects: list[Effect] = [SaveModel(*saved, self._voice.link_mb_s)]
        self._own.note_test()  # in a pause nothing is tested, but w is another vector than it trained from
        if not self._own.is_paused:
            is_awaited = self._reports.waits_for_test(model_state.round_id)
            effects.append(Evaluate(model_state.round_id, model_state.parameters, is_awaited))
        return effects
