"""The learning target of a window: its class, numbers (regression), or several labels that may hold (multi-label).

The type of the array tells the kind: int64 (n,) are classes, float32 (n, k) are k numbers, uint8 (n, k) are k labels,
1 if a label holds. The names of classes, numbers or labels are beside it, in this order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdl.bounds import MAX_NUMBERS
from mdl.errors import DataError
from mdl.task import Targets

# The mean of the numbers is averaged with the model's values, and refused beyond this (`mdl.protocol.delta`).
LARGEST_NUMBER = 1e6


def targets_of(y: NDArray[Any]) -> Targets:
    """Return the kind of an array of targets."""
    kind: Targets = "numbers" if y.dtype.kind == "f" else "labels" if y.ndim == 2 else "classes"
    return kind


def as_targets(y: NDArray[Any]) -> NDArray[Any]:
    """Return the targets in the standard type of their kind."""
    return np.ascontiguousarray(
        y, dtype={"classes": np.int64, "numbers": np.float32, "labels": np.uint8}[targets_of(y)]
    )


def strata_of(y: NDArray[Any]) -> NDArray[np.int64]:
    """Return the strata that each part of a split should have: the classes; numbers and labels are all one."""
    return np.asarray(y, np.int64) if targets_of(y) == "classes" else np.zeros(len(y), np.int64)


def check_targets(y: NDArray[Any], names: int, where: str) -> None:
    """Raise DataError unless the targets fit so many names. y: not empty."""
    kind = targets_of(y)
    if kind == "classes":
        if y.min() < 0 or y.max() >= names:
            raise DataError(f"{where}: labels {y.min()}..{y.max()}, expected 0..{names - 1}")
        return
    if y.shape != (len(y), names):
        raise DataError(f"{where}: y has shape {y.shape} for {names} {kind}; expected (n, {names})")
    if kind == "labels" and y.max() > 1:
        raise DataError(f"{where}: y holds {y.max()}, where 1 is a label that holds and 0 one that does not")
    if kind == "numbers":
        _check_numbers(y, names, where)


def _check_numbers(y: NDArray[Any], names: int, where: str) -> None:
    if names > MAX_NUMBERS:
        raise DataError(f"{where}: {names} numbers are to be learned; at most {MAX_NUMBERS}")
    bad = np.flatnonzero(~(np.abs(y) <= LARGEST_NUMBER).all(axis=1))
    if len(bad):
        row = bad[0]
        told = ", ".join(f"{value:g}" for value in y[row].tolist())
        raise DataError(
            f"{where}: row {row} is {told}; expected finite numbers of at most {LARGEST_NUMBER:,.0f}, in another unit "
            "if need be"
        )
