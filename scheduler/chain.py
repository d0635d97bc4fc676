"""What a policy sees and says: the chain at one moment, and the next pair or a reason to wait.

A policy knows devices by what they reported and what hops showed; nothing here knows messages or drivers.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol, TypeAlias

import msgspec


class DeviceState(Enum):
    """Where a device stands in this round. Only FREE devices may be paired."""

    TRAINING = "training"
    FREE = "free"
    BUSY = "busy"
    SEND = "send"
    GET = "get"
    DONE = "done"
    DEAD = "dead"


class DeviceView(msgspec.Struct, frozen=True):
    """One device as the agent knows it. Unknown speeds are None until a hop has shown them.

    link_mb_s, merge_mb_s: MB/s. free_since_s: on the view's clock. energy_j: modelled, accumulated over rounds.
    n_agg: hops it took part in this round. battery_percent: None on mains.
    """

    peer_id: str
    state: DeviceState
    link_mb_s: float | None = None
    merge_mb_s: float | None = None
    free_since_s: float = 0.0
    n_agg: int = 0
    theta: float = 1.0
    energy_j: float = 0.0
    battery_percent: float | None = None
    charging: bool | None = None
    in_use: bool | None = None
    cpu_percent: float = 0.0
    free_memory_bytes: int = 0


class ChainView(msgspec.Struct, frozen=True):
    """All devices of a round, in an order that stays the same throughout it."""

    time_s: float
    size_mb: float
    devices: tuple[DeviceView, ...]

    def free(self) -> list[DeviceView]:
        """The devices that may be paired now."""
        return [device for device in self.devices if device.state is DeviceState.FREE]


class Pair(msgspec.Struct, frozen=True):
    """The sender gives its partial mean to the receiver (W(j,i): i sends, j receives)."""

    sender: str
    receiver: str
    reason: str


class Wait(msgspec.Struct, frozen=True):
    reason: str


Decision: TypeAlias = Pair | Wait


class Policy(Protocol):
    """Picks the next pair among the free devices, or waits; the reason says why in words."""

    name: str

    def decide(self, view: ChainView) -> Decision: ...
