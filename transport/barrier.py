"""Bound what a message costs that meets a bug here: its sender is not heard for a while, and this node goes on.

A message that raises anything but RemoteProtocolError has met a bug, ours or its sender's making. The sender's device
has its place back after a minute, and after twice as long each further time. Who tells the same to many does not
multiply by names: whoever is out is out as a device, by its key. Pure: `now` is an argument.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass

from mdl.bounds import MAX_MEMBERS

# Long enough that rounds go on between two of them, short enough that an honest device with a rare message is back.
FIRST_S, LONGEST_S = 60.0, 86_400.0
# Devices that are remembered, with how often they met a bug: all that a mesh has.
_REMEMBERED = MAX_MEMBERS
# So many rebuilds of a node in so long, and the cause is taken to be in what it is rebuilt from: it stops, with its
# story. A single device comes to four, as long as it is out twice as long each time.
MOST_REBUILDS, REBUILDS_S = 8, 900.0

# Told with a traceback, as often as `mdl.transport.loglimit` allows.
MET_BUG = "a message of %s met a bug here: that device is not heard for %.0f s, this one goes on"
MET_BUG_AT_DOOR = "an introduction met a bug here, and is dropped"


@dataclass
class _Out:
    """until: when its device is heard again. times: that it met a bug."""

    peer_id: str
    until: float
    times: int


class Barrier:
    """met: messages that met a bug since the process started."""

    def __init__(self) -> None:
        self.met = 0
        self._out: OrderedDict[Hashable, _Out] = OrderedDict()
        self._rebuilt: deque[float] = deque(maxlen=MOST_REBUILDS)

    def put_out(self, device: Hashable, peer_id: str, now: float) -> float:
        """Note that a message of this device met a bug; return for how many seconds it is not heard."""
        self.met += 1
        before = self._out.pop(device, None)
        times = before.times + 1 if before else 1
        for_s = min(FIRST_S * 2.0 ** (min(times, 32) - 1), LONGEST_S)
        self._out[device] = _Out(peer_id, now + for_s, times)
        if len(self._out) > _REMEMBERED:
            self._out.popitem(last=False)
        return for_s

    def note_unknown(self) -> int:
        """Note a message that met a bug and puts nobody out; return how many met one."""
        self.met += 1
        return self.met

    def is_out(self, device: Hashable, now: float) -> bool:
        """Return True while this device is not heard."""
        out = self._out.get(device)
        return out is not None and now < out.until

    def unheard(self, now: float) -> tuple[str, ...]:
        """Return the names of those that are not heard now."""
        return tuple(sorted({out.peer_id for out in self._out.values() if now < out.until}))

    def may_rebuild(self, now: float) -> bool:
        """Note a rebuild of the node; False where so many came lately that the cause is its own."""
        is_worn_out = len(self._rebuilt) == MOST_REBUILDS and now - self._rebuilt[0] < REBUILDS_S
        self._rebuilt.append(now)
        return not is_worn_out
