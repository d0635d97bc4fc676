"""The contents of a data set, in numbers that fit on one screen."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdl.data.windows import DataSet, Windows, iterate_blocks, to_input

_OF_NUMBERS = ("least", "mean", "most", "deviation")


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
