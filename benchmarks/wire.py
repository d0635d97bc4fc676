"""How fast one vector goes from one process to another on loopback: TCP, ZeroMQ, CURVE, and mdl's own links.

    python -m benchmarks wire --megabytes 0.25 5 46.4

Each way brings the vector into memory that is there already; mdl does it as in a round, encrypted. They take turns, and
what counts is what they are beside TCP and beside ZeroMQ with CURVE in the same run.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import zmq

from benchmarks.tool.apart import words_of
from benchmarks.tool.options import Namespace, Parser, one_of
from benchmarks.tool.sheet import Sheet
from benchmarks.tool.spread import quartiles
from benchmarks.tool.table import show
from benchmarks.tool.turns import in_turns
from mdl.protocol.delta import Contributor
from mdl.protocol.machine import Event, PeerFound, Received
from mdl.protocol.round_messages import DeltaMessage, DeltaWanted, SegmentMessage, SegmentsReady, SegmentTaken
from mdl.protocol.segments import segment_values
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.links.mesh_links import Links
from mdl.transport.trust.keys import MeshKeys, new_join_code
from mdl.transport.wire.codec import CHUNK_BYTES

WAYS = ("tcp", "zeromq", "curve", "hop", "segments")
# The first transfers open connections and touch memory; they are not counted.
WARM_UP = 2
# Segments under way, not yet taken.
_WINDOW = 8
_SENDER, _RECEIVER = Contributor("sender", 1), Contributor("receiver", 1)
_PATIENCE_S = 60.0
_GO = b"g"


def add_options(parser: Parser) -> None:
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.25, 5.0, 46.4])
    parser.add_argument("--times", type=int, default=20, help="transfers of each way and size that count")
    parser.add_argument("--ways", default=",".join(WAYS), help="some of them, separated by commas")


def run(given: Namespace, sheet: Sheet) -> None:
    """Measure each way with each size. Raises ConfigError."""
    ways = one_of("--ways", given.ways, WAYS)
    sizes = [round(megabytes * 1e6 / 4) for megabytes in given.megabytes]
    told = {f"{4 * size / 1e6:g} MB": _measure(size, ways, given.times) for size in sizes}
    rows = []
    for name, found in told.items():
        for way, (median, low, high) in found.items():
            beside = [f"{median / found[other][0]:.2f}" if other in found else None for other in ("tcp", "curve")]
            rows.append((f"{name}, {way}", f"{median:.3f}", f"{low:.3f} to {high:.3f}", *beside))
    show(("", "GB/s", "quartiles", "of TCP", "of CURVE"), rows)
    sheet.tell({"gigabytes_a_second": told})


def _measure(size: int, ways: list[str], times: int) -> dict[str, list[float]]:
    """Median and quartiles of each way; they take turns."""
    receivers = {way: _Receiver(way, size) for way in ways}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    try:
        for number, (way, receiver) in in_turns(times + WARM_UP, receivers.items()):
            began = time.perf_counter()
            receiver.take()
            if number >= WARM_UP:
                seconds[way].append(time.perf_counter() - began)
            if receiver.values[-1] != size or receiver.values[0] != 1:
                raise RuntimeError(f"{way}: other values arrived than were sent")
    finally:
        for receiver in receivers.values():
            receiver.close()
    rates = {way: 4 * size / 1e9 / np.array(found) for way, found in seconds.items()}
    return {way: quartiles(found, 4) for way, found in rates.items()}


class _Receiver:
    """One way to a sender in a process of its own. values: where the vector comes to, again and again."""

    def __init__(self, way: str, size: int) -> None:
        self.values = np.ones(size, np.float32)
        code = new_join_code("wire")
        port, self.take, self.close_ways = _TAKES[way](self.values, code)
        self._process = subprocess.Popen(words_of("benchmarks.wire:send", way, port, code, size))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self.close_ways()


Way = tuple[int, Callable[[], None], Callable[[], None]]


def _take_tcp(values: Any, code: str) -> Way:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(_PATIENCE_S)
    connections: list[socket.socket] = []

    def take() -> None:
        if not connections:
            connections.append(listener.accept()[0])
        connections[0].sendall(_GO)
        view, got = memoryview(values).cast("B"), 0
        while got < len(view):
            got += connections[0].recv_into(view[got:])

    return listener.getsockname()[1], take, listener.close


def _send_tcp(port: int, code: str, size: int) -> None:
    values = _vector(size)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while connection.recv(1):
            connection.sendall(memoryview(values).cast("B"))


def _take_zeromq(values: Any, code: str) -> Way:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoint = context.socket(zmq.PAIR)
    endpoint.rcvtimeo = round(_PATIENCE_S * 1000)
    if code:
        endpoint.curve_server, endpoint.curve_secretkey = True, MeshKeys.from_code(code).server_secret
    port = endpoint.bind_to_random_port("tcp://127.0.0.1")

    def take() -> None:
        endpoint.send(_GO)
        view, got = memoryview(values).cast("B"), 0
        while got < len(view):
            part = endpoint.recv(copy=False).buffer
            view[got : got + len(part)] = part
            got += len(part)

    return port, take, lambda: context.destroy(linger=0)


def _send_zeromq(port: int, code: str, size: int) -> None:
    values = _vector(size)
    data = memoryview(values).cast("B")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    endpoint = context.socket(zmq.PAIR)
    if code:
        keys = MeshKeys.from_code(code)
        endpoint.curve_serverkey = keys.server_public
        endpoint.curve_publickey, endpoint.curve_secretkey = keys.client_public, keys.client_secret
    endpoint.connect(f"tcp://127.0.0.1:{port}")
    while endpoint.recv():
        for start in range(0, len(data), CHUNK_BYTES):
            endpoint.send(data[start : start + CHUNK_BYTES], copy=False)


class _End:
    """One end of mdl's links, in the thread that calls."""

    def __init__(self, me: Contributor, code: str, size: int, join: int = 0) -> None:
        info = PeerInfo(me.peer_id, me.incarnation, Role.TRAINER, "", 0)
        joined = [f"127.0.0.1:{join}"] if join else []
        keys = MeshKeys.from_code(code)
        now = time.monotonic()
        self.links = Links(info, keys, max_values=size, now=now, listen_host="127.0.0.1", join=joined)
        self._poller = zmq.Poller()
        for endpoint in self.links.pollable():
            self._poller.register(endpoint, zmq.POLLIN)

    def hear(self, patience_s: float = _PATIENCE_S) -> list[Event]:
        """What comes next. Raises TimeoutError."""
        give_up_at = time.monotonic() + patience_s
        while (now := time.monotonic()) < give_up_at:
            if events := self.links.receive(now):
                return events
            self._poller.poll(100)
        raise TimeoutError("the other process does not answer")

    def meet(self) -> None:
        while not any(isinstance(event, PeerFound) for event in self.hear()):
            pass

    def say(self, receiver: Contributor, message: Any, values: Any = None) -> None:
        self.links.send(receiver.peer_id, message, values, time.monotonic())


def _take_hop(values: Any, code: str) -> Way:
    end, rounds = _End(_RECEIVER, code, values.size), iter(range(1, 1 << 30))

    def take() -> None:
        number = next(rounds)
        if number == 1:
            end.meet()
        end.say(_SENDER, DeltaWanted(number, 1, number))
        while True:
            for event in end.hear():
                if isinstance(event, Received) and isinstance(event.values, np.ndarray):
                    values[0], values[-1] = event.values[0], event.values[-1]
                    return

    return end.links.me.port, take, end.links.close


def _send_hop(port: int, code: str, size: int) -> None:
    values, end = _vector(size), _End(_SENDER, code, size, port)
    while True:
        for event in end.hear(1e9):
            if isinstance(event, Received) and isinstance(event.message, DeltaWanted):
                hop = event.message
                end.say(_RECEIVER, DeltaMessage(hop.round_id, hop.hop_id, 1.0, (_SENDER,)), values)


def _take_segments(values: Any, code: str) -> Way:
    end, rounds = _End(_RECEIVER, code, values.size), iter(range(1, 1 << 30))
    most = segment_values(values.size)

    def take() -> None:
        number, left = next(rounds), -(-values.size // most)
        if number == 1:
            end.meet()
        end.say(_SENDER, SegmentsReady(number, 1, 0))
        while left:
            for event in end.hear():
                if isinstance(event, Received) and isinstance(event.message, SegmentMessage):
                    segment = event.message.segment
                    values[segment * most : (segment + 1) * most] = event.values
                    end.say(_SENDER, SegmentTaken(number, 1, 0, segment, True))
                    left -= 1

    return end.links.me.port, take, end.links.close


def _send_segments(port: int, code: str, size: int) -> None:
    values, end, most = _vector(size), _End(_SENDER, code, size, port), segment_values(size)
    waiting: Iterator[int] = iter(())
    while True:
        for event in end.hear(1e9):
            if not isinstance(event, Received):
                continue
            if isinstance(event.message, SegmentsReady):
                number, waiting, more = event.message.round_id, iter(range(-(-size // most))), _WINDOW
            else:
                more = 1
            for _, segment in zip(range(more), waiting, strict=False):
                part = values[segment * most : (segment + 1) * most]
                end.say(_RECEIVER, SegmentMessage(number, 1, 0, segment), part)


def _vector(size: int) -> Any:
    return np.arange(1, size + 1, dtype=np.float32)


_TAKES: dict[str, Callable[[Any, str], Way]] = {
    "tcp": _take_tcp,
    "zeromq": lambda values, code: _take_zeromq(values, ""),
    "curve": _take_zeromq,
    "hop": _take_hop,
    "segments": _take_segments,
}
_SENDS: dict[str, Callable[[int, str, int], None]] = {
    "tcp": _send_tcp,
    "zeromq": lambda port, code, size: _send_zeromq(port, "", size),
    "curve": _send_zeromq,
    "hop": _send_hop,
    "segments": _send_segments,
}


def send(way: str, port: int, code: str, size: int) -> None:
    """The other end of a way, in a process of its own: it sends whenever it is asked."""
    _SENDS[way](port, code, size)
