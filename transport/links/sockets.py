"""ZeroMQ sockets with every limit set. One context per node, because libzmq admits clients per context.

A ROUTER only receives, DEALERs only send. A device may only introduce itself at the door, with keys from the join code;
messages are taken on the socket at which each device shows its own key.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

import zmq

from mdl.errors import ConfigError
from mdl.transport.discovery.directory import Address, bare, is_loopback, socket_address
from mdl.transport.trust.keys import MeshKeys
from mdl.transport.wire.codec import MAX_FRAME_BYTES

# Per connection: eight windows of chunks, or a minute of reports. Further messages wait in the sender's queue.
RECEIVE_QUEUE = 64
# Small messages to one peer that is away: two minutes of reports once a second. The newest are lost first.
CONTROL_QUEUE = 128
# Two transfers' windows and their repetitions; or 2.5 MB of the smallest segments, far more than a peer accepts.
BULK_QUEUE = 160
# A handshake takes milliseconds; a stranger that only opens connections holds each no longer than this.
HANDSHAKE_MS = 5_000
# Reports come about once a second, so ten silent seconds mean a broken connection.
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 2_000, 10_000
# Bulk connections are judged by unacknowledged bytes: a ping would wait behind megabytes and look lost.
UNACKNOWLEDGED_MS = 10_000
RECONNECT_MS, RECONNECT_MAX_MS = 100, 2_000
# Another attempt to connect begins after this time. Otherwise the kernel doubles its wait after each attempt without an
# answer, and a network that was cut for a minute would be back only after another minute.
CONNECT_MS = 4_000
_PASSING = frozenset((zmq.EAGAIN, zmq.EHOSTUNREACH, zmq.ETERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))
# Messages handled in one turn: even if chunks come without end, timers run every few milliseconds.
TURN = 64
# The bytes handled in one turn, copied or merged in a few milliseconds: timers run in between.
TURN_BYTES = 1 << 22
# A socket that a poll loop waits on.
Pollable: TypeAlias = zmq.Socket[bytes] | socket.socket


@dataclass(frozen=True)
class Curve:
    """The keys of a connection, Z85 text (40 bytes): the expected one of the server, and the own ones to show."""

    server: bytes
    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def of_door(cls, keys: MeshKeys) -> Curve:
        return cls(keys.server_public, keys.client_public, keys.client_secret)


@dataclass
class LinkCounts:
    """Counts of the links, frames of the protocol included, without the overhead of TCP and CURVE.

    ways_s: peer id -> the quickest recent round trip of a small message, in seconds, as far as it is known.
    bugs: messages that met a bug here. unheard: peers that are ignored for a while after such a message.
    """

    sent_bytes: int = 0
    received_bytes: int = 0
    dropped: int = 0
    refused: int = 0
    ways_s: dict[str, float] = field(default_factory=dict)
    bugs: int = 0
    unheard: tuple[str, ...] = ()


def is_passing(error: zmq.ZMQError) -> bool:
    """Return True for an error that only drops a message: no room, no route, no descriptor or memory, or the end."""
    return error.errno in _PASSING


def new_context(sockets: int) -> zmq.Context[zmq.Socket[bytes]]:
    """Return a separate context for so many sockets."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, sockets)
    return context


def check_security(keys: MeshKeys | None, insecure: bool, hosts: Iterable[str]) -> None:
    """Raise ConfigError for links without keys that were not asked for, or that lead beyond loopback."""
    if insecure != (keys is None):
        raise ConfigError("insecure: a mesh without a join code needs insecure = true, one with a join code forbids it")
    if insecure and (beyond := [host for host in hosts if not is_loopback(host)]):
        raise ConfigError(f"insecure: {beyond[0]} is beyond loopback; only 127.0.0.1 may go without a join code")


def open_router(
    context: zmq.Context[zmq.Socket[bytes]], secret: bytes | None, domain: bytes, address: Address
) -> zmq.Socket[bytes]:
    """Open a socket that this node receives on; port 0 takes a free one. Raises ConfigError if it cannot be bound.

    secret: of its CURVE key, Z85; None without encryption. domain: passed to the gate with each of its clients.
    """
    router = context.socket(zmq.ROUTER)
    router.linger = 0
    router.rcvhwm = RECEIVE_QUEUE
    router.sndhwm = BULK_QUEUE
    router.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    router.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    router.setsockopt(zmq.IPV6, int(":" in address.host))
    _keep_alive(router)
    if secret is not None:
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, secret)
        router.setsockopt(zmq.ZAP_DOMAIN, domain)
    try:
        router.bind(address.endpoint() if address.port else address.endpoint().removesuffix("0") + "*")
    except zmq.ZMQError as error:
        router.close()
        if error.errno == zmq.EADDRINUSE:
            text = f"port {address.port} is taken on {address.host}: choose another one, or 0 for any free one"
        else:
            text = f"cannot listen at {address.host} port {address.port}: {error}"
        raise ConfigError(text) from None
    return router


def open_dealer(
    context: zmq.Context[zmq.Socket[bytes]], curve: Curve | None, address: Address, bulk: bool, is_extra: bool = False
) -> zmq.Socket[bytes]:
    """Open a socket that sends to one peer's ROUTER. It connects in the background, for as long as it takes.

    is_extra: takes no messages before it is connected, since another socket does.
    Raises ZMQError if the system has no socket; `is_passing` is true for it then.
    """
    dealer = prepare_dealer(context.socket(zmq.DEALER), curve, address)
    dealer.sndhwm = BULK_QUEUE if bulk else CONTROL_QUEUE
    dealer.rcvhwm = 1
    dealer.immediate = is_extra
    if not bulk:
        dealer.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    try:
        dealer.connect(address.endpoint())
    except zmq.ZMQError:
        dealer.close()
        raise
    return dealer


def open_spoke(context: zmq.Context[zmq.Socket[bytes]], curve: Curve | None, address: Address) -> zmq.Socket[bytes]:
    """Open a socket that sends to a door and receives the answers on the same connection."""
    dealer = prepare_dealer(context.socket(zmq.DEALER), curve, address)
    dealer.sndhwm = CONTROL_QUEUE
    dealer.rcvhwm = RECEIVE_QUEUE
    dealer.connect(address.endpoint())
    return dealer


def prepare_dealer(dealer: zmq.Socket[bytes], curve: Curve | None, address: Address) -> zmq.Socket[bytes]:
    """Set the options that all dialling sockets share; return the same socket."""
    dealer.linger = 0
    dealer.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    dealer.setsockopt(zmq.IPV6, int(":" in address.host))
    dealer.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    dealer.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
    dealer.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_MS)
    dealer.setsockopt(zmq.TCP_MAXRT, UNACKNOWLEDGED_MS)
    _keep_alive(dealer)
    if curve is not None:
        dealer.setsockopt(zmq.CURVE_SERVERKEY, curve.server)
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, curve.public)
        dealer.setsockopt(zmq.CURVE_SECRETKEY, curve.secret)
    return dealer


def take_frames(endpoint: zmq.Socket[bytes], counts: LinkCounts) -> list[zmq.Frame] | None:
    """Return the next message, None if there is none; only the first few frames are kept of one with too many."""
    try:
        frames = [endpoint.recv(zmq.NOBLOCK, copy=False)]
    except zmq.Again:
        return None
    more = frames[0].more
    while more:
        frame = endpoint.recv(zmq.NOBLOCK, copy=False)
        more = frame.more
        counts.received_bytes += len(frame)
        if len(frames) < 4:
            frames.append(frame)
    return frames


def local_host_towards(host: str) -> str:
    """Return this machine's own address on the way to `host`, by the routing table, without a link; send nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(socket_address(family, host, 9))
            return bare(str(probe.getsockname()[0]))
    except OSError:  # no route, or no descriptor left
        return "::1" if family == socket.AF_INET6 else "127.0.0.1"


def _keep_alive(endpoint: zmq.Socket[bytes]) -> None:
    """Make TCP notice within about half a minute that a peer vanished silently."""
    endpoint.setsockopt(zmq.TCP_KEEPALIVE, 1)
    endpoint.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 15)
    endpoint.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 5)
    endpoint.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
