"""The limits at which a device leaves by itself: `mdl peer --rounds N`, and `--max-battery-share`. Pure.

A leader with a limit names the goal to all, and sends everybody home there (`peers/roles/agent/agent.py`).
This is for a device in a mesh that goes on without end, or for longer than this device wants to.
"""

from __future__ import annotations


class RoundLimit:
    """See the module. rounds: 0 is no limit. round_id: of the device at its start. is_over: it has left."""

    def __init__(self, rounds: int, round_id: int) -> None:
        self._left = rounds
        self._round_id = round_id
        self._has_limit = rounds > 0
        self.is_over = False

    def stays_for(self, round_id: int) -> bool:
        """Return True if the device is there for that round, if it takes part in all rounds until then."""
        return not self._has_limit or round_id <= self._round_id + self._left

    def is_reached(self, round_id: int, goal: int) -> bool:
        """Return True once, if the device, at round_id now, is to leave. goal: the mesh's last round, 0 if open.

        Several rounds at once were caught up with: others have done them, so they do not count.
        """
        if not self._has_limit or self.is_over or round_id == self._round_id:
            return False
        self._left -= round_id == self._round_id + 1
        self._round_id = round_id
        if self._left > 0 or round_id == goal:
            return False
        self.is_over = True
        return True


class Leaving:
    """Both limits of one device. rounds, round_id: as of RoundLimit. is_over: it leaves, or has left."""

    def __init__(self, rounds: int, round_id: int) -> None:
        self._rounds = rounds
        self._limit = RoundLimit(rounds, round_id)
        self._spent_at: int | None = None
        self.is_over = False

    def stays_for(self, round_id: int) -> bool:
        """Return True if the device is there for that round, as far as is known: it trains nothing for a later one."""
        return self._limit.stays_for(round_id) and (self._spent_at is None or round_id <= self._spent_at + 1)

    def why(self, round_id: int, goal: int, is_in_round: bool, is_spent: bool, gone: str = "") -> str:
        """Return why it is to leave now, once; else "". is_spent: it has used the charge that its owner offers.

        gone: why it may not train with its windows any more: then at once.
        With its charge spent, it first finishes an open round: its load reaches another device, and it receives none
        any more.
        """
        if self.is_over:
            return ""
        if gone:
            self.is_over = True
            return gone
        if self._limit.is_reached(round_id, goal):
            self.is_over = True
            return f"{self._rounds} rounds are done"
        if is_spent and self._spent_at is None:
            self._spent_at = round_id
        if self._spent_at is None or (is_in_round and round_id == self._spent_at):
            return ""
        self.is_over = True
        return "the battery that was offered is used (--max-battery-share): this device leaves the mesh"
