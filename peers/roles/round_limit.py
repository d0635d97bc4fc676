"""`mdl peer --rounds N`: when a device has applied so many rounds and leaves by itself. Pure.

Whoever leads a mesh with a limit names the goal to all, and sends everybody home there (`peers/roles/agent/agent.py`).
This is for a device whose mesh goes on without end, or for longer than this device wants to.
"""

from __future__ import annotations


class RoundLimit:
    """See the module. rounds: 0 is no limit. round_id: where the device stands at its start. is_over: it has left."""

    def __init__(self, rounds: int, round_id: int) -> None:
        self._left = rounds
        self._round_id = round_id
        self._has_limit = rounds > 0
        self.is_over = False

    def is_reached(self, round_id: int, goal: int) -> bool:
        """Whether the device, standing at round_id now, is to leave: True once. goal: the mesh's last round, 0 if open.

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
