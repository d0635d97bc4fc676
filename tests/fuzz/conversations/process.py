"""Whole processes in one virtual time: the real `Links`, `Hub` or `Spoke`, the real `Runtime`, the real machine.

The loop is `Runtime`'s own (`_turn`), with a poller that never waits, a clock that is the wire's, and workers that
answer after the time that the simulator says their work takes. What a process must never do is looked at after each
turn: raise, be busy for long, say what nobody can read, say far more than it was told, or grow.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from mdl.errors import RemoteProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    Effect,
    Event,
    Finish,
    KeepDelta,
    PeerFound,
    RecordRound,
    ResourcesSampled,
    SaveBallot,
    SaveModel,
)
from mdl.protocol.status_messages import RoundSummary
from mdl.protocol.vector_work import VECTOR_WORK, MergeDeltas, VectorWork, merge_deltas
from mdl.protocol.vocabulary import PeerInfo, ResourceState
from mdl.sim.mesh.process import Disk, Node, begin_work
from mdl.transport.runtime import Runtime
from tests.fuzz.conversations.wire import Socket, Wire
from tests.fuzz.machines import Checked, Misbehaved, _Books, count_items

# A turn in which a message waited comes so long after the one before: what a loop and a link take.
TURN_S = 0.001
# Processor time of one turn; some 0.2 ms are usual. The garbage of ten thousand tests before took 1.3 s within one.
LONGEST_TURN_S = 5.0
# Effects of one event: a word to everybody who is known, and what a round takes besides.
MOST_EFFECTS = 4096
# Things in the containers of one process, links and all.
MOST_THINGS = 400_000
_SAVE_S = 0.03
_SAMPLE = ResourcesSampled(ResourceState(1 << 30, 10.0))


class _Poller:
    """Nothing waits: what has come is there."""

    def register(self, endpoint: object, flags: int = 0) -> None: ...

    def unregister(self, endpoint: object) -> None: ...

    def poll(self, timeout_ms: int = 0) -> list[Any]:
        return []


class _NoWakeUp:
    def recv(self, size: int) -> bytes:
        raise BlockingIOError


class Workers:
    """Stands for the threads beside the loop. answer: what comes of an effect, and after how long; None: nothing."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def put(self, effect: Effect, cause: str = "") -> None:
        process = self._process
        if isinstance(effect, VectorWork) and not isinstance(effect, MergeDeltas):
            done = VECTOR_WORK[type(effect)](effect)
            assert done is not None
            process.runtime.post(done)
            return
        if isinstance(effect, MergeDeltas) and not effect.is_tested:
            process.runtime.post(merge_deltas(effect))
            return
        if answer := process.work(process, effect):
            process.world.later(answer[0], process, answer[1])

    def finish(self, timeout_s: float) -> None: ...

    def abandon(self) -> None: ...


Answer = Callable[["Process", Effect], tuple[float, Event] | None]


class Process:
    """One start of one process. links: as it opens them. disk: what an earlier start has left."""

    def __init__(
        self,
        world: World,
        me: Contributor,
        host: str,
        links: Any,
        machine: Any,
        work: Answer,
        disk: Disk | None = None,
        samples: bool = False,
    ) -> None:
        self.world, self.me, self.host, self.links = world, me, host, links
        self.disk = disk or Disk()
        self.machine = Watched(machine, me)
        self.work = work
        self.rounds: deque[tuple[float, RoundSummary]] = deque(maxlen=50)  # that it has led, and when they closed
        self._queues: list[Any] = []
        self._datagrams: Any = None
        self._watch()
        self.turns = 0
        self.longest_s = 0.0
        self.busy_until = 0.0
        self.runtime: Runtime[Any] = Runtime(
            self.machine,
            links,
            {SaveBallot: self._keep_ballot},
            sample=(lambda counts: _SAMPLE) if samples else None,
            clock=lambda: world.now,
        )
        self.runtime._workers = Workers(self)  # type: ignore[assignment]
        self.runtime._poller = _Poller()  # type: ignore[assignment]
        # A bug that a message meets costs its sender its place; here it is a failure, as a machine built anew is.
        links._meet_bug = _raise_again
        if hasattr(links, "flows"):
            links.flows.on_bug = _raise_again
        self.runtime._wait_ms = lambda: 0  # type: ignore[method-assign]
        self._quiet_until: float | None = None  # since its last turn; only a message or an event changes that

    @property
    def finish(self) -> Finish | None:
        return self.runtime._finish

    def routers(self) -> list[Socket]:
        """What it hears by: links first, then the door."""
        if hasattr(self.links, "doors"):
            return [router for router, _ in self.links.doors._both()]
        return [self.links._endpoint]

    def _watch(self) -> None:
        """Note where messages come in."""
        gate = self.links.context.gate
        self._queues = [each.incoming for each in (*self.routers(), *([gate] if gate is not None else []))]
        self._datagrams = getattr(getattr(self.links, "flows", None), "_port", None)

    def has_come(self) -> bool:
        for queue in self._queues:
            if queue:
                return True
        if not self.runtime._posted.empty():
            return True
        return self._datagrams is not None and bool(self._datagrams.socket.incoming)

    def due(self) -> float:
        if self.has_come():
            return self.busy_until
        if self._quiet_until is None:
            runtime = self.runtime
            times = [self.machine.deadline(), self.links.deadline()]
            if runtime._sample is not None:
                times.append(runtime._next_sample)
            self._quiet_until = max(self.busy_until, min((at for at in times if at is not None), default=float("inf")))
        return self._quiet_until

    def turn(self) -> None:
        """One look around, as the loop does; raises what ends the process, or what it must not do."""
        if self.runtime._finish is not None:
            return
        world = self.world
        world.wire.own_host = self.host
        self.turns += 1
        self._quiet_until = None
        self.busy_until = world.now + TURN_S
        began = time.thread_time()
        self.runtime._turn(_NO_WAKE_UP)  # type: ignore[arg-type]
        took_s = time.thread_time() - began
        if took_s > LONGEST_TURN_S:
            raise Misbehaved(f"a turn of {self.me.peer_id} takes {took_s:.1f} s of the processor")
        self.longest_s = max(self.longest_s, took_s)
        if self.turns % 4000 == 0:
            self.check_size()
        if self.runtime._finish is not None:
            self.disk.end(world.now)
            world.ended.append((self, self.runtime._finish))
            self.links.close()

    def check_size(self) -> None:
        things = count_items((self.machine.machine, self.links))
        if things > MOST_THINGS:
            raise Misbehaved(f"{self.me.peer_id} holds {things} things")

    def close(self) -> None:
        if self.runtime._finish is None:
            self.links.close()

    def _keep_ballot(self, effect: SaveBallot) -> None:
        self.disk.promise(effect.ballot, self.world.now)


def _raise_again(*_: object) -> None:
    """Called where an exception is being handled."""
    raise


_NO_WAKE_UP = _NoWakeUp()


class Watched(Checked):
    """Of every second step the log line is formatted, as by `mdl peer`; what is said is read by those who hear it."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        try:
            effects: list[Effect] = self.machine.handle(event, now)
        except RemoteProtocolError as error:
            if not str(error).isprintable():
                raise Misbehaved(f"an error that is not one printable line: {error!r}") from None
            raise
        self._count += 1
        if len(effects) > MOST_EFFECTS:
            raise Misbehaved(f"{len(effects)} effects of {type(event).__name__}")
        for effect in effects:
            if type(effect) is RecordRound:
                line = msgspec.json.encode(effect.summary)
                msgspec.json.decode(line, type=RoundSummary)
            elif type(effect) is Finish and not effect.problem.isprintable():
                raise Misbehaved(f"a problem that is not one printable line: {effect.problem!r}")
        self.check_deadline()
        if self._count % 2 == 0:
            self.narrator.look(now, event, effects)
        return effects


class World:
    """Processes on one wire. seed: of what they draw. ended: that have, in order."""

    def __init__(self, seed: int, size: int) -> None:
        self.wire = Wire(seed)
        self.processes: list[Process] = []
        self.ended: list[tuple[Process, Finish]] = []
        self.books = _Books(np.random.default_rng(seed))
        self.rng = random.Random(seed + 1)
        self.size = size
        self._later: list[tuple[float, int, Process, Event]] = []
        self._count = 0

    @property
    def now(self) -> float:
        return self.wire.now

    def add(self, process: Process, info: PeerInfo | None = None) -> Process:
        """info: as it is announced; the others that are announced hear of it, and it of them."""
        self.processes.append(process)
        return process

    def drop(self, process: Process) -> None:
        """Kill -9."""
        process.close()
        self.processes.remove(process)

    def later(self, delay_s: float, process: Process, event: Event) -> None:
        self._count += 1
        self._later.append((self.now + delay_s, self._count, process, event))

    def introduce(self, process: Process, host: str) -> None:
        """mDNS: all others hear of it, and it of them."""
        info = process.links.introducer.announced([host])
        for other in self.processes:
            if other is not process and hasattr(other.links, "introducer"):
                other.runtime.post(PeerFound(info))
                process.runtime.post(PeerFound(other.links.introducer.announced([other.host])))

    def run(self, for_s: float) -> None:
        """All that happens in so many seconds from now."""
        until = self.now + for_s
        wire = self.wire
        while True:
            due = min((each.due() for each in self.processes), default=float("inf"))
            if self._later:
                due = min(due, min(self._later)[0])
            if due > until:
                wire.now = until
                break
            wire.now = max(wire.now, due)
            self._deliver()
            for process in list(self.processes):
                if process.due() <= wire.now:
                    process.turn()
            self._take_away_ended()
            wire.on_time()

    def _deliver(self) -> None:
        now = self.now
        ready = sorted(each for each in self._later if each[0] <= now) if self._later else []
        if ready:
            self._later = [each for each in self._later if each[0] > now]
            for _, _, process, event in ready:
                process.runtime.post(event)

    def _take_away_ended(self) -> None:
        self.processes = [each for each in self.processes if each.finish is None]


def of_a_peer(rng: random.Random, machine: Any, info: PeerInfo) -> Answer:
    """The slow work of a peer, as long as the simulator says it takes."""
    node = Node(info, machine, rng.uniform(0.15, 0.4), 1.0, ResourceState(1 << 30, 10.0))

    def work(process: Process, effect: Effect) -> tuple[float, Event] | None:
        if type(effect) is SaveModel:
            process.disk.save(effect, process.world.now)
        elif type(effect) is RecordRound:
            process.rounds.append((process.world.now, effect.summary))
        elif type(effect) is not KeepDelta:
            return begin_work(node, effect, process.world.books)
        return None

    return work
