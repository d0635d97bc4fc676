"""A few places, and the line of those that want one: nobody can hold a place by asking often, or ask twice.

Peers that this node itself asked go first, then the one that waits longest; a peer that gave a place back waits behind
all. Pure: `now` is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

# Longer than any line of an honest mesh; a peer that finds it full asks again later.
MAX_LINE = 64


@dataclass
class _Waiting:
    since: float
    seen_at: float
    topic: str
    first: bool

    def rank(self) -> tuple[bool, float]:
        return not self.first, self.since


class Places:
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
