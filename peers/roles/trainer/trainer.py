"""One training device: the device side of Algorithm 1.

Follow theta: born in `LocalDeltaReady` (own_delta.py), grown and given away in `Hops` (hops.py), staged by the
broadcast (broadcast.py), applied in `_apply`. Rules: the receiver decides a hop once; a sender keeps what it gave away
until the round is over; every handler may see a message twice; whoever still wants something asks again on its timer.
Knows no sockets, no schedule, no other device's state, and obeys whoever `peers/roles/peer.py` says is the agent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from mdl.errors import RemoteProtocolError
from mdl.protocol.delta import Contributor, ModelDelta, Vector, digest_of, pair_aggregate
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
    Activity,
    Ballot,
    History,
    Lineage,
    Transfer,
)
from peers.roles.trainer.catch_up import CatchingUp, Way
from peers.roles.trainer.hops import Hops
from peers.roles.trainer.model_state import Standing
from peers.roles.trainer.own_delta import OwnWork
from peers.roles.trainer.reports import Reports
from peers.roles.trainer.round_state import Part
from peers.roles.trainer.staging import Staging
from peers.roles.trainer.voice import Voice

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
    """See the module. standing: the model it has. part: its part in the open round, if any.

    ballot: what an earlier start of it has promised, None if that is not known.
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
        self._settings = settings
        self._own = OwnWork(me, self.standing, settings.keep_deltas)
        self._voice = Voice(settings.report_s, settings.retry_s)
        self._reports = Reports(self._voice, self.standing, schema_hash, model)
        self._hops = Hops(self._voice, settings.stall_s, merge or pair_aggregate)
        self._staging = Staging(me, self.standing, self._voice, self._hops)
        self._catching_up = CatchingUp(self.standing, settings.eta)

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
    def goal(self) -> int:
        """The run's last round, 0 if it is open."""
        return self._reports.goal

    @property
    def left(self) -> bool:
        """It takes part no more."""
        return self._reports.has_left

    @property
    def staged_term(self) -> int:
        """The last term under which it has staged a result."""
        return self._staging.staged_term

    @property
    def carry(self) -> Vector | None:
        """Own work that no round has counted, and that is not in the delta of the open one yet."""
        return self.standing.carry()

    @property
    def kept_back(self) -> Vector | None:
        """The part of `carry` that the next rounds of this very lineage count: it is in no delta till then."""
        return self.standing.kept_back()

    @property
    def catching_up_to(self) -> CatchUp | None:
        """Where the mesh stands, as long as this device fetches the model."""
        return self._catching_up.target

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = [] if type(event) is Tick else self._act(event, now)
        ask_at = self._voice.ask_at
        if ask_at is not None and now >= ask_at:
            effects += self._ask_again(now)
        return effects

    def deadline(self) -> float:
        return self._voice.deadline()

    def has_news(self, now: float) -> bool:
        """Whether a report is to be sent: something has changed, or the last one is old."""
        return self._voice.has_changed or now >= self._voice.report_at

    def is_due(self, now: float) -> bool:
        """Whether the last report is old."""
        return now >= self._voice.report_at

    def say_again(self) -> None:
        """The agent asks, or is a new one: report at once."""
        self._voice.has_changed = True

    def describe(self) -> dict[str, str]:
        """Which model this is: its schema hash, and a line for people."""
        return {"schema_hash": self._reports.schema_hash, "model": self._reports.model}

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
                self._voice.has_changed = True  # the agent asks: our report is the answer
            return effects
        match event:
            case LocalDeltaReady():
                return self._hold_trained(event)
            case Evaluated():
                self._reports.note_evaluation(event)
            case ResourcesSampled():
                self._reports.note_resources(event)
            case TransferProgressed(sender=sender, received_bytes=received, size_bytes=size):
                self._voice.transfer = Transfer(sender.peer_id, received, size)
                if self.part and self.part.incoming and self.part.incoming.sender == sender:
                    self.part.heard_at = now
            case DeltaRecalled():
                self._voice.has_changed = True
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
                self._hops.fetch(part, message, now)
            elif type(message) is RoundClosed:
                if part.spread.staged and part.spread.digest == message.digest:
                    return self._apply(part)
            elif type(message) is HopReleased:
                part.release(message.segment, message.hop_id)
            elif type(message) is HopCancelled:
                self._hops.abort(part, message, now, "cancelled by the agent")
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
        return type(order) is CatchUp and self.catching_up_to == order

    def _hear(self, event: Received, now: float) -> list[Effect]:
        message, sender = event.message, event.sender
        if type(message) is DeltaWanted:
            return self._hops.serve(self.part, sender, message)
        if type(message) is GlobalWanted or type(message) is GlobalTaken:
            if self.part is None or self.part.round_id != message.round_id:
                return []
            spread = self.part.spread
            return [*(spread.serve if type(message) is GlobalWanted else spread.note_taken)(sender, now)]
        if type(message) is GlobalMessage:
            return self._staging.take_result(self.part, message, _values_of(event), _digest_of(event), now)
        if type(message) is DeltaMessage:
            self._hops.merge(self.part, sender, message, _values_of(event), now)
            return []
        if type(message) is ModelMessage:
            values, digest = _values_of(event), _digest_of(event)
            if self._catching_up.is_arrived(message, values, digest):
                return self._move_to(message.round_id, values, digest, message.history)
            return []
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
        self._reports.goal = opened.planned_rounds
        members = frozenset(opened.members)
        if self.attempt() == (opened.round_id, opened.attempt):
            assert self.part is not None
            self.part.members |= members  # another agent goes on with it, perhaps with more devices
            self.part.announced = opened.term
            return []
        missed = self._catching_up.end()
        before, lineage = self.part or missed, standing.lineage
        standing.follow(opened.lineage, opened.base)
        if len(members) > 1:
            standing.share()
        self.part = Part(opened.round_id, opened.attempt, members, heard_at=now, announced=opened.term)
        self._reports.note_entry(opened.attempt)
        self._voice.ask_at = self._voice.transfer = None
        return self._own.begin(self.part, before, lineage, self.goal)

    def _is_on(self, opened: RoundOpened) -> bool:
        """Whether the round is of this device's lineage, or starts a fork of it here and now."""
        standing = self.standing
        if opened.lineage == standing.lineage:
            return True
        return opened.lineage[:-1] == standing.lineage and opened.lineage[-1].round_id == standing.round_id

    def _hold_trained(self, ready: LocalDeltaReady) -> list[Effect]:
        self._voice.has_changed = True
        try:
            return self._own.take_trained(ready, self.part, self._catching_up.missed)
        except RemoteProtocolError as error:
            return self._leave(f"training diverged in round {ready.round_id}: {error}; try a lower learning rate", 4)

    # -- broadcast ----------------------------------------------------------------------------------------------------

    def _take_place(self, order: BroadcastOrdered, now: float) -> list[Effect]:
        """Also a device that is late for the round takes the result, as long as it stands at w(round_id - 1)."""
        here = self.round_id + 1, self.digest, self.lineage
        current = (order.round_id, order.base_digest, order.lineage) == here
        if not current or self.me not in order.order or self.left:
            return []
        if self.part is None or self.part.round_id != order.round_id:
            self.part = self._catching_up.end() or Part(order.round_id, 0, frozenset(order.order))
        return self._staging.take_place(self.part, order, now)

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
        self._voice.has_changed = True
        self._voice.stop_asking()
        return [
            SaveModel(standing.round_id, standing.parameters, standing.digest, standing.history()),
            Evaluate(standing.round_id, standing.parameters),
        ]

    # -- catch up -----------------------------------------------------------------------------------------------------

    def _catch_up_to(self, target: CatchUp, now: float) -> list[Effect]:
        """The mesh stands elsewhere: go there. A late message about an older round changes nothing."""
        way = self._catching_up.find_way(target, self.part)
        if way is Way.STAY or self.left:
            return []
        if way is Way.RENAME:
            history = History(target.lineage, target.base, self.standing.history().counted)
            return self._move_to(target.round_id, self.parameters, target.digest, history)
        if way is Way.APPLY and self.part:
            return self._apply(self.part)
        self._catching_up.go(target, self.part)
        self.part, self._voice.ask_at = None, now
        return []

    def _move_to(self, round_id: int, parameters: Vector, digest: bytes, history: History) -> list[Effect]:
        missed = self._catching_up.end() or self.part
        before, lineage = self.parameters, self.lineage
        self.standing.move_to(round_id, parameters, digest, history)
        self._voice.transfer = self.part = None
        effects = self._own.give_back(missed, before, lineage) if missed else []
        return effects + self._keep_standing()

    # -- asking again, reporting, leaving -----------------------------------------------------------------------------

    def _ask_again(self, now: float) -> list[Effect]:
        self._voice.ask_at = now + self._voice.retry_s
        part = self.part
        if wanted := self.catching_up_to:
            return [Send(wanted.source.peer_id, ModelWanted(wanted.round_id))]
        if part and part.incoming:
            return self._hops.ask(part, part.incoming, now)
        if part and part.spread.parent and part.spread.staged is None:
            return [Send(part.spread.parent.peer_id, GlobalWanted(part.round_id))]
        self._voice.stop_asking()
        return []

    def _leave(self, problem: str = "", exit_code: int = 0) -> list[Effect]:
        self._reports.has_left = self._voice.has_changed = True
        return [Finish(problem, exit_code)]

    def report(self, term: int, agent: str, now: float) -> PeerReport:
        """The whole state, for whoever leads. term, agent: whom this device obeys."""
        return self._reports.make(self.part, self._own.training, term, agent, now)


def _values_of(event: Received) -> Vector:
    if event.values is None or isinstance(event.values, bytes):
        raise RemoteProtocolError(f"{type(event.message).__name__} without values")
    return event.values


def _digest_of(event: Received) -> bytes:
    """As the transport computed it while the values came; a driver that does not leaves it to us."""
    return event.digest or digest_of(_values_of(event))
