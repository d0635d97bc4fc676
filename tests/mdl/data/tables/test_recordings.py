"""Folders and zips as apps export them are one recording each, whatever files they hold."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mdl.data import read_data
from mdl.data.readers import archive
from mdl.data.tables.recordings import find_recordings, list_recordings
from mdl.data.windows import DataSet
from mdl.errors import DataError

START = 1774776600


def phyphox(folder: Path, rows: int = 80, header: str = "Acceleration") -> Path:
    (folder / "meta").mkdir(parents=True)
    names = ",".join(f'"{header} {axis} (m/s^2)"' for axis in "xyz")
    lines = [f"{row * 0.02},{math.sin(row / 5)},{row % 7},9.8" for row in range(rows)]
    (folder / "Raw Data.csv").write_text("\n".join([f'"Time (s)",{names}', *lines]) + "\n")
    (folder / "meta/device.csv").write_text('"property","value"\n"version","1.1.12"\n')
    (folder / "meta/time.csv").write_text(f'"event","experiment time","system time"\n"START",0.0,{START}.1\n')
    return folder


def sensor(seconds: float, axis: int) -> float:
    """A sensor's value; linear, so that what is interpolated can be told."""
    return seconds * (axis + 1)


def sensor_logger(folder: Path, rate: float = 50, slow: float = 20, began: float = 0.5) -> Path:
    """Two sensors that begin at different times, at different rates; 10 s."""
    folder.mkdir(parents=True)

    def table(rate: float, first: float, values: Callable[[float], list[float]]) -> str:
        times = np.arange(first, 10, 1 / rate).tolist()
        rows = [f"{int((START + at) * 1e9)},{at:.6f},{','.join(map(str, values(at)))}" for at in times]
        return "\n".join(["time,seconds_elapsed,z,y,x", *rows]) + "\n"

    (folder / "Accelerometer.csv").write_text(table(rate, 0, lambda at: [sensor(at, axis) for axis in (2, 1, 0)]))
    (folder / "Gyroscope.csv").write_text(table(slow, began, lambda at: [-sensor(at, axis) for axis in (2, 1, 0)]))
    (folder / "Annotation.csv").write_text("time,seconds_elapsed,text\n")
    (folder / "Metadata.csv").write_text("version,device name\n3,phone\n")
    return folder


def pack(folder: Path, into: Path, prefix: str = "") -> Path:
    with zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in folder.rglob("*"):
            if file.is_file():
                archive.write(file, prefix + str(file.relative_to(folder)))
    return into


def read(path: Path, tmp_path: Path, options: str = "") -> DataSet:
    return read_data(f"csv:{path}?label=file&window=20&step=20{options}", tmp_path / "cache")


@pytest.mark.parametrize("prefix", ["", "export/"])
def test_a_phyphox_export_is_one_recording_as_folder_and_as_zip(prefix: str, tmp_path: Path) -> None:
    rec = tmp_path / "rec"
    walk = phyphox(rec / "walk")
    sit = pack(phyphox(tmp_path / "away"), rec / "sit.zip", prefix)
    assert find_recordings(str(rec)) == [sit / prefix.rstrip("/"), walk]
    assert find_recordings(f"{rec}/*") == [sit / prefix.rstrip("/"), walk]
    data = read(rec, tmp_path)
    assert data.classes == ((prefix.rstrip("/") or "sit"), "walk")
    assert data.channels == ("acc_x", "acc_y", "acc_z")
    for alone in (walk, sit):
        assert find_recordings(str(alone)) == [alone if alone == walk else alone / prefix.rstrip("/")]
    assert np.array_equal(read(walk, tmp_path).train.x, read(sit, tmp_path).train.x)


def test_an_export_whose_columns_nobody_knows_is_read_as_its_only_table(tmp_path: Path) -> None:
    assert read(phyphox(tmp_path / "walk", header="Field"), tmp_path).channels == tuple(
        f"Field {axis}" for axis in "xyz"
    )


def test_tables_in_a_zip_that_no_app_exported_are_a_recording_each(tmp_path: Path) -> None:
    folder = tmp_path / "away"
    (folder / "ann").mkdir(parents=True)
    for name in ("a.csv", "ann/b.csv", ".c.csv"):
        (folder / name).write_text("v\n" + "".join(f"{row % 9}\n" for row in range(80)))
    packed = pack(folder, tmp_path / "rec.zip")
    assert find_recordings(str(packed)) == [packed / "a.csv", packed / "ann" / "b.csv"]
    assert read(packed, tmp_path).classes == ("a", "b")


@pytest.mark.parametrize("packed", [False, True])
def test_sensors_of_one_device_are_merged_by_time(packed: bool, tmp_path: Path) -> None:
    walk = sensor_logger(tmp_path / "rec" / "walk")
    walk = pack(walk, tmp_path / "walk.zip") if packed else walk
    data = read(walk, tmp_path)
    assert data.channels == ("gyro_x", "gyro_y", "gyro_z", "lin_x", "lin_y", "lin_z")
    assert data.channel_units == ("rad/s",) * 3 + ("m/s2",) * 3
    assert data.rate_hz == pytest.approx(50, rel=1e-3)
    x = np.concatenate([data.train.x, data.test.x])
    assert x[:, :3] == pytest.approx(-x[:, 3:], abs=1e-3)
    assert x[0, 3, 0] == pytest.approx(0.5, abs=1e-3)  # the gyroscope began so late
    assert x[0, 3, 1] == pytest.approx(0.52, abs=1e-3)
    assert any("27 from when not all sensors measured" in note for note in data.notes), data.notes
    assert "no sensor's files, and left out: Annotation.csv, Metadata.csv" in data.notes


def test_only_sensors_that_are_channels_are_waited_for(tmp_path: Path) -> None:
    walk = sensor_logger(tmp_path / "walk")
    fast = read(walk, tmp_path, "&columns=lin_x,lin_z")
    assert fast.rate_hz == pytest.approx(50, rel=1e-3)
    assert fast.train.x[0, :, 0] == pytest.approx([0, 0])
    slow = read(walk, tmp_path, "&columns=gyro_x")
    assert slow.rate_hz == pytest.approx(20, rel=1e-3)
    assert slow.train.x[0, 0, 0] == pytest.approx(-0.5, abs=1e-3)


def test_a_gap_of_one_sensor_ends_the_stretch(tmp_path: Path) -> None:
    walk = sensor_logger(tmp_path / "walk", began=0)
    lines = (walk / "Gyroscope.csv").read_text().splitlines()
    (walk / "Gyroscope.csv").write_text("\n".join([*lines[:60], *lines[100:]]) + "\n")
    data = read(walk, tmp_path)
    x = np.concatenate([data.train.x, data.test.x])
    assert np.abs(x[:, :3] + x[:, 3:]).max() < 1e-3
    assert not ((x[:, 3] > 2.96) & (x[:, 3] < 4.94)).any()


def test_sensors_that_share_no_time_are_refused(tmp_path: Path) -> None:
    walk = sensor_logger(tmp_path / "walk")
    header, *rows = (walk / "Gyroscope.csv").read_text().splitlines()
    later = [f"{int(row.partition(',')[0]) + 10**12},{row.partition(',')[2]}" for row in rows]
    (walk / "Gyroscope.csv").write_text("\n".join([header, *later]) + "\n")
    with pytest.raises(DataError, match=r"walk: its files share no time \(Accelerometer.csv, Gyroscope.csv\); choose"):
        read(walk, tmp_path)


def test_an_e4_export_is_one_recording(tmp_path: Path) -> None:
    walk = tmp_path / "walk"
    walk.mkdir()
    (walk / "ACC.csv").write_text(f"{START}.0, {START}.0, {START}.0\n32.0, 32.0, 32.0\n" + "1,2,64\n" * 640)
    (walk / "HR.csv").write_text(f"{START + 5}.0\n1.0\n" + "70.5\n" * 14)
    (walk / "tags.csv").write_text(f"{START + 3}.11\n")
    (walk / "info.txt").write_text(".csv files in this archive are in the following format:\n")
    data = read(walk, tmp_path)
    assert data.channels == ("acc_x", "acc_y", "acc_z", "heart_rate")
    assert data.train.x[:, 2].mean() == pytest.approx(9.80665)
    assert len(data.train) + len(data.test) == 13 * 32 // 20


def test_a_folder_with_a_file_metadata_is_not_taken_for_an_apps(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "metadata.csv"):
        (tmp_path / name).write_text("v\n1\n2\n")
    assert len(list_recordings(tmp_path)) == 3


def test_names_that_lead_out_of_a_zip_are_no_files_of_it(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("v\n1\n2\n")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("../secret.csv", "/etc/b.csv", "__MACOSX/._c.csv", "d.csv"):
            archive.writestr(name, "v\n1\n2\n")
    assert list_recordings(tmp_path / "a.zip") == [tmp_path / "a.zip" / "d.csv"]


def test_a_zip_of_too_many_tables_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_MEMBERS", 2)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for number in range(3):
            packed.writestr(f"{number}.csv", "v\n1\n2\n")
    with pytest.raises(DataError, match=r"a\.zip: 3 files; at most 2 are read from a zip: unpack it"):
        list_recordings(tmp_path / "a.zip")
