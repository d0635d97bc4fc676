"""What the agent learns of each device from real hops: link and merge speed, and the energy a hop costs (modelled).

Energy is modelled, not measured: a sender draws 1.0 W and a receiver 0.8 W while values travel.
"""

from __future__ import annotations

from dataclasses import dataclass

_SEND_W = 1.0
_RECEIVE_W = 0.8
# A new measurement moves the estimate by this share: links of phones change within minutes.
_LEARN = 0.3


@dataclass
class DeviceBook:
    """One device over all rounds. link_mb_s: None until a hop has shown it. energy_j: modelled."""

    link_mb_s: float | None = None
    energy_j: float = 0.0

    def learn_link(self, mb_s: float) -> None:
        self.link_mb_s = mb_s if self.link_mb_s is None else self.link_mb_s + _LEARN * (mb_s - self.link_mb_s)


def learn_from_hop(sender: DeviceBook, receiver: DeviceBook, size_bytes: int, seconds: float) -> None:
    """A hop runs at the speed of its slower end, so a rate tells about the end that was not known to be slower."""
    if seconds <= 0 or size_bytes <= 0:
        return
    mb_s = size_bytes / 1e6 / seconds
    for device, other in ((sender, receiver), (receiver, sender)):
        slower_end = device.link_mb_s is None or other.link_mb_s is None or device.link_mb_s <= other.link_mb_s
        if slower_end or (device.link_mb_s is not None and mb_s > device.link_mb_s):
            device.learn_link(mb_s)
    sender.energy_j += _SEND_W * seconds
    receiver.energy_j += _RECEIVE_W * seconds
