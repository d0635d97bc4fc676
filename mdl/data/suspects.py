"""Channels that teach nothing, or the wrong thing: constant ones, clocks, and values far beyond all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdl.data.targets import targets_of
from mdl.data.windows import Windows, iterate_blocks

# A short stretch of any signal may rise by chance; so many steps in a row in all windows do not.
_FEWEST_STEPS = 100
# A value so many deviations from the middle is no measurement: a start time, a counter, an error code.
_FAR = 1000.0
# Bytes of windows that give the middle and the deviation, without the outermost hundredths on both sides.
_SAMPLE_BYTES, _OUTER, _OUTER_DEVIATIONS = 16 << 20, (1, 50, 99), 2 * 2.326
# Channels named in one line.
_MOST_NAMED = 8


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
