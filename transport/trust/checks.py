"""A bound on the signatures that this node verifies for others.

A check takes 0.1 ms, on a small computer four times as much, and one message may ask for a thousand. Each member has a
budget a second, and so have all members together, and all messages at the door. Known statements cost nothing. Excess
statements are dropped; their senders repeat them. A member that says something forged is not believed about others for
a while.
Pure: `now` is an argument.
"""

from __future__ import annotations

from math import inf

from mdl.bounds import MAX_MEMBERS
from mdl.budget import Budget

# At once: all that a member of the largest mesh tells a new device. Then two or three joining devices at a time.
_OF_ONE, _OF_ONE_A_S = MAX_MEMBERS + 64, 20.0
_OF_ALL, _OF_ALL_A_S = 4 * MAX_MEMBERS, 400.0
# At the door: as many as devices that start together; then one of each a second.
_AT_DOOR, _AT_DOOR_A_S = 512, 50.0
_DEAF_S = 60.0
_REMEMBERED = MAX_MEMBERS


class Checks:
    """See the module. source: the peer id that the connection has shown; "" at the door."""

    def __init__(self) -> None:
        self._door, self._all = Budget(_AT_DOOR, _AT_DOOR_A_S), Budget(_OF_ALL, _OF_ALL_A_S)
        self._of: dict[str, Budget] = {}
        self._deaf_until: dict[str, float] = {}

    def may(self, source: str, now: float) -> bool:
        """Return True if one more statement from this source may be checked."""
        if not source:
            return self._door.take(now)
        if now < self._deaf_until.get(source, -inf):
            return False
        budget = self._of.get(source) or self._of.setdefault(source, Budget(_OF_ONE, _OF_ONE_A_S))
        if len(self._of) > _REMEMBERED:
            del self._of[next(iter(self._of))]
        return budget.take(now) and self._all.take(now)

    def note_forged(self, source: str, now: float) -> None:
        """Note that this source has sent a wrong signature."""
        if source:
            self._deaf_until.pop(source, None)
            self._deaf_until[source] = now + _DEAF_S
        if len(self._deaf_until) > _REMEMBERED:
            del self._deaf_until[next(iter(self._deaf_until))]
