"""Tests never leak: no sample, group or held-out subject is on both sides, whatever the source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mdl.data import DataSet, check_data, make_windows
from mdl.data.readers.arrays import ArrayOptions, build_data
from mdl.data.readers.csv_streams import CsvOptions, read_csv
from mdl.data.readers.motion import MotionOptions, make_motion
from mdl.errors import DataError


def assert_no_leak(data: DataSet) -> None:
    check_data(data, "test")
    assert not set(data.train.group.tolist()) & set(data.test.group.tolist())
    if data.held_out == "subject":
        assert not set(data.train.subject.tolist()) & set(data.test.subject.tolist())


def stream_windows(labels: list[int], lengths: list[int], window: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows over a counter, so that shared samples show: x (n, window, 1), y."""
    x, y, start = [], [], 0
    for label, length in zip(labels, lengths, strict=True):
        cut = range(start, start + length - window + 1, step)
        x += [np.arange(first, first + window)[:, None] for first in cut]
        y += [label] * len(cut)
        start += length
    return np.array(x, dtype=np.float32).reshape(-1, window, 1), np.array(y, dtype=np.int64)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(20, 90)), min_size=2, max_size=9),
    st.integers(1, 4), st.booleans(), st.integers(0, 5),
)  # fmt: skip
def test_windows_given_without_a_split_share_no_sample_between_training_and_test(
    runs: list[tuple[int, int]], overlap: int, with_subject: bool, seed: int
) -> None:
    x, y = stream_windows([label for label, _ in runs], [length for _, length in runs], window=10, step=10 // overlap)
    arrays = {"x": x, "y": y}
    if with_subject:
        # Whole stretches belong to somebody: no sample is of two people.
        stretch = np.searchsorted(np.cumsum([length for _, length in runs]), x[:, 0, 0], side="right")
        arrays["subject"] = (stretch // 2).astype(np.int64)
    try:
        data = build_data("x", arrays, "x", ArrayOptions(seed=seed))
    except DataError:
        return
    assert_no_leak(data)
    if data.held_out == "time":
        assert not np.intersect1d(data.train.x, data.test.x).size


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60)), min_size=1, max_size=8),
    st.integers(1, 4), st.integers(4, 12), st.integers(1, 12), st.integers(0, 3),
)  # fmt: skip
def test_streams_cut_from_csv_share_no_sample_between_training_and_test(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[str, int]], files: int, window: int, step: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("csv")
    counter = 0
    for file in range(files):
        lines = ["v,label"]
        for label, length in runs:
            lines += [f"{counter + offset},{label}" for offset in range(length)]
            counter += length
        (folder / f"{file}.csv").write_text("\n".join(lines) + "\n")
    try:
        data = read_csv(str(folder), CsvOptions(label="label", window=window, step=step, seed=seed))
    except DataError:
        return
    assert_no_leak(data)
    assert not np.intersect1d(data.train.x, data.test.x).size
    for windows in (data.train, data.test):
        assert (np.diff(windows.x[:, 0], axis=1) == 1).all()


def test_windows_of_one_stretch_share_a_group_in_csv(tmp_path: Path) -> None:
    lines = ["v,label"] + [f"{row},{'ab'[row // 50 % 2]}" for row in range(400)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    data = read_csv(str(tmp_path / "a.csv"), CsvOptions(label="label", window=10, step=5))
    assert data.held_out == "time"
    for windows in (data.train, data.test):
        for group in np.unique(windows.group):
            assert len(np.unique(windows.x[windows.group == group] // 50)) == 1


@pytest.mark.slow
@given(st.integers(1, 6), st.integers(1, 3), st.integers(0, 20))
def test_motion_never_tests_with_a_person_that_trained(people: int, test_people: int, seed: int) -> None:
    assert_no_leak(make_motion(MotionOptions(people=people, test_people=test_people, windows=12), seed))


def test_a_group_on_both_sides_is_refused() -> None:
    arrays = {
        "x": np.zeros((4, 8, 1)),
        "y": np.array([0, 1, 0, 1]),
        "group": np.array([0, 1, 1, 2]),
        "split": np.array(["train", "train", "test", "test"]),
    }
    with pytest.raises(DataError, match="group 1 is on both sides"):
        check_data(build_data("x", arrays, "x", ArrayOptions()), "x")


def test_a_group_of_two_subjects_is_refused() -> None:
    side = make_windows(np.zeros((2, 1, 4)), np.array([0, 0]), np.array([1, 2]), np.array([5, 5]))
    other = make_windows(np.zeros((1, 1, 4)), np.array([0]), np.array([3]), np.array([6]))
    with pytest.raises(DataError, match="group 5 holds windows of several subjects"):
        check_data(DataSet("x", side, other, ("a",), "given"), "x")
