"""Windows as another person would have recorded them, with the device at a slightly different angle, redrawn each time.

Axes of one sensor are channels with names that differ in a last x, y, z. All sensors of a window are in one device, so
they turn together (Um et al. 2017, arXiv 1706.00527, of wearables).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mdl.errors import ConfigError

_AXIS = re.compile(r"(.*?)([xyz])", re.IGNORECASE)


def make_turn(degrees: float, channels: Sequence[str]) -> Callable[[Tensor], Tensor] | None:
    """Return a function that turns a batch (n, channels, time), each window about its own axis; None for 0 degrees.

    degrees: standard deviation of the angle. Raises ConfigError if no channels are a sensor's three axes.
    """
    if not degrees:
        return None
    sensors = find_axes(channels)
    if not sensors:
        shown = ", ".join(channels)[:80] or "none"
        raise ConfigError(
            f"training.rotate_deg is {degrees:g}: no three channels are named as one sensor's axes, like acc_x, acc_y, "
            f"acc_z; named are {shown}"
        )
    places = torch.tensor(sensors)

    def turn(x: Tensor) -> Tensor:
        turned = x.clone()
        # (n, 3, 3) times (n, sensors, 3, time).
        turned[:, places] = draw_rotations(len(x), math.radians(degrees)).unsqueeze(1) @ x[:, places]
        return turned

    return turn


def find_axes(channels: Sequence[str]) -> list[list[int]]:
    """Return the places of x, y, z of each sensor that has all three, in the order of the channels."""
    found: dict[str, dict[str, int]] = {}
    for place, name in enumerate(channels):
        if match := _AXIS.fullmatch(name.strip()):
            found.setdefault(match[1].lower(), {})[match[2].lower()] = place
    return [[axes[axis] for axis in "xyz"] for axes in found.values() if len(axes) == len("xyz")]


def draw_rotations(count: int, spread: float) -> Tensor:
    """Draw matrices (count, 3, 3) about axes of any direction, by angles of this spread in radians (Rodrigues)."""
    x, y, z = torch.nn.functional.normalize(torch.randn(count, 3), dim=1).T
    angle, none = (spread * torch.randn(count))[:, None, None], torch.zeros(count)
    cross = torch.stack([none, -z, y, z, none, -x, -y, x, none], dim=1).view(count, 3, 3)
    return torch.eye(3) + angle.sin() * cross + (1 - angle.cos()) * (cross @ cross)
