"""What a user says about a table, and what is said where it does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdl.data import load_data
from mdl.errors import ConfigError, DataError


def rows(labels: str, start: float = 0.0) -> str:
    lines = [f"{start + number * 0.02:.2f},{number % 7},{label}" for number, label in enumerate(labels)]
    return "\n".join(["time,v,label", *lines]) + "\n"


def test_a_class_without_a_window_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(rows("a" * 60 + "b" * 60 + "c" * 3 + "a" * 60))
    data = load_data(f"csv:{tmp_path}/a.csv?label=label&window=10", tmp_path / "cache")
    assert data.classes == ("a", "b")
    assert "no stretch of 10 samples has the class c" in data.warnings[0]


def test_a_folder_between_may_be_the_class_and_the_next_the_person(tmp_path: Path) -> None:
    for number, label in enumerate(("walk", "sit")):
        for who in ("ann", "ben", "cem"):
            (tmp_path / "rec" / label / who).mkdir(parents=True)
            (tmp_path / "rec" / label / who / "1.csv").write_text(rows("-" * 80, number))
    for where in (f"{tmp_path}/rec", f"{tmp_path}/rec/*/*/*.csv"):
        spec = f"csv:{where}?label=path&subject=path:2&columns=v&window=10"
        data = load_data(spec, tmp_path / "cache")
        assert data.classes == ("sit", "walk")
        assert data.subject_names == ("ann", "ben", "cem")
        assert data.held_out == "subject"
    with pytest.raises(ConfigError, match=r"'path:3' is the name of a folder between .*; there are 2"):
        load_data(f"csv:{tmp_path}/rec?label=path:3&columns=v&window=10", tmp_path / "cache")


def test_folders_train_and_test_are_a_split(tmp_path: Path) -> None:
    for side, start in (("train", 0), ("test", 5)):
        for label in ("sit", "walk"):
            (tmp_path / "rec" / side / label / "ann").mkdir(parents=True)
            (tmp_path / "rec" / side / label / "ann" / "1.csv").write_text(rows("-" * 80, start))
    for where in (f"{tmp_path}/rec", f"{tmp_path}/rec/*/*/*/*.csv"):
        data = load_data(f"csv:{where}?label=path&subject=path:3&columns=v&window=10&step=10", tmp_path / "cache")
        assert (data.classes, data.held_out, len(data.train), len(data.test)) == (("sit", "walk"), "given", 16, 16)
        assert data.notes[0] == "train/ is trained on, test/ is tested on (by the folders' names)"


def test_gaps_are_filled_only_where_times_are_known(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("v,label\n" + "1,a\n" * 40)
    with pytest.raises(DataError, match=r"gaps=interpolate:1 needs to know when each row was; .*\?time="):
        load_data(f"csv:{tmp_path}/a.csv?label=label&gaps=interpolate:1&window=4", tmp_path / "cache")


def test_a_hole_of_half_a_second_is_not_joined_and_a_filled_one_is(tmp_path: Path) -> None:
    text = rows("a" * 100 + "b" * 100).split("\n")
    (tmp_path / "a.csv").write_text("\n".join([*text[:30], *text[55:]]))
    spec = f"csv:{tmp_path}/a.csv?label=label&window=50&step=50"
    split = load_data(spec, tmp_path / "cache")
    assert split.classes == ("b",)
    assert "no stretch of 50 samples has the class a" in split.warnings[0]
    assert load_data(f"{spec}&gaps=interpolate:1", tmp_path / "cache").classes == ("a", "b")


@pytest.mark.parametrize("gaps", ["interpolate", "interpolate:-1", "fill", "interpolate:1e3"])
def test_a_word_for_gaps_that_is_none_is_refused(tmp_path: Path, gaps: str) -> None:
    (tmp_path / "a.csv").write_text(rows("ab" * 9))
    with pytest.raises(ConfigError, match="gaps="):
        load_data(f"csv:{tmp_path}/a.csv?label=label&gaps={gaps}", tmp_path / "cache")


def test_a_rate_that_the_times_contradict_is_refused_also_where_nobody_named_the_times(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(rows("a" * 60 + "b" * 60))
    with pytest.raises(DataError, match=r"rate=200 in no unit.*50 Hz if they are s"):
        load_data(f"csv:{tmp_path}/a.csv?label=label&rate=200&window=4", tmp_path / "cache")
