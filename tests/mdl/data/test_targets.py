"""Numbers and labels to be learned: from an .npz, from CSV columns, and what is said where it is not clear which."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mdl.data import describe_data, load_data, split_windows
from mdl.data.describe import draw_classes
from mdl.errors import ConfigError, DataError

N = 60


def npz(path: Path, **arrays: np.ndarray) -> str:
    x = np.random.default_rng(0).normal(size=(N, 16, 3))
    np.savez(path / "a.npz", **({"x": x, "subject": np.arange(N) // 12} | arrays))
    return str(path / "a.npz")


def test_floats_are_numbers_with_names_and_units_also_from_the_cache(tmp_path: Path) -> None:
    y = np.linspace(50, 190, 2 * N).reshape(N, 2) + 0.25
    spec = npz(tmp_path, y=y, targets=np.array(["pulse", "power"]), units=np.array(["bpm", "W"]))
    for _ in range(2):
        data = load_data(spec, tmp_path / "cache")
        assert (data.targets, data.classes, data.units) == ("numbers", ("pulse", "power"), ("bpm", "W"))
        assert (data.train.y.dtype, data.train.y.shape, data.held_out) == (np.float32, (48, 2), "subject")
    found = describe_data(data)
    assert found["train"]["numbers"]["pulse"]["mean"] == pytest.approx(data.train.y[:, 0].mean(), rel=1e-5)
    assert "windows_by_class" not in found["train"]
    drawn = [line for line in draw_classes(data) if line.endswith(":")]
    assert drawn[0] == f"pulse {data.train.y[:, 0].min():.4g} bpm:"
    assert len(drawn) == 3


def test_one_column_of_floats_needs_no_names(tmp_path: Path) -> None:
    data = load_data(npz(tmp_path, y=np.arange(N) + 0.5), tmp_path)
    assert (data.targets, data.classes, data.train.y.shape[1]) == ("numbers", ("number-1",), 1)


def test_rows_of_zeros_and_ones_are_labels(tmp_path: Path) -> None:
    y = np.stack([np.arange(N) % 2, np.arange(N) % 3 == 0], axis=1).astype(np.int64)
    for _ in range(2):
        data = load_data(npz(tmp_path, y=y, targets=np.array(["walks", "talks"])), tmp_path / "cache")
        assert (data.targets, data.classes, data.train.y.dtype) == ("labels", ("walks", "talks"), np.uint8)
    assert describe_data(data)["train"]["windows_by_label"] == dict(
        zip(data.classes, data.train.y.sum(axis=0).tolist(), strict=True)
    )
    assert draw_classes(data)[0] == "walks:"


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (np.arange(N) % 3 * 1.0, "are they numbers to predict, or names of classes? ?targets=numbers or"),
        (np.arange(2 * N).reshape(N, 2), "are they numbers to predict, or names of classes?"),
        (np.eye(3)[np.arange(N) % 3], "a single 1: classes, or labels? ?targets=labels, or for classes y.argmax"),
        (np.full(N, np.nan), "row 0 is nan; expected finite numbers of at most 1,000,000"),
        (np.linspace(0, 1e7, N) + 0.5, "in another unit"),
        (np.random.default_rng(0).normal(size=(N, 65)), "65 numbers are to be learned; at most 64"),
        (np.zeros((N, 2, 2)), "y is float64 of shape (60, 2, 2); expected (60,) or (60, k)"),
        (np.array([["a", "b"]] * N), "are they numbers to predict"),
    ],
)
def test_what_could_be_two_things_or_nothing_is_refused(y: np.ndarray, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_data(npz(tmp_path, y=y), tmp_path)
    assert words in str(caught.value)


def test_the_user_says_what_it_is(tmp_path: Path) -> None:
    whole = npz(tmp_path, y=np.arange(N) % 3 * 1.0)
    assert load_data(f"{whole}?targets=numbers", tmp_path).targets == "numbers"
    assert load_data(f"{whole}?targets=classes", tmp_path).classes == ("0", "1", "2")
    with pytest.raises(DataError, match="expected 0 and 1"):
        load_data(f"{whole}?targets=labels", tmp_path)
    assert load_data(f"{npz(tmp_path, y=np.eye(3)[np.arange(N) % 3])}?targets=labels", tmp_path).targets == "labels"
    with pytest.raises(DataError, match="expected 2 texts"):
        load_data(npz(tmp_path, y=np.ones((N, 2)) / 3, targets=np.array(["a"])), tmp_path)


def test_constant_numbers_and_labels_are_told(tmp_path: Path) -> None:
    y = np.stack([np.arange(N) / 7, np.full(N, 3.5)], axis=1)
    warnings = load_data(npz(tmp_path, y=y), tmp_path).warnings
    assert "number 'number-2' (3.5) is the same in all training windows" in warnings[0]


def test_there_are_no_classes_to_be_dealt_out(tmp_path: Path) -> None:
    data = load_data(npz(tmp_path, y=np.arange(N) + 0.5), tmp_path)
    assert len(split_windows(data.train, "subject", 3, 0)) == 3
    with pytest.raises(ConfigError, match="it deals out classes, and these windows have numbers"):
        split_windows(data.train, "dirichlet:1", 2, 0)


ROWS = 400


def csv(path: Path, pulse: list[str] | None = None, tags: list[str] | None = None) -> str:
    values = np.random.default_rng(1).normal(size=(ROWS, 2)).round(3)
    pulse = pulse or [str(60 + row / 10) for row in range(ROWS)]
    tags = tags or [("walk|talk" if row < 200 else "walk") if row < 300 else "-" for row in range(ROWS)]
    lines = [
        f"{row / 50:.2f},{x},{y},{pulse[row]},{int(row < 300)},{'yes' if row < 200 else 'no'},{tags[row]}"
        for row, (x, y) in enumerate(values.tolist())
    ]
    (path / "a.csv").write_text("time,ax,ay,pulse (bpm),walk,talk,tags\n" + "\n".join(lines) + "\n")
    return str(path / "a.csv")


def both_sides(data: object) -> np.ndarray:
    return np.concatenate([data.train.y, data.test.y])  # type: ignore[attr-defined]


@pytest.mark.parametrize(("how", "first"), [("", 60 + 15.5 / 10), ("&target_of=last", 60 + 31 / 10)])
def test_a_column_of_a_csv_is_a_number(how: str, first: float, tmp_path: Path) -> None:
    data = load_data(f"{csv(tmp_path)}?target=PULSE&columns=ax,ay&window=32&step=16{how}", tmp_path)
    assert (data.targets, data.classes, data.units, data.channels) == ("numbers", ("PULSE",), ("bpm",), ("ax", "ay"))
    assert data.train.y[0, 0] == pytest.approx(first, abs=1e-4)
    assert data.train.x.shape[1:] == (2, 32)
    assert data.held_out == "time"


def test_a_target_is_no_channel_and_may_be_several(tmp_path: Path) -> None:
    data = load_data(f"{csv(tmp_path, tags=['0'] * ROWS)}?target=pulse,walk&columns=ax,ay,tags&window=32", tmp_path)
    assert data.classes == ("pulse", "walk")
    assert data.units == ("bpm", "")
    (tmp_path / "a.csv").write_text((tmp_path / "a.csv").read_text().replace("yes", "1").replace("no", "0"))
    free = load_data(f"{tmp_path / 'a.csv'}?target=pulse,walk&window=32", tmp_path)
    assert free.channels == ("ax", "ay", "talk", "tags")


def test_a_slow_sensor_is_filled_in_between(tmp_path: Path) -> None:
    pulse = [str(60 + row / 10) if row % 25 == 0 else "" for row in range(ROWS)]
    where = f"{csv(tmp_path, pulse)}?target=pulse&columns=ax,ay&window=32"
    with pytest.raises(DataError, match=r"data row 2: column 'pulse \(bpm\)' is empty.*missing=interpolate"):
        load_data(where, tmp_path)
    data = load_data(f"{where}&missing=interpolate&max_gap=1", tmp_path)
    assert data.train.y[0, 0] == pytest.approx(60 + 15.5 / 10, abs=1e-3)


@pytest.mark.parametrize("how", ["labels=walk,talk", "label=tags&label_sep=|&classes=walk,talk"])
def test_labels_are_columns_of_flags_or_parts_of_a_cell(how: str, tmp_path: Path) -> None:
    data = load_data(f"{csv(tmp_path)}?{how}&columns=ax,ay&window=50&step=50", tmp_path)
    assert (data.targets, data.classes) == ("labels", ("walk", "talk"))
    assert both_sides(data).tolist() == [[1, 1]] * 4 + [[1, 0]] * 2 + [[0, 0]] * 2


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("label=tags&target=pulse", "label=, target= are given; a model learns one of them"),
        ("label=tags&label_sep=|", "needs all labels that there are: ?classes=NAME,NAME"),
        ("label_sep=|&classes=a", "name it with ?label="),
        ("target=puls", "no column 'puls' (did you mean pulse (bpm)?)"),
        ("labels=pulse", "column 'pulse' is '60.0'; expected 0 or 1 (?target= takes numbers)"),
        ("target=tags", "column 'tags' is 'walk|talk'; expected a number"),
        ("label=tags&label_sep=|&classes=walk", "has the label 'talk', none of classes="),
        ("target=pulse&classes=a", "classes= names classes; target= names its columns"),
        ("target=pulse,pulse", "column 'pulse' is there twice"),
    ],
)
def test_csv_targets_that_are_wrong_are_refused(how: str, words: str, tmp_path: Path) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        load_data(f"{csv(tmp_path)}?{how}&columns=ax,ay", tmp_path)
    assert words in str(caught.value)


def test_an_empty_cell_is_not_labelled_and_a_word_for_nothing_is_no_label(tmp_path: Path) -> None:
    tags = [""] * 10 + ["none"] * (ROWS - 10)
    where = f"{csv(tmp_path, tags=tags)}?label=tags&label_sep=|&classes=walk,talk&columns=ax,ay&window=30"
    with pytest.raises(DataError, match="data row 1: column 'tags' is empty"):
        load_data(where, tmp_path)
    assert not both_sides(load_data(f"{where}&missing=drop", tmp_path)).any()


def test_files_of_one_folder_agree_on_the_unit_of_a_number(tmp_path: Path) -> None:
    csv(tmp_path)
    text = (tmp_path / "a.csv").read_text()
    (tmp_path / "b.csv").write_text(text.replace("(bpm)", "(Hz)"))
    with pytest.raises(DataError, match=r"b.csv: the target is in Hz, but .*a.csv has bpm"):
        load_data(f"csv:{tmp_path}?target=pulse&columns=ax,ay", tmp_path / "cache")
