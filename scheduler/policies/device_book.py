"""What the agent learns of each device: its link from hops, when it trains and how it is used from reports.

A link's speed is what hops have shown: the receiver tells how long the values took. Its merges it times by themselves,
and tells how fast the last ones were. Energy is modelled, not measured: 1.0 W to send, 0.8 W to receive, 1.5 W to merge
(`mdl.sim.timing.device_models`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import inf

from mdl.bounds import MAX_RATE_MB_S
from mdl.config import BusySection
from mdl.devices.power import MERGE_W, RECEIVE_W, SEND_W
from mdl.devices.usage import UsageKind
from mdl.protocol.vocabulary import ResourceState

# A new measurement moves the estimate by this share: links of phones change within minutes.
_LEARN = 0.3
# Busy periods that tell how a device is used: the last ones.
_PERIODS_KEPT = 20
# Shorter periods are those of a device that syncs, longer ones of one in a call; a fifth of them is no accident.
_SHORT_S, _LONG_S, _NOT_BY_ACCIDENT = 1.0, 6.0, 0.2


@dataclass
class DeviceBook:
    """One device over all rounds. link_mb_s, merge_mb_s: None until a hop has shown it. energy_j: modelled.

    training_s: how long it trains in a round, None until seen. busy_since: None while it is not busy.
    """

    link_mb_s: float | None = None
    merge_mb_s: float | None = None
    energy_j: float = 0.0
    training_s: float | None = None
    busy_since: float | None = None
    _merge_told_mb_s: float | None = None
    _busy_s: deque[float] = field(default_factory=lambda: deque(maxlen=_PERIODS_KEPT))

    def learn_link(self, mb_s: float) -> None:
        """A hop cannot be faster than its link, so a higher rate than known is believed at once."""
        self.link_mb_s = _learn_rate(self.link_mb_s, mb_s)

    def learn_merge(self, mb_s: float | None) -> None:
        """What the device tells of its last merges; the same figure again is no other measurement."""
        if mb_s is not None and 0.0 < mb_s < inf and mb_s != self._merge_told_mb_s:
            self._merge_told_mb_s = mb_s
            self.merge_mb_s = _learn_rate(self.merge_mb_s, mb_s)

    def learn_training(self, seconds: float) -> None:
        known = self.training_s
        self.training_s = seconds if known is None else known + _LEARN * (seconds - known)

    def note_use(self, busy: bool, now: float) -> None:
        if busy:
            self.busy_since = now if self.busy_since is None else self.busy_since
        elif self.busy_since is not None:
            self._busy_s.append(now - self.busy_since)
            self.busy_since = None

    def busy_for_s(self, now: float) -> float:
        return 0.0 if self.busy_since is None else now - self.busy_since

    def kind(self, now: float) -> UsageKind:
        """How it is used, by the lengths of its last busy periods, the present one included."""
        if not self._busy_s and self.busy_since is None:
            return UsageKind.IDLE
        lengths_s = sorted([*self._busy_s, self.busy_for_s(now)] if self.busy_since is not None else self._busy_s)
        short = sum(length_s < _SHORT_S for length_s in lengths_s) / len(lengths_s)
        long = sum(length_s > _LONG_S for length_s in lengths_s) / len(lengths_s)
        if min(short, long) >= _NOT_BY_ACCIDENT:
            return UsageKind.BIMODAL
        median_s = lengths_s[len(lengths_s) // 2]
        if median_s < _SHORT_S:
            return UsageKind.SYNC
        return UsageKind.CALL if median_s > _LONG_S else UsageKind.INTERACTIVE


def is_busy(resources: ResourceState, limits: BusySection) -> bool:
    """Whether a device is to come last: in use, or short of processor, memory or battery (3.3.1, Eq. 4)."""
    battery = resources.battery_percent
    return (
        (limits.in_use and bool(resources.in_use))
        or resources.cpu_percent > limits.cpu_percent
        or resources.free_memory_bytes < limits.free_memory_mb * 1e6
        or resources.is_spent()
        or (battery is not None and battery < limits.battery_percent and not resources.charging)
    )


def learn_from_hop(sender: DeviceBook, receiver: DeviceBook, size_bytes: int, seconds: float) -> None:
    """A hop runs at the speed of its slower end, so a rate tells about the end that was not known to be slower."""
    if seconds <= 0 or size_bytes <= 0:
        return
    mb_s = min(size_bytes / 1e6 / seconds, MAX_RATE_MB_S)
    for device, other in ((sender, receiver), (receiver, sender)):
        slower_end = device.link_mb_s is None or other.link_mb_s is None or device.link_mb_s <= other.link_mb_s
        if slower_end or (device.link_mb_s is not None and mb_s > device.link_mb_s):
            device.learn_link(mb_s)
    sender.energy_j += SEND_W * seconds
    receiver.energy_j += RECEIVE_W * seconds
    if receiver.merge_mb_s is not None:
        receiver.energy_j += MERGE_W * size_bytes / 1e6 / receiver.merge_mb_s


def learn_from_exchange(device: DeviceBook, sent_bytes: int, merged_bytes: int) -> None:
    """A round in segments: it sends and receives as much at once, over the link that it has shown."""
    if device.link_mb_s:
        device.energy_j += (SEND_W + RECEIVE_W) * sent_bytes / 1e6 / device.link_mb_s
    if device.merge_mb_s:
        device.energy_j += MERGE_W * merged_bytes / 1e6 / device.merge_mb_s


def _learn_rate(known: float | None, mb_s: float) -> float:
    """What has been as fast once can be; what is slower than known may be so for other reasons."""
    return mb_s if known is None or mb_s > known else known + _LEARN * (mb_s - known)
