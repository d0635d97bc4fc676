"""A window as a line of text for each channel, or an image in shades: errors are seen before training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdl.data.windows import DataSet

_LEVELS = "▁▂▃▄▅▆▇█"
_SHADES = " ░▒▓█"
# Limits of a line, and of a screen: a suit of sensors has more channels than anybody looks at.
_WIDTH, _MOST_CHANNELS, _MOST_CLASSES, _LONGEST_NAME, _IMAGE_WIDTH = 48, 9, 8, 16, 32


def draw_classes(data: DataSet) -> list[str]:
    """Draw the first training window of each class: a line a channel, with its lowest and highest value; or the image.

    For labels draw the first window with each, for numbers those with the least, a middle and the greatest first
    number.
    """
    lines = []
    for name, row in _choose(data):
        if row is not None:
            first = np.asarray(data.train.x[row])
            lines += [f"{name}:", *(draw_image(first) if data.is_of_images else draw_window(first, data.channels))]
    if len(data.classes) > _MOST_CLASSES and data.targets != "numbers":
        lines.append(f"and {len(data.classes) - _MOST_CLASSES} {data.targets} more")
    return lines


def _choose(data: DataSet) -> list[tuple[str, int | None]]:
    """Return the names to draw, each with its row among the training windows; None if it has no window."""
    y = data.train.y
    if data.targets == "numbers":
        order = np.argsort(y[:, 0], kind="stable")
        unit = f" {data.units[0]}" if data.units else ""
        chosen = dict.fromkeys(order[place] for place in (0, len(order) // 2, -1))
        return [(f"{data.classes[0]} {y[row, 0]:.4g}{unit}", int(row)) for row in chosen]
    shown = list(enumerate(data.classes))[:_MOST_CLASSES]
    is_of = [y[:, number] == 1 if data.targets == "labels" else y == number for number, _ in shown]
    return [(name, int(np.argmax(hit)) if hit.any() else None) for (_, name), hit in zip(shown, is_of, strict=True)]


def draw_window(x: NDArray[np.floating], channels: Sequence[str] = ()) -> list[str]:
    """Draw x (channels, time). Each column is the mean of its samples, between the channel's lowest and highest."""
    names = [name[:_LONGEST_NAME] for name in channels] or [f"channel {number}" for number in range(1, len(x) + 1)]
    wide = max(map(len, names[:_MOST_CHANNELS]))
    lines = [
        f"  {name:<{wide}} {sparkline(values)} {values.min():.3g} to {values.max():.3g}"
        for name, values in zip(names[:_MOST_CHANNELS], x, strict=False)
    ]
    return lines + ([f"  and {len(x) - _MOST_CHANNELS} channels more"] if len(x) > _MOST_CHANNELS else [])


def draw_image(x: NDArray[Any]) -> list[str]:
    """Draw x (channels, height, width) in shades of grey. A character is twice as high as wide."""
    grey = x.mean(axis=0, dtype=np.float64)
    wide = min(_IMAGE_WIDTH, grey.shape[1])
    high = max(1, round(wide * grey.shape[0] / grey.shape[1] / 2))
    rows = [part.mean(axis=0) for part in np.array_split(grey, min(high, len(grey)))]
    means = np.array([[part.mean() for part in np.array_split(row, wide)] for row in rows])
    low, high_value = float(means.min()), float(means.max())
    steps = ((means - low) / max(high_value - low, 1e-12) * (len(_SHADES) - 1)).round().astype(int)
    return ["  " + "".join(_SHADES[step] for step in row) for row in steps]


def sparkline(values: NDArray[np.floating]) -> str:
    """Draw values as one line of at most 48 columns."""
    means = np.array([part.mean() for part in np.array_split(values, min(_WIDTH, len(values)))])
    low, high = float(means.min()), float(means.max())
    if high <= low:
        return _LEVELS[0] * len(means)
    steps = ((means - low) / (high - low) * (len(_LEVELS) - 1)).round().astype(int)
    return "".join(_LEVELS[step] for step in steps)
