"""The resource condition of a mesh, and its changes since the schedule was last learned (3.3.3). Pure.

The paper re-learns when the condition is not equal to the record. Read literally, that is at every report: free memory
and processor change by the second. So each device's figures are means over its last reports. They differ from the
record by steps that matter to an order of hops. The record stands still until the schedule is learned again, so a
figure at the edge of a step does not come and go.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated, TypeAlias

import msgspec

from mdl.bounds import MAX_MEMBERS
from mdl.protocol.vocabulary import ResourceState

# Share of one report in a mean: with two reports a second, a change that lasts some ten seconds is seen.
_LEARN = 0.05
# The link of a device is the median of its last rounds; fewer than three could be an accident.
_ROUNDS, _LEAST_ROUNDS = 8, 3
# Links and free memory differ from a factor of two on: classes of devices and of networks are further apart.
_FACTOR = 2.0
# Battery and processor, in percent: a quarter of the full range.
_PERCENT = 25.0
# Shares of the time in which a device was busy, or charging: half of it.
_SHARE = 0.5
_MB = 1e6


class DeviceCondition(msgspec.Struct, frozen=True, omit_defaults=True):
    """One device, by the mean of its last reports. None: not known, or it has no such sensor.

    link_mb_s: the median of its last rounds.
    memory_mb: free.
    cpu_percent: the share of its processor that other programs take.
    battery_percent: its charge.
    charging, busy: shares of the time, 0 to 1.
    """

    link_mb_s: float | None = None
    memory_mb: float | None = None
    cpu_percent: float | None = None
    battery_percent: float | None = None
    charging: float | None = None
    busy: float | None = None


MeshCondition: TypeAlias = Annotated[dict[str, DeviceCondition], msgspec.Meta(max_length=MAX_MEMBERS)]


@dataclass
class _Heard:
    means: DeviceCondition = field(default_factory=DeviceCondition)
    links: deque[float] = field(default_factory=lambda: deque(maxlen=_ROUNDS))


class ConditionBook:
    """The conditions of a mesh's devices, as its leader hears them: from reports, and from rounds that it closes."""

    def __init__(self) -> None:
        self._heard: dict[str, _Heard] = {}
        self._members: tuple[str, ...] = ()

    def hear(self, peer_id: str, resources: ResourceState, is_busy: bool) -> None:
        """Take one report. is_busy: as the agent decides it from these resources."""
        if peer_id not in self._heard and len(self._heard) >= MAX_MEMBERS:
            return
        heard = self._heard.setdefault(peer_id, _Heard())
        charging = None if resources.charging is None else float(resources.charging)
        heard.means = DeviceCondition(
            None,
            _mix(heard.means.memory_mb, resources.free_memory_bytes / _MB),
            _mix(heard.means.cpu_percent, resources.cpu_percent),
            _mix(heard.means.battery_percent, resources.battery_percent),
            _mix(heard.means.charging, charging),
            _mix(heard.means.busy, float(is_busy)),
        )

    def close_round(self, links: dict[str, float]) -> None:
        """Close a round that these devices merged in. links: MB/s of each, as the round has shown them."""
        self._members = tuple(sorted(links))
        self._heard = {peer: self._heard.get(peer, _Heard()) for peer in self._members}
        for peer, link_mb_s in links.items():
            self._heard[peer].links.append(link_mb_s)

    def device(self, peer_id: str) -> DeviceCondition:
        """Return the condition of one device; nothing is known of devices beyond MAX_MEMBERS."""
        return _with_link(self._heard.get(peer_id, _Heard()))

    def now(self) -> MeshCondition:
        """Return the condition of the devices of the last round."""
        return {peer: self.device(peer) for peer in self._members}


def find_changes(record: MeshCondition, now: MeshCondition) -> list[str]:
    """Return in words how a mesh differs from the record: "p3: battery 20 % (was 85 %)". Empty if it does not."""
    gone, come = sorted(record.keys() - now.keys()), sorted(now.keys() - record.keys())
    told = [f"{peer} is gone" for peer in gone] + [f"{peer} is new" for peer in come]
    stayed = sorted(record.keys() & now.keys())
    return told + [f"{peer}: {change}" for peer in stayed for change in _compare(record[peer], now[peer])]


def _compare(before: DeviceCondition, now: DeviceCondition) -> list[str]:
    factors = (("link", before.link_mb_s, now.link_mb_s, "MB/s"), ("memory", before.memory_mb, now.memory_mb, "MB"))
    told = [
        f"{name} {_brief(new)} {unit} (was {_brief(old)})"
        for name, old, new, unit in factors
        if old is not None and new is not None and not old / _FACTOR < new < old * _FACTOR
    ]
    steps = (
        ("processor", before.cpu_percent, now.cpu_percent, _PERCENT, 1.0),
        ("battery", before.battery_percent, now.battery_percent, _PERCENT, 1.0),
        ("charging", before.charging, now.charging, _SHARE, 100.0),
        ("busy", before.busy, now.busy, _SHARE, 100.0),
    )
    return told + [
        f"{name} {new * scale:.0f} % (was {old * scale:.0f} %)"
        for name, old, new, step, scale in steps
        if old is not None and new is not None and abs(new - old) >= step
    ]


def _mix(mean: float | None, value: float | None) -> float | None:
    return value if mean is None or value is None else mean + _LEARN * (value - mean)


def _brief(value: float) -> str:
    return f"{value:.0f}" if value >= 100.0 else f"{value:.3g}"


def _with_link(heard: _Heard) -> DeviceCondition:
    link_mb_s = median(heard.links) if len(heard.links) >= _LEAST_ROUNDS else None
    return msgspec.structs.replace(heard.means, link_mb_s=link_mb_s)
