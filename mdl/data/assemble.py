"""From prepared rows to a data set: name the labels, number the groups, keep the test windows apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdl.data.holdout import Mask, hold_out
from mdl.data.targets import strata_of
from mdl.data.windows import DataSet, Integers, make_windows


def number_names(values: NDArray[np.generic]) -> tuple[tuple[str, ...], Integers]:
    """Return the distinct values in order, as text, and each row's index among them."""
    distinct, inverse = np.unique(values, return_inverse=True)
    return tuple(str(value) for value in distinct.tolist()), inverse.reshape(-1).astype(np.int64)


def assemble_data(
    name: str,
    take: Callable[[Mask, str], NDArray[np.generic]],
    labels: tuple[tuple[str, ...], NDArray[Any]],
    subject: NDArray[np.generic] | None,
    recording: Integers | None,
    group: Integers,
    *,
    how: str = "auto",
    given: Mask | None = None,
    gap: int = 0,
    seed: int = 0,
    description: str = "",
    channels: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    warnings: tuple[str, ...] = (),
    rate_hz: float | None = None,
    units: tuple[str, ...] = (),
    channel_units: tuple[str, ...] = (),
    is_converted: bool = False,
    left_out: tuple[str, ...] = (),
) -> DataSet:
    """Make a data set from rows (n, channels, time) in recording order; keep a fifth for testing (`hold_out`).

    take: returns the chosen rows of a side, "train" or "test"; all else has a value for each row. A class may have no
    rows. labels: the names and the values of classes, numbers or labels. units: of the numbers. given: the rows to test
    on, if the source names them and `how` is "auto".
    """
    classes, y = labels
    subject_names, subject_ids = ((), np.zeros(len(y), np.int64)) if subject is None else number_names(subject)
    if given is not None and how == "auto":
        held_out, test, dropped = "given", given, np.zeros(len(y), np.bool_)
    else:
        held_out, test, dropped = hold_out(
            strata_of(y), None if subject is None else subject_ids, recording, group, how=how, gap=gap, seed=seed
        )
    # A stretch with a cut in time becomes two groups: the gap between them has been dropped.
    apart = group * 2 + test if held_out == "time" else group
    sides = (("train", ~test & ~dropped), ("test", test))
    train, tested = (make_windows(take(rows, side), y[rows], subject_ids[rows], apart[rows]) for side, rows in sides)
    return DataSet(
        name,
        train,
        tested,
        classes,
        held_out,
        description=description,
        subject_names=subject_names,
        channels=channels,
        notes=notes,
        warnings=warnings,
        rate_hz=rate_hz,
        units=units,
        channel_units=channel_units,
        is_converted=is_converted,
        left_out=left_out,
    )
