"""What a device tells about itself (3.3.1): free memory, processor (what others take of it), battery, charging, in use."""

from __future__ import annotations

import os
import time

import psutil

from mdl.machine import ResourcesSampled
from mdl.messages import ResourceState

# Somebody who has typed within this time is using the device.
_IN_USE_S = 60.0
# What training takes itself does not make a device busy.
_PROCESS = psutil.Process()


def sample_resources(sent_bytes: int, in_use_file: str = "") -> ResourcesSampled:
    """Takes well under a millisecond. None where the device has no such sensor; in use while in_use_file exists."""
    cores = psutil.cpu_count() or 1
    own_percent = _PROCESS.cpu_percent(None) / cores
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    state = ResourceState(
        free_memory_bytes=psutil.virtual_memory().available,
        cpu_percent=max(0.0, psutil.cpu_percent(None) - own_percent),
        battery_percent=float(battery.percent) if battery else None,
        charging=bool(battery.power_plugged) if battery else None,
        in_use=os.path.exists(in_use_file) if in_use_file else _is_in_use(),
    )
    return ResourcesSampled(state, sent_bytes)


def _is_in_use() -> bool | None:
    """Whether a terminal of a logged-in user has seen input lately; None if nobody is logged in."""
    terminals = {user.terminal for user in psutil.users() if user.terminal}
    idle_s = []
    for terminal in terminals:
        try:
            idle_s.append(time.time() - os.stat(f"/dev/{terminal}").st_atime)
        except OSError:
            continue  # a graphical session, or a terminal that has gone
    return min(idle_s) < _IN_USE_S if idle_s else None
