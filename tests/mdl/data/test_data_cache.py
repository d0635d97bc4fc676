"""The cache of parsed windows: read once, mapped afterwards, never torn, never stale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mdl.data import DataSet, Windows, cache, make_windows


def small(value: float = 1.0) -> DataSet:
    def side(subject: int) -> Windows:
        whole = np.zeros(3, dtype=np.int64)
        return make_windows(np.full((3, 2, 4), value), whole, whole + subject, whole + subject)

    return DataSet("small", side(0), side(1), ("only",), "subject", synthetic=True, subject_names=("a", "b"))


class Builder:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, scratch: Path) -> DataSet:
        self.calls += 1
        return small()


def test_the_second_load_is_mapped_and_equal(tmp_path: Path) -> None:
    build = Builder()
    first, second = (cache.load_cached(tmp_path, "small", ["key"], build) for _ in range(2))
    assert build.calls == 1
    assert isinstance(second.train.x, np.memmap)
    assert np.array_equal(first.test.x, second.test.x)
    assert second.subject_names == ("a", "b")
    assert second.synthetic


def test_writing_to_a_mapped_window_never_reaches_the_file(tmp_path: Path) -> None:
    build = Builder()
    cache.load_cached(tmp_path, "small", ["key"], build).train.x[:] = 7
    assert cache.load_cached(tmp_path, "small", ["key"], build).train.x.max() == 1


def test_another_key_is_another_entry(tmp_path: Path) -> None:
    build = Builder()
    for key in ("a", "b"):
        cache.load_cached(tmp_path, "small", [key], build)
    assert build.calls == 2


@pytest.mark.parametrize("damage", ["truncate", "remove", "meta", "meta is a list"])
def test_a_torn_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    build = Builder()
    cache.load_cached(tmp_path, "small", ["key"], build)
    (entry,) = tmp_path.iterdir()
    match damage:
        case "truncate":
            (entry / "train_x.npy").write_bytes(b"short")
        case "remove":
            (entry / "test_y.npy").unlink()
        case "meta":
            (entry / "meta.json").write_text('{"name": "small"')
        case _:
            (entry / "meta.json").write_text("[]")
    again = cache.load_cached(tmp_path, "small", ["key"], build)
    assert build.calls == 2
    assert len(again.test) == 3
    assert [path.name for path in tmp_path.iterdir()] == [entry.name]
    cache.load_cached(tmp_path, "small", ["key"], build)
    assert build.calls == 2


def test_whoever_builds_second_keeps_what_the_first_has_written(tmp_path: Path) -> None:
    def build_while_another_does(scratch: Path) -> DataSet:
        cache.load_cached(tmp_path, "small", ["key"], lambda _: small(2.0))
        return small(1.0)

    data = cache.load_cached(tmp_path, "small", ["key"], build_while_another_does)
    assert data.train.x.max() == 2
    assert len(list(tmp_path.iterdir())) == 1


def test_windows_that_cannot_be_cached_are_still_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert len(cache.load_cached(tmp_path / "file", "small", ["key"], lambda _: small()).train) == 3
    assert "not cached" in caplog.text


def test_a_failed_build_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(scratch: Path) -> DataSet:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.load_cached(tmp_path / "c", "small", ["key"], fail)
    assert not (tmp_path / "c").exists()


def test_a_changed_file_is_a_changed_key(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("one")
    before = cache.stamp_files([file])
    file.write_text("three")
    assert cache.stamp_files([file]) != before
