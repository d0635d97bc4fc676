"""Bound the cost of a message that meets a bug here: this node ignores its sender for a while and goes on.

A message that raises anything but RemoteProtocolError has met a bug: ours, or one that its sender provokes. The
sender's device is ignored for a minute, and for twice as long each further time. Further names do not help a device
that sends the same message to many: the device is put out by its key. Pure: `now` is an argument.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass

from mdl.bounds import MAX_MEMBERS

# Long enough for rounds to go on between two bugs; short enough that an honest device with a rare message comes back.
FIRST_S, LONGEST_S = 60.0, 86_400.0
# Devices remembered with the number of bugs that they met: as many as a mesh has.
_REMEMBERED = MAX_MEMBERS
# After so many rebuilds in this time the cause is taken to be in the data that the node is rebuilt from: it stops and
# saves its story. A single device causes four at most, since each mute is twice as long as the last.
MOST_REBUILDS, REBUILDS_S = 8, 900.0

# Logged with a traceback, as often as `mdl.transport.limits` allows.
MET_BUG = "a message of %s met a bug here: that device is not heard for %.0f s, this one goes on"
MET_BUG_AT_DOOR = "an introduction met a bug here, and is dropped"


@dataclass
class _Out:
    """A device that is ignored. until: the end of that time. times: the number of bugs that its messages met."""

    peer_id: str
    until: float
    times: int


class Barrier:
    """The devices that this node ignores. met: messages that met a bug since the process started."""

    def __init__(self) -> None:
        self.met = 0
        self._out: OrderedDict[Hashable, _Out] = OrderedDict()
        self._rebuilt: deque[float] = deque(maxlen=MOST_REBUILDS)

    def put_out(self, device: Hashable, peer_id: str, now: float) -> float:
        """Note that a message of this device met a bug; return for how many seconds the device is ignored."""
        self.met += 1
        before = self._out.pop(device, None)
        times = before.times + 1 if before else 1
        for_s = min(FIRST_S * 2.0 ** (min(times, 32) - 1), LONGEST_S)
        self._out[device] = _Out(peer_id, now + for_s, times)
        if len(self._out) > _REMEMBERED:
            self._out.popitem(last=False)
        return for_s

    def note_unknown(self) -> int:
        """Note a message of an unknown sender that met a bug; return the number of such messages so far."""
        self.met += 1
        return self.met

    def is_out(self, device: Hashable, now: float) -> bool:
        """Return True while this device is ignored."""
        out = self._out.get(device)
        return out is not None and now < out.until

    def unheard(self, now: float) -> tuple[str, ...]:
        """Return the names of the peers that are ignored now."""
        return tuple(sorted({out.peer_id for out in self._out.values() if now < out.until}))

    def may_rebuild(self, now: float) -> bool:
        """Note a rebuild of the node; return False if so many came lately that the cause must be in the node itself."""
        is_worn_out = len(self._rebuilt) == MOST_REBUILDS and now - self._rebuilt[0] < REBUILDS_S
        self._rebuilt.append(now)
        return not is_worn_out
