"""Worlds by hand, for the tests of rounds."""

from __future__ import annotations

import numpy as np

from mdl.devices.usage import UsageKind
from mdl.scheduler.rounds.world import HORIZON_S, SLOT_S, World, WorldDevice

Periods = tuple[tuple[float, float], ...]


def device(period_s: float, link_mb_s: float = 10.0, busy: Periods = (), **changes: object) -> WorldDevice:
    links = np.full(int(HORIZON_S / SLOT_S) + 1, link_mb_s)
    kind = UsageKind.CALL if busy else UsageKind.IDLE
    given: dict[str, object] = {"battery_percent": 80.0, "charging": False} | changes
    return WorldDevice(period_s, 1e6, links, kind, busy, **given)  # type: ignore[arg-type]


def world(*devices: WorldDevice, size_mb: float = 10.0, latency_s: float = 0.0) -> World:
    return World("by hand", size_mb, latency_s, devices)
