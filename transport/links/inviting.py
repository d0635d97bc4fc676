"""The sockets of an invitation: frames with two bytes of length, one connection at a time, everything bounded.

What is said, and who is told what, decides `transport/trust/invitation.py`.
"""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections.abc import Callable

from mdl.errors import MeshNotFoundError, RemoteProtocolError
from transport.discovery.directory import Address
from transport.loglimit import LogLimit
from transport.trust.invitation import MAX_FRAME_BYTES, Invitation, Joining

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct("!H")
# The inviting end hears a message and a proof: nobody may have it hold more.
_LARGEST_HEARD = 64
# For a connection that says nothing, and for a whole exchange: some packets, and milliseconds of computing.
_FIRST_WORD_S, _EXCHANGE_S = 2.0, 10.0
# Others may be before this device, each with its time.
_PATIENCE_S = 20.0
_LOOK_S = 0.5

IsNear = Callable[[str], bool]


def serve(invitation: Invitation, listener: socket.socket, is_near: IsNear, tell: Callable[[str], None]) -> str:
    """Answer whoever comes until the invitation is over; returns why it is. tell: gets a line for each try."""
    lines = LogLimit(logger)
    while not (why := invitation.why_over(now := time.monotonic())):
        lines.on_time(now)
        listener.settimeout(_LOOK_S)
        try:
            connection, (host, _) = listener.accept()
        except TimeoutError:
            continue
        with connection:
            left = invitation.tries_left
            came = _answer(invitation, connection) if is_near(host) else "is on another network: not heard"
            if invitation.tries_left < left:
                tell(f"{host} {came}")
            else:
                lines.warning(now, "", "%s %s", host, came)
    return why


def accept(words: str, at: Address) -> str:
    """What the device at this address hands over to who knows the words.

    Raises ConfigError if the words are others there, MeshNotFoundError if nobody answers, RemoteProtocolError for what
    is no invitation.
    """
    joining, give_up_at = Joining(words), time.monotonic() + _PATIENCE_S
    where = f"{at.host}:{at.port}"
    try:
        with socket.create_connection((at.host, at.port), _EXCHANGE_S) as connection:
            said = joining.begin()
            while said:
                _write(connection, said, give_up_at)
                said = joining.handle(_read(connection, MAX_FRAME_BYTES, give_up_at))
    except EOFError:
        raise MeshNotFoundError(f"{where} has hung up: is the invitation there still open?") from None
    except OSError as error:
        raise MeshNotFoundError(f"no invitation at {where}: {error.strerror or error}") from None
    return joining.text


def _answer(invitation: Invitation, connection: socket.socket) -> str:
    """One exchange; what came of it, in words."""
    began_at, inviting = time.monotonic(), invitation.begin()
    give_up_at = began_at + _FIRST_WORD_S
    try:
        while not inviting.is_over:
            frame = _read(connection, _LARGEST_HEARD, give_up_at)
            give_up_at = began_at + _EXCHANGE_S
            said = inviting.handle(frame, time.monotonic())
            _write(connection, said, give_up_at)
    except RemoteProtocolError as error:
        return f"is no device that joins: {error}"
    except (OSError, EOFError):
        pass  # hung up, or too slow: it is told below what is left
    if invitation.was_taken:
        return "knows the words: it has the join code"
    left = f"{invitation.tries_left} {'try' if invitation.tries_left == 1 else 'tries'} left"
    return f"gave other words: {left}" if inviting.is_over else f"said nothing more: {left}"


def _write(connection: socket.socket, frame: bytes, give_up_at: float) -> None:
    connection.settimeout(max(give_up_at - time.monotonic(), 0.001))
    connection.sendall(_LENGTH.pack(len(frame)) + frame)


def _read(connection: socket.socket, largest: int, give_up_at: float) -> bytes:
    """Raises RemoteProtocolError for a frame that is too long, before any of it is held; EOFError at the end."""
    (size,) = _LENGTH.unpack(_read_exactly(connection, _LENGTH.size, give_up_at))
    if not 1 <= size <= largest:
        raise RemoteProtocolError(f"a frame of {size} bytes, 1 to {largest} are right")
    return _read_exactly(connection, size, give_up_at)


def _read_exactly(connection: socket.socket, size: int, give_up_at: float) -> bytes:
    got = b""
    while len(got) < size:
        connection.settimeout(max(give_up_at - time.monotonic(), 0.001))
        more = connection.recv(size - len(got))
        if not more:
            raise EOFError
        got += more
    return got
