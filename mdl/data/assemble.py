"""From prepared rows to a data set: name the labels, number the groups, keep the test windows apart.

If the source makes no choice of test windows, it is made here, and none overlaps a training window. The choice depends
on the data and on the source's own `seed` option alone, never on the seed of a run. So every peer and every run of a
mesh keep the same windows apart; else one peer would train on another's test windows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdl.data.windows import DataSet, Integers, make_windows, strata_of
from mdl.errors import DataError

TEST_SHARE = 0.2
# Permutations tried for one that leaves every class on both sides; a data set that defeats 100 has no such split.
_TRIES = 100

Mask = NDArray[np.bool_]


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


def hold_out_keys(key: Integers, y: Integers, seed: int) -> Mask | None:
    """Return True for test rows: a fifth of the distinct keys (subjects or recordings), at least one.

    None if there is one key only, or if any choice would leave a class without training rows.
    """
    keys, inverse = np.unique(key, return_inverse=True)
    if len(keys) < 2:
        return None
    count = max(1, round(TEST_SHARE * len(keys)))
    rng = np.random.default_rng(seed)
    classes = len(np.unique(y))
    best: Mask | None = None
    for _ in range(_TRIES):
        chosen = np.zeros(len(keys), dtype=bool)
        chosen[rng.permutation(len(keys))[:count]] = True
        test = chosen[inverse]
        if len(np.unique(y[~test])) == classes:
            best = test if best is None else best
            if len(np.unique(y[test])) == classes:
                return test
    return best


def hold_out_time(y: Integers, group: Integers, gap: int) -> tuple[Mask, Mask]:
    """Return (test, dropped): the last fifth in time of each class is for testing, `gap` rows before it are dropped.

    Rows must be in recording order. A group with the cut in it gets the gap; `gap` rows must suffice that the rows on
    its two sides do not overlap. Raises DataError if a class has too few rows to be cut.
    """
    test = np.zeros(len(y), dtype=bool)
    dropped = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        cut = len(rows) - max(1, round(TEST_SHARE * len(rows)))
        test[rows[cut:]] = True
        near = rows[max(0, cut - gap) : cut]
        near = near[group[near] == group[rows[cut]]]
        dropped[near] = True
        if cut - len(near) < 1:
            raise DataError(f"class {label} has {len(rows)} windows in one stretch: too few to keep some for testing")
    return test, dropped


def hold_out(
    y: Integers, subject: Integers | None, recording: Integers | None, group: Integers, *, how: str, gap: int, seed: int
) -> tuple[str, Mask, Mask]:
    """Return (how, test, dropped) by subject, else by recording, else by time; `how` forces one unless it is "auto".

    Raises DataError if the forced way cannot leave every class with training rows.
    """
    for name, key in (("subject", subject), ("recording", recording)):
        if how not in ("auto", name):
            continue
        test = None if key is None else hold_out_keys(key, y, seed)
        if test is not None:
            return name, test, np.zeros(len(y), dtype=bool)
        if how == name:
            raise DataError(f"split={name}: no {name} can be kept for testing without losing a class for training")
    test, dropped = hold_out_time(y, group, gap)
    return "time", test, dropped
