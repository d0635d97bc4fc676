"""Whole machines under hostile messages, in the states they reach in real runs.

A simulated mesh runs to a random moment; then messages that no honest process would send come in between the others:
extremes, wrong ids, of the past, of other lineages, repeated, in anybody's name. What is held after each event: nothing
is raised but RemoteProtocolError, all that is said can be read by an honest receiver, nothing is due in the past for
ever, and nothing grows.
"""

from __future__ import annotations

import logging
import math
import random
from collections import deque
from typing import Any, get_args

import msgspec
import numpy as np
from rich.console import Console

from mdl.errors import LocalProtocolError, RemoteProtocolError
from mdl.peers.cloud.machine import CLOUD, CloudSettings, Learner, LearnerSettings
from mdl.peers.colla.machine import Cloud, CloudState
from mdl.peers.edge.narrate import Narrator
from mdl.peers.roles.build import TrainerStart, build_machine, simulated_start
from mdl.peers.roles.outsiders import Observer
from mdl.peers.view.snapshot import Told, take_snapshot
from mdl.peers.view.terminal import describe_summary, draw_mesh
from mdl.protocol.delta import Contributor, ModelDelta, digest_of
from mdl.protocol.grid import Vector
from mdl.protocol.machine import (
    CycleTaught,
    Effect,
    Event,
    Finish,
    NameTaken,
    PeerFound,
    Received,
    RecordRound,
    Send,
    StoreUpdate,
    StudyLesson,
    TeachCycle,
    Tick,
    TransferProgressed,
    UpdateReady,
    UpdateStored,
    WorkFailed,
)
from mdl.protocol.messages import CARRIERS, PACKED, SEGMENTS, Said
from mdl.protocol.round_messages import AgentMessage
from mdl.protocol.vocabulary import Packed, PeerInfo, Role
from mdl.sim.mesh.accounts import Accounts
from mdl.sim.mesh.driver import SimMesh
from mdl.sim.mesh.network import Network
from mdl.sim.mesh.process import Disk, Node
from mdl.transport.story import Story
from mdl.transport.wire.codec import Envelope, decode, encode
from tests.fuzz.hostile import Hostile, info_of

SIZE = 16
KINDS: tuple[type[Any], ...] = get_args(Said)
_WITH_VALUES = (*CARRIERS, *SEGMENTS)
# Containers inside a machine, counted one by one: some ten times what an honest run of this size comes to.
MOST_ITEMS = 60_000
# Virtual seconds that a mesh runs before anybody lies.
_HONEST_S = 8.0
# Real messages that are kept to be sent again, changed or as they were.
_KEPT = 300


class Misbehaved(AssertionError):
    """A machine did what it must never do."""


class Checked:
    """A machine as its driver sees it; looks at each step what must always hold."""

    def __init__(self, machine: Any, me: Contributor) -> None:
        self.machine = machine
        self.me = me
        self.story = Story(50)
        self.narrator = Narrator("home")
        self.said: deque[Any] = deque(maxlen=_KEPT)
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.machine, name)

    def handle(self, event: Event, now: float) -> list[Effect]:
        try:
            effects: list[Effect] = self.machine.handle(event, now)
        except RemoteProtocolError as error:
            self.check_deadline()
            if not str(error).isprintable():
                raise Misbehaved(f"an error that is not one printable line: {error!r}") from None
            raise
        self._count += 1
        for effect in effects:
            if type(effect) is Send:
                self._check_said(effect)
            elif type(effect) is RecordRound:
                line = msgspec.json.encode(effect.summary)
                msgspec.json.decode(line, type=type(effect.summary))
                describe_summary(effect.summary)
            elif type(effect) is Finish and not effect.problem.isprintable():
                raise Misbehaved(f"a problem that is not one printable line: {effect.problem!r}")
        self.check_deadline()
        if self._count % 16 == 0 or type(event) is Received:
            self.story.add(now, event, effects)
            self.narrator.look(now, event, effects)
        if self._count % 2000 == 0 and (items := count_items(self.machine)) > MOST_ITEMS:
            raise Misbehaved(f"{type(self.machine).__name__} holds {items} items")
        return effects

    def check_deadline(self) -> None:
        due = self.machine.deadline()
        if due is not None and not (-1e18 < due < 1e18):
            raise Misbehaved(f"a deadline at {due}")

    def _check_said(self, send: Send) -> None:
        frame = encode(self.me, send.message)
        try:
            decode(frame)
        except RemoteProtocolError as error:
            raise Misbehaved(f"{type(send.message).__name__} to {send.receiver} cannot be read: {error}") from None
        if (send.values is not None) is not isinstance(send.message, _WITH_VALUES):
            raise Misbehaved(f"{type(send.message).__name__} with values: {send.values is not None}")
        self.said.append(send.message)


def count_items(root: object) -> int:
    """Objects in the containers of a machine; each once."""
    seen: set[int] = set()
    pending: list[object] = [root]
    count = 0
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            count += len(item)
            pending += item.keys()
            pending += item.values()
        elif isinstance(item, list | tuple | set | frozenset | deque):
            count += len(item)
            pending += item
        elif isinstance(item, msgspec.Struct):
            pending += [getattr(item, name) for name in item.__struct_fields__]
        elif type(item).__module__.split(".")[0] == "mdl" and hasattr(item, "__dict__"):
            pending.append(item.__dict__)
    return count


class _Books(Accounts):
    """Training gives any small vector: what is counted is of no interest here."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(np.zeros(SIZE, np.float32))
        self._rng = rng

    def train(self, owner: Contributor, round_id: int, parameters: Vector, theta: float) -> ModelDelta:
        return ModelDelta(self._rng.normal(size=SIZE).astype(np.float32), theta, frozenset([owner]))

    def recall(self, owner: Contributor, round_id: int, parameters: Vector) -> Vector | None:
        return self._rng.normal(size=SIZE).astype(np.float32)

    def deliver(self, values: Vector) -> None:
        """Nothing is counted."""


class MeshCase:
    """A mesh of peers, of which any may be lied to. step() hands one hostile event to one of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.hostile = Hostile(self.rng)
        rng, generator = self.rng, np.random.default_rng(seed)
        ids = [f"p{number}" for number in range(rng.randrange(2, 7))] + ["agent"] * (rng.random() < 0.3)
        policy = rng.choice(("fifo", "greedy", "tree", "ring", "dp"))
        rates = {peer_id: rng.uniform(2.5, 5.0) for peer_id in ids if peer_id != "agent"}
        network = Network(generator, jitter_s=0.02, rates_mb_s=rates, loss=rng.choice((0.0, 0.1)), duplication=0.02)
        rounds = rng.choice((0, 0, 3, 30))
        self._real: deque[Any] = deque(maxlen=_KEPT)
        self._forgotten: list[str] = []

        def build(peer_id: str, incarnation: int, disk: Disk, now: float) -> Checked:
            me, start, saved = Contributor(peer_id, incarnation), None, disk.models
            if peer_id != "agent":
                start = TrainerStart(SIZE, b"", ballot=disk.ballot)
                if saved:
                    last = saved[-1]
                    start = TrainerStart(SIZE, last.digest, "", "", last.round_id, last.history, disk.ballot)
            process = simulated_start(me, policy, len(ids), rng.choice(("continue", "wait")), start, now)
            process = msgspec.structs.replace(process, agent=msgspec.structs.replace(process.agent, rounds=rounds))
            return Checked(build_machine(process, saved[-1].parameters if saved else None), me)

        self.mesh = SimMesh(network, _Books(generator), 300_000, build=build)
        self.mesh.on_say = self._note
        for peer_id in ids:
            role = Role.AGENT if peer_id == "agent" else Role.TRAINER
            self.mesh.add(peer_id, role, build(peer_id, 1, Disk(), 0.0), train_s=rng.uniform(0.15, 0.4))
        self._run(rng.uniform(0.0, _HONEST_S))

    def step(self) -> bool:
        """One hostile event, and what follows from it; whether it was refused."""
        rng, mesh = self.rng, self.mesh
        nodes = [node for node in mesh.nodes.values() if node.running]
        if len(nodes) <= len(mesh.nodes) // 2:
            mesh.restart(rng.choice([node.peer_id for node in mesh.nodes.values() if not node.running]))
            self._run(rng.uniform(0.0, 2.0))
            return False
        node = rng.choice(nodes)
        event = self._event(node)
        if event is None:
            return True
        refused = mesh.refused
        mesh._schedule(0.0, node, event)
        self._run(mesh.now + rng.choice((0.0, 0.0, 0.001, 0.02, 0.1)))
        return mesh.refused > refused

    def _run(self, until_s: float) -> None:
        self.mesh.events = 0
        self.mesh.run(until_s)

    def _note(self, mesh: SimMesh, node: Node, send: Send) -> None:
        if len(self._real) < _KEPT or self.rng.random() < 0.05:
            self._real.append(send.message)
            self.hostile.learn(send.message)

    def _event(self, node: Node) -> Event | None:
        rng, hostile = self.rng, self.hostile
        match rng.randrange(40):
            case 0:
                return PeerFound(self._info())
            case 1:
                return NameTaken(Contributor(node.peer_id, rng.randrange(4)), rng.choice(("", "127.0.0.1:1")))
            case 2:
                return TransferProgressed(self._sender(node), rng.randrange(1 << 40), rng.randrange(1 << 40))
        message = self._message(node)
        sender = self._sender(node)
        try:
            envelope = decode(encode(sender, message))
        except LocalProtocolError:
            return None  # made up larger than it can be said
        except RemoteProtocolError as error:
            if not str(error).isprintable():
                raise Misbehaved(f"{error!r}") from None
            return None
        hostile.learn(envelope.body)
        values = None
        if isinstance(message, _WITH_VALUES):
            values = self._values(node)
        return _received(envelope, values)

    def _sender(self, node: Node) -> Contributor:
        """Most often whom the device obeys: what anybody else says is dropped at once. Never itself (links drop it)."""
        rng, others = self.rng, {peer_id: other for peer_id, other in self.mesh.nodes.items() if other is not node}
        agent = node.succession.agent if node.succession is not None else ""
        if agent in others and rng.random() < 0.6:
            return others[agent].contributor
        if rng.random() < 0.8:
            return rng.choice(list(others.values())).contributor
        return Contributor(rng.choice((*others, "x", f"x{rng.randrange(3000)}")), rng.choice((0, 1, 2, 1 << 62)))

    def _message(self, node: Node) -> Any:
        rng, hostile = self.rng, self.hostile
        chance = rng.random()
        if self._real and chance < 0.75:
            message = rng.choice(self._real)
            message = message if chance < 0.08 else hostile.change(message)
        else:
            message = hostile.make(info_of(rng.choice(KINDS)))
        if isinstance(message, AgentMessage) and rng.random() < 0.7:  # as the agent in office would say it now
            authority = node.succession
            term = authority.term if authority else 1
            machine: Any = node.machine
            trainer = machine.trainer
            round_id = trainer.round_id + rng.choice((0, 1, 1, 1)) if trainer else message.round_id
            message = msgspec.structs.replace(message, term=term, round_id=round_id)
        return message

    def _info(self) -> PeerInfo:
        peer_id = self.rng.choice((*self.mesh.nodes, f"x{self.rng.randrange(100)}"))
        return PeerInfo(peer_id, self.rng.randrange(5), self.rng.choice(list(Role)), "127.0.0.1", 9, "")

    def _values(self, node: Node) -> Vector | None:
        rng = self.rng
        machine: Any = node.machine
        match rng.randrange(8):
            case 0:
                return None
            case 1:
                return np.full(rng.choice((1, SIZE)), rng.choice((math.nan, math.inf, 1e38, 1e6, -1e7)), np.float32)
            case 2 | 3 if machine.trainer:
                return machine.trainer.parameters.copy()  # type: ignore[no-any-return]
            case _:
                return np.frombuffer(rng.randbytes(SIZE), np.int8).astype(np.float32)


class _Alone:
    """A machine by itself, with its effects answered at random; step() hands it one event."""

    me = Contributor("me", 1)

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.hostile = Hostile(self.rng)
        self.now = self.rng.choice((0.0, 5.0, 1e6))
        self.machine = self._start()
        self._answers: deque[Event] = deque(maxlen=50)
        for name in ("me", "ann", "bob", "home"):
            self.hostile.seen.setdefault("peer_id", deque(maxlen=64)).append(name)

    def _start(self) -> Checked:
        raise NotImplementedError

    def _kinds(self) -> tuple[type[Any], ...]:
        raise NotImplementedError

    def _answer(self, effect: Effect) -> Event | None:
        return None

    def _sender(self) -> Contributor:
        name = self.rng.choice(("ann", "bob", "carl", f"x{self.rng.randrange(3000)}"))
        return Contributor(name, self.rng.randrange(3))

    def step(self) -> bool:
        rng = self.rng
        self.now += rng.choice((0.0, 0.001, 0.1, 1.0, 20.0))
        if rng.random() < 0.001:
            self.machine = self._start()
        due = self.machine.deadline()
        if due is not None and due <= self.now and rng.random() < 0.5:
            return self._tick()
        if self._answers and rng.random() < 0.4:
            return self._hand(self._answers.popleft())
        if self.machine.said and rng.random() < 0.3:
            message = self.hostile.change(rng.choice(self.machine.said)) if rng.random() < 0.8 else rng.choice(KINDS)
            if isinstance(message, type):
                message = self.hostile.make(info_of(message))
        else:
            message = self.hostile.make(info_of(rng.choice(self._kinds())))
        try:
            envelope = decode(encode(self._sender(), message))
        except (LocalProtocolError, RemoteProtocolError):  # made up larger than it can be said, or wrong
            return True
        self.hostile.learn(envelope.body)
        values = None
        if isinstance(message, _WITH_VALUES) and rng.random() < 0.9:
            drawn = rng.randbytes(4 * rng.choice((1, SIZE)))
            values = Packed(drawn) if isinstance(message, PACKED) else np.frombuffer(drawn, np.float32)
        return self._hand(Received(envelope.sender, envelope.body, values))  # type: ignore[arg-type]

    def _tick(self) -> bool:
        """What is due is done: a machine that stays due keeps its processor busy with nothing."""
        for _ in range(50):
            self._hand(Tick())
            due = self.machine.deadline()
            if due is None or due > self.now:
                return False
            self.now += 1e-6
        raise Misbehaved("due 50 times in a row: it spins")

    def _hand(self, event: Event) -> bool:
        try:
            effects = self.machine.handle(event, self.now)
        except RemoteProtocolError:
            return True
        for effect in effects:
            self.hostile.learn(effect.message if isinstance(effect, Send) else None)
            if isinstance(effect, Finish):
                self.machine, self._answers = self._start(), deque(maxlen=50)
            elif (answer := self._answer(effect)) is not None:
                self._answers.append(answer)
        return False


def _kinds_from(*names: str) -> tuple[type[Any], ...]:
    return tuple(kind for kind in KINDS if kind.__name__ in names)


class CloudCase(_Alone):
    """The cloud and what learners, and others in their name, may send it."""

    def _start(self) -> Checked:
        settings = CloudSettings(self.rng.randrange(1, 4), 5.0, self.rng.random() < 0.5)
        return Checked(Cloud("s", "m", settings, CloudState(), self.now), Contributor(CLOUD, 1))

    def _kinds(self) -> tuple[type[Any], ...]:
        self.hostile.seen["schema_hash"] = deque(("s", "s", "t"))
        return _kinds_from("LessonWanted", "UpdateOffered", "UpdateMessage", "UpdateOffered")

    def _answer(self, effect: Effect) -> Event | None:
        rng = self.rng
        match effect:
            case TeachCycle(version=version) if rng.random() < 0.8:
                groups = {name: rng.randrange(-1, 2) for name in list(self.machine.stored)[:3]}
                lessons = {str(group): Packed(bytes(5)) for group in (-1, 0, 1)}
                return CycleTaught(version, lessons, groups, dict(self.machine.stored), lessons)
            case StoreUpdate(sender=sender, update=update):
                problem = rng.choice(("", "", "", "refused \x1b[2J " + "x" * 300))
                return UpdateStored(sender, update, problem, not problem and rng.random() < 0.2)
            case TeachCycle():
                return WorkFailed("TeachCycle", "no disk")
        return None


class LearnerCase(_Alone):
    """A learner, and what a cloud may answer."""

    def _start(self) -> Checked:
        settings = LearnerSettings(self.rng.choice((0, 2, 50)))
        return Checked(Learner("me", "s", "m", settings, self.now), self.me)

    def _kinds(self) -> tuple[type[Any], ...]:
        return _kinds_from("LessonCurrent", "LessonMessage", "UpdateWanted", "UpdateTaken", "PupilRefused")

    def _sender(self) -> Contributor:
        return Contributor(CLOUD, 1) if self.rng.random() < 0.95 else super()._sender()

    def _answer(self, effect: Effect) -> Event | None:
        if isinstance(effect, StudyLesson):
            lesson = effect.lesson
            return UpdateReady(effect.number, Packed(b"\1" * 5), lesson.version, lesson.group)
        return None


class ObserverCase(_Alone):
    """Who looks at a mesh, and what it draws of what it was told."""

    def _start(self) -> Checked:
        machine = Checked(Observer(self.me), self.me)
        machine.handle(PeerFound(PeerInfo("ann", 1, Role.TRAINER, "127.0.0.1", 9)), self.now)
        self._console = Console(file=_Sink(), width=100, height=40, force_terminal=True)
        return machine

    def _kinds(self) -> tuple[type[Any], ...]:
        return _kinds_from("MeshStatus")

    def _hand(self, event: Event) -> bool:
        refused = super()._hand(event)
        status = self.machine.machine.status
        if status is not None and self.rng.random() < 0.005:
            sink = self._console.file
            assert isinstance(sink, _Sink)
            sink.text.clear()
            told = Told("home", status=status, rounds=status.finished)
            self._console.print(draw_mesh(take_snapshot(told), status.finished, height=40))
            check_terminal("".join(sink.text))
        return refused


class _Sink:
    """A terminal that only remembers."""

    def __init__(self) -> None:
        self.text: list[str] = []

    def write(self, text: str) -> int:
        self.text.append(text)
        return len(text)

    def flush(self) -> None:
        """Nothing waits."""

    def isatty(self) -> bool:
        return True


def check_terminal(text: str) -> None:
    """Colours that we draw ourselves, and lines; nothing else that a terminal acts upon."""
    rest = text
    while (start := rest.find("\x1b[")) >= 0:
        end = start + 2
        while end < len(rest) and rest[end] in "0123456789;":
            end += 1
        if rest[end : end + 1] != "m":
            raise Misbehaved(f"an escape sequence on the terminal: {rest[start : end + 2]!r}")
        rest = rest[:start] + rest[end + 1 :]
    for line in rest.split("\n"):
        if not line.isprintable():
            raise Misbehaved(f"an unseen character on the terminal: {line!r}")


def be_quiet() -> None:
    """What machines log of lies is of no interest here, but its formatting is checked."""
    root = logging.getLogger()
    root.handlers[:] = [_Formatting()]
    root.setLevel(logging.INFO)


class _Formatting(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if not line.isprintable():
            raise Misbehaved(f"a line of a log that is none: {line!r}")


def _received(envelope: Envelope, values: Any) -> Received:
    """As the transport hands it over: with the digest of values that came whole."""
    digest = b"" if values is None or isinstance(envelope.body, SEGMENTS) else digest_of(values)
    return Received(envelope.sender, envelope.body, values, digest)  # type: ignore[arg-type]
