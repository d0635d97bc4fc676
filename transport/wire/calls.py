"""The bound on a node's links: no peer can make it open sockets, or knock at addresses, without end.

A link is opened when something is to be sent. Peers that have not spoken, or not lately, are tried a few at a time, in
the order of the requests. An honest one answers in milliseconds and makes room for the next; an invented one keeps its
turn for TRY_S. Pure: `now` is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from mdl.bounds import MAX_MEMBERS

# Peers that have not answered: the number tried at a time and the time for each, so 3.2 addresses a second at most.
# Within 10 s a device on a bad network answers; as many as 32 devices are on together after a power cut, at home or in
# a hall.
MAX_TRIES = 32
TRY_S = 10.0
# Links beyond this number are closed if nothing was sent on them for IDLE_S.
KEPT_LINKS = 64
IDLE_S = 60.0
# A link used so lately is not closed for another one, which would soon have to be closed for this one.
BUSY_S = 5.0
# Links to peers that speak: all of a mesh at once, since all may lose their agent at once; then as many a second as
# reconnections may need. A peer that claims a new address with each message gets no further.
OPENINGS, OPENINGS_A_SECOND = MAX_MEMBERS, 16.0


@dataclass
class _Call:
    opened_at: float
    used_at: float


class Calls:
    """The links of a node. most: links at a time. is_heard: returns True if a peer has spoken lately."""

    def __init__(self, most: int, is_heard: Callable[[str], bool]) -> None:
        self._most = most
        self._is_heard = is_heard
        self._open: dict[str, _Call] = {}
        self._waiting: dict[str, None] = {}
        self._tries: list[tuple[float, str]] = []
        self._openings = float(OPENINGS)
        self._counted_at = -inf

    def __len__(self) -> int:
        return len(self._open)

    def use(self, peer_id: str, now: float) -> None:
        self._open[peer_id].used_at = now

    def open(self, peer_id: str, now: float) -> list[str] | None:
        """Open a link; return the peers with links to close for it, or None if it cannot be opened now.

        A peer that has not spoken is remembered: `next` tells its turn.
        """
        closing = self._room_for_heard(now) if self._is_heard(peer_id) else self._room_for_try(peer_id, now)
        if closing is None:
            return None
        self._waiting.pop(peer_id, None)
        for other in closing:
            del self._open[other]
        self._open[peer_id] = _Call(now, now)
        return closing

    def next(self) -> str | None:
        """Return the peer that has waited longest for a link."""
        return next(iter(self._waiting), None)

    def close(self, peer_id: str) -> None:
        """Forget a peer: its link is closed, or it is not known any more."""
        self._open.pop(peer_id, None)
        self._waiting.pop(peer_id, None)

    def idle(self, now: float) -> list[str]:
        """Return the peers with links of no use, which should be closed."""
        if len(self._open) <= KEPT_LINKS:
            return []
        idle = sorted((call.used_at, peer_id) for peer_id, call in self._open.items() if now - call.used_at >= IDLE_S)
        return [peer_id for _, peer_id in idle[: len(self._open) - KEPT_LINKS]]

    def _room_for_heard(self, now: float) -> list[str] | None:
        passed_s = min(now - self._counted_at, OPENINGS / OPENINGS_A_SECOND)
        self._openings, self._counted_at = min(OPENINGS, self._openings + passed_s * OPENINGS_A_SECOND), now
        if self._openings < 1:
            return None
        closing = self._room(now)
        self._openings -= closing is not None
        return closing

    def _room_for_try(self, peer_id: str, now: float) -> list[str] | None:
        if len(self._waiting) < MAX_MEMBERS:
            self._waiting.setdefault(peer_id)
        self._tries = [(at, other) for at, other in self._tries if now - at < TRY_S and not self._is_heard(other)]
        if self.next() != peer_id or len(self._tries) >= MAX_TRIES:
            return None
        unheard = self._unheard()
        closing = [unheard[0]] if len(unheard) >= MAX_TRIES else self._room(now)
        if closing is not None:
            self._tries.append((now, peer_id))
        return closing

    def _room(self, now: float) -> list[str] | None:
        if len(self._open) < self._most:
            return []
        if unheard := self._unheard():
            return unheard[:1]
        used_at, peer_id = min((call.used_at, peer_id) for peer_id, call in self._open.items())
        return [peer_id] if now - used_at >= BUSY_S else None

    def _unheard(self) -> list[str]:
        """Return the called peers that have not spoken, the longest waiting first."""
        unheard = [(call.opened_at, peer_id) for peer_id, call in self._open.items() if not self._is_heard(peer_id)]
        return [peer_id for _, peer_id in sorted(unheard)]
