"""Places and turns: nobody can hold a place by asking often, ask twice, or make a node open sockets without end.

A few places have a line of those that want one. Peers that this node itself asked go first, then the one that waits
longest; a peer that gave a place back waits behind all.

Calls are the turns of a node's links. A link is opened when something is to be sent. Peers that have not spoken, or not
lately, are tried a few at a time, in the order of the requests. An honest one answers in milliseconds and makes room
for the next; an invented one keeps its turn for TRY_S. So no peer can make a node knock at addresses without end. Pure:
`now` is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from mdl.bounds import MAX_MEMBERS

# Longer than any line of an honest mesh; a peer that finds it full asks again later.
MAX_LINE = 64
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
class _Waiting:
    since: float
    seen_at: float
    topic: str
    first: bool

    def rank(self) -> tuple[bool, float]:
        return not self.first, self.since


class PlacesInLine:
    """The places and their line.

    count: of places. patience_s: a peer that has not asked again for so long has left the line.
    """

    def __init__(self, count: int, patience_s: float) -> None:
        self._count = count
        self._patience_s = patience_s
        self._holders: dict[str, tuple[str, bool]] = {}
        self._line: dict[str, _Waiting] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._holders

    def ask(self, name: str, now: float, *, topic: str = "", first: bool = False) -> bool:
        """Return True if `name` has a place from now on.

        topic: only one peer has a place for each topic; "" is no topic. first: goes before all that are not.
        """
        if name in self._holders:
            return True
        self._line = {n: w for n, w in self._line.items() if now - w.seen_at < self._patience_s}
        waiting = self._line.get(name)
        if waiting is None:
            if len(self._line) >= MAX_LINE and not (first and self._send_away()):
                return False
            waiting = self._line[name] = _Waiting(now, now, topic, first)
        waiting.seen_at, waiting.topic, waiting.first = now, topic, first
        if not self._is_turn_of(waiting):
            return False
        del self._line[name]
        self._holders[name] = topic, first
        return True

    def give_back(self, name: str) -> None:
        """Free the place of `name`, if it had one."""
        self._holders.pop(name, None)

    def last_of_line(self) -> str | None:
        """Return a holder that must make room for one that goes first; None if a place is free or all go first."""
        if len(self._holders) < self._count:
            return None
        return next((name for name, (_, first) in self._holders.items() if not first), None)

    def _is_turn_of(self, mine: _Waiting) -> bool:
        taken = {topic for topic, _ in self._holders.values() if topic}
        if mine.topic in taken:
            return False
        before = {
            other.topic or other_name
            for other_name, other in self._line.items()
            if other.topic not in taken and other.rank() < mine.rank()
        }
        return mine.topic not in before and len(before) < self._count - len(self._holders)

    def _send_away(self) -> bool:
        """Make room in the line for one that goes first."""
        name = next((name for name, waiting in reversed(self._line.items()) if not waiting.first), None)
        if name is not None:
            del self._line[name]
        return name is not None


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
