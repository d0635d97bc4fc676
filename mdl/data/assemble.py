"""From prepared rows to a data set: name the labels, number the groups, keep the test windows apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mdl.data.holdout import hold_out
from mdl.data.windows import DataSet, Integers, make_windows, take_windows


def number_names(values: NDArray[np.generic]) -> tuple[tuple[str, ...], Integers]:
    """Distinct values in order, as text, and each row's index among them."""
    distinct, inverse = np.unique(values, return_inverse=True)
    return tuple(str(value) for value in distinct.tolist()), inverse.reshape(-1).astype(np.int64)


def assemble_data(
    name: str,
    x: NDArray[np.generic],
    labels: tuple[tuple[str, ...], Integers],
    subject: NDArray[np.generic] | None,
    recording: Integers | None,
    group: Integers,
    *,
    how: str = "auto",
    gap: int = 0,
    seed: int = 0,
    description: str = "",
    channels: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
    rate_hz: float | None = None,
) -> DataSet:
    """A data set from rows x (n, channels, time) in recording order; keeps a fifth for testing (`hold_out`)."""
    classes, y = labels
    subject_names, subject_ids = ((), np.zeros(len(y), np.int64)) if subject is None else number_names(subject)
    held_out, test, dropped = hold_out(
        y, None if subject is None else subject_ids, recording, group, how=how, gap=gap, seed=seed
    )
    # A stretch that a cut in time goes through becomes two groups: the gap between them has been dropped.
    apart = group * 2 + test if held_out == "time" else group
    windows = make_windows(x, y, subject_ids, apart)
    return DataSet(
        name,
        take_windows(windows, ~test & ~dropped),
        take_windows(windows, test),
        classes,
        held_out,
        description=description,
        subject_names=subject_names,
        channels=channels,
        notes=notes,
        rate_hz=rate_hz,
    )
