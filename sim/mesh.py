"""SimMesh: the second driver. Runs the same machines as `transport.runtime`, in virtual time, without a socket.

Training and disk take virtual seconds; deltas are small seeded vectors, while the network charges for `size_bytes`. The
same seed gives the same story. Knows no roles: machines are handed to it. After every event the invariants are checked.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from mdl.delta import Contributor, ModelDelta, Vector
from mdl.errors import RemoteProtocolError
from mdl.evaluation import no_evaluation
from mdl.machine import (
    Effect,
    Evaluate,
    Evaluated,
    Event,
    Finish,
    KeepDelta,
    LocalDeltaReady,
    Machine,
    PeerFound,
    Received,
    RecordRound,
    ResourcesSampled,
    SaveModel,
    Send,
    Tick,
    TrainLocally,
    TransferProgressed,
)
from mdl.messages import PeerInfo, ResourceState, Role, RoundSummary, Said, TrainingReport
from sim.network import Network

_PROGRESS_S = 1.0
_DISCOVERY_S = 0.2
_SAMPLE_S = 2.0
_EVALUATION_S = 0.01


@dataclass
class Node:
    """One simulated process. theta: weight of its deltas. train_s: virtual seconds of local training."""

    info: PeerInfo
    machine: Machine
    train_s: float
    theta: float
    resources: ResourceState
    running: bool = True
    tick_at: float | None = None
    finished: Finish | None = None

    @property
    def contributor(self) -> Contributor:
        return Contributor(self.info.peer_id, self.info.incarnation)


@dataclass
class SimMesh:
    """See the module. own_deltas: (round, contributor) -> the delta of that device, the yardstick of the invariants."""

    network: Network
    seed: int
    size_bytes: int
    invariants: Iterable[Callable[[SimMesh, Node], None]] = ()
    now: float = 0.0
    nodes: dict[str, Node] = field(default_factory=dict)
    own_deltas: dict[tuple[int, Contributor], ModelDelta] = field(default_factory=dict)
    saved: dict[str, tuple[int, Vector]] = field(default_factory=dict)
    kept: dict[tuple[int, str, str], ModelDelta] = field(default_factory=dict)
    rounds: list[RoundSummary] = field(default_factory=list)
    story: list[tuple[float, str, str]] = field(default_factory=list)
    messages: int = 0
    refused: int = 0
    _queue: list[tuple[float, int, Contributor, Event]] = field(default_factory=list)
    _count: int = 0
    _transfers: dict[tuple[str, str, Said], float] = field(default_factory=dict)

    def add(
        self,
        peer_id: str,
        role: Role,
        machine: Machine,
        incarnation: int = 1,
        train_s: float = 1.0,
        theta: float = 1.0,
        resources: ResourceState | None = None,
    ) -> Node:
        """Start a process: it and the others hear of one another by discovery."""
        info = PeerInfo(peer_id, incarnation, role, "sim", 1)
        node = Node(info, machine, train_s, theta, resources or ResourceState(1 << 30, 10.0))
        for other in self.nodes.values():
            if other.running:
                self._schedule(_DISCOVERY_S, other.contributor, PeerFound(info))
                self._schedule(_DISCOVERY_S, node.contributor, PeerFound(other.info))
        self.nodes[peer_id] = node
        self._schedule(0.0, node.contributor, ResourcesSampled(node.resources))
        return node

    def post(self, peer_id: str, event: Event) -> None:
        """Hand an event to a process, as a user's Ctrl-C does."""
        self._schedule(0.0, self.nodes[peer_id].contributor, event)

    def crash(self, peer_id: str) -> None:
        """Kill -9: nothing more is handled or sent by this process."""
        self.nodes[peer_id].running = False

    def run(self, until_s: float, stop: Callable[[], bool] | None = None) -> bool:
        """Run until all have finished or `stop` says so: True; False if virtual time `until_s` came first."""
        while self._queue and self._queue[0][0] <= until_s:
            at, _, target, event = heapq.heappop(self._queue)
            node = self.nodes[target.peer_id]
            if not node.running or node.contributor != target:
                continue
            self.now = at
            if isinstance(event, Tick) and not self._is_due(node):
                continue
            self._handle(node, event)
            if stop and stop():
                return True
        return all(node.finished or not node.running for node in self.nodes.values())

    def _is_due(self, node: Node) -> bool:
        node.tick_at = None
        deadline = node.machine.deadline()
        if deadline is not None and deadline > self.now:
            self._schedule_tick(node, deadline)
            return False
        return deadline is not None

    def _handle(self, node: Node, event: Event) -> None:
        self.story.append((self.now, node.info.peer_id, _describe(event)))
        try:
            effects = node.machine.handle(event, self.now)
        except RemoteProtocolError:
            self.refused += 1
            effects = []
        for effect in effects:
            self._carry_out(node, effect)
        deadline = node.machine.deadline()
        if deadline is not None and (node.tick_at is None or deadline < node.tick_at):
            self._schedule_tick(node, deadline)
        for invariant in self.invariants:
            invariant(self, node)

    def _carry_out(self, node: Node, effect: Effect) -> None:
        match effect:
            case Send():
                self._send(node, effect)
            case TrainLocally(round_id=round_id):
                self._schedule(node.train_s, node.contributor, self._train(node, round_id, effect.parameters.size))
            case Evaluate(round_id=round_id):
                self._schedule(_EVALUATION_S, node.contributor, Evaluated(round_id, no_evaluation(1)))
            case SaveModel(round_id=round_id, parameters=parameters):
                self.saved[node.info.peer_id] = (round_id, parameters)
            case KeepDelta(round_id=round_id, name=name, delta=delta):
                self.kept[round_id, node.info.peer_id, name] = delta
            case RecordRound(summary=summary):
                self.rounds.append(summary)
            case Finish():
                node.finished, node.running = effect, False

    def _train(self, node: Node, round_id: int, size: int) -> LocalDeltaReady:
        rng = np.random.default_rng([self.seed, round_id, node.info.incarnation, *node.info.peer_id.encode()])
        values = rng.standard_normal(size, dtype=np.float32)
        delta = ModelDelta(values, node.theta, frozenset([node.contributor]))
        self.own_deltas[round_id, node.contributor] = delta
        return LocalDeltaReady(round_id, delta, TrainingReport(1.0 / round_id, 100, node.train_s))

    def _send(self, node: Node, send: Send) -> None:
        self.messages += 1
        receiver = self.nodes.get(send.receiver)
        if receiver is None:
            return
        size_bytes = self.size_bytes if send.values is not None else 0
        transfer = (node.info.peer_id, send.receiver, send.message)
        if size_bytes:
            if self._transfers.get(transfer, 0.0) > self.now:
                return  # as in the transport: what is under way is not started twice
            self._transfers[transfer] = self.now
        for arrival in self.network.deliver(node.info.peer_id, send.receiver, size_bytes, self.now):
            values = None if send.values is None else send.values.copy()
            if size_bytes:
                self._transfers[transfer] = arrival
            self._schedule(arrival - self.now, receiver.contributor, Received(node.contributor, send.message, values))
            step = self.now + _PROGRESS_S
            while size_bytes and step < arrival:
                share = int(size_bytes * (step - self.now) / (arrival - self.now))
                progress = TransferProgressed(node.contributor, share, size_bytes)
                self._schedule(step - self.now, receiver.contributor, progress)
                step += _PROGRESS_S

    def _schedule_tick(self, node: Node, deadline: float) -> None:
        node.tick_at = max(deadline, self.now)
        self._schedule(node.tick_at - self.now, node.contributor, Tick())

    def _schedule(self, delay_s: float, target: Contributor, event: Event) -> None:
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._count, target, event))


def _describe(event: Event) -> str:
    if isinstance(event, Received):
        return f"{type(event.message).__name__} from {event.sender.peer_id}"
    return type(event).__name__
