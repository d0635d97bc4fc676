"""The driver that runs one machine on real links, real time and worker threads.

One loop, in the thread that calls `run`, owns the machine and the links. It waits for messages, posted events and the
next deadline, hands events to the machine and carries its effects out. Everything slow runs in worker threads.
Knows no roles: any machine of `mdl.protocol.machine` runs here as it does in the simulator.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec
import zmq

from mdl.errors import MdlError, RemoteProtocolError
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    Effect,
    Event,
    Finish,
    HeldUp,
    Machine,
    PeerFound,
    Received,
    SaveBallot,
    Send,
    StopRequested,
    Tick,
    WorkFailed,
)
from mdl.protocol.messages import Said
from mdl.protocol.vector_work import VectorWork
from mdl.protocol.vocabulary import Bulk, PeerInfo
from mdl.transport.limits import MET_BUG, Barrier, LogLimit
from mdl.transport.links.sockets import TURN, LinkCounts
from mdl.transport.links.standing import Stated
from mdl.transport.story import Story
from mdl.transport.worker import NodeWorkers, Work
from mdl.writing import disk_s

logger = logging.getLogger(__name__)

# A machine's deadlines that are due at once are handled this often before messages get their turn.
_TICKS_PER_TURN = 8
# A rebuilt machine begins at the last model on the disk, so the runtime waits this long for one that is being written.
_SETTLE_S = 5.0
# The loop wakes at least this often, should a wake-up ever be missed.
_LONGEST_WAIT_S = 1.0
# A turn takes milliseconds. After one that took this long, peers may seem silent only because nobody listened to them.
_HELD_UP_S = 2.0


@dataclass(frozen=True)
class _Moved:
    """This machine's addresses have changed. kept: the addresses that it had all along."""

    kept: frozenset[str]


@dataclass(frozen=True)
class _Met:
    """Work that a message of the peer `cause` asked for has met a bug."""

    error: BaseException
    cause: str


@dataclass(frozen=True)
class _Done:
    """The result of work. start: the number of the machine that asked for it."""

    event: Event
    start: int


@dataclass(frozen=True)
class _OnLinks:
    act: Callable[[Any, float], None]


Observer = Callable[[float, Event, list[Effect]], None]


class Endpoint(Protocol):
    """A node's connections.

    `mdl.transport.links.mesh_links` in a mesh, `mdl.transport.links.hub` between a cloud and learners.
    """

    counts: LinkCounts
    barrier: Barrier

    def send(self, receiver: str, message: Said, values: Bulk | None, now: float) -> None: ...

    def learn(self, info: PeerInfo) -> list[Event]: ...

    def move(self, kept: frozenset[str]) -> list[Event]: ...

    def state(self, stated: Stated) -> list[Event]: ...

    def receive(self, now: float) -> list[Event]: ...

    def deadline(self) -> float | None: ...

    def is_sending(self) -> bool: ...

    def pollable(self) -> Sequence[zmq.Socket[bytes] | socket.socket]: ...

    def put_out(self, peer_id: str, now: float) -> float: ...

    def is_out(self, peer_id: str, now: float) -> bool: ...

    def close(self, linger_ms: int = 0) -> None: ...


LinksT = TypeVar("LinksT", bound=Endpoint)


@dataclass(frozen=True)
class Renewed:
    """A machine that begins again. first: events that it handles at once. header: of its story."""

    machine: Machine
    first: Sequence[Event] = ()
    header: msgspec.Struct | None = None


Renew: TypeAlias = Callable[[LinksT], Renewed]


class Runtime(Generic[LinksT]):
    """Runs `machine` until it finishes.

    work: carries out each kind of effect but Send and Finish, in threads beside the loop (`NodeWorkers`); the resulting
    event goes back to the machine. Work on whole vectors is `VECTOR_WORK` unless it is given. SaveBallot is carried out
    in the loop's thread, before the effects behind it. If it fails, the machine hears of that before anything else, and
    only vector work is done of the effects behind it.
    sample: called in the loop's thread every sample_interval_s with the counts of the links; must be quick.
    renew: builds the machine once more from what is stored, as after a restart, with links that begin again, and gives
    the events that it handles first. It is called after a peer's message has met a bug, since the machine may be half
    changed. Without it such a bug ends the loop, as every other bug does.
    observe: called after each step with the time, the event and the effects; must not change anything.
    story_path: the file for the last events if the node crashes.
    flush_s: how long a finishing node sends remaining messages; drain_s: how long it finishes work.
    """

    def __init__(
        self,
        machine: Machine,
        links: LinksT,
        work: Work,
        *,
        sample: Callable[[LinkCounts], Event] | None = None,
        sample_interval_s: float = 1.0,
        observe: Observer | None = None,
        renew: Renew[LinksT] | None = None,
        story_path: Path | None = None,
        flush_s: float = 0.5,
        drain_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.links = links
        self.story = Story()
        self._machine = machine
        self._work = work
        self._sample = sample
        self._sample_interval_s = sample_interval_s
        self._observe = observe
        self._renew = renew
        self._story_path = story_path
        self._flush_s = flush_s
        self._drain_s = drain_s
        self._clock = clock
        self._posted: queue.SimpleQueue[Event | _Moved | _OnLinks | _Met | _Done | Stated | BaseException] = (
            queue.SimpleQueue()
        )
        self._wake_writer: socket.socket | None = None  # only while `run` runs; events posted before wait
        self._stops = 0
        self._is_over = False
        self._finish: Finish | None = None
        self._next_sample = clock()
        self._held_up: HeldUp | None = None
        self._lines = LogLimit(logger)
        self._workers = NodeWorkers(work, self._post_done, self._crash_of)
        self._starts = 1
        self._poller = zmq.Poller()
        self._polled: Sequence[zmq.Socket[bytes] | socket.socket] = ()

    def post(self, event: Event) -> None:
        """Hand an event to the machine, from any thread or a signal handler."""
        self._posted.put(event)
        self._wake()

    def move(self, kept: frozenset[str]) -> None:
        """Tell the links, from any thread, that this machine's addresses changed; kept: addresses it had all along."""
        self._posted.put(_Moved(kept))
        self._wake()

    def state(self, stated: Stated) -> None:
        """State something in the mesh, from any thread; see `Links.state`."""
        self._posted.put(stated)
        self._wake()

    def with_links(self, act: Callable[[LinksT, float], None]) -> None:
        """Call `act` with the links and the time in the loop's thread, from any thread."""
        self._posted.put(_OnLinks(act))
        self._wake()

    def stop(self) -> None:
        """Ask the machine to finish cleanly, as the user wants; a second call ends the loop at once."""
        self._stops += 1
        self.post(StopRequested())

    @property
    def is_over(self) -> bool:
        """True once `run` has returned: saving takes a moment then, and nothing reacts to `stop` any more."""
        return self._is_over

    def run(self) -> Finish:
        """Drive the machine until it finishes; closes the links. Raises what a bug in it or in its work raised."""
        reader, writer = socket.socketpair()
        try:
            for end in (reader, writer):
                end.setblocking(False)
            self._poller.register(reader, zmq.POLLIN)
            self._wake_writer = writer
            while self._finish is None and self._stops < 2:
                self._turn(reader)
            return self._leave()
        except BaseException:
            if self._story_path is not None:
                self.save_story(self._story_path)
            raise
        finally:
            self._is_over = True
            self._workers.abandon()
            self.links.close(linger_ms=round(self._flush_s * 1000))
            reader.close()
            writer.close()

    def close(self) -> None:
        """Close the links of a runtime that is not run after all."""
        self._is_over = True
        self.links.close()

    def save_story(self, path: Path) -> None:
        """Write the last events and effects as JSON lines, without bulk values; log it if the disk refuses."""
        try:
            self.story.save(path)
        except MdlError as error:  # a lost story changes nothing about how the node ends
            logger.warning("the story is lost: %s", error)

    def _turn(self, reader: socket.socket) -> None:
        """Take one look around: messages (a bounded number), posted events (likewise), then whatever is due."""
        self._watch_links()
        self._poller.poll(self._wait_ms())
        with contextlib.suppress(BlockingIOError):
            reader.recv(4096)
        now, waited_s = self._clock(), disk_s()
        self._lines.on_time(now)
        if self._held_up is not None:
            held_up, self._held_up = self._held_up, None
            self._step(held_up, now)
        self._handle(now)
        if (took_s := self._clock() - now) >= _HELD_UP_S:
            self._held_up = HeldUp(took_s, disk_s() - waited_s)

    def _handle(self, now: float) -> None:
        """Hand the machine what has arrived by now, and what is due."""
        for event in self.links.receive(now):
            self._step(event, now)
        for event in self._take_posted(now):
            self._step(event, now)
        for _ in range(_TICKS_PER_TURN):
            deadline = self._machine.deadline()
            if self._finish is not None or deadline is None or deadline > now:
                break
            self._step(Tick(), now)
        if self._sample is not None and now >= self._next_sample:
            self._next_sample = now + self._sample_interval_s
            self._step(self._sample(self.links.counts), now)

    def _watch_links(self) -> None:
        """Poll the sockets that the links have now: a socket may rest for a moment, or be replaced after a move."""
        endpoints = self.links.pollable()
        if endpoints != self._polled:
            for endpoint in self._polled:
                self._poller.unregister(endpoint)
            for endpoint in endpoints:
                self._poller.register(endpoint, zmq.POLLIN)
            self._polled = endpoints

    def _wait_ms(self) -> int:
        """Return the milliseconds until something is due, rounded up so that the loop does not spin."""
        if not self._posted.empty():
            return 0
        times = [self._machine.deadline(), self.links.deadline()]
        if self._sample is not None:
            times.append(self._next_sample)
        due = min((due_at for due_at in times if due_at is not None), default=None)
        wait_s = _LONGEST_WAIT_S if due is None else min(max(due - self._clock(), 0.0), _LONGEST_WAIT_S)
        return int(wait_s * 1000) + (1 if wait_s > 0 else 0)

    def _take_posted(self, now: float) -> list[Event]:
        """Return the events that other threads posted. The links learn a PeerFound first; only news goes on."""
        events: list[Event] = []
        for _ in range(TURN):
            try:
                item = self._posted.get_nowait()
            except queue.Empty:
                break
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, _Moved):
                events += self.links.move(item.kept)
            elif isinstance(item, _Met):
                self._meet_bug(item.cause, item.error, now)
            elif isinstance(item, _Done):
                events += [item.event] if item.start == self._starts else []  # the former machine asked for it
            elif isinstance(item, _OnLinks):
                item.act(self.links, now)
            elif isinstance(item, Stated):
                events += self._state(item, now)
            else:
                events += self._learn(item, now) if isinstance(item, PeerFound) else [item]
        return events

    def _state(self, stated: Stated, now: float) -> list[Event]:
        try:
            return self.links.state(stated)
        except RemoteProtocolError as error:
            self._lines.warning(now, "", "not stated: %s", error)
            return []

    def _learn(self, found: PeerFound, now: float) -> list[Event]:
        try:
            return self.links.learn(found.info)
        except RemoteProtocolError as error:
            self.links.counts.refused += 1
            self._lines.warning(now, found.info.peer_id, "peer refused: %s", error)
            return []

    def _step(self, event: Event, now: float) -> None:
        cause = _cause_of(event)
        if not cause or self._renew is None:
            self._take_step(event, now)
            return
        if self.links.is_out(cause, now):
            return  # it came with the message that met a bug
        try:
            self._take_step(event, now, cause)
        except Exception as error:  # noqa: BLE001 (the driver's outermost loop: a bug that this peer's message met)
            self.story.add(now, event, [])
            self._meet_bug(cause, error, now)

    def _take_step(self, event: Event, now: float, cause: str = "") -> None:
        if self._finish is not None:
            return
        try:
            effects = self._machine.handle(event, now)
        except RemoteProtocolError as error:
            self.links.counts.refused += 1
            sender = event.sender.peer_id if isinstance(event, Received) else ""
            self._lines.warning(now, sender, "message refused: %s", error)
            effects = []
        self.story.add(now, event, effects)
        if self._observe is not None:
            self._observe(now, event, effects)
        for place, effect in enumerate(effects):
            if type(effect) is not SaveBallot:
                self._carry_out(effect, now, cause)
            elif problem := self._keep(effect):
                # No peer may learn of a ballot that is not on the disk: neither from the effects behind it nor from
                # later events.
                self._take_step(WorkFailed(SaveBallot.__name__, problem), now)
                for begun in effects[place + 1 :]:
                    if isinstance(begun, VectorWork):  # the machine waits for it before it leaves
                        self._workers.put(begun)
                break

    def _meet_bug(self, cause: str, error: BaseException, now: float) -> None:
        """Ignore the peer that sent a message which met a bug, and go on with a rebuilt machine.

        The former machine may be half changed. Raises the error if the machine cannot be rebuilt, or if so many
        rebuilds came lately that the cause must be in the data they start from.
        """
        renew = self._renew
        if renew is None or not isinstance(error, Exception) or not self.links.barrier.may_rebuild(now):
            raise error
        self._lines.bug(now, cause, MET_BUG, cause, self.links.put_out(cause, now), error=error)
        if self._story_path is not None:
            self.save_story(self._story_path.with_suffix(".bug.jsonl"))
        self._workers.begin_again(_SETTLE_S)
        self._starts += 1
        renewed = renew(self.links)
        self._machine, self.story = renewed.machine, Story(header=renewed.header)
        for event in renewed.first:
            self._take_step(event, now)
        if self._stops:
            self._take_step(StopRequested(), now)

    def _carry_out(self, effect: Effect, now: float, cause: str = "") -> None:
        match effect:
            case Send():
                self.links.send(effect.receiver, effect.message, effect.values, now)
            case Finish():
                self._finish = effect
            case _:
                self._workers.put(effect, cause)

    def _keep(self, effect: SaveBallot) -> str:
        """Write the ballot; return the disk's error, "" if the ballot is written."""
        try:
            self._work[SaveBallot](effect)
        except MdlError as error:
            return str(error)
        return ""

    def _leave(self) -> Finish:
        """Finish queued work and send the last messages, both for a bounded time, unless a second stop came."""
        if self._stops < 2:
            give_up_at = self._clock() + self._flush_s
            while self.links.is_sending() and self._clock() < give_up_at and self._stops < 2:
                self._poller.poll(50)
                self.links.receive(self._clock())
        self._workers.finish(self._drain_s if self._stops < 2 else 0.0)
        while not self._posted.empty():
            item = self._posted.get_nowait()
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, _Met):
                raise item.error
        return self._finish if self._finish is not None else Finish("stopped at once, as asked twice", 130)

    def crash(self, error: BaseException) -> None:
        """Make `run` raise an error of this node's code that occurred in another thread."""
        self._posted.put(error)
        self._wake()

    def _post_done(self, event: Event) -> None:
        """Post an event of this runtime's own work, from its threads."""
        self._posted.put(_Done(event, self._starts))
        self._wake()

    def _crash_of(self, error: BaseException, cause: str) -> None:
        if not cause:
            self.crash(error)
            return
        self._posted.put(_Met(error, cause))
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: the loop will wake anyway; closed: it has ended
            if self._wake_writer is not None:
                self._wake_writer.send(b"\0")


def _cause_of(event: Event) -> str:
    """Return the peer that an event comes or follows from; "" for an event of this node itself."""
    if isinstance(event, PeerFound):
        return event.info.peer_id
    sender = getattr(event, "sender", None)
    return sender.peer_id if isinstance(sender, Contributor) else ""
