"""One training device: the device side of Algorithm 1.

Follow theta: born in `LocalDeltaReady`, grown in `_merge`, given away in `_serve_delta`, staged by the broadcast,
applied in `_apply`. Rules: the receiver decides a hop once; a sender keeps what it gave away until the round is over;
every handler may see a message twice; whoever still wants something asks again on its timer.
Knows no sockets, no schedule and no other device's state.
"""

from __future__ import annotations

import logging

import msgspec

from mdl.delta import Contributor, ModelDelta, Vector, apply_delta, check_values, digest_of, pair_aggregate
from mdl.errors import RemoteProtocolError
from mdl.machine import (
    Effect,
    Evaluate,
    Evaluated,
    Event,
    Finish,
    KeepDelta,
    LocalDeltaReady,
    PeerFound,
    Received,
    ResourcesSampled,
    SaveModel,
    Send,
    StopRequested,
    TrainLocally,
    TransferProgressed,
    WorkFailed,
)
from mdl.messages import (
    Activity,
    AgentMessage,
    BroadcastOrdered,
    CatchUp,
    DeltaMessage,
    DeltaWanted,
    GlobalMessage,
    GlobalWanted,
    HopCancelled,
    HopDecision,
    HopOrdered,
    HopOutcome,
    HopReleased,
    MemberRefused,
    MeshFinished,
    ModelMessage,
    ModelWanted,
    PeerReport,
    ResourceState,
    Role,
    RoundClosed,
    RoundEvaluation,
    RoundOpened,
    TrainingReport,
    Transfer,
)
from mdl.tree import tree_parent
from peers.part import Part

logger = logging.getLogger(__name__)


class TrainerSettings(msgspec.Struct, frozen=True):
    """eta: step along the global delta (Algorithm 1). keep_deltas: write own and global delta of each round."""

    eta: float = 1.0
    keep_deltas: bool = False
    report_s: float = 0.5
    retry_s: float = 1.0
    stall_s: float = 10.0
    agent_silent_s: float = 3.0


class Trainer:
    """See the module. `parameters` are w(round_id), float32, shape (P,), never changed in place."""

    def __init__(
        self,
        me: Contributor,
        parameters: Vector,
        schema_hash: str,
        model: str,
        settings: TrainerSettings,
        round_id: int = 0,
    ) -> None:
        self.me = me
        self.parameters = parameters
        self.round_id = round_id
        self.digest = digest_of(parameters)
        self.part: Part | None = None
        self.agent: str | None = None
        self.term = 0
        self._agent_heard_at = 0.0
        self._settings = settings
        self._schema_hash = schema_hash
        self._model = model
        self._resources: ResourceState | None = None
        self._sent_bytes = 0
        self._training: TrainingReport | None = None
        self._evaluation: RoundEvaluation | None = None
        self._transfer: Transfer | None = None
        self._catch_up: CatchUp | None = None
        self._left = False
        self._sequence = 0
        self._changed = True
        self._report_at = 0.0
        self._ask_at: float | None = None

    def handle(self, event: Event, now: float) -> list[Effect]:
        effects = self._act(event, now)
        if self._ask_at is not None and now >= self._ask_at:
            effects += self._ask_again(now)
        if self.agent is not None and (self._changed or now >= self._report_at):
            # The report comes before a Finish, so that the agent hears of it.
            effects.insert(0, Send(self.agent, self._report()))
            self._report_at = now + self._settings.report_s
        self._changed = False
        return effects

    def deadline(self) -> float | None:
        if self.agent is None:
            return self._ask_at
        return self._report_at if self._ask_at is None else min(self._report_at, self._ask_at)

    def holdings(self) -> dict[int, ModelDelta]:
        """Segment -> partial mean that this device still answers for: empty once it has been given away."""
        return self.part.free_holds() if self.part else {}

    def attempt(self) -> tuple[int, int]:
        """The round this device takes part in and the term that opened it; zeros for none."""
        return (self.part.round_id, self.part.term) if self.part else (0, 0)

    # -- events -------------------------------------------------------------------------------------------------------

    def _act(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(message=AgentMessage() as message):
                return self._obey(event.sender, message, now)
            case Received():
                return self._hear(event, now)
            case LocalDeltaReady():
                return self._hold_own(event)
            case PeerFound(info=info) if info.role is Role.AGENT and self._needs_agent(now):
                self.agent = info.peer_id
                self._changed = True
            case TransferProgressed(sender=sender, received_bytes=received, size_bytes=size):
                self._transfer = Transfer(sender.peer_id, received, size)
                if self.part:
                    self.part.heard_at = now
            case ResourcesSampled(resources=resources, sent_bytes=sent_bytes):
                self._resources, self._sent_bytes = resources, sent_bytes
            case Evaluated(round_id=round_id, evaluation=evaluation):
                self._evaluation = RoundEvaluation(round_id, evaluation)
                self._changed = True
            case WorkFailed(problem=problem):
                return self._leave(problem, 4)
            case StopRequested():
                return self._leave(exit_code=130)
        return []

    def _needs_agent(self, now: float) -> bool:
        return self.agent is None or now - self._agent_heard_at >= self._settings.agent_silent_s

    def _obey(self, agent: Contributor, message: AgentMessage, now: float) -> list[Effect]:
        if message.term < self.term or (message.term == self.term and agent.peer_id != self.agent):
            return []
        self.term, self.agent, self._agent_heard_at = message.term, agent.peer_id, now
        self._changed = True  # the agent asks: our report is the answer
        match message:
            case RoundOpened():
                return self._open(message, now)
            case CatchUp():
                return self._catch_up_to(message, now)
            case MemberRefused(reason=reason):
                return self._leave(reason, 2)
            case MeshFinished():
                return self._leave()
        if self.part is None or message.round_id != self.part.round_id:
            return []
        match message:
            case HopOrdered():
                return self._fetch_delta(self.part, message, now)
            case HopCancelled(segment=segment, hop_id=hop_id):
                self._decide(self.part, segment, hop_id, HopOutcome.ABORTED, now, "cancelled by the agent")
            case HopReleased(segment=segment, hop_id=hop_id):
                self.part.release(segment, hop_id)
            case BroadcastOrdered():
                return self._take_place_in_tree(self.part, message, now)
            case RoundClosed(digest=digest) if self.part.staged_digest == digest:
                return self._apply(self.part)
        return []

    def _hear(self, event: Received, now: float) -> list[Effect]:
        message, sender = event.message, event.sender
        match message:
            case DeltaWanted():
                return self._serve_delta(sender, message)
            case DeltaMessage():
                return self._merge(sender, message, _values_of(event), now)
            case GlobalWanted(round_id=round_id) if self.part and self.part.is_member(sender, round_id):
                return self._serve_global(self.part, sender)
            case GlobalMessage():
                return self._stage_received(sender, message, _values_of(event))
            case ModelWanted(round_id=round_id) if round_id == self.round_id:
                return [Send(sender.peer_id, ModelMessage(self.round_id, self.digest), self.parameters)]
            case ModelMessage():
                return self._catch_up_with(message, _values_of(event))
        return []

    # -- train --------------------------------------------------------------------------------------------------------

    def _open(self, opened: RoundOpened, now: float) -> list[Effect]:
        known = self.attempt() == (opened.round_id, opened.term)
        current = opened.round_id == self.round_id + 1 and opened.digest == self.digest
        if known or not current or self.me not in opened.members or self._left:
            return []
        self.part = Part(opened.round_id, opened.term, frozenset(opened.members), heard_at=now)
        self._training = self._catch_up = None
        self._transfer = None
        self._stop_asking()
        return [TrainLocally(opened.round_id, self.parameters, opened.planned_rounds)]

    def _hold_own(self, ready: LocalDeltaReady) -> list[Effect]:
        if self.part is None or ready.round_id != self.part.round_id or self.part.holds:
            return []
        try:
            check_values(ready.delta.values, self.parameters.size)
        except RemoteProtocolError as error:
            return self._leave(f"training diverged in round {ready.round_id}: {error}; try a lower learning rate", 4)
        self.part.holds = {0: ready.delta}
        self._training = msgspec.structs.replace(ready.training, theta=ready.delta.theta)
        self._changed = True
        return [KeepDelta(ready.round_id, "own", ready.delta)] if self._settings.keep_deltas else []

    # -- hop ----------------------------------------------------------------------------------------------------------

    def _fetch_delta(self, part: Part, order: HopOrdered, now: float) -> list[Effect]:
        """Receiver: ready for the sender's partial mean, or abort at once, with the reason."""
        key = (order.segment, order.hop_id)
        if key in part.decisions or part.incoming == order:
            return []
        if problem := part.cannot_receive(order):
            self._decide(part, order.segment, order.hop_id, HopOutcome.ABORTED, now, problem)
            return []
        part.incoming, part.incoming_since, part.heard_at = order, now, now
        self._transfer = None
        self._ask_at = now
        return []

    def _serve_delta(self, receiver: Contributor, wanted: DeltaWanted) -> list[Effect]:
        """Sender: give the partial mean to this hop and to no other, until it is released."""
        part = self.part
        if part is None or not part.is_member(receiver, wanted.round_id):
            return []
        if not part.give(wanted.segment, wanted.hop_id):
            return []
        self._changed = True
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
            self._decide(part, order.segment, order.hop_id, HopOutcome.ABORTED, now, f"refused: {error}")
            raise
        part.holds[order.segment] = pair_aggregate(mine, theirs, out=values)
        self._decide(part, order.segment, order.hop_id, HopOutcome.MERGED, now, "", values.nbytes)
        return []

    def _decide(
        self, part: Part, segment: int, hop_id: int, outcome: HopOutcome, now: float, reason: str, size_bytes: int = 0
    ) -> None:
        if (segment, hop_id) in part.decisions:
            return
        seconds = 0.0
        if part.incoming and (part.incoming.segment, part.incoming.hop_id) == (segment, hop_id):
            seconds = now - part.incoming_since
            part.incoming = None
            self._stop_asking()
        part.decisions[segment, hop_id] = HopDecision(segment, hop_id, outcome, seconds, size_bytes, reason)
        self._transfer = None
        self._changed = True
        logger.info("hop %d %s %s", hop_id, outcome.value, reason)

    # -- broadcast ----------------------------------------------------------------------------------------------------

    def _take_place_in_tree(self, part: Part, order: BroadcastOrdered, now: float) -> list[Effect]:
        if self.me not in order.order or (part.broadcast and part.broadcast.version > order.version):
            return []
        if part.incoming and part.broadcast == order:
            return []  # a late copy: the root of this order was lost, and aggregating goes on
        part.broadcast = order
        if part.incoming:
            hop = part.incoming
            self._decide(part, hop.segment, hop.hop_id, HopOutcome.ABORTED, now, "the round has its result already")
        if part.staged and part.staged.contributors == frozenset(order.contributors):
            return self._serve_waiting(part)
        part.staged, part.staged_digest = None, b""  # the result of a root that was lost with it
        position = order.order.index(self.me)
        hold = part.free_holds().get(0)
        if hold and hold.contributors == frozenset(order.contributors):
            return self._stage(part, hold)
        parent = tree_parent(position)
        if parent is not None and (part.parent != order.order[parent] or self._ask_at is None):
            part.parent = order.order[parent]
            self._ask_at = now
        return []

    def _serve_global(self, part: Part, child: Contributor) -> list[Effect]:
        if part.staged is None:
            part.waiting_children.add(child)
            return []
        part.waiting_children.discard(child)
        theta, contributors = part.staged.theta, tuple(sorted(part.staged.contributors))
        return [Send(child.peer_id, GlobalMessage(part.round_id, theta, contributors), part.staged.values)]

    def _serve_waiting(self, part: Part) -> list[Effect]:
        return [effect for child in sorted(part.waiting_children) for effect in self._serve_global(part, child)]

    def _stage_received(self, sender: Contributor, message: GlobalMessage, values: Vector) -> list[Effect]:
        part = self.part
        if part is None or part.staged or part.broadcast is None or not part.is_member(sender, message.round_id):
            return []
        if frozenset(message.contributors) != frozenset(part.broadcast.contributors):
            return []  # the result of an order that has been replaced
        if message.theta != part.broadcast.theta:
            raise RemoteProtocolError(f"a global delta of theta {message.theta}, not {part.broadcast.theta}")
        check_values(values, self.parameters.size)
        return self._stage(part, ModelDelta(values, message.theta, frozenset(message.contributors)))

    def _stage(self, part: Part, result: ModelDelta) -> list[Effect]:
        """Keep the global delta without applying it: it counts once every live member has it (RoundClosed)."""
        part.staged, part.staged_digest = result, digest_of(result.values)
        self._transfer = None
        self._changed = True
        self._stop_asking()
        return self._serve_waiting(part)

    # -- apply --------------------------------------------------------------------------------------------------------

    def _apply(self, part: Part) -> list[Effect]:
        result = part.staged
        assert result is not None
        self.part = None
        part.holds.clear()
        effects: list[Effect] = []
        if self._settings.keep_deltas:
            effects.append(KeepDelta(part.round_id, "global", result))
        parameters = apply_delta(self.parameters, result.values, self._settings.eta)
        return effects + self._adopt(part.round_id, parameters, digest_of(parameters))

    def _adopt(self, round_id: int, parameters: Vector, digest: bytes) -> list[Effect]:
        self.parameters, self.round_id, self.digest = parameters, round_id, digest
        self._changed = True
        self._stop_asking()
        return [SaveModel(round_id, parameters, digest), Evaluate(round_id, parameters)]

    # -- catch up -----------------------------------------------------------------------------------------------------

    def _catch_up_to(self, message: CatchUp, now: float) -> list[Effect]:
        """A live peer has a newer model than we: fetch it. A late message about an older one changes nothing."""
        stands_at = self.part.round_id if self.part else self.round_id
        if message.round_id < stands_at or (message.round_id, message.digest) == (self.round_id, self.digest):
            return []
        if self._catch_up == message:
            return []
        self._catch_up, self.part = message, None
        self._ask_at = now
        return []

    def _catch_up_with(self, message: ModelMessage, values: Vector) -> list[Effect]:
        wanted = self._catch_up
        if wanted is None or (wanted.round_id, wanted.digest) != (message.round_id, message.digest):
            return []
        check_values(values, self.parameters.size)
        if digest_of(values) != message.digest:
            raise RemoteProtocolError("parameters that do not match their digest")
        self._catch_up, self._transfer = None, None
        return self._adopt(message.round_id, values, message.digest)

    # -- asking again, reporting, leaving -----------------------------------------------------------------------------

    def _ask_again(self, now: float) -> list[Effect]:
        self._ask_at = now + self._settings.retry_s
        part = self.part
        if self._catch_up:
            return [Send(self._catch_up.source.peer_id, ModelWanted(self._catch_up.round_id))]
        if part and part.incoming:
            order = part.incoming
            if now - part.heard_at >= self._settings.stall_s:
                reason = f"nothing came for {self._settings.stall_s:g} s"
                self._decide(part, order.segment, order.hop_id, HopOutcome.ABORTED, now, reason)
                return []
            return [Send(order.sender.peer_id, DeltaWanted(part.round_id, order.segment, order.hop_id))]
        if part and part.parent and part.staged is None:
            return [Send(part.parent.peer_id, GlobalWanted(part.round_id))]
        self._stop_asking()
        return []

    def _stop_asking(self) -> None:
        self._ask_at = None

    def _leave(self, problem: str = "", exit_code: int = 0) -> list[Effect]:
        self._left = self._changed = True
        return [Finish(problem, exit_code)]

    def _report(self) -> PeerReport:
        part = self.part
        self._sequence += 1
        return PeerReport(
            sequence=self._sequence,
            term=self.term,
            round_id=self.round_id,
            digest=self.digest,
            schema_hash=self._schema_hash,
            model=self._model,
            size=self.parameters.size,
            activity=Activity.LEFT if self._left else part.activity() if part else Activity.WAITING,
            open_round=self.attempt()[0],
            holdings=part.report_holdings() if part else (),
            hops=tuple(part.decisions.values()) if part else (),
            staged=part.report_staged() if part else None,
            resources=self._resources,
            training=self._training,
            evaluation=self._evaluation,
            transfer=self._transfer,
            sent_bytes=self._sent_bytes,
        )


def _values_of(event: Received) -> Vector:
    if event.values is None:
        raise RemoteProtocolError(f"{type(event.message).__name__} without values")
    return event.values
