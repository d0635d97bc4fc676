"""Connections that have not shown a key yet: anybody may open them, and each takes a descriptor.

libzmq accepts every client, and ends those without a finished handshake after HANDSHAKE_MS. A stranger opens a thousand
silent connections in a second. A process without descriptors cannot accept, open a file, or rest: libzmq's thread then
fails to accept again and again. So this module ends the oldest connections as soon as there are more than a node can
bear, first those of the host that has most of them. `HalfOpen` is pure. `Doorkeeper` hears of connections from libzmq
and rests in between, so that hundreds of new connections a second do not each wake this node's loop.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import zmq

from mdl.transport.discovery.scopes import unmapped
from mdl.transport.links.sockets import HANDSHAKE_MS

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
