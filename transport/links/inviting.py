"""The sockets of an invitation: frames with two bytes of length, everything bounded.

Several connections are open at a time, so that a silent one blocks nobody. If there are too many, the one that has been
silent longest is closed, first of the same address. `transport/trust/invitation.py` decides what is said, and to which
end.
"""

from __future__ import annotations

import logging
import selectors
import socket
import struct
import time
from collections.abc import Callable

from mdl.errors import MeshNotFoundError, RemoteProtocolError
from mdl.transport.discovery.directory import Address
from mdl.transport.limits import LogLimit, TokenBucket
from mdl.transport.trust.invitation import MAX_FRAME_BYTES, TRIES_OF_ONE, Invitation, Joining

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct("!H")
# The inviting end receives a message and a proof: no client can make it hold more.
_LARGEST_HEARD = 64
# Times for a connection that says nothing, and for a whole exchange: some packets, and milliseconds of computing.
_FIRST_WORD_S, _EXCHANGE_S = 2.0, 10.0
# Connections at a time, in all and from one address: a device may try again before its last connection has ended.
MOST_OPEN, MOST_OF_ONE = 32, 4
# Exchanges of one address at once and per second: each costs some milliseconds of computing.
_AT_ONCE, _A_SECOND = 8, 1.0
_REMEMBERED = 1024
# Other devices may be served first, each with its time.
_PATIENCE_S = 20.0
_LOOK_S = 0.5

IsNear = Callable[[str], bool]


def serve(invitation: Invitation, listener: socket.socket, is_near: IsNear, tell: Callable[[str], None]) -> str:
    """Answer each connection until the invitation is over; return why it is over. tell: gets a line for each try."""
    return _Porch(invitation, listener, is_near, tell).serve()


def accept(words: str, at: Address) -> str:
    """Return the text that the device at this address hands over to a device that knows the words.

    Raises ConfigError if the words differ there, MeshNotFoundError if nobody answers, RemoteProtocolError if the
    answers are no invitation.
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


class _Visit:
    """One connection. spoke_at: the time it came or last sent a whole frame. buffer: an incomplete frame."""

    def __init__(self, connection: socket.socket, host: str, invitation: Invitation, now: float) -> None:
        self.connection, self.host = connection, host
        self.inviting = invitation.begin(host)
        self.spoke_at, self.came_at = now, now
        self.ends_at = now + _FIRST_WORD_S
        self._buffer = b""

    def hear(self, now: float) -> None:
        """Read what has come, and answer. Raises EOFError at the connection's end, OSError, RemoteProtocolError."""
        more = self.connection.recv(_LENGTH.size + _LARGEST_HEARD - len(self._buffer))
        if not more:
            raise EOFError
        self._buffer += more
        while len(self._buffer) >= _LENGTH.size and not self.inviting.is_over:
            (size,) = _LENGTH.unpack_from(self._buffer)
            _check_size(size, _LARGEST_HEARD)
            if len(self._buffer) < _LENGTH.size + size:
                return
            frame, self._buffer = self._buffer[_LENGTH.size :][:size], self._buffer[_LENGTH.size + size :]
            self.spoke_at, self.ends_at = now, self.came_at + _EXCHANGE_S
            said = self.inviting.handle(frame, now)
            # A few bytes on a connection with nothing queued: they leave at once, or the other end is gone.
            self.connection.sendall(_LENGTH.pack(len(said)) + said)


class _Porch:
    """Hold the connections to an invitation until each has given its proof, or is closed for another one."""

    def __init__(
        self, invitation: Invitation, listener: socket.socket, is_near: IsNear, tell: Callable[[str], None]
    ) -> None:
        self._invitation, self._listener, self._is_near, self._tell = invitation, listener, is_near, tell
        self._lines = LogLimit(logger)
        self._visits: dict[socket.socket, _Visit] = {}
        self._budgets: dict[str, TokenBucket] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> str:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while not (why := self._invitation.why_over(time.monotonic())):
                for key, _ in self._selector.select(_LOOK_S):
                    self._look(key.fileobj, time.monotonic())
                now = time.monotonic()
                self._lines.on_time(now)
                for visit in [each for each in self._visits.values() if now >= each.ends_at]:
                    self._end(visit, "said nothing more", now)
            return why
        finally:
            for visit in list(self._visits.values()):
                visit.connection.close()
            self._selector.close()

    def _look(self, there: object, now: float) -> None:
        if there is self._listener:
            self._let_in(now)
        elif isinstance(there, socket.socket) and there in self._visits:
            self._hear(self._visits[there], now)

    def _let_in(self, now: float) -> None:
        try:
            connection, (host, _) = self._listener.accept()
        except OSError:  # it has hung up already
            return
        connection.setblocking(False)
        budget = self._budgets.setdefault(host, TokenBucket(_AT_ONCE, _A_SECOND))
        if len(self._budgets) > _REMEMBERED:
            del self._budgets[next(iter(self._budgets))]
        refused = ""
        if not self._is_near(host):
            refused = "is on another network: ignored"
        elif not self._invitation.may_try(host):
            refused = f"gave wrong words {TRIES_OF_ONE} times: ignored from now on"
        elif not budget.take(now):
            refused = "comes too often: ignored for a moment"
        if refused:
            connection.close()
            self._lines.warning(now, "", "%s %s", host, refused)
            return
        self._make_place(host, now)
        self._visits[connection] = _Visit(connection, host, self._invitation, now)
        self._selector.register(connection, selectors.EVENT_READ)

    def _make_place(self, host: str, now: float) -> None:
        """Close the connection that has been silent longest: of this address if it has many, else of all."""
        own = [each for each in self._visits.values() if each.host == host]
        for crowd, most in ((own, MOST_OF_ONE), (list(self._visits.values()), MOST_OPEN)):
            if len(crowd) >= most:
                self._end(min(crowd, key=lambda each: each.spoke_at), "gave way to another one", now)
                return

    def _hear(self, visit: _Visit, now: float) -> None:
        left = self._invitation.tries_left
        try:
            visit.hear(now)
        except BlockingIOError:
            return
        except RemoteProtocolError as error:
            self._end(visit, f"is no device that joins: {error}", now)
            return
        except (OSError, EOFError):
            if not self._invitation.was_taken:
                self._end(visit, "hung up", now)
                return
        if self._invitation.was_taken:
            self._end(visit, "")
            self._tell(f"{visit.host} knows the words: it has the join code")
        elif self._invitation.tries_left < left:
            self._end(visit, "")
            self._tell(f"{visit.host} gave wrong words: {self._left(visit.host)}")

    def _left(self, host: str) -> str:
        left = self._invitation.left_to(host)
        if left:
            return f"{left} {'try' if left == 1 else 'tries'} left to it"
        return (
            "0 tries left to it; if it is the device that you invite, end this and let mdl mesh invite show new words"
        )

    def _end(self, visit: _Visit, came: str, now: float = 0.0) -> None:
        self._selector.unregister(visit.connection)
        visit.connection.close()
        del self._visits[visit.connection]
        if came:
            self._lines.warning(now, "", "%s %s", visit.host, came)


def _check_size(size: int, largest: int) -> None:
    if not 1 <= size <= largest:
        raise RemoteProtocolError(f"a frame of {size} bytes, 1 to {largest} are right")


def _write(connection: socket.socket, frame: bytes, give_up_at: float) -> None:
    connection.settimeout(max(give_up_at - time.monotonic(), 0.001))
    connection.sendall(_LENGTH.pack(len(frame)) + frame)


def _read(connection: socket.socket, largest: int, give_up_at: float) -> bytes:
    """Read one frame. Raises RemoteProtocolError if it is too long, before reading any of it; EOFError at the end."""
    (size,) = _LENGTH.unpack(_read_exactly(connection, _LENGTH.size, give_up_at))
    _check_size(size, largest)
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
