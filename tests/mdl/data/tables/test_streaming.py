"""Rows come block by block: where the blocks end must not be seen in what comes out."""

from __future__ import annotations

import io

import numpy as np
import pytest

from mdl.data.tables.stretches import UNLABELLED, Filler, StretchWriter, list_stretches
from mdl.data.tables.times import unwrap


def write(blocks: int, *, rate: float | None, window: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """The same 300 rows in so many blocks: labels change, values are missing, times jump."""
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.uniform(0.01, 0.03, 300))
    times[150:] += 5
    values = np.stack([np.sin(times), np.cos(times)], axis=1)
    values[[70, 71, 200], 1] = np.nan
    label = np.repeat([0, 1, UNLABELLED, 0], [100, 60, 40, 100])
    file = io.BytesIO()
    writer = StretchWriter(file, 2, window)
    writer.begin(rate, 0.5)
    for part in np.array_split(np.arange(300), blocks):
        writer.add(values[part], times[part], label[part], np.zeros(len(part), np.int64), 0)
    writer.end()
    return np.frombuffer(file.getvalue(), np.float32).reshape(-1, 2), list_stretches(writer)


@pytest.mark.parametrize("rate", [None, 40.0])
@pytest.mark.parametrize("blocks", [2, 7, 300])
def test_stretches_are_the_same_however_rows_come(blocks: int, rate: float | None) -> None:
    values, stretches = write(1, rate=rate)
    again, others = write(blocks, rate=rate)
    assert np.array_equal(stretches, others)
    assert np.allclose(values, again, atol=1e-6)
    assert len(stretches) == 5  # cut by what is missing, the label, the gap, and rows without a label


def test_a_stretch_that_is_too_short_for_a_window_is_taken_back() -> None:
    values, stretches = write(5, rate=None, window=60)
    assert stretches[:, 1].tolist() == [70, 99]
    assert len(values) == stretches[:, 1].sum()


@pytest.mark.parametrize("blocks", [1, 3, 50])
def test_what_is_missing_is_filled_from_both_sides_also_across_blocks(blocks: int) -> None:
    times = np.arange(50) / 10
    values = np.stack([times, 2 * times], axis=1)
    values[[5, 6, 20], 0] = np.nan
    values[30:45, 1] = np.nan
    filler, parts = Filler(2, 1.0), []
    for rows in np.array_split(np.arange(50), blocks):
        parts.append(filler.add(values[rows], times[rows], np.stack([rows, rows], axis=1)))
    parts.append(filler.finish())
    filled, at, extra = (np.concatenate([part[place] for part in parts]) for place in range(3))
    assert np.array_equal(at, times)
    assert np.array_equal(extra[:, 0], np.arange(50))
    assert np.allclose(filled[:, 0], times)
    assert np.isnan(filled[30:45, 1]).all()  # 1.6 s between two values: too long to invent
    assert np.isfinite(np.delete(filled[:, 1], np.arange(30, 45))).all()
    assert filler.filled == 3


def test_clock_times_go_on_past_midnight_also_across_blocks() -> None:
    times = np.array([86_398.0, 86_399.0, 0.0, 1.0])
    assert unwrap(times, np.nan).tolist() == [86_398, 86_399, 86_400, 86_401]
    first = unwrap(times[:2], np.nan)
    assert unwrap(times[2:], first[-1]).tolist() == [86_400, 86_401]
