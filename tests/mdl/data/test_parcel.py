"""Windows that travel: dealt out whole, written and read as they were, and kept nowhere else."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mdl.data import DataSet, load_data, make_windows
from mdl.data.parcel import (
    NAMES_BYTES,
    SHARED_RUN,
    deal_windows,
    find_shared,
    read_parcel,
    shared_file,
    shared_home,
    window_bytes,
    write_parcel,
)
from mdl.data.readers.motion import MotionOptions, make_motion
from mdl.errors import ConfigError, DataError
from mdl.transport.trust.keys import name_run

DATA = make_motion(MotionOptions(people=4, test_people=2, windows=30), 0)
WORDS = "able-acid-acorn-actor-adult"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def test_what_is_shared_lies_with_the_run_in_which_devices_meet_for_it(home: Path) -> None:
    assert shared_home("home") == home / "state" / "mdl" / name_run("home", SHARED_RUN)


@pytest.mark.parametrize("shares", [[60, 40, 20], [118, 1, 1], [120], [0, 100, 20]])
def test_each_window_is_dealt_once(shares: list[int]) -> None:
    dealt = deal_windows(DATA, shares, 0)
    assert [len(train) for train, _ in dealt] == shares
    for side, count in ((0, len(DATA.train)), (1, len(DATA.test))):
        assert sorted(np.concatenate([rows[side] for rows in dealt]).tolist()) == list(range(count))
    assert all(bool(len(train)) == bool(len(test)) for train, test in dealt), "who trains tests too"
    again = deal_windows(DATA, shares, 0)
    assert all(np.array_equal(one[0], other[0]) for one, other in zip(dealt, again, strict=True))


def test_a_parcel_is_read_as_it_was_cut_and_is_for_this_user_alone(home: Path) -> None:
    data = replace(DATA, subject_names=("ann", "bob", "cy", "di", "eve", "flo"))
    train, test = deal_windows(data, [50, 70], 3)[1]
    path = shared_file("home", WORDS)
    write_parcel(path, data, train, test)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = read_parcel(path)
    assert np.array_equal(found.train.x, data.train.x[train])
    assert np.array_equal(found.train.y, data.train.y[train])
    assert np.array_equal(found.test.x, data.test.x[test])
    assert (found.classes, found.channels, found.rate_hz) == (data.classes, data.channels, data.rate_hz)
    assert (found.name, found.synthetic) == ("motion", True)
    names = [found.subject_names[number] for number in found.train.subject]
    assert names == [data.subject_names[number] for number in data.train.subject[train]]


@pytest.mark.parametrize("names", [(), ("ann", "bob", "cy", "di", "eve", "somebody with a long name")])
def test_a_parcel_is_not_larger_than_its_windows_are_said_to_be(home: Path, names: tuple[str, ...]) -> None:
    data = replace(DATA, subject_names=names)
    for train, test in deal_windows(data, [90, 30], 0):
        write_parcel(path := shared_file("home", WORDS), data, train, test)
        assert path.stat().st_size <= len(train) * window_bytes(data) + NAMES_BYTES
        assert path.stat().st_size >= 0.9 * len(train) * window_bytes(data)


def test_images_travel_too(home: Path) -> None:
    x = np.arange(6 * 3 * 4 * 5, dtype=np.uint8).reshape(6, 3, 4, 5)
    numbers = np.arange(6)
    data = DataSet("photos", make_windows(x, numbers % 2, numbers, numbers), make_windows(x, numbers % 2, numbers + 6,
                   numbers + 6), ("cat", "dog"), "given")  # fmt: skip
    path = shared_file("home", WORDS)
    write_parcel(path, data, np.array([1, 4]), np.array([0]))
    found = read_parcel(path)
    assert np.array_equal(found.train.x, x[[1, 4]])
    assert (found.train.x.dtype, found.classes) == (np.uint8, ("cat", "dog"))


def test_a_spec_reads_it_and_leaves_no_copy_in_the_cache(home: Path) -> None:
    write_parcel(shared_file("home", WORDS), DATA, *deal_windows(DATA, [120], 0)[0])
    assert len(load_data("shared:home", home / "cache").train) == 120
    assert not (home / "cache").exists()
    find_shared("home").unlink()
    with pytest.raises(ConfigError, match="no windows are shared with this device in mesh home"):
        load_data("shared:home", home / "cache")


def test_of_several_devices_one_is_named(home: Path) -> None:
    other = "able-able-able-able-able"
    for number, words in ((50, WORDS), (70, other)):
        write_parcel(shared_file("home", words), DATA, *deal_windows(DATA, [number, 120 - number], 0)[0])
    with pytest.raises(ConfigError, match=f"one of {other}, {WORDS}"):
        load_data("shared:home", home)
    assert len(load_data(f"shared:home?source={WORDS}", home).train) == 50


@pytest.mark.parametrize("spec", ["shared:../home", "shared:home?source=../x", "shared:", "shared:home?of=1"])
def test_a_spec_names_no_other_place(spec: str, home: Path) -> None:
    with pytest.raises(ConfigError):
        load_data(spec, home)


def test_another_npz_is_no_parcel(home: Path) -> None:
    path = home / "from-x.npz"
    np.savez(path, x=np.zeros((4, 8, 2), np.float32), y=np.array([0, 1, 0, 1]), split=np.array([0, 0, 1, 1]))
    with pytest.raises(DataError, match="no windows that were shared"):
        read_parcel(path)


@pytest.mark.parametrize("targets", ["numbers", "labels"])
def test_numbers_and_labels_travel_as_what_they_are(targets: str, home: Path) -> None:
    """Also whole numbers, and labels of which one holds, which an .npz of somebody's would be asked about."""
    x, each = np.random.default_rng(0).normal(size=(20, 3, 16)), np.arange(20)
    y = (
        np.eye(2)[each % 2].astype(np.uint8)
        if targets == "labels"
        else (each[:, None] * (1.0, 60.0)).astype(np.float32)
    )
    windows = make_windows(x, y, each * 0, each)
    units = ("bpm", "") if targets == "numbers" else ()
    data = DataSet("ride", windows, make_windows(x, y, each * 0, each + 20), ("a", "b"), "given", units=units)
    write_parcel(home / "p.npz", data, np.arange(4), np.arange(2))
    found = read_parcel(home / "p.npz")
    assert (found.targets, found.classes, found.units) == (targets, ("a", "b"), units)
    assert np.array_equal(found.train.y, y[:4])
    assert found.train.y.dtype == y.dtype
