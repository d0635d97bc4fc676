"""Files as apps and loggers write them come out under the same names, in the same units."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from mdl.channels import G_MS2
from mdl.data import read_data
from mdl.data.readers.unlabelled import live_windows
from mdl.data.tables.apps import APPS
from mdl.data.tables.dialect import CsvOptions
from mdl.data.windows import DataSet
from mdl.errors import ConfigError, DataError

ROWS = 80
START = 1774776600  # 2026-03-29 09:30:00 UTC
# m/s2
TRUTH = np.array([[3 * math.sin(row / 5), 0.5, 9.8 + math.cos(row / 7)] for row in range(ROWS)])


def comma(value: float) -> str:
    return f"{value:.4f}".replace(".", ",")


def table(header: str, row: object, end: str = "\n") -> str:
    return header + end.join(row(at, *each) for at, each in enumerate(TRUTH.tolist())) + end  # type: ignore[operator]


def stamp(row: int, dots: str = ".") -> str:
    seconds, rest = divmod(row * 20, 1000)
    return f"2026-03-29T09{dots}30{dots}{seconds:02}.{rest:03}"


# App, file, its text, what else there is to say, and how exact it is.
FILES = {
    "phyphox": (
        "Raw Data.csv",
        table(
            '"Time (s)","Acceleration x (m/s^2)","Acceleration y (m/s^2)","Acceleration z (m/s^2)",'
            '"Absolute acceleration (m/s^2)"\n',
            lambda at, x, y, z: f"{at * 0.02:.9E},{x:.9E},{y:.9E},{z:.9E},1.0E1",
        ),
    ),
    "phyphox in German, with decimal commas": (
        "Rohdaten.csv",
        table(
            '"Zeit (s)";"Beschleunigung x (m/s^2)";"Beschleunigung y (m/s^2)";"Beschleunigung z (m/s^2)";'
            '"Absolute Beschleunigung (m/s^2)"\n',
            lambda at, x, y, z: ";".join(map(comma, (at * 0.02, x, y, z, 10))),
        ),
    ),
    "phyphox in French": (
        "Raw Data.csv",
        table(
            "Temps (s)\tAccélération selon x (m/s^2)\tAccélération selon y (m/s^2)\tAccélération selon z (m/s^2)\n",
            lambda at, x, y, z: f"{at * 0.02}\t{x}\t{y}\t{z}",
        ),
    ),
    "phyphox, one sensor of several": (
        "Accelerometer.csv",
        table('"Time (s)","X (m/s^2)","Y (m/s^2)","Z (m/s^2)"\n', lambda at, x, y, z: f"{at * 0.02},{x},{y},{z}"),
    ),
    "Sensor Logger": (
        "TotalAcceleration.csv",
        table(
            "time,seconds_elapsed,z,y,x\n",
            lambda at, x, y, z: f"{START * 10**9 + at * 20_000_000},{at * 0.02},{z},{y},{x}",
        ),
    ),
    "Physics Toolbox": (
        "toolbox.csv",
        table(
            "time,gFx,gFy,gFz,TgF\n",
            lambda at, x, y, z: f"{at * 0.02:.4f},{x / G_MS2},{y / G_MS2},{z / G_MS2},1.0",
        ),
    ),
    "AndroSensor": (
        "androsensor.csv",
        table(
            "sep=;\nACCELEROMETER X (m/s²);ACCELEROMETER Y (m/s²);ACCELEROMETER Z (m/s²);LOCATION Latitude : ;"
            "Satellites in range;Time since start in ms ;YYYY-MO-DD HH-MI-SS_SSS\n",
            lambda at, x, y, z: f"{x};{y};{z};52.1;18 / 19;{at * 20 + 3};2026-03-29 09:30:00:{at * 12:03}",
        ),
    ),
    "SensorLog": (
        "log.csv",
        table(
            "loggingTime(txt),loggingSample(N),accelerometerAccelerationX(G),accelerometerAccelerationY(G),"
            "accelerometerAccelerationZ(G)\n",
            lambda at, x, y, z: (
                f"{stamp(at, ':').replace('T', ' ')} +0200,{at},{x / G_MS2},{y / G_MS2},{z / G_MS2}"
            ),
        ),
    ),
    "MetaBase": (
        "Ann_Accelerometer.csv",
        table(
            "epoc (ms),timestamp (+0200),elapsed (s),x-axis (g),y-axis (g),z-axis (g)\n",
            lambda at, x, y, z: (
                f"{START * 1000 + at * 20},{stamp(at)},{at * 0.02:.3f},{x / G_MS2},{y / G_MS2},{z / G_MS2}"
            ),
        ),
    ),
    "MetaBase, its time stamp alone": (
        "stamp.csv",
        table(
            "timestamp (+0200),x-axis (g),y-axis (g),z-axis (g)\n",
            lambda at, x, y, z: f"{stamp(at)},{x / G_MS2},{y / G_MS2},{z / G_MS2}",
        ),
    ),
    "Shimmer": (
        "wrist.csv",
        table(
            '"sep=\t"\nS_Timestamp_Unix_CAL\tS_Accel_WR_X_CAL\tS_Accel_WR_Y_CAL\tS_Accel_WR_Z_CAL\tS_Battery_CAL\t\n'
            "ms\tm/(s^2)\tm/(s^2)\tm/(s^2)\tmV\t\n",
            lambda at, x, y, z: f"{START * 1000 + at * 20}.5\t{x}\t{y}\t{z}\t4000\t",
        ),
    ),
    "Empatica E4": (
        "ACC.csv",
        table(
            f"{START}.000000, {START}.000000, {START}.000000\n50.000000, 50.000000, 50.000000\n",
            lambda at, x, y, z: ",".join(f"{value / G_MS2 * 64:.5f}" for value in (x, y, z)),
        ),
    ),
    "WISDM": (
        "WISDM_ar_v1.1_raw.txt",
        table("", lambda at, x, y, z: f"33,Jogging,{49106012507129 + at * 20_000_000},{x},{y},{z};"),
    ),
    "ActiGraph": (
        "ann.csv",
        table(
            "------------ Data File Created By ActiGraph GT3X+ ActiLife v6.13.4 date format M/d/yyyy at 50 Hz  Filter "
            "Normal -----------\nSerial Number: NEO1\nStart Time 00:00:00\nStart Date 5/7/2026\n"
            "--------------------------------------------------\nAccelerometer X,Accelerometer Y,Accelerometer Z\n",
            lambda at, x, y, z: f"{x / G_MS2},{y / G_MS2},{z / G_MS2}",
        ),
    ),
    "Axivity": (
        "ax3.csv",
        table(
            "Time,Accel-X (g), Accel-Y (g), Accel-Z (g)\n",
            lambda at, x, y, z: f"{stamp(at, ':').replace('T', ' ')},{x / G_MS2},{y / G_MS2},{z / G_MS2}",
        ),
    ),
}  # fmt: skip


def write(folder: Path, case: str) -> Path:
    name, text = FILES[case]
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def read(path: Path, tmp_path: Path, options: str = "") -> DataSet:
    return read_data(
        f"csv:{path}?classes=any&label=file&window=20&step=20{options}".replace("classes=any&", ""), tmp_path
    )


def test_every_known_app_has_a_file_here() -> None:
    assert {case.partition(",")[0].partition(" in ")[0] for case in FILES} == {app.name for app in APPS}


@pytest.mark.parametrize("case", FILES)
def test_acceleration_of_every_app_has_one_name_and_unit(case: str, tmp_path: Path) -> None:
    data = read(write(tmp_path, case), tmp_path / "cache")
    assert data.channels == ("acc_x", "acc_y", "acc_z")
    assert data.channel_units == ("m/s2",) * 3
    assert data.rate_hz == pytest.approx(50, rel=1e-3)
    app = case.partition(",")[0].partition(" in ")[0]
    assert any(note.startswith(f"as {app} writes it: ") and "is acc_x" in note for note in data.notes)
    x = np.concatenate([data.train.x, data.test.x])
    assert np.concatenate(list(x), axis=1) == pytest.approx(TRUTH[: 20 * len(x)].T, abs=1e-3)


def test_devices_with_different_apps_meet_in_one_folder(tmp_path: Path) -> None:
    rec = tmp_path / "rec"
    for number, case in enumerate(FILES):
        (rec / str(number)).mkdir(parents=True)
        write(rec / str(number), case)
    data = read_data(f"csv:{rec}?label=path&window=20&step=20&split=time", tmp_path / "cache")
    assert len(data.classes) == len(FILES)
    assert data.channels == ("acc_x", "acc_y", "acc_z")


def test_a_file_that_is_no_apps_keeps_its_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,ax,ay,az,pulse\n" + "".join(f"{at * 0.02},1,2,3,60\n" for at in range(ROWS)))
    data = read(tmp_path / "a.csv", tmp_path / "cache")
    assert data.channels == ("ax", "ay", "az", "pulse")
    assert not any("writes it" in note for note in data.notes)


def test_columns_that_an_apps_rules_do_not_name_are_left_out_and_said(tmp_path: Path) -> None:
    path = write(tmp_path, "phyphox")
    data = read(path, tmp_path / "cache")
    assert "no channel, by the name: Absolute acceleration (m/s^2) (?columns= takes any)" in data.notes
    data = read(path, tmp_path / "cache", "&columns=acc_x,Absolute acceleration")
    assert data.channels == ("acc_x", "Absolute acceleration")


@pytest.mark.parametrize("case", ["phyphox in German, with decimal commas", "Empatica E4", "WISDM", "Shimmer"])
def test_names_call_the_channels_of_a_file_with_or_without_a_header(case: str, tmp_path: Path) -> None:
    path = write(tmp_path, case)
    named = read(path, tmp_path / "cache", "&names=ax,ay,az")
    assert named.channels == ("ax", "ay", "az")
    assert named.channel_units == ("m/s2",) * 3
    assert named.train.x == pytest.approx(read(path, tmp_path / "cache").train.x)
    assert read(path, tmp_path / "cache", "&names=ax,ay,az&columns=az,ax").channels == ("az", "ax")


def test_names_for_each_column_of_a_file_with_a_header(tmp_path: Path) -> None:
    path = write(tmp_path, "phyphox in German, with decimal commas")
    data = read(path, tmp_path / "cache", "&names=t,ax,ay,az,total&time=t")
    assert data.channels == ("ax", "ay", "az", "total")
    assert data.channel_units == ("m/s2",) * 4
    assert data.rate_hz == pytest.approx(50, rel=1e-3)


def test_map_calls_single_columns(tmp_path: Path) -> None:
    path = write(tmp_path, "phyphox in German, with decimal commas")
    data = read(path, tmp_path / "cache", "&map=Beschleunigung x:ax, acc_y:ay&columns=ax,ay,acc_z")
    assert data.channels == ("ax", "ay", "acc_z")
    (tmp_path / "b.csv").write_text("t,one,what\n" + "".join(f"{at * 0.02},{at % 7},sit\n" for at in range(ROWS)))
    data = read_data(f"csv:{tmp_path}/b.csv?map=what:label,t:time&label=label&window=20&step=20", tmp_path / "cache")
    assert (data.channels, data.classes) == (("one",), ("sit",))
    assert data.rate_hz == pytest.approx(50)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("&columns=ax,ay,az", r"no column 'ax'; say \?map=Acceleration x:ax,Acceleration y:ay,Acceleration z:az, if"),
        ("&columns=acc_x,ay", r"no column 'ay'; say \?map=THEIRS:ay; the header is: .*, called acc_x, acc_y, acc_z"),
        ("&names=ax,ay", r"names= says 2 names; expected one for each of the 5 columns, or of the 3 channels "),
        ("&map=Acceleration x", r"map= has 'Acceleration x'; expected THEIRS:OURS,..., as in map=Acceleration x:ax"),
        ("&map=foo:ax", r"no column 'foo'; the header is"),
    ],
)  # fmt: skip
def test_a_refusal_says_the_option_that_helps(options: str, said: str, tmp_path: Path) -> None:
    path = write(tmp_path, "phyphox")
    with pytest.raises(ConfigError, match=said):
        read(path, tmp_path / "cache", options)


def test_a_time_that_is_none_is_not_answered_with_what_was_said(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("when,v\n" + "".join(f"29.Mar.2026 {at},{at % 7}\n" for at in range(ROWS)))
    with pytest.raises(DataError, match=r"column 'when' is '29\.Mar\.2026 0'; expected a time: a number, 2026-05-04T"):
        read(tmp_path / "a.csv", tmp_path / "cache", "&time=when")


def test_a_row_that_the_end_of_a_row_cuts_short_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "WISDM")
    lines = path.read_text().splitlines()
    lines[40] = lines[40].rpartition(",")[0] + ",;" + lines[41]
    path.write_text("\n".join([*lines[:41], "", *lines[42:]]) + "\n")
    data = read(path, tmp_path / "cache")
    assert data.notes[-1].startswith("read ")
    assert "1 that miss a value" in data.notes[-1]
    assert len(data.train) + len(data.test) == 3


def test_rows_that_come_through_a_pipe_are_named_likewise() -> None:
    options = CsvOptions(columns="acc_x,acc_y,acc_z", window=20)
    for case in ("phyphox in German, with decimal commas", "MetaBase", "WISDM"):
        name, text = FILES[case]
        windows = [x for _, x in live_windows(iter(text.splitlines(keepends=True)), name, options, ("m/s2",) * 3)]
        assert len(windows) == 4
        assert windows[0] == pytest.approx(TRUTH[:20].T, abs=1e-3)
