"""The decision which clients may connect: the answers to libzmq's questions (ZAP, RFC 27).

A device may connect milliseconds before it is introduced: only its own answer waits for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import zmq
from zmq.utils import z85

from mdl.transport.discovery.scopes import unmapped
from mdl.transport.links.sockets import TURN
from mdl.transport.loglimit import LogLimit
from mdl.transport.trust.keys import MeshKeys

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


class Gate:
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
