"""The two sockets that a node listens on: the door, with keys from the join code, and one for members' messages.

Both are ROUTERs that only receive, watched for connections that show no key. Without encryption there is only one. The
gate decides which clients may connect: it answers libzmq's questions (ZAP, RFC 27). A device may connect milliseconds
before it is introduced: only its own answer waits for that.

Anybody may open connections that show no key, and each takes a descriptor. libzmq accepts every client, and ends those
without a finished handshake after HANDSHAKE_MS. A stranger opens a thousand silent connections in a second. A process
without descriptors cannot accept, open a file, or rest: libzmq's thread then fails to accept again and again. So this
module ends the oldest connections as soon as there are more than a node can bear, first those of the host that has most
of them. `HalfOpen` is pure. `Doorkeeper` hears of connections from libzmq and rests in between, so that hundreds of new
connections a second do not each wake this node's loop.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import zmq
from zmq.utils import z85

from mdl.errors import ConfigError
from mdl.transport.discovery.directory import EVERY_HOST, Address, bare, unmapped
from mdl.transport.discovery.interfaces import hosts_on, name_of
from mdl.transport.limits import LogLimit
from mdl.transport.links.sockets import (
    HANDSHAKE_MS,
    TURN,
    TURN_BYTES,
    LinkCounts,
    open_router,
    take_frames,
)
from mdl.transport.trust.keys import MeshKeys
from mdl.transport.trust.membership import Membership

logger = logging.getLogger(__name__)

# An endpoint logs this.
TOO_MANY = "connections without a handshake: %d ended, somebody opens too many"
# Events that wait for this node's loop, some 100 bytes each; beyond that libzmq's thread waits, and strangers with it.
_MOST_EVENTS = 10_000
# The rest between two looks. It is shorter after a look that saw MANY, so that a burst takes no more descriptors than a
# node can bear.
_REST_S, _SHORT_REST_S, _MANY = 0.02, 0.005, 16
_EVENT = struct.Struct("=hi")
_ACCEPTED, _ENDED = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_DISCONNECTED)


# A connection's other end: host, port, and with IPv6 two more numbers.
Name: TypeAlias = tuple[str, ...]
Found = TypeVar("Found")
ZAP_ADDRESS = "inproc://zeromq.zap.01"
# The domain by which a ROUTER asks.
DOOR, LINKS = b"door", b"links"
# LATER: the key is not known yet, which may change in a moment.
ALLOWED, LATER, REFUSED = b"200", b"300", b"400"
# domain, key of the client (32 bytes) -> one of these.
Admit: TypeAlias = Callable[[bytes, bytes], bytes]
_MECHANISM_VERSION = b"1.0"
# The longest wait for an answer: the client gives up after HANDSHAKE_MS, 5 s, and tries again.
WAIT_S = 3.0
# Answers that wait at a time, 200 bytes each: as many as devices that start together.
_MOST_WAITING = 1024


class Doors:
    """The listening sockets of a node.

    port: of the door; 0 takes a free one. With any other port, messages are taken at the next port if that is free.
    admit: decides which keys are let in at which socket. half_open: the most connections without a handshake, over
    both. Raises ConfigError if the port is taken or the address is invalid.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        membership: Membership | None,
        address: Address,
        half_open: int,
        admit: Admit,
        counts: LinkCounts,
        lines: LogLimit,
    ) -> None:
        self._context, self._membership, self._half_open = context, membership, half_open // 2
        self._counts, self._lines = counts, lines
        self._host = address.host
        self._interface = None if address.host in EVERY_HOST else name_of(address.host)
        self._gate = ZapGate(context, admit, lines) if membership is not None else None
        self._door: tuple[zmq.Socket[bytes], Doorkeeper] | None = None
        self._is_shut = False  # while its port is not free
        if membership is None:
            self._links = self._watched(open_router(context, None, LINKS, address))
            self.port = self.link_port = _port_of(self._links[0])
            return
        self._door = self._watched(open_router(context, membership.keys.server_secret, DOOR, address))
        self.port = _port_of(self._door[0])
        self._links = self._watched(self._open_links(address.port and min(address.port + 1, 65535)))
        self.link_port = _port_of(self._links[0])

    def take(self, now: float, budget: int = TURN) -> Iterator[tuple[list[zmq.Frame], bool]]:
        """Yield at most `budget` messages, or TURN_BYTES, from each socket, each with True if it came by the door."""
        enough = self._counts.received_bytes + TURN_BYTES
        for router, keeper in self._both():
            at_door = self._door is not None and router is self._door[0]
            for _ in range(budget):
                frames = take_frames(router, self._counts) if self._counts.received_bytes < enough else None
                if frames is None:
                    break
                keeper.hear(frames[-1])
                yield frames, at_door
            if ended := keeper.look(now):
                self._lines.warning(now, "", TOO_MANY, ended)
        for domain, host in self._gate.serve(now) if self._gate is not None else ():
            for router, keeper in self._both():
                if (router is self._links[0]) == (domain == LINKS):
                    keeper.admitted(host)
        if self._is_shut:
            self._open_door()

    def pollable(self) -> list[zmq.Socket[bytes]]:
        """Return the sockets to wait for now; the next call may return more or fewer."""
        sockets = [each for router, keeper in self._both() for each in (router, *keeper.pollable())]
        return sockets if self._gate is None else [*sockets, self._gate.socket]

    def deadline(self) -> float | None:
        """Return the time at which a waiting client is due an answer, or new and ended connections are due a look."""
        times = [keeper.deadline() for _, keeper in self._both()]
        times += [] if self._gate is None else [self._gate.deadline()]
        return min((time for time in times if time is not None), default=None)

    def reopen(self) -> None:
        """Open the door with the mesh's new join code, as soon as its port is free."""
        assert self._membership is not None
        assert self._door is not None
        self._door[0].setsockopt(zmq.CURVE_SECRETKEY, self._membership.keys.server_secret)
        with contextlib.suppress(zmq.ZMQError):  # it was not bound yet after the change before
            self._door[0].unbind(Address(self._host, self.port).endpoint())
        self._is_shut = True
        self._open_door()

    def follow(self, kept: frozenset[str]) -> str:
        """Move to the interface's new address if this node listens at one address only and that is gone.

        Returns the address that this node listens at. kept: addresses that this machine had all along, without links.
        """
        if self._interface and bare(self._host) not in kept:
            found = hosts_on(self._interface)
            if found and self._host not in found:
                self._move(found[0])
        return self._host

    def _both(self) -> list[tuple[zmq.Socket[bytes], Doorkeeper]]:
        return [self._links] if self._door is None else [self._links, self._door]

    def _move(self, host: str) -> None:
        """Listen at another address from now on, if possible."""
        for router, port in zip((each for each, _ in self._both()), (self.link_port, self.port), strict=False):
            try:
                router.bind(Address(host, port).endpoint())
            except zmq.ZMQError as error:
                logger.warning("cannot listen at %s port %d: %s", host, port, error)
                return
            with contextlib.suppress(zmq.ZMQError):  # it went with its address
                router.unbind(Address(self._host, port).endpoint())
        logger.warning("listening at %s now, no more at %s", host, self._host)
        self._host = host

    def _open_links(self, port: int) -> zmq.Socket[bytes]:
        assert self._membership is not None
        secret = self._membership.device.curve_secret
        try:
            return open_router(self._context, secret, LINKS, Address(self._host, port))
        except ConfigError:
            return open_router(self._context, secret, LINKS, Address(self._host, 0))

    def _open_door(self) -> None:
        assert self._door is not None
        with contextlib.suppress(zmq.ZMQError):  # libzmq is still closing it
            self._door[0].bind(Address(self._host, self.port).endpoint())
            self._is_shut = False

    def _watched(self, router: zmq.Socket[bytes]) -> tuple[zmq.Socket[bytes], Doorkeeper]:
        return router, Doorkeeper(self._context, router, self._half_open)


def _port_of(router: zmq.Socket[bytes]) -> int:
    return int(router.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])


@dataclass
class _Connection:
    name: Name
    since: float


class HalfOpen:
    """Connections without a finished handshake.

    most: the bound on those that sent no message yet and are still young enough to be in the handshake.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._connections: dict[int, _Connection] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._connections)

    def accept(self, descriptor: int, name: Name, now: float) -> None:
        self._connections.pop(descriptor, None)
        self._connections[descriptor] = _Connection(name, now)

    def end(self, descriptor: int) -> None:
        """Forget a connection that is closed, or that brought a whole message: its client has a key."""
        self._connections.pop(descriptor, None)

    def admit(self, host: str, count: int) -> None:
        """Forget so many connections from this host, the oldest: as many showed a key, and libzmq does not tell which.

        If a stranger's connection is forgotten by mistake, libzmq ends it when its handshake is overdue.
        """
        theirs = [number for number, connection in self._connections.items() if connection.name[0] == host]
        for descriptor in theirs[:count]:
            del self._connections[descriptor]

    def excess(self, now: float) -> list[tuple[int, Name]]:
        """Return the connections to end: the oldest of the host that has most of them, until only `most` are left."""
        while self._connections:
            oldest = next(iter(self._connections))
            if now - self._connections[oldest].since < HANDSHAKE_MS / 1000:
                break
            del self._connections[oldest]  # libzmq has ended it, unless it has a key
        too_many = len(self._connections) - self._most
        if too_many <= 0:
            return []
        of_host: dict[str, deque[int]] = defaultdict(deque)
        for descriptor, connection in self._connections.items():
            of_host[connection.name[0]].append(descriptor)
        chosen = [max(of_host.values(), key=len).popleft() for _ in range(too_many)]
        return [(descriptor, self._connections.pop(descriptor).name) for descriptor in chosen]


class Doorkeeper:
    """Watches the connections to one ROUTER. most: see `HalfOpen`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], router: zmq.Socket[bytes], most: int) -> None:
        self._half_open = HalfOpen(most)
        self._admitted: Counter[str] = Counter()
        self._rests_until: float | None = None
        heard_at = f"inproc://doorkeeper-{router.getsockopt_string(zmq.LAST_ENDPOINT)}"
        router.monitor(heard_at, _ACCEPTED | _ENDED)
        self._events = context.socket(zmq.PAIR)
        self._events.linger = 0
        self._events.rcvhwm = _MOST_EVENTS
        self._events.connect(heard_at)

    def pollable(self) -> list[zmq.Socket[bytes]]:
        """Return the socket that becomes readable when there are events; nothing while this rests, until `deadline`."""
        return [self._events] if self._rests_until is None else []

    def deadline(self) -> float | None:
        return self._rests_until

    def admitted(self, host: str) -> None:
        """Note that a client at this host has shown its key."""
        self._admitted[_bare(host)] += 1

    def hear(self, frame: zmq.Frame) -> None:
        """Note that a message has come by the connection of this frame."""
        if self._half_open:
            self._half_open.end(int(frame.get(zmq.SRCFD)))

    def look(self, now: float) -> int:
        """Take note of new and ended connections, and end those that are too many; return how many were ended."""
        if self._rests_until is not None and now < self._rests_until:
            return 0
        latest = self._take_events()
        for descriptor, event in latest.items():
            if event != _ACCEPTED:
                self._half_open.end(descriptor)
            elif name := _with(descriptor, _name_of):
                self._half_open.accept(descriptor, name, now)
        for host, count in self._admitted.items():  # each was accepted before that
            self._half_open.admit(host, count)
        self._admitted.clear()
        self._rests_until = now + (_SHORT_REST_S if len(latest) >= _MANY else _REST_S) if latest else None
        excess = self._half_open.excess(now)
        for descriptor, name in excess:
            _end(descriptor, name)
        return len(excess)

    def _take_events(self) -> dict[int, int]:
        """Return the last event of each descriptor, in the order in which they came."""
        latest: dict[int, int] = {}
        for _ in range(2 * _MOST_EVENTS):
            try:
                event, descriptor = _EVENT.unpack(self._events.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                break
            latest.pop(descriptor, None)
            latest[descriptor] = event
        return latest


def link_towards(frame: zmq.Frame, host: str) -> str:
    """Return the link of this machine that `host` is on, by the connection of a frame; "" if it is unknown."""
    name = None if ":" not in host else _with(int(frame.get(zmq.SRCFD)), _name_of)
    return name[3] if name and len(name) > 3 and name[0] == host and name[3] != "0" else ""


def end_connection(frame: zmq.Frame) -> None:
    """Shut down the connection that a frame came by, so that libzmq closes it."""
    descriptor = int(frame.get(zmq.SRCFD))
    if name := _with(descriptor, _name_of):
        _end(descriptor, name)


def _bare(host: str) -> str:
    """Return the address as a socket of its kind tells it: without libzmq's zone behind a link-local address."""
    return unmapped(host.partition("%")[0])


def _name_of(connection: socket.socket) -> Name:
    host, *rest = map(str, connection.getpeername())
    return _bare(host), *rest


def _end(descriptor: int, name: Name) -> None:
    """Shut down this connection, if it is still the same one; libzmq closes it."""

    def shut(connection: socket.socket) -> None:
        if _name_of(connection) == name:
            connection.shutdown(socket.SHUT_RDWR)

    _with(descriptor, shut)


def _with(descriptor: int, act: Callable[[socket.socket], Found]) -> Found | None:
    """Call `act` on a socket that belongs to libzmq and stays open; return None if this number has none."""
    with contextlib.suppress(OSError):
        connection = socket.socket(fileno=descriptor)
        try:
            return act(connection)
        finally:
            connection.detach()
    return None


class ZapGate:
    """Answers the ROUTERs of its context; must be open before them. admit: decides which clients are let in."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], admit: Admit, lines: LogLimit) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        self.socket.bind(ZAP_ADDRESS)
        self._admit = admit
        self._lines = lines
        self._waiting: list[tuple[float, list[bytes]]] = []

    def serve(self, now: float) -> list[tuple[bytes, str]]:
        """Answer the waiting clients that are decided by now; return domain and address of each that is let in."""
        asked, self._waiting = self._waiting, []
        for _ in range(TURN):
            try:
                asked.append((now + WAIT_S, self.socket.recv_multipart(zmq.NOBLOCK)))
            except zmq.Again:
                break
        return [let_in for until, frames in asked if (let_in := self._answer(frames, until, now))]

    def deadline(self) -> float | None:
        """Return the time at which the first waiting answer has to be given."""
        return min((until for until, _ in self._waiting), default=None)

    def _answer(self, frames: list[bytes], until: float, now: float) -> tuple[bytes, str] | None:
        at = frames.index(b"") + 1 if b"" in frames else len(frames)
        request = frames[at:]
        try:
            reply = answer(request, self._admit)
        except Exception:  # noqa: BLE001 (a bug that a stranger's key met: it costs that stranger alone)
            self._lines.bug(now, "", "a handshake met a bug here, and is refused")
            reply = answer(request, lambda domain, key: REFUSED)
        if reply[2] == LATER and now < until and len(self._waiting) < _MOST_WAITING:
            self._waiting.append((until, frames))
            return None
        host = unmapped(request[3].decode("ascii", "replace")) if len(request) > 3 else "somewhere"
        if reply[2] == REFUSED:
            self._lines.warning(now, host, "a client with other keys was turned away from %s", host)
        self.socket.send_multipart([*frames[:at], *reply])
        return (request[2], host) if reply[2] == ALLOWED else None


def admit_devices(keys: MeshKeys) -> Admit:
    """Admit every key but the one that all holders of the code share: it cannot tell one device from another.

    A client without the code does not get this far: a handshake begins with the server's key, which only the code
    tells.
    """
    shared = z85.decode(keys.client_public)
    return lambda domain, key: REFUSED if key == shared else ALLOWED


def answer(request: Sequence[bytes], admit: Admit) -> list[bytes]:
    """Return the ZAP reply. A client that is let in is known by its key from then on: `shown_key` of its frames."""
    padded = [*request, b"", b"", b"", b"", b"", b"", b""]
    request_id, domain, mechanism, credentials = padded[1], padded[2], padded[5], padded[6]
    is_whole = len(request) == 7 and request[0] == _MECHANISM_VERSION and mechanism == b"CURVE"
    status = admit(domain, credentials) if is_whole else REFUSED
    user = credentials.hex().encode() if status == ALLOWED else b""
    text = b"OK" if status == ALLOWED else b"not a member of this mesh"
    return [_MECHANISM_VERSION, request_id, status, text, user, b""]


def host_of(frame: zmq.Frame) -> str:
    """Return the address that a frame came from; "" if libzmq does not tell."""
    try:
        host = frame.get("Peer-Address")
    except zmq.ZMQError:
        return ""
    return unmapped(host) if isinstance(host, str) else ""


def shown_key(frame: zmq.Frame) -> bytes:
    """Return the key of the client that a frame came from; empty without encryption."""
    try:
        user = frame.get("User-Id")
    except zmq.ZMQError:  # no client was asked for a key
        return b""
    return bytes.fromhex(user) if isinstance(user, str) else b""
