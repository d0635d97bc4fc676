"""One training device: the device side of Algorithm 1.

Follow theta: born in `LocalDeltaReady` (own_delta.py), grown and given away in `HopsHere` (hops.py), staged by the
broadcast (broadcast.py), applied by `RoundProgress` (progress.py). Rules: the receiver decides a hop once; a sender
keeps what it gave away until the round is over; every handler may see a message twice; a device that still wants
something asks again on its timer. Knows no sockets, no schedule and no other device's state, and obeys the agent that
`peers/roles/peer.py` names.
"""

from __future__ import annotations

import logging

import msgspec

from mdl.channels import Told
from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.peers.roles.run_end import RunKnowledge
from mdl.peers.roles.trainer.broadcast import Staging
from mdl.peers.roles.trainer.exchange import MOST_UNDER_WAY
from mdl.peers.roles.trainer.guard import Defence, DeltaGuard, Voice
from mdl.peers.roles.trainer.hops import HopsHere
from mdl.peers.roles.trainer.model_state import ModelState
from mdl.peers.roles.trainer.progress import Reports, RoundProgress
from mdl.peers.roles.trainer.round_state import RoundState
from mdl.protocol.delta import Contributor, PartialSum
from mdl.protocol.grid import Vector
from mdl.protocol.machine import (
    DeltaRecalled,
    Effect,
    Evaluated,
    Event,
    Finish,
    LocalDeltaReady,
    PauseChanged,
    Received,
    RecordRound,
    ResourcesSampled,
    Send,
    StopRequested,
    Tick,
    TrainingPaused,
    TransferProgressed,
    WorkFailed,
)
from mdl.protocol.messages import SEGMENTS
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
    MemberQuarantined,
    MemberRefused,
    MeshFinished,
    ModelMessage,
    ModelWanted,
    PeerReport,
    PieceMessage,
    RoundClosed,
    RoundOpened,
    RoundTold,
    SegmentMessage,
    SegmentsReady,
    SegmentTaken,
)
from mdl.protocol.vector_work import ChecksumsCounted, DeltaApplied, DeltaHashed, DeltasMerged, Outer
from mdl.protocol.vocabulary import Ballot, History, Lineage, Transfer

logger = logging.getLogger(__name__)


def values_of(event: Received) -> Vector:
    if event.values is None or isinstance(event.values, bytes):
        raise RemoteProtocolError(f"{type(event.message).__name__} without values")
    return event.values


def segment_of(event: Received) -> Vector | None:
    return values_of(event) if type(event.message) in SEGMENTS else None


def digest_of(event: Received) -> bytes:
    """Return the digest that the transport computed while the values came."""
    if not event.digest:
        raise LocalProtocolError(f"{type(event.message).__name__} without the digest of its values")
    return event.digest


# Messages that only the agent sends. Compared by exact type: a failing isinstance is slow with these classes.
ORDERS = frozenset(AgentMessage.__subclasses__())
_SEGMENTED = frozenset((SegmentsReady, PieceMessage, SegmentMessage, SegmentTaken))


class TrainerSettings(msgspec.Struct, frozen=True):
    """The settings of one trainer.

    outer: the step by which a global delta changes the model. keep_deltas: write own and global delta of each round.
    overlaps: train ahead for the next round while the deltas of this one travel (`OwnWork`). report_s: longest time
    between two reports. retry_s: time between two requests for the same thing. stall_s: a hop that has brought nothing
    for this time is given up. most_under_way: limit of the bytes of segments on their way to one device. defence: how
    others' partial sums are judged. theta: weight of its first delta (3.2.2); later ones tell theirs. link_mb_s: speed
    of its link, as an earlier start has measured it; 0.0: not known.
    """

    outer: Outer = Outer()
    keep_deltas: bool = False
    overlaps: bool = False
    report_s: float = 0.5
    retry_s: float = 0.5
    stall_s: float = 10.0
    most_under_way: int = MOST_UNDER_WAY
    defence: Defence = Defence()
    theta: float = 1.0
    link_mb_s: float = 0.0


class Trainer:
    """See the module. model_state: its model. part: its part in the open round, if any. voice: times of its next words.

    guard: its knowledge of the others' deltas. ballot: promises of an earlier start, None if they are not known.
    digest: of the state, if known. state: float32, w and what else the outer optimizer of the settings has
    (`Outer.begin`). channels: the description of its windows' channels.
    """

    def __init__(
        self,
        me: Contributor,
        state: Vector,
        schema_hash: str,
        model: str,
        settings: TrainerSettings,
        round_id: int = 0,
        history: History | None = None,
        ballot: Ballot | None = None,
        digest: bytes = b"",
        channels: Told = (),
    ) -> None:
        self.me = me
        self.ballot = ballot
        self.model_state = ModelState(me, state, round_id, history, ballot, digest, settings.outer)
        self._settings = settings
        self.voice = Voice(settings.report_s, settings.retry_s, settings.link_mb_s)
        self.guard = DeltaGuard(settings.defence, self.model_state, self.voice)
        self._reports = Reports(self.voice, self.model_state, schema_hash, model, self.guard, channels)
        self._hops = HopsHere(self.voice, settings.stall_s, self.guard)
        self._staging = Staging(me, self.model_state, self.voice, self._hops, settings.most_under_way, self.guard)
        self._farewell: tuple[str, int] | None = None  # waits for the round that is being applied
        self._last_line = 0  # number of the last round that had its line told
        shared = (self.model_state, self._reports, self.voice, self._staging)
        self._progress = RoundProgress(me, *shared, settings.keep_deltas, settings.overlaps, self.guard, settings.theta)

    @property
    def part(self) -> RoundState | None:
        return self._progress.part

    @property
    def parameters(self) -> Vector:
        return self.model_state.parameters

    @property
    def round_id(self) -> int:
        return self.model_state.round_id

    @property
    def digest(self) -> bytes:
        return self.model_state.digest

    @property
    def lineage(self) -> Lineage:
        return self.model_state.lineage

    @property
    def base(self) -> tuple[str, ...]:
        """The devices that decide on the next round by majority."""
        return self.model_state.base

    @property
    def goal(self) -> int:
        """The run's last round, 0 if it is open."""
        return self._reports.taken.goal

    @property
    def taken(self) -> RunKnowledge:
        """The facts that it knows of the run, for when it takes office."""
        return self._reports.taken

    @property
    def left(self) -> bool:
        """True once it takes part no more."""
        return self._reports.has_left

    @property
    def staged_term(self) -> int:
        """The last term under which it has staged a result."""
        return self._staging.staged_term

    @property
    def carry(self) -> Vector | None:
        """Own work that no round has counted, and that the open round's delta does not contain yet."""
        carry, ahead = self.model_state.carry(), self._progress.ahead
        return carry if ahead is None else ahead.copy() if carry is None else carry + ahead

    @property
    def kept_back(self) -> Vector | None:
        """The part of `carry` that later rounds of this very lineage count: no delta contains it until then."""
        return self.model_state.kept_back()

    @property
    def exchange(self) -> BroadcastOrdered | None:
        """The order of the exchange in segments that this device takes part in."""
        exchange = self.part.broadcast.exchange if self.part else None
        return exchange.order if exchange else None

    @property
    def catching_up_to(self) -> CatchUp | None:
        """The place where the mesh stands, as long as this device fetches the model."""
        return self._progress.target

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = [] if type(event) is Tick else self._act(event, now)
        ask_at = self.voice.ask_at
        if ask_at is not None and now >= ask_at:
            effects += self._ask_again(now)
        return effects

    def describe(self) -> dict[str, str]:
        """Return the model's schema hash, and a line about it for people."""
        return {"schema_hash": self._reports.schema_hash, "model": self._reports.model}

    def hold(self) -> PartialSum | None:
        """Return the partial sum that this device answers for; None once it has been given away."""
        return self.part.free_hold if self.part else None

    def attempt(self) -> tuple[int, int]:
        """Return the round this device takes part in and the term that opened it; zeros for none."""
        return self._progress.attempt()

    # -- events -------------------------------------------------------------------------------------------------------

    def _act(self, event: Event, now: float) -> list[Effect]:
        if type(event) is Received:
            if type(event.message) not in ORDERS:
                return self._hear(event, now)
            order: AgentMessage = event.message  # type: ignore[assignment]
            effects = self._obey(order, now)
            if not self._is_at_it(order):
                self.voice.has_changed = True  # the agent asks: our report is the answer
            return effects
        match event:
            case LocalDeltaReady():
                return self._progress.take_trained(event)
            case Evaluated():
                self._reports.note_evaluation(event)
            case ResourcesSampled():
                self._reports.note_resources(event)
                self._staging.uplink.ways_s = event.ways_s
            case TransferProgressed(sender=sender, received_bytes=received, size_bytes=size):
                self.voice.transfer = Transfer(sender.peer_id, received, size)
                self._progress.note_moving(sender, now)
                if self.part and self.part.incoming and self.part.incoming.sender == sender:
                    self.part.heard_at = now
            case DeltaRecalled():
                return self._progress.take_recalled(event, now)
            case PauseChanged(reason=reason):
                return self._progress.pause(reason)
            case TrainingPaused(round_id=round_id):
                return self._progress.give_up_training(round_id)
            case ChecksumsCounted():
                self._progress.take_counted(event)
            case DeltaHashed():
                return self._staging.take_name(self.part, event, now)
            case DeltasMerged():
                self._hops.take_merged(self.part, event, now)
            case DeltaApplied():
                return self._progress.take_applied(event, now) + self._leave_at_last()
            case WorkFailed(problem=problem):
                return self._leave(problem, 4)
            case StopRequested():
                return self._leave(exit_code=130)
        return []

    def _obey(self, message: AgentMessage, now: float) -> list[Effect]:
        if type(message) is MemberRefused:
            return self._leave(message.reason, 2)
        if type(message) is MeshFinished:
            self._reports.hear_end(message)
            return self._leave()
        if type(message) is RoundTold:
            return self._keep_line(message)
        if type(message) is MemberQuarantined:
            self.guard.told = message.reason
        if self._progress.is_applying:
            return []  # the agent says it again
        if type(message) is BroadcastOrdered:
            return self._progress.take_place(message, now)
        if type(message) is RoundOpened:
            return self._progress.open(message, now)
        part = self.part
        if part and message.round_id == part.round_id:
            if type(message) is HopOrdered:
                return self._hops.fetch(part, message, now)
            elif type(message) is RoundClosed:
                if part.broadcast.staged and part.broadcast.digest == message.digest:
                    return self._progress.apply(part)
            elif type(message) is HopReleased:
                part.release(message.hop_id)
            elif type(message) is HopCancelled:
                self._hops.abort(part, message, now, "cancelled by the agent")
        if type(message) is CatchUp:
            return self._progress.catch_up_to(message, now)
        return []

    def _keep_line(self, told: RoundTold) -> list[Effect]:
        """Keep the line of each round once: a leader cannot fill the disk with one."""
        if told.summary.round <= self._last_line:
            return []
        self._last_line = told.summary.round
        return [RecordRound(told.summary, has_led=False)]

    def _is_at_it(self, order: AgentMessage) -> bool:
        """Return True if this device is at work on the order: it reports once that is done."""
        part = self.part
        if type(order) is HopOrdered:
            return part is not None and part.is_receiving(order.hop_id)
        if type(order) is BroadcastOrdered:
            return part is not None and part.broadcast.staged is None and part.broadcast.order == order
        return type(order) is RoundTold or (type(order) is CatchUp and self.catching_up_to == order)

    def _hear(self, event: Received, now: float) -> list[Effect]:
        message, sender = event.message, event.sender
        if type(message) is DeltaWanted:
            return self._hops.serve(self.part, sender, message)
        if type(message) is GlobalWanted or type(message) is GlobalTaken:
            if self.part is None or self.part.round_id != message.round_id or self._progress.is_applying:
                return []
            if isinstance(message, GlobalTaken):
                return [*self.part.broadcast.note_taken(sender, now)]
            message.check(self.parameters.size)
            return [*self.part.broadcast.serve(sender, message, now)]
        if type(message) in _SEGMENTED:
            values, checksum = segment_of(event), event.checksum
            return self._staging.hear_segment(self.part, sender, message, values, checksum, now)  # type: ignore[arg-type]
        if type(message) is GlobalMessage:
            values, digest = values_of(event), digest_of(event)
            return self._staging.take_result(self.part, sender, message, values, digest, event.checksum, now)
        if type(message) is DeltaMessage:
            return self._hops.merge(self.part, sender, message, values_of(event), now)
        if type(message) is ModelMessage:
            return self._progress.take_model(message, values_of(event), digest_of(event))
        if type(message) is ModelWanted and message.round_id == self.round_id:
            model, self.model_state.is_given = (
                ModelMessage(self.round_id, self.digest, self.model_state.history()),
                True,
            )
            return [Send(sender.peer_id, model, self.model_state.state)]
        return []

    # -- asking again, reporting, leaving -----------------------------------------------------------------------------

    def _ask_again(self, now: float) -> list[Effect]:
        self.voice.ask_at = now + self.voice.retry_s
        part = self.part
        if wanted := self.catching_up_to:
            return [Send(wanted.source.peer_id, ModelWanted(wanted.round_id))]
        if part and part.incoming and not part.is_merging:
            return self._hops.ask(part, part.incoming, now)
        if part and part.broadcast.exchange:
            return self._staging.say_again(part, part.broadcast.exchange, now)
        asks = part.broadcast.ask() if part else []
        if not asks:
            self.voice.stop_asking()
        return [*asks]

    def _leave(self, problem: str = "", exit_code: int = 0) -> list[Effect]:
        if self._progress.is_applying:
            self._farewell = self._farewell or (problem, exit_code)
            return []
        self._reports.has_left = self.voice.has_changed = True
        return [Finish(problem, exit_code)]

    def _leave_at_last(self) -> list[Effect]:
        """Leave now, if leaving was put off until the round was applied."""
        return self._leave(*self._farewell) if self._farewell else []

    def report(self, term: int, agent: str, now: float) -> PeerReport:
        """Return the report of the whole state. term, agent: the ones that this device obeys."""
        return self._reports.make(self.part, self._progress.training, self._progress.theta, term, agent, now)
