"""Who talks with whom: a mesh, a cloud of pupils, a cloud of recommenders, a learner, devices that share windows.

A scene is built from a number and a role of the liar's; all that happens in it follows from these and from the moves
that are played. Each victim is a whole process (`process.py`). A scene knows what must hold in it, and how its honest
processes show that they still get on once the liar is silent.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import msgspec
import numpy as np

from mdl.errors import ConfigError
from mdl.peers.cloud.machine import CLOUD, CloudSettings, Learner, LearnerSettings
from mdl.peers.colla.machine import Cloud, CloudState
from mdl.peers.dccl.machine import TASK, Collector
from mdl.peers.roles.build import TrainerStart, build_machine, simulated_start
from mdl.peers.roles.outsiders import Observer
from mdl.peers.roles.sharing import Giver, WindowTaker
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import (
    CutWindows,
    CycleTaught,
    DeleteShared,
    Effect,
    Event,
    KeepVectors,
    PartRead,
    PartStored,
    ReadPart,
    SharedDeleted,
    StorePart,
    StoreUpdate,
    StudyLesson,
    TeachCycle,
    UpdateReady,
    UpdateStored,
    VectorJudged,
    VectorsKept,
    WindowsCut,
    WorkFailed,
)
from mdl.protocol.sharing_messages import PART_BYTES, Offer, WindowsOffered
from mdl.protocol.vocabulary import Packed, PeerInfo, Role
from mdl.sim.mesh.invariants import MOST_DELTAS, count_vectors
from mdl.sim.mesh.process import Disk
from mdl.transport.links.doors import ALLOWED, LINKS
from mdl.transport.links.hub import CloudHub, Spoke
from mdl.transport.links.mesh_links import Links
from mdl.transport.trust import keys as mesh_keys
from mdl.transport.trust.keys import DeviceKey, MeshKeys, founder_mark, new_join_code
from mdl.transport.trust.membership import Membership
from tests.fuzz.conversations.process import Answer, Process, World, of_a_peer
from tests.fuzz.conversations.wire import Connection
from tests.fuzz.machines import SIZE, Misbehaved

# Roles of the liar: has the join code; is a member of the mesh; owns it; is the cloud.
CODE_HOLDER, MEMBER, OWNER, THE_CLOUD = "code-holder", "member", "owner", "cloud"
# No value of a model is beyond what deltas of so many rounds, each of values to 1e6, can make of it.
MOST_AMOUNT = 1e9
# Virtual seconds in which honest processes have to get on once the liar is gone: its silence is noticed after 2 s,
# whoever leads then is elected, and a round takes 1 s.
CALM_S = 60.0
# A round that was under way is over by then, if it goes on at all.
_ROUND_S = 1.0
# Bytes that a process says in one turn: a list of all members that it knows is a header's size, to a few who ask.
MOST_SENT_BYTES = 4 << 20
DEVICES = tuple(DeviceKey.of(bytes([number]) * 32) for number in range(1, 13))
# What the liar's processes and its made-up ones are called.
LIAR, FOUNDER = DEVICES[0], DEVICES[1]
LIAR_ID = "mallory"


class Move(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of the liar. wait_s: virtual seconds before it. to: the process that hears it.

    door: by which it comes: `door`, `link`, `cloud`, `datagram`. key: of LIARS, whose connection it is; -1: the join
    code's. frames: header, and payload. first: it overtakes what waits there. more: others come in the same moment.
    """

    wait_s: float
    to: str
    door: str
    key: int
    frames: tuple[bytes, ...]
    first: bool = False
    more: bool = False


# The liar's devices: one that may be in the mesh, others that it makes up.
LIARS = (LIAR, *DEVICES[6:])


class Scene:
    """See the module. victims: the names of those that are lied to."""

    roles: tuple[str, ...] = ()
    size = SIZE
    made_of = Process

    def __init__(self, seed: int, role: str) -> None:
        self.seed, self.role = seed, role
        self.rng = random.Random(f"{seed} {type(self).__name__} {role}")
        self.world = World(seed, self.size)
        self.heard: deque[bytes] = deque(maxlen=400)
        self.ends: Counter[str] = Counter()
        self.turned_away = self.said_bytes = self.sent_bytes = self.most_sent = 0
        self._connections: dict[tuple[Any, str, int], Connection] = {}

    @contextmanager
    def open(self) -> Iterator[Scene]:
        with ExitStack() as stack:
            stack.enter_context(self.world.wire.installed())
            # Keys from a code take a tenth of a second by intention; owners change codes here again and again.
            stack.enter_context(mock.patch.object(mesh_keys, "_SCRYPT_COST", 1 << 4))
            stack.enter_context(mock.patch.object(mesh_keys, "_BEACON_COST", 1 << 4))
            self.world.wire.tap = self._tap
            try:
                self.begin()
                yield self
            finally:
                for process in self.world.processes:
                    process.close()

    def begin(self) -> None:
        raise NotImplementedError

    def victims(self) -> list[Process]:
        """That are there now."""
        return [each for each in self.world.processes if each.me.peer_id != LIAR_ID]

    def process(self, peer_id: str) -> Process | None:
        return next((each for each in self.world.processes if each.me.peer_id == peer_id), None)

    def play(self, move: Move) -> bool:
        """One message, and what follows at once; False if nobody heard it. Raises whatever a victim raised."""
        world = self.world
        if move.wait_s:
            world.run(move.wait_s)
        self._see_ends()
        process = self.process(move.to)
        if process is None:
            return False
        counts = process.links.counts
        before, sent_bytes = counts.refused, counts.sent_bytes
        if not self._put(process, move):
            self.turned_away += 1
            return False
        self.said_bytes += sum(map(len, move.frames))
        if move.more:
            return True
        process.turn()
        self._count_bytes(counts.sent_bytes - sent_bytes, process)
        self._see_ends()
        self.check(process)
        return bool(process.links.counts.refused == before)

    def _count_bytes(self, sent: int, process: Process) -> None:
        """Nobody says far more at once than it was told, beside what a round takes."""
        self.sent_bytes += sent
        self.most_sent = max(self.most_sent, sent)
        if sent > MOST_SENT_BYTES:
            raise Misbehaved(f"{process.me.peer_id} says {sent} bytes in one turn")

    def check(self, process: Process) -> None:
        """What has to hold after each message."""

    def calm(self) -> None:
        """The liar is gone: whoever is honest gets on. Raises Misbehaved."""

    def revive(self, peer_id: str) -> None:
        """Started again after its process has ended."""

    def forbidden_end(self, process: Process, problem: str) -> bool:
        """Whether a process may not end so by what this liar says."""
        return True

    def _put(self, process: Process, move: Move) -> bool:
        if move.door == "datagram":
            port = process.links.flows._port
            if port is None:
                return False
            port.socket.incoming.append(move.frames[0])
            return True
        if move.door == "cloud":
            process.links._endpoint.incoming.append((_NOBODY, list(move.frames)))
            return True
        at_door = move.door == "door"
        router = process.routers()[-1 if at_door else 0]
        known = process.links, move.door, move.key
        connection = self._connections.get(known)
        if connection is None:
            key = self.key_of(process, move)
            if key is None:
                return False
            connection = self._connections[known] = Connection(self.world.wire, key)
        connection.waiting += 1
        message = (connection, list(move.frames))
        if move.first:
            router.incoming.appendleft(message)
        else:
            router.incoming.append(message)
        return True

    def key_of(self, process: Process, move: Move) -> bytes | None:
        """What the liar's connection shows; None if it is not let in."""
        standing = process.links.standing
        if move.door == "door":
            return bytes(standing.membership.door_key)
        key = LIARS[move.key].link_key
        return key if standing.gate(LINKS, key) == ALLOWED else None

    def _tap(self, parts: list[bytes]) -> None:
        if len(parts[0]) < 4096 and (len(self.heard) < 50 or self.rng.random() < 0.1):
            self.heard.append(parts[0])

    def _see_ends(self) -> None:
        while self.world.ended:
            process, finish = self.world.ended.pop()
            if process in self.world.processes:
                self.world.processes.remove(process)
            self._connections = {each: it for each, it in self._connections.items() if each[0] is not process.links}
            self.ends[finish.problem[:60] or f"exit {finish.exit_code}"] += 1
            if self.forbidden_end(process, finish.problem):
                raise Misbehaved(f"{process.me.peer_id} ends: {finish.problem!r}, exit code {finish.exit_code}")
            self.ended(process)

    def ended(self, process: Process) -> None:
        self.revive(process.me.peer_id)


class _Nobody:
    waiting = 0
    key = None
    identity = b""


_NOBODY: Any = _Nobody()


class _OnLinks(Scene):
    """Devices of one mesh, by `Links`."""

    def __init__(self, seed: int, role: str) -> None:
        super().__init__(seed, role)
        founder = LIAR if role == OWNER else FOUNDER
        mark = founder_mark(founder.public)
        self.code = new_join_code("home", bytes(range(19)), mark)
        with mock.patch.object(mesh_keys, "_SCRYPT_COST", 1 << 4), mock.patch.object(mesh_keys, "_BEACON_COST", 1 << 4):
            self.keys = _keys(self.code)
        self.is_lan = self.rng.random() < 0.25
        self.devices: dict[str, DeviceKey] = {}
        self.starts: Counter[str] = Counter()
        self.disks: dict[str, Disk] = {}
        self.makers: dict[str, tuple[Role, Callable[[Contributor, Disk], tuple[Any, Answer | None]]]] = {}
        self.rosters: dict[str, Membership] = {}
        statements = [Membership(self.keys, founder).found()]
        self.statements = statements

    def add(
        self, name: str, device: DeviceKey, role: Role, make: Callable[[Contributor, Disk], tuple[Any, Answer | None]]
    ) -> Process:
        self.devices[name] = device
        self.makers[name] = role, make
        return self.start(name)

    def start(self, name: str) -> Process:
        """Raises ConfigError if it is out."""
        self.starts[name] += 1
        me = Contributor(name, self.starts[name])
        role, make = self.makers[name]
        disk = self.disks.setdefault(name, Disk())
        disk.begin(self.world.now)
        former = self.rosters.get(name)
        keys = former.keys if former else self.keys
        statements = former.roster.statements() if former else self.statements
        membership = self.rosters[name] = Membership(keys, self.devices[name], statements)
        number = list(self.devices).index(name) + 1
        host = f"10.7.0.{number}" if self.is_lan else "127.0.0.1"
        machine, work = make(me, disk)
        trainer = getattr(machine, "trainer", None)
        info = PeerInfo(name, me.incarnation, role, "", 0, "schema" if trainer else "")
        size = SIZE if trainer else PART_BYTES // 4
        self.world.wire.own_host = host
        links = Links(
            info, keys, max_values=size, now=self.world.now, listen_host=host, membership=membership, share=None
        )
        links.introducer._clock = lambda: int(1e12 + self.world.now * 1000)
        work = work or of_a_peer(self.rng, machine, info)
        process = self.made_of(self.world, me, host, links, machine, work, disk, samples=trainer is not None)
        self.world.add(process)
        self.world.introduce(process, host)
        return process

    def check(self, process: Process) -> None:
        """Without an owner's key nobody owns the mesh, is locked out, or has another's name."""
        standing = getattr(process.links, "standing", None)
        if self.role == OWNER or standing is None or process.turns % 8:
            return
        roster = standing.membership.roster
        if roster.owners() != {FOUNDER.public} or roster.revocations() or roster.is_code_old:
            raise Misbehaved(f"owned by {len(roster.owners())}, {len(roster.revocations())} out")
        for name, device in self.devices.items():
            enrolled = roster.enrolled(name)
            if enrolled is not None and enrolled.device != device.public:
                raise Misbehaved(f"{name} is another device to {process.me.peer_id}")

    def revive(self, peer_id: str) -> None:
        try:
            self.start(peer_id)
        except ConfigError as error:
            if self.role != OWNER:
                raise Misbehaved(f"{peer_id} cannot start again: {error}") from None
            self.ends["locked out"] += 1


def _keys(code: str) -> MeshKeys:
    if code not in _KEYS:
        _KEYS[code] = MeshKeys.from_code(code)
    return _KEYS[code]


_KEYS: dict[str, MeshKeys] = {}


class MeshScene(_OnLinks):
    """Two honest trainers, at times a dedicated agent and somebody who looks on; a member that lies takes part too."""

    roles = (CODE_HOLDER, MEMBER, OWNER)

    def begin(self) -> None:
        rng = self.rng
        self._models: dict[Any, tuple[bytes, str]] = {}
        self.policy = rng.choice(("fifo", "greedy", "tree", "ring", "dp"))
        self.exchange = rng.choice(("chain", "chain", "shares", "auto"))
        self.coding = rng.choice(("none", "none", "int8")) if self.exchange == "shares" else "none"
        self.overlaps, self.waits = rng.random() < 0.3, rng.choice(("continue", "wait"))
        if self.role != CODE_HOLDER:
            self.waits = "continue"  # or two would wait for the liar, whose work is in their model, as they should
        self.judges = self.exchange == "chain" and rng.random() < 0.3
        self.trainers = ["p0", "p1"] + ["p2"] * (rng.random() < 0.2)
        names = [*self.trainers, *([LIAR_ID] if self.role != CODE_HOLDER else [])]
        self._peers = len(names)
        for number, name in enumerate(names):
            device = LIAR if name == LIAR_ID else DEVICES[1 + number]
            self.add(name, device, Role.TRAINER, self._trainer)
        if rng.random() < 0.3:
            self.add("agent", DEVICES[5], Role.AGENT, self._agent)
        if rng.random() < 0.2:
            self.add("watch", DEVICES[4], Role.OBSERVER, lambda me, disk: (Observer(me, page_port=9), _no_work))
        self.world.run(rng.uniform(0.5, 6.0))

    def _trainer(self, me: Contributor, disk: Disk) -> tuple[Any, Answer | None]:
        start, saved = TrainerStart(SIZE, b"", ballot=disk.ballot), disk.models
        if saved:
            start = TrainerStart(SIZE, saved[-1].digest, "", "", saved[-1].round_id, saved[-1].history, disk.ballot)
        return self._machine(me, start, saved[-1].parameters if saved else None), None

    def _agent(self, me: Contributor, disk: Disk) -> tuple[Any, Answer | None]:
        return self._machine(me, None, None), None

    def _machine(self, me: Contributor, start: TrainerStart | None, parameters: Any) -> Any:
        told = simulated_start(
            me,
            self.policy,
            self._peers,
            self.waits,
            start,
            self.world.now,
            self.exchange,
            self.coding,
            judges=self.judges,
            overlaps=self.overlaps,
            segment_values=4,
        )
        # Two of a mesh get on without the third, and without whoever has left.
        told = msgspec.structs.replace(told, agent=msgspec.structs.replace(told.agent, min_peers=2))
        return build_machine(told, parameters)

    def forbidden_end(self, process: Process, problem: str) -> bool:
        return self.role == CODE_HOLDER

    def check(self, process: Process) -> None:
        super().check(process)
        trainer = getattr(process.machine.machine, "trainer", None)
        if trainer is None or process.turns % 8:
            return
        name = process.me.peer_id
        if not np.isfinite(trainer.parameters).all() or np.abs(trainer.parameters).max() > MOST_AMOUNT:
            raise Misbehaved(f"{name} has a model with {np.abs(trainer.parameters).max()} in it")
        if trainer.part is not None:
            if (count := count_vectors(trainer.part)) > MOST_DELTAS:
                raise Misbehaved(f"{name} holds {count} deltas")
            hold = trainer.part.hold
            if hold is not None and not 0 < hold.theta < float("inf"):
                raise Misbehaved(f"{name} holds theta {hold.theta}")
        if self.role == CODE_HOLDER:
            stands = trainer.lineage, trainer.round_id
            digest, other = self._models.setdefault(stands, (trainer.digest, name))
            if digest != trainer.digest:
                raise Misbehaved(f"{name} and {other} have two models of round {trainer.round_id}")

    def calm(self) -> None:
        if (liar := self.process(LIAR_ID)) is not None:
            self.world.drop(liar)
        honest = [each for each in map(self.process, self.trainers) if each is not None]
        if len(honest) < 2:
            self.ends["nobody left"] += 1
            return
        until = self.world.now + CALM_S
        first = {each.me.peer_id: each.machine.machine.trainer.round_id for each in honest}
        began = self.world.now
        while self.world.now < until:
            self.world.run(0.5)
            while self.world.ended:
                process, _ = self.world.ended.pop()
                self.ended(process)
                first.pop(process.me.peer_id, None)
            if self._has_closed(began):
                return
        told = "; ".join(
            f"{each.me.peer_id} round {each.machine.machine.trainer.round_id} (was {first.get(each.me.peer_id)}), "
            f"term {each.machine.machine.succession.term}, obeys {each.machine.machine.succession.agent!r}"
            for each in map(self.process, self.trainers)
            if each is not None
        )
        if self.role == OWNER and self._is_split():
            self.ends["split by an owner"] += 1
            return
        raise Misbehaved(f"no round of two within {CALM_S:g} s: {told}")

    def _has_closed(self, since: float) -> bool:
        """Two of them have closed a round together: one that began after the storm."""
        return any(
            at >= since + _ROUND_S and len(set(summary.contributors) & set(self.trainers)) >= 2
            for each in self.world.processes
            for at, summary in each.rounds
        )

    def _is_split(self) -> bool:
        """An owner has locked some of them out, or has left them with different codes."""
        links = [each.links for each in map(self.process, self.trainers) if each is not None]
        if any(each.standing.why_out() for each in links):
            return True
        return (
            len({each.standing.membership.keys.name + str(each.standing.membership.keys.code_hash) for each in links})
            > 1
        )


def _no_work(process: Process, effect: Effect) -> None:
    return None


class SharingScene(_OnLinks):
    """One gives windows, one takes them; the liar is not named."""

    roles = (CODE_HOLDER, MEMBER, OWNER)

    def begin(self) -> None:
        rng = self.rng
        names = {DEVICES[2].public: "taker"}
        if self.role == MEMBER and rng.random() < 0.5:
            names[LIAR.public] = LIAR_ID  # one who is named may lie too
        sharing, former = b"1" * 16, b"2" * 16

        def giver(me: Contributor, disk: Disk) -> tuple[Any, Answer]:
            recalled = {former: DEVICES[3].public}
            wanted = frozenset(names.values())
            return Giver(me, wanted, lambda device: names.get(device, ""), recalled, 30.0, self.world.now), work

        def taker(me: Contributor, disk: Disk) -> tuple[Any, Answer]:
            held = rng.choice((b"", sharing, former))
            return WindowTaker(me, lambda device: device == FOUNDER.public, Offer(1.0), 3 * PART_BYTES, held), work

        def work(process: Process, effect: Effect) -> tuple[float, Event] | None:
            match effect:
                case CutWindows(offers=offers):
                    parcel = WindowsOffered(sharing, 700, b"d" * 32, 5, 2)
                    return 0.1, WindowsCut(tuple((device, parcel) for device, _ in offers))
                case ReadPart() if rng.random() < 0.9:
                    return 0.01, PartRead(effect.receiver, effect.sharing_id, effect.part, Packed(b"w" * 700))
                case ReadPart():
                    return 0.01, WorkFailed("ReadPart", "no disk")
                case StorePart(offered=offered, part=part):
                    is_whole = (part + 1) * PART_BYTES >= offered.size_bytes
                    return 0.01, PartStored(offered.sharing_id, part, is_whole)
                case DeleteShared():
                    return 0.01, SharedDeleted()
            return None

        self.add("giver", FOUNDER if self.role != OWNER else DEVICES[1], Role.TRAINER, giver)
        self.add("taker", DEVICES[2], Role.TRAINER, taker)
        if self.role != CODE_HOLDER:
            self.add(LIAR_ID, LIAR, Role.TRAINER, taker)
        self.world.run(rng.uniform(0.2, 3.0))

    def forbidden_end(self, process: Process, problem: str) -> bool:
        return False  # to end is what they are for


class _OnHub(Scene):
    """A cloud and two honest devices. The liar has the code, and keys of its own; or it is the cloud."""

    address = "127.0.0.1:4999"

    def __init__(self, seed: int, role: str) -> None:
        super().__init__(seed, role)
        with mock.patch.object(mesh_keys, "_SCRYPT_COST", 1 << 4), mock.patch.object(mesh_keys, "_BEACON_COST", 1 << 4):
            self.keys = _keys(new_join_code("cloud", bytes(range(19))))
        self.starts: Counter[str] = Counter()

    def hub(self, owns_pupils: bool) -> CloudHub:
        self.starts[CLOUD] += 1
        me = Contributor(CLOUD, self.starts[CLOUD])
        return CloudHub(
            me,
            self.keys,
            max_bytes=4096,
            listen_host="127.0.0.1",
            port=4999,
            owns_pupils=owns_pupils,
        )

    def spoke(self, name: str, device: DeviceKey, machine: Any) -> Process:
        self.starts[name] += 1
        me = Contributor(name, self.starts[name])
        links = Spoke(me, self.keys, self.address, max_bytes=4096, device=device)
        process = Process(self.world, me, "127.0.0.1", links, machine, self.study)
        return self.world.add(process)

    def study(self, process: Process, effect: Effect) -> tuple[float, Event] | None:
        if isinstance(effect, StudyLesson):
            values = Packed(self.rng.randbytes(8))
            return 0.2, UpdateReady(effect.number, values, effect.lesson.version, effect.lesson.group)
        return None

    def key_of(self, process: Process, move: Move) -> bytes | None:
        return LIARS[move.key].link_key

    def learners(self) -> list[Process]:
        return [each for each in self.world.processes if isinstance(each.machine.machine, Learner)]

    def calm(self) -> None:
        before = {each.me.peer_id: each.machine.machine.taken for each in self.learners()}
        until = self.world.now + CALM_S
        while self.world.now < until:
            self.world.run(1.0)
            self._see_ends()
            if any(each.machine.machine.taken > before.get(each.me.peer_id, 0) for each in self.learners()):
                return
        told = "; ".join(f"{each.me.peer_id}: {each.machine.machine.refused!r}" for each in self.learners())
        raise Misbehaved(f"nothing of a learner is taken within {CALM_S:g} s ({told})")


class CloudScene(_OnHub):
    """Pupils of Colla."""

    roles = (CODE_HOLDER, THE_CLOUD)
    names = ("ann", "bob")
    is_recommend = False

    def begin(self) -> None:
        rng = self.rng
        self.settings = CloudSettings(rng.randrange(1, 3), 3.0, rng.random() < 0.3)
        self._cloud()
        for number, name in enumerate(self.names):
            self._learner(name, DEVICES[2 + number])
        self.world.run(rng.uniform(0.5, 8.0))

    def _cloud(self) -> Process:
        hub = self.hub(self.is_recommend)
        if self.is_recommend:
            machine: Any = Collector(self.settings, None, 0, self.world.now)
        else:
            machine = Cloud("s", "m", self.settings, CloudState(), self.world.now)
        return self.world.add(Process(self.world, hub.me, "127.0.0.1", hub, machine, self.teach))

    def _learner(self, name: str, device: DeviceKey) -> Process:
        settings = LearnerSettings(1 << 30, sends_vectors=self.is_recommend)
        schema = TASK if self.is_recommend else "s"
        machine = Learner(
            name, schema, "" if self.is_recommend else "m", settings, self.world.now, self.starts[name] << 20
        )
        return self.spoke(name, device, machine)

    def teach(self, process: Process, effect: Effect) -> tuple[float, Event] | None:
        rng = self.rng
        match effect:
            case TeachCycle() if rng.random() < 0.02:
                return 0.1, WorkFailed("TeachCycle", "no disk")
            case TeachCycle(version=version):
                stored = dict(getattr(process.machine.machine, "stored", {}))
                groups = {name: rng.randrange(-1, 2) for name in list(stored)[:3]}
                lessons = {str(group): Packed(bytes(5)) for group in (-1, 0, 1)}
                return 0.5, CycleTaught(version, lessons, groups, stored, lessons)
            case StoreUpdate(sender=sender, update=update):
                refused = update.pupil not in self.names and rng.random() < 0.5
                problem = "refused \x1b[2J " + "x" * 300 if refused else ""
                return 0.02, UpdateStored(sender, update, problem, not problem and rng.random() < 0.1)
            case KeepVectors(vectors=vectors):
                return 0.02, VectorsKept(tuple(VectorJudged(each) for each in vectors), 1)
        return None

    def victims(self) -> list[Process]:
        name = (CLOUD,) if self.role == CODE_HOLDER else self.names
        return [each for each in self.world.processes if each.me.peer_id in name]

    def revive(self, peer_id: str) -> None:
        if peer_id == CLOUD:
            self._cloud()
        else:
            self._learner(peer_id, DEVICES[2 + self.names.index(peer_id)])

    def forbidden_end(self, process: Process, problem: str) -> bool:
        # Its own cloud may tell a device that it does not want it; nobody else may, and no device ends a cloud.
        return self.role == CODE_HOLDER and process.me.peer_id == CLOUD and not problem.startswith("no disk")


class RecommendScene(CloudScene):
    """Devices that send vectors to a cloud of recommenders."""

    is_recommend = True


IN_MEMORY: dict[str, type[Scene]] = {
    "mesh": MeshScene,
    "sharing": SharingScene,
    "cloud": CloudScene,
    "recommend": RecommendScene,
}
