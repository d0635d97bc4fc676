"""The agent's knowledge of each device: its link from hops and segments, training and kind of use from reports.

Hops show a link's speed: the receiver reports how long the values took. It times its merges separately, and reports
the speed of the last ones. Energy is modelled, not measured: 1.0 W to send, 0.8 W to receive, 1.5 W to merge
(`mdl.sim.timing.scenario`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from statistics import median

from mdl.bounds import MAX_RATE_MB_S
from mdl.config import BusySection
from mdl.devices.energy import MERGE_W, RECEIVE_W, SEND_W
from mdl.devices.usage import UsageKind
from mdl.protocol.vocabulary import ResourceState

# A new measurement moves the estimate by this share: links of phones change within minutes.
_LEARN = 0.3
# Only the last busy periods tell how a device is used.
_PERIODS_KEPT = 20
# Shorter periods suggest a device that syncs, longer ones a device in a call; a fifth of them is no accident.
_SHORT_S, _LONG_S, _NOT_BY_ACCIDENT = 1.0, 6.0, 0.2


@dataclass
class DeviceBook:
    """One device over all rounds. link_mb_s, merge_mb_s: None until a hop has shown it. energy_j: modelled.

    training_s: the time it trains in a round, None until seen. busy_since: None while it is not busy.
    """

    link_mb_s: float | None = None
    merge_mb_s: float | None = None
    energy_j: float = 0.0
    training_s: float | None = None
    busy_since: float | None = None
    _link_told_mb_s: float = 0.0
    _merge_told_mb_s: float | None = None
    _busy_s: deque[float] = field(default_factory=lambda: deque(maxlen=_PERIODS_KEPT))

    def learn_link(self, mb_s: float) -> None:
        """Learn from a hop. It cannot be faster than its link, so a rate above the known one is believed at once."""
        self.link_mb_s = _learn_rate(self.link_mb_s, mb_s)

    def hear_link(self, mb_s: float) -> None:
        """Learn from the device's report on the segments it sent last; a repeated figure is not a new measurement."""
        if mb_s and mb_s != self._link_told_mb_s:
            self._link_told_mb_s = mb_s
            self.learn_link(mb_s)

    def learn_slow(self) -> None:
        """Learn that the device took over twice the time that its link allows."""
        self.link_mb_s = self.link_mb_s and 0.5 * self.link_mb_s

    def learn_merge(self, mb_s: float | None) -> None:
        """Learn from the device's report on its last merges; a repeated figure is not a new measurement."""
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
        """Return the kind of use, by the lengths of the last busy periods, the present one included."""
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


def usual_link(links: Iterable[float | None], otherwise: float) -> float:
    """Return the speed to expect of an unknown link, in MB/s: the median of those known; `otherwise` if none is."""
    known = [link for link in links if link]
    return median(known) if known else otherwise


def is_busy(resources: ResourceState, limits: BusySection) -> bool:
    """Return True if the device comes last: in use, or short of processor, memory or battery (3.3.1, Eq. 4)."""
    battery = resources.battery_percent
    return (
        (limits.in_use and bool(resources.in_use))
        or resources.cpu_percent > limits.cpu_percent
        or resources.free_memory_bytes < limits.free_memory_mb * 1e6
        or resources.is_spent()
        or (battery is not None and battery < limits.battery_percent and not resources.charging)
    )


def learn_from_hop(sender: DeviceBook, receiver: DeviceBook, size_bytes: int, seconds: float) -> None:
    """Learn from one hop. It runs at its slower end's speed, so it tells about the end not known to be faster."""
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
    """Account for a round in segments: the device sends and receives the same amount at once, over its known link."""
    if device.link_mb_s:
        device.energy_j += (SEND_W + RECEIVE_W) * sent_bytes / 1e6 / device.link_mb_s
    if device.merge_mb_s:
        device.energy_j += MERGE_W * merged_bytes / 1e6 / device.merge_mb_s


def _learn_rate(known: float | None, mb_s: float) -> float:
    """Update a rate: a faster one is possible, so it counts at once; a slower one may have other reasons."""
    return mb_s if known is None or mb_s > known else known + _LEARN * (mb_s - known)
