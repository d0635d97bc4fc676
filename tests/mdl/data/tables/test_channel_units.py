"""Channels of tables come out in one unit, whatever unit each file is written in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mdl.data import read_data
from mdl.data.parcel import read_parcel, write_parcel
from mdl.data.readers.unlabelled import live_windows
from mdl.data.tables.dialect import CsvOptions
from mdl.data.windows import DataSet
from mdl.errors import ConfigError, DataError

RNG = np.random.default_rng(3)
TURNS = RNG.normal(size=(200, 3)).round(3)  # rad/s
PULLS = (RNG.normal(size=(200, 3)) * 0.1 + [0, 0, 1]).round(4)  # g


def write(path: Path, names: str, values: np.ndarray) -> Path:
    rows = [",".join(f"{value:.6f}" for value in row) + ",sit" for row in values.tolist()]
    path.write_text("\n".join([f"{names},label", *rows]) + "\n", encoding="utf-8")
    return path


def read(path: Path, tmp_path: Path, options: str = "") -> DataSet:
    return read_data(f"csv:{path}?label=label&window=20&step=20{options}", tmp_path / "cache")


def test_degrees_and_radians_of_one_folder_come_out_alike(tmp_path: Path) -> None:
    rec = tmp_path / "rec"
    rec.mkdir()
    write(rec / "a.csv", "gx (rad/s),gy (rad/s),gz (rad/s)", TURNS)
    write(rec / "b.csv", "gx (deg/s),gy (deg/s),gz (°/s)", np.rad2deg(TURNS))
    data = read(rec, tmp_path, "&split=recording")
    assert data.channels == ("gx", "gy", "gz")
    assert data.channel_units == ("rad/s",) * 3
    assert data.is_converted
    assert data.notes[-2] == "gx, gy, gz in rad/s (converted from deg/s)"
    assert np.abs(np.sort(data.train.x, axis=None) - np.sort(data.test.x, axis=None)).max() < 1e-4


def test_acceleration_without_a_unit_is_known_by_the_pull_of_the_earth(tmp_path: Path) -> None:
    in_g = read(write(tmp_path / "g.csv", "ax,ay,az", PULLS), tmp_path)
    in_ms2 = read(write(tmp_path / "m.csv", "ax (m/s^2),ay (m/s^2),az (m/s^2)", PULLS * 9.80665), tmp_path)
    assert in_g.channel_units == in_ms2.channel_units == ("m/s2",) * 3
    assert (in_g.is_converted, in_ms2.is_converted) == (True, False)
    assert in_g.train.x == pytest.approx(in_ms2.train.x, abs=1e-4)
    kept = read(tmp_path / "m.csv", tmp_path, "&acceleration=g")
    assert kept.channel_units == ("g",) * 3
    assert kept.train.x.mean(axis=(0, 2))[2] == pytest.approx(1, abs=0.1)


def test_two_quantities_under_one_name_are_refused_with_both_files(tmp_path: Path) -> None:
    rec = tmp_path / "rec"
    rec.mkdir()
    write(rec / "a.csv", "x (g),y (g),z (g)", PULLS)
    write(rec / "b.csv", "x (deg/s),y (deg/s),z (deg/s)", TURNS)
    with pytest.raises(DataError, match=r"b\.csv: channel 'x' is in deg/s .*, but .*a\.csv has it in m/s2"):
        read(rec, tmp_path)
    write(rec / "b.csv", "x,y,z", TURNS)
    with pytest.raises(DataError, match=r"b\.csv: channel 'x' has no unit, but .*a\.csv has it in m/s2 .*\?units=m/s2"):
        read(rec, tmp_path)


def test_the_user_says_what_no_header_says(tmp_path: Path) -> None:
    file = write(tmp_path / "a.csv", "u,v,w", TURNS)
    assert read(file, tmp_path).channel_units == ()
    said = read(file, tmp_path, "&units=deg/s,deg/s,-")
    assert said.channel_units == ("rad/s", "rad/s", "")
    assert said.train.x[:, :2] == pytest.approx(np.deg2rad(read(file, tmp_path).train.x[:, :2]), rel=1e-5)
    with pytest.raises(ConfigError, match="units= has 'furlong', which is not known"):
        read(file, tmp_path, "&units=furlong")
    with pytest.raises(ConfigError, match="units= names 2 units; expected 1, or 3"):
        read(file, tmp_path, "&units=g,g")


def test_brackets_without_a_unit_stay_in_the_name(tmp_path: Path) -> None:
    data = read(write(tmp_path / "a.csv", "force (left),force (right),x (m/(s^2))", TURNS), tmp_path)
    assert data.channels == ("force (left)", "force (right)", "x")
    assert data.channel_units == ("", "", "m/s2")
    same = read(write(tmp_path / "b.csv", "x (g),x (rad/s),y (g)", TURNS), tmp_path)
    assert same.channels == ("x (g)", "x (rad/s)", "y (g)")


def test_arrays_say_their_units_and_shared_windows_keep_theirs(tmp_path: Path) -> None:
    x = RNG.normal(size=(40, 16, 2)).astype(np.float32)
    y = np.repeat([0, 1], 20)
    np.savez(tmp_path / "a.npz", x=x, y=y, channel_units=np.array(["g", "-"]))
    data = read_data(f"npz:{tmp_path}/a.npz?gap=0", tmp_path)
    assert data.channel_units == ("m/s2", "")
    assert data.train.x[0] == pytest.approx(x[0].T * np.array([[9.80665], [1.0]]), rel=1e-5)
    write_parcel(tmp_path / "p.npz", data, np.arange(len(data.train)), np.arange(len(data.test)))
    shared = read_parcel(tmp_path / "p.npz")
    assert shared.channel_units == ("m/s2", "")
    assert shared.train.x == pytest.approx(data.train.x)
    np.savez(tmp_path / "b.npz", x=x, y=y)
    assert read_data(f"npz:{tmp_path}/b.npz?gap=0", tmp_path).channel_units == ()
    assert read_data(f"npz:{tmp_path}/b.npz?gap=0&units=deg/s", tmp_path).channel_units == ("rad/s",) * 2
    with pytest.raises(ConfigError, match="units= has 'stone', which is not known"):
        read_data(f"npz:{tmp_path}/b.npz?gap=0&units=stone", tmp_path)


def test_what_comes_in_live_is_brought_to_the_models_units() -> None:
    lines = ["ax (g),ay (g),az (g)", *(",".join(map(str, row)) for row in PULLS[:20].tolist())]
    options = CsvOptions(columns="ax,ay,az", window=20)
    [(_, x)] = live_windows(lines, "-", options, ("m/s2",) * 3)
    assert x == pytest.approx(PULLS[:20].T * 9.80665, rel=1e-4)
    [(_, raw)] = live_windows(lines, "-", options, ("",) * 3)
    assert raw == pytest.approx(PULLS[:20].T, rel=1e-4)
    with pytest.raises(DataError, match=r"-: channel 'ax' is in g \(acceleration\), but the model has it in rad/s"):
        list(live_windows(lines, "-", options, ("rad/s",) * 3))
