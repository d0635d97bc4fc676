"""The contents of a data set: in numbers that fit on one screen, as drawings, and what is suspicious in them.

A drawing is a window as a line of text for each channel, or an image in shades: errors are seen before training.
Suspicious channels teach nothing, or the wrong thing: constant ones, clocks, and values far beyond all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdl.data.windows import DataSet, Windows, iterate_blocks, targets_of, to_input

_OF_NUMBERS = ("least", "mean", "most", "deviation")
_LEVELS = "▁▂▃▄▅▆▇█"
_SHADES = " ░▒▓█"
# Limits of a line, and of a screen: a suit of sensors has more channels than anybody looks at.
_WIDTH, _MOST_CHANNELS, _MOST_CLASSES, _LONGEST_NAME, _IMAGE_WIDTH = 48, 9, 8, 16, 32
# A short stretch of any signal may rise by chance; so many steps in a row in all windows do not.
_FEWEST_STEPS = 100
# A value so many deviations from the middle is no measurement: a start time, a counter, an error code.
_FAR = 1000.0
# Bytes of windows that give the middle and the deviation, without the outermost hundredths on both sides.
_SAMPLE_BYTES, _OUTER, _OUTER_DEVIATIONS = 16 << 20, (1, 50, 99), 2 * 2.326
# Channels named in one line.
_MOST_NAMED = 8


def describe_data(data: DataSet) -> dict[str, Any]:
    """Return shapes, classes, subjects, balance and per-channel mean and deviation, as plain JSON values.

    Pixels count from 0 to 1.
    """
    mean, deviation = measure_channels(data.train)
    return {
        "name": data.name,
        "synthetic": data.synthetic,
        "description": data.description,
        "channels": data.shape[0],
        "channel_names": list(data.channels),
        "channel_units": list(data.channel_units),
        **({"height": data.shape[1], "width": data.shape[2]} if data.is_of_images else {"window": data.shape[1]}),
        "rate_hz": data.rate_hz,
        "targets": data.targets,
        "classes": list(data.classes),
        **({"units": list(data.units)} if data.units else {}),
        "held_out": data.held_out,
        "train": _describe_side(data, data.train),
        "test": _describe_side(data, data.test),
        "channel_mean": [round(value, 6) for value in mean.tolist()],
        "channel_deviation": [round(value, 6) for value in deviation.tolist()],
        "notes": list(data.notes),
        "warnings": list(data.warnings),
        "left_out": list(data.left_out),
    }


def measure_channels(
    windows: Windows,
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], np.ndarray[Any, np.dtype[np.float64]]]:
    """Return (mean, standard deviation) of each channel, float64 (channels,), in bounded memory."""
    total = np.zeros(windows.x.shape[1])
    squares = np.zeros(windows.x.shape[1])
    for some in iterate_blocks(windows.x):
        block = to_input(some).reshape(*some.shape[:2], -1).astype(np.float64)
        total += block.sum(axis=(0, 2))
        squares += np.square(block).sum(axis=(0, 2))
    count = windows.x[:, 0].size
    mean = total / count
    return mean, np.sqrt(np.maximum(squares / count - mean**2, 0.0))


def _describe_side(data: DataSet, windows: Windows) -> dict[str, Any]:
    ids, counts = np.unique(windows.subject, return_counts=True)
    names = [data.subject_names[index] if data.subject_names else str(index) for index in ids.tolist()]
    return {
        "windows": len(windows),
        "groups": len(np.unique(windows.group)),
        "subjects": len(ids),
        **_describe_targets(data, windows.y),
        "windows_by_subject": dict(zip(names, counts.tolist(), strict=True)),
    }


def _describe_targets(data: DataSet, y: NDArray[Any]) -> dict[str, Any]:
    """Count the windows of each class, or with each label; for numbers return their range, mean and deviation."""
    if data.targets == "numbers":
        found = zip(*(pick.tolist() for pick in (y.min(0), y.mean(0), y.max(0), y.std(0))), strict=True)
        named = ({key: round(value, 6) for key, value in zip(_OF_NUMBERS, each, strict=True)} for each in found)
        return {"numbers": dict(zip(data.classes, named, strict=True))}
    counts = y.sum(axis=0, dtype=np.int64) if data.targets == "labels" else np.bincount(y, minlength=len(data.classes))
    return {
        f"windows_by_{'label' if data.targets == 'labels' else 'class'}": dict(
            zip(data.classes, counts.tolist(), strict=True)
        )
    }


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


def suspect_channels(windows: Windows, names: Sequence[str]) -> tuple[str, ...]:
    """Return a line for the user on each kind of suspicious channel. names: of the channels, or none."""
    count = windows.x.shape[1]
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    in_time = windows.x.ndim == 3
    rises = np.full(count, in_time and windows.x.shape[0] * (windows.x.shape[2] - 1) >= _FEWEST_STEPS)
    for some in iterate_blocks(windows.x):
        block = some.reshape(*some.shape[:2], -1)
        low, high = np.minimum(low, block.min(axis=(0, 2))), np.maximum(high, block.max(axis=(0, 2)))
        rises &= (np.diff(block, axis=2) >= 0).all(axis=(0, 2)) & (block[:, :, -1] > block[:, :, 0]).all(axis=0)
    called = _call(names, count)
    lines = []
    if rises.any():
        lines.append(f"{called(rises)} only ever rises, like a time or a counter: is it meant to be a channel?")
    if in_time:
        lines += _far_values(windows, low, high, called)
    if (low == high).any():
        lines.append(f"{called(low == high)} is constant: nothing can be learned from it")
    return tuple(lines)


def _far_values(
    windows: Windows,
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    called: Callable[[NDArray[np.bool_]], str],
) -> list[str]:
    """Return a line on each channel with a value thousands of deviations away. low, high: (channels,)."""
    count = max(1, min(len(windows), _SAMPLE_BYTES // max(1, windows.x[:1].nbytes)))
    some = windows.x[np.linspace(0, len(windows) - 1, count).astype(np.int64)]
    first, middle, last = np.percentile(some, _OUTER, axis=(0, 2))
    deviation = (last - first) / _OUTER_DEVIATIONS
    furthest = np.where(high - middle > middle - low, high, low)
    far = (deviation > 0) & (np.abs(furthest - middle) > _FAR * deviation)
    return [
        f"{called(np.arange(len(far)) == channel)} holds {furthest[channel]:.6g}, "
        f"{abs(furthest[channel] - middle[channel]) / deviation[channel]:,.0f} deviations from its middle "
        f"{middle[channel]:.3g}: is it a time, a counter or an error code?"
        for channel in np.flatnonzero(far).tolist()[:_MOST_NAMED]
    ]


def suspect_targets(train: NDArray[Any], test: NDArray[Any], names: Sequence[str]) -> tuple[str, ...]:
    """Return a line on numbers that are constant, and on labels that hold everywhere or nowhere on a side."""
    if targets_of(train) == "classes":
        return ()
    what = "number" if targets_of(train) == "numbers" else "label"
    lines = []
    for side, y in (("training", train), ("test", test)):
        same = np.flatnonzero(y.min(axis=0) == y.max(axis=0)).tolist()
        told = ", ".join(f"{names[column]!r} ({y[0, column]:g})" for column in same[:_MOST_NAMED])
        if same:
            lines.append(f"{what} {told} is the same in all {side} windows: nothing can be learned of it")
    return tuple(lines)


def _call(names: Sequence[str], count: int) -> Callable[[NDArray[np.bool_]], str]:
    def call(chosen: NDArray[np.bool_]) -> str:
        numbers = np.flatnonzero(chosen).tolist()
        told = [repr(names[number]) if names else f"number {number + 1} of {count}" for number in numbers[:_MOST_NAMED]]
        more = [f"and {len(numbers) - _MOST_NAMED} more"] if len(numbers) > _MOST_NAMED else []
        return f"channel {', '.join([*told, *more])}"

    return call
