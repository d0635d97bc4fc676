"""ZeroMQ and UDP in memory: what `Links`, `Hub` and `Spoke` need of them, in virtual time; a case can be repeated.

The handshake is a real one as far as mdl takes part in it: who dials has to expect the key that the other end has, and
that end's own gate (`mdl.transport.links.doors`) is asked whether to let it in. What comes after is what the sockets
would give: whole messages, in order, of a connection that knows the key it was opened with. Queues have the sockets'
bounds.
"""

from __future__ import annotations

import ipaddress
import random
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Interface
from typing import Any
from unittest import mock

import zmq
from zmq.utils import z85

from mdl.transport.discovery.directory import socket_address
from mdl.transport.discovery.interfaces import LOOPBACK
from mdl.transport.links import flows, hub, introducer, mesh_links
from mdl.transport.links.doors import ALLOWED, ZAP_ADDRESS

# A connection that was refused is tried again so much later.
_AGAIN_S = 0.5
# Bytes of datagrams that a socket holds.
_DATAGRAMS = 256
_NO_DESCRIPTOR = 1 << 30


class _NothingError(zmq.Again):
    """Made a million times: without the words that ZeroMQ has for it."""

    errno = zmq.EAGAIN

    def __init__(self) -> None:
        Exception.__init__(self)


class Frame:
    """What mdl asks of a `zmq.Frame`. key: that its connection has shown; None without encryption."""

    __slots__ = ("_key", "buffer", "bytes", "more")

    def __init__(self, data: bytes, key: bytes | None, more: bool) -> None:
        self.bytes, self.buffer, self._key, self.more = data, memoryview(data), key, more

    def __len__(self) -> int:
        return len(self.bytes)

    def get(self, option: Any) -> Any:
        if option != "User-Id":
            return _NO_DESCRIPTOR
        if self._key is None:
            raise zmq.ZMQError(zmq.EINVAL)
        return self._key.hex()


class Connection:
    """From one who dials to a ROUTER. key: 32 bytes that it has shown. waiting: messages that were not taken yet."""

    def __init__(self, wire: Wire, key: bytes | None, back: Socket | None = None) -> None:
        self.identity = wire.next_identity()
        self.key, self.back, self.waiting = key, back, 0


class Socket:
    """A ROUTER, a DEALER, or the PAIR of a doorkeeper, which never hears anything."""

    def __init__(self, context: Context, kind: int) -> None:
        self.context, self.kind, self.wire = context, kind, context.wire
        self.sndhwm = self.rcvhwm = 1000
        self.linger, self.immediate = 0, False
        self.options: dict[int, Any] = {}
        self.incoming: deque[tuple[Connection, list[bytes]]] = deque()
        self.connection: Connection | None = None
        self.where: tuple[str, int] | None = None
        self.connections: dict[bytes, Connection] = {}
        self._unsent: deque[list[bytes]] = deque()
        self._parts: list[bytes] = []
        self._frames: deque[Frame] = deque()
        self._endpoint = ""
        self.is_closed = False

    # -- as pyzmq has it ----------------------------------------------------------------------------------------------

    def setsockopt(self, option: int, value: Any) -> None:
        self.options[option] = value

    def getsockopt_string(self, option: int) -> str:
        return self._endpoint

    def monitor(self, address: str, events: int) -> None:
        """Nobody is half open here."""

    def bind(self, endpoint: str) -> None:
        if endpoint == ZAP_ADDRESS:
            self.context.gate = self
            return
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        number = self.wire.next_port() if port in ("*", "0") else int(port)
        where = (host.strip("[]"), number)
        if where in self.wire.routers:
            raise zmq.ZMQError(zmq.EADDRINUSE)
        self.where, self._endpoint = where, f"tcp://{host}:{number}"
        self.wire.routers[where] = self
        self.wire.look_again(where)

    def unbind(self, endpoint: str) -> None:
        if self.where is not None:
            self.wire.routers.pop(self.where, None)
            self.where = None

    def connect(self, endpoint: str) -> None:
        if self.kind == zmq.PAIR:
            return
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        try:
            ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            raise zmq.ZMQError(zmq.EINVAL) from None
        self.where = (host.strip("[]"), int(port))
        self.wire.dial(self)

    def send(self, data: Any, flags: int = 0, copy: bool = True) -> None:
        self._parts.append(bytes(data))
        if not flags & zmq.SNDMORE:
            parts, self._parts = self._parts, []
            self._send(parts)

    def send_multipart(self, frames: Sequence[Any], flags: int = 0, copy: bool = True) -> None:
        if self is self.context.gate:
            self.wire.answered(frames)
        elif self.kind == zmq.ROUTER:
            connection = self.connections.get(bytes(frames[0]))
            if (
                connection is not None
                and (back := connection.back) is not None
                and len(back.incoming) < 2 * back.rcvhwm
            ):
                back.incoming.append((connection, [bytes(frame) for frame in frames[1:]]))
        else:
            self._send([bytes(frame) for frame in frames])

    def _send(self, parts: list[bytes]) -> None:
        connection = self.connection
        if connection is None:
            if self.immediate or len(self._unsent) >= self.sndhwm:
                raise _NothingError
            self._unsent.append(parts)
        elif not self.put(connection, parts):
            raise _NothingError

    def recv(self, flags: int = 0, copy: bool = True) -> Frame:
        if not self._frames:
            if not self.incoming:
                raise _NothingError
            connection, parts = self.incoming.popleft()
            connection.waiting -= 1
            if self.kind == zmq.ROUTER:
                parts = [connection.identity, *parts]
            self._frames.extend(Frame(part, connection.key, part is not parts[-1]) for part in parts)
        return self._frames.popleft()

    def recv_multipart(self, flags: int = 0) -> list[bytes]:
        if not self.incoming:
            raise _NothingError
        return self.incoming.popleft()[1]

    def poll(self, timeout: int, flags: int) -> int:
        return int(self.connection is not None)

    def close(self, linger: int = 0) -> None:
        self.is_closed = True
        if self.kind == zmq.ROUTER:
            self.unbind("")
        self.context.sockets.discard(self)

    # -- of the wire --------------------------------------------------------------------------------------------------

    def put(self, connection: Connection, parts: list[bytes]) -> bool:
        """Queue a message at the end of this connection; False if there is no room."""
        router = self.wire.routers.get(self.where) if self.where else None
        if router is None:
            self.connection = None
            self.wire.dial(self)
            if len(self._unsent) < self.sndhwm:
                self._unsent.append(parts)
                return True
            return False
        if connection.waiting >= self.sndhwm + router.rcvhwm:
            return False
        connection.waiting += 1
        router.incoming.append((connection, parts))
        self.wire.heard(parts)
        return True

    def admitted(self, connection: Connection, router: Socket) -> None:
        self.connection = connection
        router.connections[connection.identity] = connection
        while self._unsent and self.put(connection, self._unsent.popleft()):
            pass

    def public(self) -> bytes | None:
        """The key of this ROUTER, Z85; None without encryption."""
        secret = self.options.get(zmq.CURVE_SECRETKEY)
        return None if secret is None else self.wire.public_of(secret)


class Context:
    def __init__(self, wire: Wire) -> None:
        self.wire, self.sockets = wire, set[Socket]()
        self.gate: Socket | None = None

    def socket(self, kind: int) -> Socket:
        made = Socket(self, kind)
        self.sockets.add(made)
        return made

    def set(self, option: int, value: int) -> None:
        """As many sockets as anybody wants."""

    def destroy(self, linger: int = 0) -> None:
        for each in list(self.sockets):
            each.close()


class Datagrams:
    """A UDP socket."""

    family = socket.AF_INET

    def __init__(self, wire: Wire, host: str, port: int) -> None:
        self._wire, self.incoming = wire, deque[bytes](maxlen=_DATAGRAMS)
        self._name = (host, port if (host, port) not in wire.datagrams and port else wire.next_port())
        wire.datagrams[self._name] = self

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def recv(self, most: int) -> bytes:
        if not self.incoming:
            raise BlockingIOError
        return self.incoming.popleft()

    def sendto(self, data: bytes, where: Any) -> int:
        if (other := self._wire.datagrams.get((where[0], where[1]))) is not None:
            other.incoming.append(bytes(data))
        return len(data)

    def close(self) -> None:
        self._wire.datagrams.pop(self._name, None)


class Wire:
    """All sockets of one case. now: virtual seconds. tap: called with each message that an honest process has sent."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.routers: dict[tuple[str, int], Socket] = {}
        self.datagrams: dict[tuple[str, int], Datagrams] = {}
        self.tap: Callable[[list[bytes]], None] = lambda parts: None
        self.own_host = "127.0.0.1"  # of the process that is being built or run
        self._asked: dict[bytes, tuple[Socket, Connection, Socket]] = {}
        self._nobody: defaultdict[tuple[str, int], list[Socket]] = defaultdict(list)
        self._again: list[tuple[float, Socket]] = []
        self._count = 0
        self._port = 20_000

    def next_port(self) -> int:
        self._port += 1
        return self._port

    def next_identity(self) -> bytes:
        self._count += 1
        return b"\0" + self._count.to_bytes(4, "big")

    def public_of(self, secret: bytes) -> bytes:
        if secret not in _PUBLIC:
            _PUBLIC[secret] = zmq.curve_public(secret)
        return _PUBLIC[secret]

    def heard(self, parts: list[bytes]) -> None:
        self.tap(parts)

    def dial(self, dealer: Socket) -> None:
        if dealer.is_closed or dealer.where is None:
            return
        router = self.routers.get(dealer.where)
        if router is None:
            self._nobody[dealer.where].append(dealer)
            return
        server, shown = router.public(), dealer.options.get(zmq.CURVE_PUBLICKEY)
        key = None if shown is None else z85.decode(shown)
        connection = Connection(self, key, dealer)
        if server is None:
            if shown is None:
                dealer.admitted(connection, router)
            return
        if key is None or dealer.options.get(zmq.CURVE_SERVERKEY) != server:
            self._again.append((self.now + _AGAIN_S, dealer))
            return
        gate = router.context.gate
        assert gate is not None
        self._asked[connection.identity] = dealer, connection, router
        domain = router.options[zmq.ZAP_DOMAIN]
        gate.incoming.append(
            (connection, [connection.identity, b"", b"1.0", b"1", domain, b"127.0.0.1", b"", b"CURVE", key])
        )

    def answered(self, frames: Sequence[bytes]) -> None:
        """A gate has answered."""
        asked = self._asked.pop(bytes(frames[0]), None)
        if asked is None:
            return
        dealer, connection, router = asked
        if frames[4] == ALLOWED:
            if not dealer.is_closed and router.where == dealer.where:
                dealer.admitted(connection, router)
            return
        self._again.append((self.now + _AGAIN_S, dealer))

    def look_again(self, where: tuple[str, int]) -> None:
        """Somebody listens there now."""
        for dealer in self._nobody.pop(where, []):
            self.dial(dealer)

    def on_time(self) -> None:
        due = [dealer for at, dealer in self._again if at <= self.now]
        if due:
            self._again = [each for each in self._again if each[0] > self.now]
            for dealer in due:
                self.dial(dealer)
        if len(self._nobody) > 64:
            for where, dealers in list(self._nobody.items()):
                if kept := [each for each in dealers if not each.is_closed]:
                    self._nobody[where] = kept
                else:
                    del self._nobody[where]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """What is opened meanwhile is in memory, and nothing asks this machine for its addresses."""
        own = self

        class _Zmq:
            Context = staticmethod(lambda: Context(own))

            def __getattr__(self, name: str) -> Any:
                return getattr(zmq, name)

        def towards(host: str) -> str:
            socket_address(socket.AF_INET6 if ":" in host else socket.AF_INET, host, 9)
            return own.own_host

        def near(host: str) -> list[Any]:
            return [LOOPBACK] if host == "127.0.0.1" else [IPv4Interface(f"{host}/24")]

        with ExitStack() as stack:
            for module, name, value in (
                (mesh_links, "new_context", lambda sockets: Context(own)),
                (hub, "zmq", _Zmq()),
                (introducer, "local_host_towards", towards),
                (introducer, "networks_near", near),
                (introducer, "own_hosts", lambda host: (host,)),
                (flows, "_open_socket", lambda host, port: Datagrams(own, host, port)),
                (flows, "token_bytes", self.rng.randbytes),
                (mesh_links, "token_bytes", self.rng.randbytes),
            ):
                stack.enter_context(mock.patch.object(module, name, value))
            yield


_PUBLIC: dict[bytes, bytes] = {}
