"""Channels that teach nothing, or the wrong thing: constant ones, and those that rise all the time as a clock does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdl.data.targets import targets_of
from mdl.data.windows import Windows, iterate_blocks

# A short stretch of any signal may rise by chance; so many steps in a row in all windows do not.
_FEWEST_STEPS = 100
# Channels named in one line.
_MOST_NAMED = 8


def suspect_channels(windows: Windows, names: Sequence[str]) -> tuple[str, ...]:
    """A line for the user on each kind of suspicious channel. names: of the channels, or none."""
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
    if (low == high).any():
        lines.append(f"{called(low == high)} is constant: nothing can be learned from it")
    return tuple(lines)


def suspect_targets(train: NDArray[Any], test: NDArray[Any], names: Sequence[str]) -> tuple[str, ...]:
    """A line on numbers that are constant, and on labels that hold everywhere or nowhere on a side."""
    if targets_of(train) == "classes":
        return ()
    what = "number" if targets_of(train) == "numbers" else "label"
    lines = []
    for side, y in (("training", train), ("test", test)):
        same = np.flatnonzero(y.min(axis=0) == y.max(axis=0)).tolist()
        told = ", ".join(f"{names[column]!r} ({y[0, column]:g})" for column in same[:_MOST_NAMED])
        if same:
            lines.append(f"{what} {told} is the same in all {side} windows: nothing can be learned or said of it")
    return tuple(lines)


def _call(names: Sequence[str], count: int) -> Callable[[NDArray[np.bool_]], str]:
    def call(chosen: NDArray[np.bool_]) -> str:
        numbers = np.flatnonzero(chosen).tolist()
        told = [repr(names[number]) if names else f"number {number + 1} of {count}" for number in numbers[:_MOST_NAMED]]
        more = [f"and {len(numbers) - _MOST_NAMED} more"] if len(numbers) > _MOST_NAMED else []
        return f"channel {', '.join([*told, *more])}"

    return call
