"""How much this node computes for what others say is signed.

A check takes 0.1 ms, on a small computer four times as much, and one message may ask for a thousand. Each member has so
many a second, and so have all together, and whoever comes by the door; what is known already costs nothing. What is
beyond is dropped: whoever means it says it again. Who says something forged is not heard about others for a while.
Pure: `now` is an argument.
"""

from __future__ import annotations

from math import inf

from mdl.bounds import MAX_MEMBERS
from mdl.budget import Budget

# All that a member of the largest mesh tells a device that is new, and then two or three devices that join at a time.
_OF_ONE, _OF_ONE_A_S = MAX_MEMBERS + 64, 20.0
_OF_ALL, _OF_ALL_A_S = 4 * MAX_MEMBERS, 400.0
# At the door as many as start together; then one of each.
_AT_DOOR, _AT_DOOR_A_S = 512, 50.0
_DEAF_S = 60.0
_REMEMBERED = MAX_MEMBERS


class Checks:
    """See the module. source: the peer id of whoever says something, as its connection has shown; "" at the door."""

    def __init__(self) -> None:
        self._door, self._all = Budget(_AT_DOOR, _AT_DOOR_A_S), Budget(_OF_ALL, _OF_ALL_A_S)
        self._of: dict[str, Budget] = {}
        self._deaf_until: dict[str, float] = {}

    def may(self, source: str, now: float) -> bool:
        """Whether to check one more thing that this one says."""
        if not source:
            return self._door.take(now)
        if now < self._deaf_until.get(source, -inf):
            return False
        budget = self._of.get(source) or self._of.setdefault(source, Budget(_OF_ONE, _OF_ONE_A_S))
        if len(self._of) > _REMEMBERED:
            del self._of[next(iter(self._of))]
        return budget.take(now) and self._all.take(now)

    def note_forged(self, source: str, now: float) -> None:
        """It has said something that is signed wrongly."""
        if source:
            self._deaf_until.pop(source, None)
            self._deaf_until[source] = now + _DEAF_S
        if len(self._deaf_until) > _REMEMBERED:
            del self._deaf_until[next(iter(self._deaf_until))]
