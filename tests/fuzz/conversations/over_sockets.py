"""The same liars by real sockets on loopback: real CURVE keys, libzmq's own handshake and its questions to the gate.

Slower, and without honest processes beside the victim: what a mesh does with lies is tried in memory (`scenes.py`),
what libzmq makes of connections and frames here. The time that the victim sees is that of the moves. Nothing leaves the
machine: no address beyond loopback is dialled.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import zmq

from mdl.protocol.delta import Contributor
from mdl.protocol.messages import Hello
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery.directory import Address, is_loopback
from mdl.transport.links import flows, outbox
from mdl.transport.links.sockets import Curve, open_dealer
from mdl.transport.trust import keys as mesh_keys
from mdl.transport.trust.membership import Membership
from mdl.transport.wire.codec import RosterTold, encode
from tests.fuzz.conversations.process import Process
from tests.fuzz.conversations.scenes import (
    CODE_HOLDER,
    DEVICES,
    LIAR_ID,
    LIARS,
    MEMBER,
    MeshScene,
    Move,
    Scene,
)
from tests.fuzz.conversations.wire import Datagrams
from tests.fuzz.machines import Misbehaved

# Real seconds that a message may take through libzmq, on a machine that does much else.
_ARRIVES_S = 20.0
# Virtual seconds of an honest mesh whose messages the liar has heard.
_HEARD_S = 4.0


class SocketProcess(Process):
    """A process on real sockets."""

    def _watch(self) -> None:
        """Its sockets are asked each time."""

    def has_come(self) -> bool:
        return not self.runtime._posted.empty() or any(each.poll(0, zmq.POLLIN) for each in self._listening())

    def _listening(self) -> list[Any]:
        return [*(router for router, _ in self.links.doors._both()), self.links.doors._gate.socket]


class SocketScene(MeshScene):
    """One trainer; the liar dials it."""

    roles = (CODE_HOLDER, MEMBER)
    made_of = SocketProcess

    def __init__(self, seed: int, role: str) -> None:
        super().__init__(seed, role)
        self.is_lan = False
        self._context = zmq.Context()
        self._dealers: dict[tuple[Any, str, int], Any] = {}

    @contextmanager
    def open(self) -> Iterator[Scene]:
        wire = self.world.wire
        with MeshScene(self.seed, self.role).open() as other:
            other.world.run(_HEARD_S)
            self.heard.extend(other.heard)

        def dial(context: Any, curve: Any, address: Address, *args: Any, **named: Any) -> Any:
            if not is_loopback(address.host.partition("%")[0]):
                raise zmq.ZMQError(zmq.EHOSTUNREACH)
            return open_dealer(context, curve, address, *args, **named)

        with ExitStack() as stack:
            for module, name, value in (
                (outbox, "open_dealer", dial),
                (flows, "_open_socket", lambda host, port: Datagrams(wire, host, port)),
                (mesh_keys, "_SCRYPT_COST", 1 << 4),
                (mesh_keys, "_BEACON_COST", 1 << 4),
            ):
                stack.enter_context(mock.patch.object(module, name, value))
            try:
                self.begin()
                yield self
            finally:
                self._context.destroy(linger=0)
                for process in self.world.processes:
                    process.close()

    def begin(self) -> None:
        self._models = {}
        self.policy, self.exchange, self.coding = "greedy", "chain", "none"
        self.overlaps, self.waits, self.judges = False, "continue", False
        self.trainers, self._peers = ["p0"], 2
        self.add("p0", DEVICES[1], Role.TRAINER, self._trainer)
        if self.role == MEMBER:
            self._take_a_seat()
        self.world.run(0.1)

    def calm(self) -> None:
        """It still lets a device in that nobody has heard of."""
        process = self.process("p0")
        assert process is not None
        device = Membership(self.keys, DEVICES[3], self.statements)
        info = device.introduce(PeerInfo("new", 1, Role.TRAINER, "127.0.0.1", 9), 9, ["127.0.0.1"], 1 << 61)
        until = time.monotonic() + _ARRIVES_S
        while time.monotonic() < until:
            self.play(Move(1.0, "p0", "door", -1, (encode(Contributor("new", 1), Hello(info)),)))
            if process.links.standing.membership.roster.enrolled("new") is not None:
                return
        raise Misbehaved("nobody is let in any more")

    def _take_a_seat(self) -> None:
        device = Membership(self.keys, LIARS[0], self.statements)
        device.join(LIAR_ID)
        info = device.introduce(PeerInfo(LIAR_ID, 1, Role.TRAINER, "127.0.0.1", 9), 9, ["127.0.0.1"], 1)
        sender = Contributor(LIAR_ID, 1)
        self.play(Move(0.0, "p0", "door", -1, (encode(sender, Hello(info)),)))
        told = RosterTold(device.roster.digest, device.roster.statements(), True)
        self.play(Move(0.0, "p0", "link", 0, (encode(sender, told),)))

    def _put(self, process: Process, move: Move) -> bool:
        if move.door == "datagram":
            return super()._put(process, move)
        key = process.links, move.door, move.key
        if key not in self._dealers:
            if self.key_of(process, move) is None:
                return False
            self._dealers[key] = self._dial(process, move)
        counts = process.links.counts
        wanted = counts.received_bytes + sum(map(len, move.frames))
        self._dealers[key].send_multipart(move.frames)
        until = time.monotonic() + _ARRIVES_S
        while not self._has_arrived(process):
            if time.monotonic() > until:
                raise Misbehaved(f"a message of {wanted - counts.received_bytes} bytes does not arrive")
        return True

    def _has_arrived(self, process: Process) -> bool:
        """Whether something waits to be read; the gate is asked meanwhile, as the loop does."""
        assert isinstance(process, SocketProcess)
        routers = [router for router, _ in process.links.doors._both()]
        if any(router.poll(5, zmq.POLLIN) for router in routers[:1]) or any(r.poll(0, zmq.POLLIN) for r in routers):
            return True
        process.links.doors._gate.serve(self.world.now)
        return False

    def _dial(self, process: Process, move: Move) -> Any:
        links = process.links
        own = LIARS[move.key]
        if move.door == "door":
            curve, port = Curve.of_door(self.keys), links.me.port
        else:
            server = links.standing.membership.device.curve_public
            curve, port = Curve(server, own.curve_public, own.curve_secret), links.doors.link_port
        return open_dealer(self._context, curve, Address("127.0.0.1", port), bulk=True)
