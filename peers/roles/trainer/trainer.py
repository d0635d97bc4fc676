"""One training device: the device side of Algorithm 1.

Follow theta: born in `LocalDeltaReady` (`peers/roles/trainer/own_delta.py`), grown in `_merge`, given away in
`_serve_delta`, staged by the broadcast (`peers/roles/trainer/broadcast.py`), applied in `_apply`. Rules: the receiver
decides a hop once; a sender keeps what it gave away until the round is over; every handler may see a message twice;
whoever still wants something asks again on its timer. Knows no sockets, no schedule, no other device's state, and obeys
whoever `peers/roles/peer.py` says is the agent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from mdl.bounds import MAX_HOPS, MAX_LOSS, ROUND_LEAP, printable, within
from mdl.errors import RemoteProtocolError
from mdl.protocol.delta import Contributor, ModelDelta, Vector, apply_delta, check_values, digest_of, pair_aggregate
from mdl.protocol.machine import (
    DeltaRecalled,
    Effect,
    Evaluate,
    Evaluated,
    Event,
    Finish,
    KeepDelta,
    LocalDeltaReady,
    Received,
    ResourcesSampled,
    SaveModel,
    Send,
    StopRequested,
    Tick,
    TransferProgressed,
    WorkFailed,
)
from mdl.protocol.round_messages import (
    ATTEMPTS_TOLD,
    AgentMessage,
    BroadcastOrdered,
    CatchUp,
    DeltaMessage,
    DeltaWanted,
    GlobalMessage,
    GlobalTaken,
    GlobalWanted,
    HopCancelled,
    HopOrdered,
    HopReleased,
    MemberRefused,
    MeshFinished,
    ModelMessage,
    ModelWanted,
    PeerReport,
    RoundClosed,
    RoundOpened,
)
from mdl.protocol.vocabulary import (
    NOTHING_CAME,
    Activity,
    Ballot,
    History,
    HopDecision,
    HopOutcome,
    Lineage,
    ResourceState,
    RoundEvaluation,
    Transfer,
)
from peers.roles.membership.majority import has_in_common
from peers.roles.trainer.model_state import Standing, base_of, total
from peers.roles.trainer.own_delta import OwnWork
from peers.roles.trainer.round_state import Part

logger = logging.getLogger(__name__)


_WAITING, _LEFT = Activity.WAITING, Activity.LEFT
# What only the agent says. Told apart by their type: a miss of isinstance is slow with these classes.
ORDERS = frozenset(AgentMessage.__subclasses__())


class TrainerSettings(msgspec.Struct, frozen=True):
    """eta: step along the global delta (Algorithm 1). keep_deltas: write own and global delta of each round.

    report_s: how often a report is sent at least. retry_s: how often something is asked for. stall_s: a hop of which
    nothing has come for so long is given up.
    """

    eta: float = 1.0
    keep_deltas: bool = False
    report_s: float = 0.5
    retry_s: float = 0.5
    stall_s: float = 10.0


class Trainer:
    """See the module. standing: the model it has. part: its part in the open round, if any. goal: the last round.

    ballot: what an earlier start of it has promised, None if that is not known. staged_term: the last under which
    it has staged a result.

    merge: instead of `pair_aggregate`, the same on a clock.
    """

    def __init__(
        self,
        me: Contributor,
        parameters: Vector,
        schema_hash: str,
        model: str,
        settings: TrainerSettings,
        round_id: int = 0,
        history: History | None = None,
        ballot: Ballot | None = None,
        merge: Callable[[ModelDelta, ModelDelta, Vector], ModelDelta] | None = None,
    ) -> None:
        self.me = me
        self.ballot = ballot
        self.standing = Standing(me, parameters, round_id, history, ballot)
        self.part: Part | None = None
        self.resources: ResourceState | None = None
        self.goal = 0
        self.left = False
        self.staged_term = 0
        self._settings = settings
        self._schema_hash = schema_hash
        self._model = printable(model)
        self._sent_bytes = 0
        self._pair_aggregate = merge or pair_aggregate
        self._own = OwnWork(me, self.standing, settings.keep_deltas)
        self._evaluation: RoundEvaluation | None = None
        self._transfer: Transfer | None = None
        self._catch_up: CatchUp | None = None
        self._missed: Part | None = None
        self._entered: tuple[int, ...] = ()
        self._sequence = 0
        self._changed = True
        self._report_at = 0.0
        self._ask_at: float | None = None

    @property
    def parameters(self) -> Vector:
        return self.standing.parameters

    @property
    def round_id(self) -> int:
        return self.standing.round_id

    @property
    def digest(self) -> bytes:
        return self.standing.digest

    @property
    def lineage(self) -> Lineage:
        return self.standing.lineage

    @property
    def base(self) -> tuple[str, ...]:
        """Whose majority decides on the next round."""
        return self.standing.base

    @property
    def asks_for(self) -> str:
        """What it asks another device for again and again, in words; "" if nothing."""
        part, wanted = self.part, self._catch_up
        if wanted:
            return f"the model of round {wanted.round_id} from {wanted.source.peer_id}"
        if part and part.incoming:
            return f"the delta of hop {part.incoming.hop_id} from {part.incoming.sender.peer_id}"
        if part and part.spread.parent and part.spread.staged is None:
            return f"the result of round {part.round_id} from {part.spread.parent.peer_id}"
        return ""

    @property
    def carry(self) -> Vector | None:
        """Own work that no round has counted, and that is not in the delta of the open one yet."""
        return total(tuple(work for work in self.standing.uncounted if not self.standing.is_split(work)))

    @property
    def kept_back(self) -> Vector | None:
        """The part of `carry` that the next rounds of this very lineage count: it is in no delta till then."""
        return total(tuple(work for work in self.standing.uncounted if self.standing.is_under_way(work)))

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = [] if type(event) is Tick else self._act(event, now)
        if self._ask_at is not None and now >= self._ask_at:
            effects += self._ask_again(now)
        return effects

    def deadline(self) -> float:
        ask_at = self._ask_at
        return self._report_at if ask_at is None or ask_at > self._report_at else ask_at

    def has_news(self, now: float) -> bool:
        """Whether a report is to be sent: something has changed, or the last one is old."""
        return self._changed or now >= self._report_at

    def is_due(self, now: float) -> bool:
        """Whether the last report is old."""
        return now >= self._report_at

    def say_again(self) -> None:
        """The agent asks, or is a new one: report at once."""
        self._changed = True

    def describe(self) -> dict[str, str]:
        """Which model this is: its schema hash, and a line for people."""
        return {"schema_hash": self._schema_hash, "model": self._model}

    def holdings(self) -> dict[int, ModelDelta]:
        """Segment -> partial mean that this device still answers for: empty once it has been given away."""
        return self.part.free_holds() if self.part else {}

    def attempt(self) -> tuple[int, int]:
        """The round this device takes part in and the term that opened it; zeros for none."""
        return (self.part.round_id, self.part.attempt) if self.part else (0, 0)

    # -- events -------------------------------------------------------------------------------------------------------

    def _act(self, event: Event, now: float) -> list[Effect]:
        if type(event) is Received:
            if type(event.message) not in ORDERS:
                return self._hear(event, now)
            order: AgentMessage = event.message  # type: ignore[assignment]
            effects = self._obey(order, now)
            if not self._is_at_it(order):
                self._changed = True  # the agent asks: our report is the answer
            return effects
        match event:
            case LocalDeltaReady():
                return self._hold_trained(event)
            case Evaluated(round_id=round_id, evaluation=evaluation):
                most = MAX_LOSS * evaluation.n
                loss_sum = within(evaluation.loss_sum, -most, most)  # diverged, it would not be read by anybody
                self._evaluation = RoundEvaluation(round_id, replace(evaluation, loss_sum=loss_sum))
                self._changed = self._changed or round_id == self.goal  # the run ends with it; else it can wait
            case ResourcesSampled(resources=resources, sent_bytes=sent_bytes):
                self.resources, self._sent_bytes = resources, sent_bytes
            case TransferProgressed(sender=sender, received_bytes=received, size_bytes=size):
                self._transfer = Transfer(sender.peer_id, received, size)
                if self.part and self.part.incoming and self.part.incoming.sender == sender:
                    self.part.heard_at = now
            case DeltaRecalled():
                self._changed = True
                return self._own.take_recalled(event, self.part, self.goal)
            case WorkFailed(problem=problem):
                return self._leave(problem, 4)
            case StopRequested():
                return self._leave(exit_code=130)
        return []

    def _obey(self, message: AgentMessage, now: float) -> list[Effect]:
        if type(message) is BroadcastOrdered:
            return self._take_place(message, now)
        if type(message) is RoundOpened:
            return self._open(message, now)
        part = self.part
        if part and message.round_id == part.round_id:
            if type(message) is HopOrdered:
                self._fetch_delta(part, message, now)
            elif type(message) is RoundClosed:
                if part.spread.staged and part.spread.digest == message.digest:
                    return self._apply(part)
            elif type(message) is HopReleased:
                part.release(message.segment, message.hop_id)
            elif type(message) is HopCancelled:
                reason = "cancelled by the agent"
                self._decide(part, message.segment, message.hop_id, message.sender, HopOutcome.ABORTED, now, reason)
        if type(message) is CatchUp:
            return self._catch_up_to(message, now)
        if type(message) is MemberRefused:
            return self._leave(message.reason, 2)
        if type(message) is MeshFinished:
            logger.info("the agent ends the mesh after round %d%s", self.round_id, f" of {self.goal}" * bool(self.goal))
            return self._leave()
        return []

    def _is_at_it(self, order: AgentMessage) -> bool:
        """Whether this device is doing what the agent wants: it reports when that is done."""
        part = self.part
        if type(order) is HopOrdered:
            return part is not None and part.is_receiving(order.segment, order.hop_id)
        if type(order) is BroadcastOrdered:
            return part is not None and part.spread.staged is None and part.spread.order == order
        return type(order) is CatchUp and self._catch_up == order

    def _hear(self, event: Received, now: float) -> list[Effect]:
        message, sender = event.message, event.sender
        if type(message) is DeltaWanted:
            return self._serve_delta(sender, message)
        if type(message) is GlobalWanted or type(message) is GlobalTaken:
            if self.part is None or self.part.round_id != message.round_id:
                return []
            spread = self.part.spread
            return [*(spread.serve if type(message) is GlobalWanted else spread.note_taken)(sender, now)]
        if type(message) is GlobalMessage:
            return self._stage_received(message, _values_of(event), _digest_of(event), now)
        if type(message) is DeltaMessage:
            return self._merge(sender, message, _values_of(event), now)
        if type(message) is ModelMessage:
            return self._catch_up_with(message, _values_of(event), _digest_of(event))
        if type(message) is ModelWanted and message.round_id == self.round_id:
            model = ModelMessage(self.round_id, self.digest, self.standing.history())
            return [Send(sender.peer_id, model, self.parameters)]
        return []

    # -- train --------------------------------------------------------------------------------------------------------

    def _open(self, opened: RoundOpened, now: float) -> list[Effect]:
        standing = self.standing
        current = opened.round_id == standing.round_id + 1 and opened.digest == standing.digest
        if not current or self.me not in opened.members or self.left or not self._is_on(opened):
            return []
        self.goal = opened.planned_rounds
        members = frozenset(opened.members)
        if self.attempt() == (opened.round_id, opened.attempt):
            assert self.part is not None
            self.part.members |= members  # another agent goes on with it, perhaps with more devices
            self.part.announced = opened.term
            return []
        before, lineage = self.part or self._missed, standing.lineage
        standing.follow(opened.lineage, opened.base)
        if len(members) > 1:
            standing.share()
        self.part = Part(opened.round_id, opened.attempt, members, heard_at=now, announced=opened.term)
        self._entered = (*self._entered, opened.attempt)[-ATTEMPTS_TOLD:]
        self._catch_up = self._missed = self._transfer = None
        self._stop_asking()
        return self._own.begin(self.part, before, lineage, self.goal)

    def _is_on(self, opened: RoundOpened) -> bool:
        """Whether the round is of this device's lineage, or starts a fork of it here and now."""
        standing = self.standing
        if opened.lineage == standing.lineage:
            return True
        return opened.lineage[:-1] == standing.lineage and opened.lineage[-1].round_id == standing.round_id

    def _hold_trained(self, ready: LocalDeltaReady) -> list[Effect]:
        self._changed = True
        try:
            return self._own.take_trained(ready, self.part, self._missed)
        except RemoteProtocolError as error:
            return self._leave(f"training diverged in round {ready.round_id}: {error}; try a lower learning rate", 4)

    # -- hop ----------------------------------------------------------------------------------------------------------

    def _fetch_delta(self, part: Part, order: HopOrdered, now: float) -> None:
        """Receiver: ready for the sender's partial mean, or abort at once, with the reason."""
        if (order.segment, order.hop_id) in part.decisions or part.is_receiving(order.segment, order.hop_id):
            return
        if problem := part.cannot_receive(order):
            self._decide(part, order.segment, order.hop_id, order.sender, HopOutcome.ABORTED, now, problem)
            return
        part.incoming, part.incoming_since, part.heard_at = order, now, now
        self._transfer = None
        self._ask_at = now

    def _serve_delta(self, receiver: Contributor, wanted: DeltaWanted) -> list[Effect]:
        """Sender: give the partial mean to this hop and to no other, until it is released."""
        part = self.part
        if part is None or part.attempt != wanted.attempt or not part.is_member(receiver, wanted.round_id):
            return []
        if not part.give(wanted.segment, wanted.hop_id, receiver):
            return []
        self._changed = True  # if the receiver is lost now, the agent must not take this for a free holder
        hold = part.holds[wanted.segment]
        message = DeltaMessage(
            part.round_id, wanted.segment, wanted.hop_id, hold.theta, tuple(sorted(hold.contributors))
        )
        return [Send(receiver.peer_id, message, hold.values)]

    def _merge(self, sender: Contributor, message: DeltaMessage, values: Vector, now: float) -> list[Effect]:
        part = self.part
        if part is None or message.round_id != part.round_id or part.incoming is None:
            return []
        order = part.incoming
        if (order.segment, order.hop_id, order.sender) != (message.segment, message.hop_id, sender):
            return []
        mine = part.holds[order.segment]
        theirs = ModelDelta(values, message.theta, frozenset(message.contributors))
        try:
            part.check_incoming(mine, theirs)
            check_values(values, self.parameters.size)
        except RemoteProtocolError as error:
            self._decide(part, order.segment, order.hop_id, sender, HopOutcome.ABORTED, now, f"refused: {error}")
            raise
        part.holds[order.segment] = self._pair_aggregate(mine, theirs, values)
        self._decide(part, order.segment, order.hop_id, sender, HopOutcome.MERGED, now, "", values.nbytes)
        return []

    def _decide(
        self,
        part: Part,
        segment: int,
        hop_id: int,
        sender: Contributor,
        outcome: HopOutcome,
        now: float,
        reason: str,
        size_bytes: int = 0,
    ) -> None:
        if (segment, hop_id) in part.decisions:
            return
        if len(part.decisions) >= MAX_HOPS:
            raise RemoteProtocolError(f"more than {MAX_HOPS} hops of one round for this device")
        seconds = 0.0
        if part.is_receiving(segment, hop_id):
            seconds = now - part.incoming_since
            part.incoming = None
            self._stop_asking()
        part.decisions[segment, hop_id] = HopDecision(
            segment, hop_id, sender, outcome, seconds, size_bytes, printable(reason)
        )
        self._transfer = None
        self._changed = True
        logger.info("hop %d %s %s", hop_id, outcome.value, reason)

    # -- broadcast ----------------------------------------------------------------------------------------------------

    def _take_place(self, order: BroadcastOrdered, now: float) -> list[Effect]:
        """Also a device that is late for the round takes the result, as long as it stands at w(round_id - 1)."""
        here = self.round_id + 1, self.digest, self.lineage
        current = (order.round_id, order.base_digest, order.lineage) == here
        if not current or self.me not in order.order or self.left:
            return []
        if self.part is None or self.part.round_id != order.round_id:
            self.part = self._missed or Part(order.round_id, 0, frozenset(order.order))
            self._catch_up = self._missed = None
        part = self.part
        if part.spread.is_outdated(order):
            return []
        if hop := part.incoming:
            if part.spread.order == order:
                return []  # a late copy: the root of this order was lost, and aggregating goes on
            reason = "the round has its result already"
            self._decide(part, hop.segment, hop.hop_id, hop.sender, HopOutcome.ABORTED, now, reason)
        staged_before, is_new = part.spread.report(), part.spread.order != order
        ask = part.spread.follow(order, self.me, part.holds.get(0), now)
        self._note_staged(part)
        if part.spread.staged is None and part.spread.parent and (ask or self._ask_at is None):
            self._ask_at = now
        if ask:
            self._transfer = None  # what came from the parent before goes no further
        self._changed = self._changed or part.spread.report() != staged_before
        return [*(part.spread.confirm() if is_new else ()), *part.spread.feed(now)]

    def _stage_received(self, message: GlobalMessage, values: Vector, digest: bytes, now: float) -> list[Effect]:
        part = self.part
        if part is None or message.round_id != part.round_id or not part.spread.check(message):
            return []
        check_values(values, self.parameters.size)
        part.spread.stage(ModelDelta(values, message.theta, frozenset(message.contributors)), digest, now)
        self._note_staged(part)
        self._transfer = None
        self._changed = True
        self._stop_asking()
        return [*part.spread.confirm(), *part.spread.feed(now)]

    def _note_staged(self, part: Part) -> None:
        """The result may be closed from here on, whatever this device hears of it."""
        if part.spread.staged and part.spread.order:
            self.staged_term = part.spread.order.term
            self.standing.note_further(part.round_id)

    # -- apply --------------------------------------------------------------------------------------------------------

    def _apply(self, part: Part) -> list[Effect]:
        result = part.spread.staged
        assert result is not None
        before = self.parameters
        if self.me in result.contributors and self.standing.is_settled():
            part.holds.clear()  # its own is counted, and can be recalled: room for w(t+1)
        self.standing.apply(result, self._settings.eta)
        effects = self._own.give_back(part, before, self.lineage)
        if self._settings.keep_deltas:
            effects.append(KeepDelta(part.round_id, "global", result))
        self.part = None
        part.holds.clear()
        return effects + self._keep_standing()

    def _keep_standing(self) -> list[Effect]:
        standing = self.standing
        self._changed = True
        self._stop_asking()
        return [
            SaveModel(standing.round_id, standing.parameters, standing.digest, standing.history()),
            Evaluate(standing.round_id, standing.parameters),
        ]

    # -- catch up -----------------------------------------------------------------------------------------------------

    def _catch_up_to(self, target: CatchUp, now: float) -> list[Effect]:
        """The mesh stands elsewhere: go there. A late message about an older round changes nothing."""
        standing = self.standing
        same_lineage = target.lineage == standing.lineage
        same_model = (target.round_id, target.digest) == (standing.round_id, standing.digest)
        late = same_lineage and (same_model or target.round_id < standing.round_id)
        if target.round_id > standing.round_id + ROUND_LEAP:
            raise RemoteProtocolError(f"round {target.round_id}, where this device stands at {standing.round_id}")
        if late or self._catch_up == target or self.left:
            return []
        if same_model and has_in_common(standing.lineage, target.lineage, target.round_id):
            history = History(target.lineage, target.base, standing.history().counted)
            return self._move_to(target.round_id, self.parameters, target.digest, history)
        part = self.part
        if same_lineage and part and part.round_id == target.round_id and part.spread.staged:
            applied = apply_delta(self.parameters, part.spread.staged.values, self._settings.eta)
            # Where nobody's model changes, results of other contributors have the same digest.
            if digest_of(applied) == target.digest and base_of(part.spread.staged) == target.base:
                return self._apply(part)  # what it missed was only the word
        if part:
            self._missed, self.part = part, None
        self._catch_up = target
        self._ask_at = now
        return []

    def _catch_up_with(self, message: ModelMessage, values: Vector, digest: bytes) -> list[Effect]:
        wanted = self._catch_up
        if wanted is None or (wanted.round_id, wanted.digest) != (message.round_id, message.digest):
            return []
        if message.history.lineage != wanted.lineage:
            return []
        check_values(values, self.parameters.size)
        if digest != message.digest:
            raise RemoteProtocolError("parameters that do not match their digest")
        return self._move_to(message.round_id, values, message.digest, message.history)

    def _move_to(self, round_id: int, parameters: Vector, digest: bytes, history: History) -> list[Effect]:
        missed = self._missed or self.part
        before, lineage = self.parameters, self.lineage
        self.standing.move_to(round_id, parameters, digest, history)
        self._catch_up = self._missed = self._transfer = self.part = None
        effects = self._own.give_back(missed, before, lineage) if missed else []
        return effects + self._keep_standing()

    # -- asking again, reporting, leaving -----------------------------------------------------------------------------

    def _ask_again(self, now: float) -> list[Effect]:
        self._ask_at = now + self._settings.retry_s
        part = self.part
        if self._catch_up:
            return [Send(self._catch_up.source.peer_id, ModelWanted(self._catch_up.round_id))]
        if part and part.incoming:
            order = part.incoming
            if now - part.heard_at >= self._settings.stall_s:
                reason = f"{NOTHING_CAME} for {self._settings.stall_s:g} s"
                self._decide(part, order.segment, order.hop_id, order.sender, HopOutcome.ABORTED, now, reason)
                return []
            return [Send(order.sender.peer_id, DeltaWanted(part.round_id, part.attempt, order.segment, order.hop_id))]
        if part and part.spread.parent and part.spread.staged is None:
            return [Send(part.spread.parent.peer_id, GlobalWanted(part.round_id))]
        self._stop_asking()
        return []

    def _stop_asking(self) -> None:
        self._ask_at = None

    def _leave(self, problem: str = "", exit_code: int = 0) -> list[Effect]:
        self.left = self._changed = True
        return [Finish(problem, exit_code)]

    def report(self, term: int, agent: str, now: float) -> PeerReport:
        """The whole state, for whoever leads. term, agent: whom this device obeys."""
        part, standing, (open_round, open_term) = self.part, self.standing, self.attempt()
        self._sequence += 1
        self._changed = False
        self._report_at = now + self._settings.report_s
        has_staged = part is not None and part.spread.staged is not None
        # In the order of its fields: by their names this would take most of the time of a report.
        return PeerReport(
            self._sequence,
            term,
            standing.round_id,
            standing.digest,
            self._schema_hash,
            self._model,
            standing.parameters.size,
            _LEFT if self.left else part.activity() if part else _WAITING,
            open_round,
            open_term,
            part.announced if part else 0,
            self._entered,
            agent,
            standing.lineage,
            standing.base,
            standing.votes(has_staged),
            self.goal,
            part.report_incoming() if part else None,
            part.report_holdings() if part else (),
            tuple(part.decisions.values()) if part else (),
            part.spread.report() if part else None,
            self.resources,
            self._own.training,
            self._evaluation,
            self._transfer,
            self._sent_bytes,
        )


def _values_of(event: Received) -> Vector:
    if event.values is None:
        raise RemoteProtocolError(f"{type(event.message).__name__} without values")
    return event.values


def _digest_of(event: Received) -> bytes:
    """As the transport computed it while the values came; a driver that does not leaves it to us."""
    return event.digest or digest_of(_values_of(event))
