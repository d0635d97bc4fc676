"""The rounds of a mesh in one process: local training on real data, and the exchange in segments that devices have.

Deltas are cut, coded, merged by owners and given out by the devices' own machines (`peers/roles/trainer/exchange.py`),
which talk without a network; what coding leaves comes in with the next delta. So figures are those of a mesh in
which nobody is ever late, in a fraction of the time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec
import numpy as np

from mdl.config import TrainingSettings
from mdl.data import DataSet, split_windows, take_windows
from mdl.learning.evaluation import evaluate
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.learning.training import LocalTrainer, model_delta
from mdl.own import Own
from mdl.peers.edge.device import device_seed
from mdl.peers.roles.trainer.exchange import SegmentExchange
from mdl.protocol.checksum import checksums_by_piece
from mdl.protocol.coding import Coding, pack
from mdl.protocol.counts import Evaluation
from mdl.protocol.delta import Contributor, ModelDelta
from mdl.protocol.grid import Vector, grid_of, room_for
from mdl.protocol.machine import Send
from mdl.protocol.round_messages import BroadcastOrdered, PieceMessage, SegmentMessage, SegmentsReady, SegmentTaken
from mdl.protocol.segments import count_segments, segment_values
from mdl.protocol.vector_work import Outer, hold_own
from mdl.scheduler.policies.segment_plan import apportion


@dataclass
class Exchanges:
    """All devices' exchanges, round after round. sent_bytes: of all values that travelled so far."""

    count: int
    size: int
    coding: Coding
    sent_bytes: int = 0
    _rest: dict[Contributor, Vector] = field(default_factory=dict)

    def mean(self, round_id: int, parameters: Vector, deltas: list[Vector]) -> ModelDelta:
        """The result that all devices have: float32 (P,), of deltas from these parameters that weigh the same."""
        room = room_for(float(self.count), coding=self.coding)
        peers = tuple(Contributor(str(number), 1) for number in range(self.count))
        values = segment_values(self.size, owners=self.count)
        owns = apportion([1.0 / self.count] * self.count, count_segments(self.size, values))
        order = BroadcastOrdered(
            round_id, 1, b"", 1, peers, float(self.count), peers, owns=tuple(owns), segment_values=values, room=room
        )
        machines = {}
        for peer, delta in zip(peers, deltas, strict=True):
            earlier = (self._rest[peer],) if peer in self._rest else ()
            held = hold_own(parameters, ModelDelta(delta, 1.0, frozenset([peer])), room, earlier)
            told = checksums_by_piece(held.sum.values)
            machines[peer] = SegmentExchange(order, peer, held.sum, self.size, 1.0, checksums=told)
            if held.rest is not None:
                self._rest[peer] = held.rest
        self._talk(machines)
        first = machines[peers[0]].result.values
        for peer, machine in machines.items():
            if not machine.is_whole or machine.result.values.tobytes() != first.tobytes():
                raise RuntimeError(f"round {round_id}: the result of device {peer.peer_id} is another one")
        return ModelDelta(grid_of(parameters, room).to_mean(first, order.theta), order.theta, frozenset(peers))

    def _talk(self, machines: dict[Contributor, SegmentExchange]) -> None:
        by_id = {peer.peer_id: peer for peer in machines}
        queue: deque[tuple[Contributor, Send]] = deque()
        for peer, machine in machines.items():
            queue.extend((peer, send) for send in machine.begin())
        while queue:
            sender, send = queue.popleft()
            receiver, message, values = by_id[send.receiver], send.message, send.values
            machine, answers = machines[receiver], list[Send]()
            if isinstance(values, np.ndarray):
                is_packed = isinstance(message, PieceMessage | SegmentMessage) and message.is_packed
                self.sent_bytes += len(pack(values.view(np.int32))) if is_packed else values.nbytes
            if isinstance(message, SegmentsReady):
                answers = machine.hear_ready(sender, message, 0.0)
            elif isinstance(message, SegmentTaken):
                answers = machine.hear_taken(sender, message, 0.0)
            elif isinstance(message, PieceMessage) and isinstance(values, np.ndarray):
                answers = machine.take_piece(sender, message, values, 0.0)
            elif isinstance(message, SegmentMessage) and isinstance(values, np.ndarray):
                answers = machine.take_result(sender, message, values, 0.0)
            queue.extend((receiver, answer) for answer in answers)


class Mesh:
    """Devices that train rounds on their shares of a data set. settings: planned_rounds must be the run's."""

    def __init__(
        self, data: DataSet, model: str | Own, settings: TrainingSettings, peers: int, split: str, coding: Coding,
        seed: int, eta: float = 1.0, momentum: float = 0.0,
    ) -> None:  # fmt: skip
        self._data = data
        shards = [take_windows(data.train, rows) for rows in split_windows(data.train, split, peers, seed)]
        self._trainers = [
            LocalTrainer(
                FlatModel(build_model(model, data.shape[0], data.shape[1], len(data.classes), seed)),
                *(shard.x, shard.y, msgspec.structs.replace(settings, seed=device_seed(seed, index))),
            )
            for index, shard in enumerate(shards, start=1)
        ]
        first = self._trainers[0].model
        self._outer = Outer(eta, momentum, tuple((place.start, place.stop) for place in first.buffers()))
        self._state, self._size = self._outer.begin(first.values().copy()), first.size
        self.exchanges = Exchanges(peers, first.size, coding)
        self.steps = 0
        self._overlaps, self._ahead = settings.overlap, dict[int, Vector]()

    @property
    def parameters(self) -> Vector:
        return self._state[: self._size]

    def train_round(self, round_id: int) -> ModelDelta:
        """The mean delta of a round that begins at `parameters`; what becomes of it is the caller's."""
        deltas, parameters = [], self.parameters
        for number, trainer in enumerate(self._trainers):
            start = self._ahead.get(number, parameters)  # where its own training of the last round came to
            done = trainer.train_round(start, round_id)
            deltas.append(model_delta(start, done.values))
            if self._overlaps:
                self._ahead[number] = parameters - deltas[-1]
            self.steps += done.steps
        return self.exchanges.mean(round_id, parameters, deltas)

    def apply(self, delta: Vector) -> None:
        self._state = self._outer.step(self._state, delta)

    def test(self) -> Evaluation:
        model = self._trainers[0].model
        model.load(self.parameters)
        return evaluate(model.module, self._data.test.x, self._data.test.y, len(self._data.classes))
