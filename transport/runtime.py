"""The driver that runs one machine on real links, real time and a worker thread.

One loop, in the thread that calls `run`, owns the machine and the links: it waits for messages, posted events and the
next deadline, hands events to the machine and carries its effects out. Everything slow runs in the worker.
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
from mdl.protocol.bulk import Bulk
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
from mdl.protocol.vocabulary import PeerInfo
from mdl.transport.barrier import MET_BUG, Barrier
from mdl.transport.links.sockets import TURN, LinkCounts
from mdl.transport.links.standing import Stated
from mdl.transport.loglimit import LogLimit
from mdl.transport.story import Story
from mdl.transport.worker import Work, Workers
from mdl.writing import disk_s

logger = logging.getLogger(__name__)

# Deadlines that a machine has due again at once are handled this often before messages get their turn.
_TICKS_PER_TURN = 8
# A machine that is built once more begins at the last model that is on the disk: one being written is waited for.
_SETTLE_S = 5.0
# Nothing waits longer than this for the loop to look around, should a wake-up ever be missed.
_LONGEST_WAIT_S = 1.0
# A turn takes milliseconds. After one that took so long others may count as silent that only were not heard.
_HELD_UP_S = 2.0


@dataclass(frozen=True)
class _Moved:
    """This machine's addresses have changed; kept: those it had all along."""

    kept: frozenset[str]


@dataclass(frozen=True)
class _Met:
    """Work that a message of this peer asked for has met a bug."""

    error: BaseException
    cause: str


@dataclass(frozen=True)
class _Done:
    """The result of work. start: of the machine, that asked for it."""

    event: Event
    start: int


@dataclass(frozen=True)
class _OnLinks:
    act: Callable[[Any, float], None]


Observer = Callable[[float, Event, list[Effect]], None]


class Endpoint(Protocol):
    """What connects a node with others: `mdl.transport.links.mesh_links` in a mesh, `mdl.transport.links.hub` between a
    cloud and learners.
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
    """A machine that begins again. first: what it has to hear at once. header: of its story."""

    machine: Machine
    first: Sequence[Event] = ()
    header: msgspec.Struct | None = None


Renew: TypeAlias = Callable[[LinksT], Renewed]


class Runtime(Generic[LinksT]):
    """Runs `machine` until it finishes.

    work: what carries out each kind of effect but Send and Finish, in threads beside the loop (`Workers`); its event
    goes back to the machine. What works on whole vectors is `VECTOR_WORK` unless it is given. SaveBallot is carried out
    in the loop's thread, before the effects behind it; if it fails, the machine hears of it before anything else, and
    of those behind it work on vectors alone is done.
    sample: called in the loop's thread every sample_interval_s with what the links count; must be quick.
    renew: builds the machine once more from what there is, as after a restart, with links that begin again, and gives
    what it has to hear first. It is asked where a peer's message has met a bug, since the machine may be half changed;
    without it such a bug ends the loop, as every other one does.
    observe: called after each step with the time, the event and the effects; must not change anything. flush_s: how
    long a finishing node lets messages out; drain_s: and its worker work. story_path: its last events, if it crashes.
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
        self._wake_writer: socket.socket | None = None  # while `run` runs; what is posted before waits for it
        self._stops = 0
        self._is_over = False
        self._finish: Finish | None = None
        self._next_sample = clock()
        self._held_up: HeldUp | None = None
        self._lines = LogLimit(logger)
        self._workers = Workers(work, self._post_done, self._crash_of)
        self._starts = 1
        self._poller = zmq.Poller()
        self._polled: Sequence[zmq.Socket[bytes] | socket.socket] = ()

    def post(self, event: Event) -> None:
        """Hand an event to the machine, from any thread or a signal handler."""
        self._posted.put(event)
        self._wake()

    def move(self, kept: frozenset[str]) -> None:
        """This machine's addresses have changed, from any thread; kept: those that were there all along."""
        self._posted.put(_Moved(kept))
        self._wake()

    def state(self, stated: Stated) -> None:
        """Tell the mesh, from any thread; see `Links.state`."""
        self._posted.put(stated)
        self._wake()

    def with_links(self, act: Callable[[LinksT, float], None]) -> None:
        """Have this done to the links in the loop's thread, from any thread."""
        self._posted.put(_OnLinks(act))
        self._wake()

    def stop(self) -> None:
        """The user wants to stop: the machine finishes cleanly; a second call ends the loop at once."""
        self._stops += 1
        self.post(StopRequested())

    @property
    def is_over(self) -> bool:
        """Whether `run` has returned: what is saved now takes a moment, and nothing listens to `stop` any more."""
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
        """Of a runtime that is not run after all: closes the links."""
        self._is_over = True
        self.links.close()

    def save_story(self, path: Path) -> None:
        """Write the last events and effects as JSON lines, without bulk values; told if the disk refuses."""
        try:
            self.story.save(path)
        except MdlError as error:  # no reason to end otherwise than the node does
            logger.warning("the story is lost: %s", error)

    def _turn(self, reader: socket.socket) -> None:
        """One look around: messages (a bounded number), posted events (likewise), then whatever is due."""
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
        """Hand on what has come by now, and what is due."""
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
        """Wait on what the links have now: a socket may rest for a moment, or be another where this machine moved."""
        endpoints = self.links.pollable()
        if endpoints != self._polled:
            for endpoint in self._polled:
                self._poller.unregister(endpoint)
            for endpoint in endpoints:
                self._poller.register(endpoint, zmq.POLLIN)
            self._polled = endpoints

    def _wait_ms(self) -> int:
        """Milliseconds until something is due, rounded up so that the loop does not spin."""
        if not self._posted.empty():
            return 0
        times = [self._machine.deadline(), self.links.deadline()]
        if self._sample is not None:
            times.append(self._next_sample)
        due = min((due_at for due_at in times if due_at is not None), default=None)
        wait_s = _LONGEST_WAIT_S if due is None else min(max(due - self._clock(), 0.0), _LONGEST_WAIT_S)
        return int(wait_s * 1000) + (1 if wait_s > 0 else 0)

    def _take_posted(self, now: float) -> list[Event]:
        """What other threads posted. A PeerFound is learned first: only news goes on to the machine."""
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
                # Nobody may hear of it: not from the effects behind it, nor from what the next event would have it say.
                self._take_step(WorkFailed(SaveBallot.__name__, problem), now)
                for begun in effects[place + 1 :]:
                    if isinstance(begun, VectorWork):  # the machine waits for it before it leaves
                        self._workers.put(begun)
                break

    def _meet_bug(self, cause: str, error: BaseException, now: float) -> None:
        """Put the peer out whose message met a bug, and go on with a machine that is built once more.

        The former one may be half changed. Raises the error where there is no way to build it, or where so many had to
        be built lately that the cause is in what they are built from.
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
        """What the disk says against it; "" if it is there."""
        try:
            self._work[SaveBallot](effect)
        except MdlError as error:
            return str(error)
        return ""

    def _leave(self) -> Finish:
        """Let queued work and messages out, both for a bounded time, unless a second stop came."""
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
        """Something that belongs to this node has failed in another thread: `run` raises it."""
        self._posted.put(error)
        self._wake()

    def _post_done(self, event: Event) -> None:
        """An event of this runtime's own work, from its threads."""
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
    """The peer whose word an event is, or follows from; "" for what this node has by itself."""
    if isinstance(event, PeerFound):
        return event.info.peer_id
    sender = getattr(event, "sender", None)
    return sender.peer_id if isinstance(sender, Contributor) else ""
