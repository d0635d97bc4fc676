"""A watched folder: what is new and whole joins, once; what is of another kind is told and left out."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from mdl.data import load_data
from mdl.data.watch import WatchedFolder, watched_folder
from mdl.errors import ConfigError

OPTIONS = "label=label&window=20&classes=sit,walk,run"


def _write(file: Path, label: str, seed: int, header: str = "ax,ay,az", at: float = 0.0, scale: float = 1.0) -> None:
    values = scale * np.random.default_rng(seed).normal(size=(200, 3))
    rows = [",".join(f"{value:.4f}" for value in row) + f",{label}" for row in values]
    file.write_text("\n".join([f"{header},label", *rows]))
    os.utime(file, (at, at))


def _watched(folder: Path, options: str = f"{OPTIONS}&watch=40") -> WatchedFolder:
    folder.mkdir(exist_ok=True)
    _write(folder / "a.csv", "sit", 0)
    spec = f"csv:{folder}?{options}"
    data = load_data(spec, folder.parent / "cache")
    found = watched_folder(spec, data, data.train, data.test, seed=1)
    assert found is not None
    return found


def test_a_new_recording_joins_once_when_nobody_writes_to_it_any_more(tmp_path: Path) -> None:
    watched = _watched(tmp_path / "rec")
    before, tested = len(watched.train), len(watched.test)
    assert set(watched.train.y.tolist()) == {0}
    assert not watched.look(100.0)
    _write(tmp_path / "rec" / "b.csv", "walk", 1, at=100.0)
    assert not watched.look(101.0)
    assert watched.look(102.5)
    assert not watched.look(104.0)
    assert set(watched.train.y.tolist()) == {0, 1}
    assert (len(watched.train), len(watched.test)) == (2 * before, min(10, 2 * tested))


def test_a_recording_from_the_future_joins_when_nobody_writes_to_it_any_more(tmp_path: Path) -> None:
    """A camera's clock is ahead, a card has local times, or this board's clock was set back."""
    watched = _watched(tmp_path / "rec")
    _write(tmp_path / "rec" / "b.csv", "walk", 1, at=3700.0)
    assert not watched.look(100.0)
    os.utime(tmp_path / "rec" / "b.csv", (3701.5, 3701.5))  # somebody still writes
    assert not watched.look(101.5)
    assert not watched.look(103.0)
    assert not watched.look(50.0), "set back once more"
    assert watched.look(52.0)
    assert not watched.look(60.0)
    assert set(watched.train.y.tolist()) == {0, 1}


def test_what_is_kept_is_bounded_and_holds_old_and_new(tmp_path: Path) -> None:
    watched = _watched(tmp_path / "rec")
    for number in range(6):
        _write(tmp_path / "rec" / f"n{number}.csv", "run", number, at=100.0)
    assert watched.look(200.0)
    assert len(watched.train) == 40
    assert len(watched.test) == 10
    assert set(watched.train.y.tolist()) == {0, 2}


def test_a_recording_of_another_kind_is_told_once_and_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = _watched(tmp_path / "rec")
    _write(tmp_path / "rec" / "gyro.csv", "walk", 1, header="gx,gy,gz", at=100.0)
    (tmp_path / "rec" / "torn.csv").write_text("ax,ay,az,label\n1,2")
    os.utime(tmp_path / "rec" / "torn.csv", (100.0, 100.0))
    _write(tmp_path / "rec" / "wrong.csv", "swim", 1, at=100.0)
    assert not watched.look(200.0)
    told = [record.getMessage() for record in caplog.records if "is left out" in record.getMessage()]
    assert len(told) == 3
    assert "its channels is ('gx', 'gy', 'gz'), of the recordings before it is ('ax', 'ay', 'az')" in told[0]
    assert any("swim" in line for line in told)
    assert not watched.look(300.0)
    assert len([record for record in caplog.records if "is left out" in record.getMessage()]) == 3


def test_a_recording_in_another_unit_of_acceleration_is_converted(tmp_path: Path) -> None:
    folder = tmp_path / "rec"
    folder.mkdir()
    for name, pull in (("a", 1.0), ("b", 9.81)):
        values = np.random.default_rng(0).normal(size=(200, 3)) * 0.1 * pull + [0, 0, pull]
        rows = [",".join(f"{value:.4f}" for value in row) + ",sit" for row in values]
        (folder / f"{name}.csv").write_text("\n".join(["ax,ay,az,label", *rows]))
        os.utime(folder / f"{name}.csv", (100.0, 100.0))
    (folder / "b.csv").rename(tmp_path / "b.csv")
    spec = f"csv:{folder}?{OPTIONS}&watch=40"
    data = load_data(spec, tmp_path / "cache")
    watched = watched_folder(spec, data, data.train, data.test, seed=1)
    assert watched is not None
    (tmp_path / "b.csv").rename(folder / "b.csv")
    assert watched.look(200.0)
    assert watched.train.x[:, 2].mean(axis=1) == pytest.approx(9.81, abs=1.0)


def test_a_folder_that_goes_is_told_and_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watched = _watched(tmp_path / "rec")
    (tmp_path / "rec" / "a.csv").unlink()
    assert not watched.look(200.0)
    assert "nothing new is read" in caplog.text
    assert len(watched.train)


def test_what_cannot_be_watched_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    _write(file, "sit", 0)
    data = load_data(f"csv:{file}?{OPTIONS}", tmp_path / "cache")

    def ask(spec: str) -> WatchedFolder | None:
        return watched_folder(spec, data, data.train, data.test, seed=1)

    with pytest.raises(ConfigError, match="watch= needs a folder, in which new recordings appear"):
        ask(f"csv:{file}?{OPTIONS}&watch=40")
    with pytest.raises(ConfigError, match="watch= needs classes="):
        ask(f"csv:{tmp_path}?label=label&window=20&watch=40")
    assert ask(f"csv:{file}?{OPTIONS}") is None
    assert ask("motion") is None
