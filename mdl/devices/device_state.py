"""The states of a device in a round, as the simulator plays it and a policy sees it."""

from __future__ import annotations

from enum import Enum


class DeviceState(Enum):
    """The state of a device in this round. Only FREE devices may be paired."""

    TRAINING = "training"
    FREE = "free"
    BUSY = "busy"
    SEND = "send"
    GET = "get"
    DONE = "done"
    DEAD = "dead"
