"""A master and its slaves (FedAvg with one of the devices as the server), as machines of the same drivers as a mesh.

What MDLdroid compares itself with (4.5.1: "the same system architecture, to keep training computational and
communication costs identical"): links, encryption, messages of values, merging, applying and the file cache are those
of the mesh. Only who talks with whom differs: each slave sends its delta to the master, which makes the mean of all and
sends it to each. The master trains, too, so that as few vectors as possible travel: 2 (N - 1) a round.

A slave says which result it waits for, and repeats it; the master fetches deltas, as many at once as a node takes in.
Round 0 is the roll-call: its result, w(0), goes out when all slaves have asked for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import numpy as np

from mdl.protocol.delta import Contributor, PartialSum
from mdl.protocol.grid import Vector
from mdl.protocol.machine import Effect, Event, Finish, LocalDeltaReady, Received, SaveModel, Send, Tick, TrainLocally
from mdl.protocol.round_messages import DeltaMessage, DeltaWanted, GlobalMessage, GlobalWanted
from mdl.protocol.vector_work import ApplyDelta, DeltaApplied, DeltasMerged, MergeDeltas, Outer, hold_own

REPEAT_S = 1.0
# A delta that was asked for again after so long did not get through: links give a transfer up after 10 s.
LOST_S = 15.0
# Whoever is done says so until it is answered, or so often.
_GOODBYES = 5
# As many destinations as a node gives to what comes in (`mdl.transport.wire.incoming`): more would only be offered
# again.
MOST_FETCHED = 2
# Of the grid: for up to 256 devices of weight 1.
_ROOM = 8
_ATTEMPT = 1


@dataclass
class Slave:
    """Trains, hands over its delta, applies the mean. rounds: after so many it is done. parameters: w(t)."""

    me: Contributor
    master: str
    parameters: Vector
    rounds: int
    round_id: int = 0
    delta: PartialSum | None = None
    _wants_at: float | None = 0.0
    _taken: int = -1
    _gave_at: float = -inf
    _goodbyes: int = 0

    def deadline(self) -> float | None:
        return self._wants_at

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Tick() if self._wants_at is not None and now >= self._wants_at:
                return self._want(now)
            case Received(message=DeltaWanted(round_id=round_id)) if round_id == self.round_id > self.rounds:
                return [Finish()]
            case Received(message=DeltaWanted(round_id=round_id)) if self.delta and round_id == self.round_id:
                if now < self._gave_at + LOST_S:
                    return []
                self._gave_at = now
                said = DeltaMessage(round_id, round_id, self.delta.theta, tuple(self.delta.contributors))
                return [Send(self.master, said, self.delta.values.view(np.float32))]
            case Received(message=GlobalMessage(round_id=round_id) as message, values=values) if self._is_awaited(
                round_id
            ):
                self._wants_at, self._taken = None, round_id
                assert isinstance(values, np.ndarray)
                who = frozenset(message.contributors)
                result = PartialSum(values.view(np.int32), message.theta, who, _ROOM)
                return [ApplyDelta(round_id, self.parameters, result, Outer(), in_place=True)]
            case DeltaApplied():
                return self._begin(event, now)
            case LocalDeltaReady(delta=delta):
                self.delta = hold_own(self.parameters, delta, _ROOM).sum
                return self._want(now)
        return []

    def _is_awaited(self, round_id: int) -> bool:
        return round_id == self.round_id and round_id > self._taken

    def _want(self, now: float) -> list[Effect]:
        self._wants_at = now + REPEAT_S
        self._goodbyes += self.round_id > self.rounds
        if self._goodbyes > _GOODBYES:
            return [Finish()]
        return [Send(self.master, GlobalWanted(self.round_id))]

    def _begin(self, applied: DeltaApplied, now: float) -> list[Effect]:
        self.parameters, self.delta, self._gave_at = applied.state, None, -inf
        effects: list[Effect] = [SaveModel(applied.round_id, applied.state, applied.digest)]
        self.round_id = applied.round_id + 1
        if self.round_id > self.rounds:  # so that the master knows that it need not stay
            return [*effects, *self._want(now)]
        return [*effects, TrainLocally(self.round_id, self.parameters, self.rounds)]


@dataclass
class Master:
    """Trains likewise, and makes the mean of all deltas.

    collects: it merges when it has all of them, as the paper's (memory O(N), Fig. 1b); else each as it comes.
    """

    me: Contributor
    slaves: tuple[str, ...]
    parameters: Vector
    rounds: int
    collects: bool = True
    round_id: int = 0
    mine: PartialSum | None = None
    _waits_for: dict[str, int] = field(default_factory=dict)
    _fetching: set[str] = field(default_factory=set)
    _came: set[str] = field(default_factory=set)
    _held: list[PartialSum] = field(default_factory=list)
    _merging: bool = False

    def deadline(self) -> float | None:
        return None

    def handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(sender=sender, message=GlobalWanted(round_id=round_id)):
                self._waits_for[sender.peer_id] = round_id
                if self.round_id > self.rounds:
                    return [Send(sender.peer_id, DeltaWanted(round_id, _ATTEMPT, 0)), *self._go_on()]
                self._fetching.discard(sender.peer_id)  # asked again: who has answered lets it pass
            case Received(sender=sender, message=DeltaMessage() as said, values=values):
                if said.round_id != self.round_id or sender.peer_id in self._came:
                    return []
                assert isinstance(values, np.ndarray)
                self._came.add(sender.peer_id)
                self._fetching.discard(sender.peer_id)
                self._held.append(PartialSum(values.view(np.int32), said.theta, frozenset(said.contributors), _ROOM))
            case LocalDeltaReady(delta=delta):
                self.mine = hold_own(self.parameters, delta, _ROOM).sum
            case DeltasMerged(merged=merged):
                assert merged is not None
                self.mine, self._merging = merged, False
            case DeltaApplied():
                return self._begin(event)
            case _:
                return []
        return self._go_on()

    def _go_on(self) -> list[Effect]:
        here = [slave for slave in self.slaves if self._waits_for.get(slave, -1) == self.round_id]
        if self.round_id > self.rounds:
            return [Finish()] if len(here) == len(self.slaves) else []
        if self.round_id == 0:
            return self._give_first() if len(here) == len(self.slaves) else []
        return [*self._fetch(here), *self._merge()]

    def _give_first(self) -> list[Effect]:
        nothing = np.zeros(self.parameters.size, np.int32)
        self.mine = PartialSum(nothing, 1.0, frozenset([self.me]), _ROOM)
        return self._give()

    def _fetch(self, here: list[str]) -> list[Effect]:
        free = [slave for slave in here if slave not in self._came | self._fetching]
        chosen = free[: max(0, MOST_FETCHED - len(self._fetching))]
        self._fetching |= set(chosen)
        return [Send(slave, DeltaWanted(self.round_id, _ATTEMPT, self.round_id)) for slave in chosen]

    def _merge(self) -> list[Effect]:
        if self.mine is None or self._merging:
            return []
        if len(self.mine.contributors) == len(self.slaves) + 1:
            return self._give()
        if not self._held or (self.collects and len(self._came) < len(self.slaves)):
            return []
        self._merging = True
        return [MergeDeltas(self.round_id, self.round_id, self.mine, self._held.pop(0))]

    def _give(self) -> list[Effect]:
        assert self.mine is not None
        result, self.mine = self.mine, None
        said = GlobalMessage(self.round_id, result.theta, tuple(result.contributors), _ATTEMPT, 1)
        given: list[Effect] = [Send(slave, said, result.values.view(np.float32)) for slave in self.slaves]
        return [*given, ApplyDelta(self.round_id, self.parameters, result, Outer())]

    def _begin(self, applied: DeltaApplied) -> list[Effect]:
        self.parameters = applied.state
        self.round_id = applied.round_id + 1
        self._came.clear()
        self._fetching.clear()
        saved = SaveModel(applied.round_id, applied.state, applied.digest)
        if self.round_id > self.rounds:
            return [saved, *self._go_on()]
        return [saved, TrainLocally(self.round_id, self.parameters, self.rounds)]
