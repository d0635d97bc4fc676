"""From moments and CSV files to stays, and from stays to the sequences the M-RNN reads."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from mdl.data import load_data
from mdl.data.readers.places import PlaceOptions, cut_days, read_places, read_stays
from mdl.data.readers.visits import (
    NO_STAY,
    WINDOW_S,
    ask_next,
    encode_steps,
    feature_sizes,
    find_stays,
    keep_active_days,
    last_steps,
    make_sequences,
)
from mdl.errors import ConfigError, DataError

DAY_S = 86_400


def _stays(*moments: tuple[int, int], hole: int = 1):  # type: ignore[no-untyped-def]
    """Stays from (window, place)."""
    window, place = np.array(moments, np.int64).T
    return find_stays(window * WINDOW_S, place, hole)


def _encode(stays):  # type: ignore[no-untyped-def]
    """Each stay with the clock of its own start."""
    return encode_steps(stays, stays.start)


def test_a_window_belongs_to_the_place_that_most_moments_name() -> None:
    stays = find_stays(np.array([0, 10, 20]), np.array([4, 2, 4]), 0)
    assert stays.place.tolist() == [4]


def test_neighbouring_windows_at_one_place_are_one_stay() -> None:
    stays = _stays((0, 1), (1, 1), (2, 3), (4, 3), (7, 3))
    assert stays.place.tolist() == [1, 3, 3]
    assert stays.start.tolist() == [0, 2, 7]
    assert stays.duration.tolist() == [2, 3, 1]


def test_nowhere_ends_a_stay_and_counts_as_gap() -> None:
    stays = _stays((0, 1), (1, -1), (2, -1), (3, 1))
    assert stays.place.tolist() == [1, 1]
    assert make_sequences(stays, 1)[0][:, 5].tolist() == [[2]]


def test_moments_may_come_in_any_order() -> None:
    forwards, backwards = _stays((0, 1), (5, 2), (9, 1)), _stays((9, 1), (5, 2), (0, 1))
    assert forwards.place.tolist() == backwards.place.tolist() == [1, 2, 1]


def test_no_moment_makes_no_stay() -> None:
    assert len(find_stays(np.zeros(0, np.int64), np.zeros(0, np.int64), 1)) == 0
    assert len(_stays((0, -1))) == 0


def test_only_days_with_enough_stays_are_active() -> None:
    stays = _stays((0, 1), (10, 2), (144, 1), (288, 1), (300, 2), (310, 1))
    assert keep_active_days(stays, 2).day.tolist() == [0, 0, 2, 2, 2]


def test_2_2_a_steps_six_features_tell_the_stay_and_the_moment_that_follows() -> None:
    # Thursday 1 January 1970, 00:00 to 00:20, then 09:30 to 09:40; asked about Friday, 09:40, and a day later.
    stays = _stays((0, 3), (1, 3), (57, 0))
    assert encode_steps(stays, np.array([57, 144 + 58])).tolist() == [[3, 9, 30, 3, 1, 55], [0, 9, 40, 4, 0, 143]]
    assert encode_steps(stays, np.array([57, 288 + 58]))[1].tolist() == [0, 9, 40, 5, 0, 143]


def test_where_at_nine_is_the_days_stays_and_the_moment() -> None:
    stays = _stays((0, 3), (1, 3), (30, 0))
    x = ask_next(stays, 54, steps=4)
    assert x.shape == (1, 6, 4)
    assert last_steps(x).tolist() == [[0, 9, 0, 3, 0, 23]]
    assert x[0, 0].tolist() == [3, 0, NO_STAY, NO_STAY]


def test_2_2_a_sequence_reaches_back_a_day() -> None:
    x, _ = make_sequences(_stays((0, 1), (10, 2), (100, 3), (150, 4), (400, 5)), steps=8)
    assert [row[row != NO_STAY].tolist() for row in x[:, 0]] == [[1], [1, 2], [2, 3], [4]]


def test_every_code_lies_below_its_size() -> None:
    stays = _stays(*((window, window % 7) for window in range(0, 3000, 11)), hole=0)
    codes = encode_steps(stays, stays.start + 400)
    assert (codes >= 0).all()
    assert (codes < np.array(feature_sizes(7))).all()


def test_a_sequence_is_the_history_and_the_next_place() -> None:
    x, y = make_sequences(_stays((0, 1), (10, 2), (20, 3)), steps=2)
    assert y.tolist() == [2, 3]
    assert x.shape == (2, 6, 2)
    assert x[:, 0].tolist() == [[1, NO_STAY], [1, 2]]
    assert x[0, :, 1].tolist() == [NO_STAY] * 6


def test_the_cut_goes_between_days() -> None:
    stays = _stays(*((144 * day + hour, hour % 3) for day in range(10) for hour in (0, 20, 40)), hole=0)
    before, after = cut_days(stays, 0.2)
    assert before.day.max() == 7
    assert sorted(set(after.day.tolist())) == [8, 9]


def _write_log(folder: Path, name: str, days: int = 10) -> None:
    rows = [
        f"{day * DAY_S + hour * 3600},{place}"
        for day in range(days)
        for hour, place in ((8, "home"), (9, "office"), (12, "canteen"), (13, "office"))
    ]
    (folder / f"{name}.csv").write_text("\n".join(["time,place", *rows]) + "\n")


def test_a_csv_of_times_and_places_becomes_windows_by_person(tmp_path: Path) -> None:
    for name in ("ann", "bob"):
        _write_log(tmp_path, name)
    data = load_data(f"places:{tmp_path}?hole=0&steps=4", tmp_path / "cache")
    assert data.classes == ("canteen", "home", "office")
    assert data.subject_names == ("ann", "bob")
    assert data.shape == (6, 4)
    # Ten days of four stays: eight train, two test, and the first stay of each side has no history.
    assert (len(data.train), len(data.test)) == (2 * 31, 2 * 7)
    assert not set(data.train.group.tolist()) & set(data.test.group.tolist())


def test_a_test_history_never_reaches_over_the_cut(tmp_path: Path) -> None:
    _write_log(tmp_path, "ann")
    data = read_places(str(tmp_path / "ann.csv"), PlaceOptions(hole=0, steps=4))
    assert data.test.x[0, 0].tolist() == [1, NO_STAY, NO_STAY, NO_STAY]


def test_unix_times_in_milliseconds_are_not_taken_for_the_far_future(tmp_path: Path) -> None:
    """Taken for seconds, ten minutes were a week."""
    for unit, scale in (("s", 1), ("ms", 10**3), ("ns", 10**9)):
        rows = [f"{(1709632800 + 600 * row) * scale},{'ab'[row // 9 % 2]}" for row in range(72)]
        (tmp_path / f"{unit}.csv").write_text("\n".join(["time,place", *rows]) + "\n")
    codes = {
        unit: _encode(read_stays(str(tmp_path / f"{unit}.csv"), PlaceOptions()).stays[unit])
        for unit in ("s", "ms", "ns")
    }
    assert len(codes["s"]) > 4
    assert np.array_equal(codes["s"], codes["ms"])
    assert np.array_equal(codes["s"], codes["ns"])


def test_iso_times_show_the_local_clock_whatever_their_zone(tmp_path: Path) -> None:
    text = "time,place\n2024-03-05T09:30:00,a\n2024-03-05T10:30:00+05:00,b\n2024-03-05 12:00,a\n"
    (tmp_path / "log.csv").write_text(text)
    log = read_stays(str(tmp_path / "log.csv"), PlaceOptions())
    codes = _encode(log.stays["log"])
    assert codes[:, 1].tolist() == [9, 10, 12]
    assert codes[:, 3].tolist() == [1, 1, 1]


def _write_fixes(path: Path) -> None:
    """Ten minutes apart: the centre, 200 m north of it, far away, and a fix too coarse to say."""
    rows = ["0,43.0,-72.0,10,", "600,43.0018,-72.0,10,", "1200,44.0,-72.0,10,", "1800,43.0,-72.0,900,"]
    text = "\n".join(["time,latitude,longitude,accuracy", *rows]) + "\n"
    path.write_bytes(gzip.compress(text.encode()))


def test_fixes_fall_into_the_cells_of_the_grid(tmp_path: Path) -> None:
    _write_fixes(tmp_path / "gps.csv.gz")
    options = PlaceOptions(centre="43,-72", cell=100, rows=10, columns=10, active=1)
    log = read_stays(str(tmp_path / "gps.csv.gz"), options)
    names = [log.places[number] for number in log.stays["gps"].place]
    assert [name.rpartition(" ")[2] for name in names] == ["5-5", "7-5"]
    assert len(log.places) == 100


def test_cells_of_two_grids_have_different_names(tmp_path: Path) -> None:
    _write_fixes(tmp_path / "gps.csv.gz")
    grids = [
        read_stays(str(tmp_path / "gps.csv.gz"), PlaceOptions(centre=centre, cell=cell, active=1)).places
        for centre, cell in (("43,-72", 100), ("43,-72", 100), ("43,-71.999", 100), ("43,-72", 150))
    ]
    assert grids[0] == grids[1]
    assert len({grid[0] for grid in grids}) == 3


def test_the_offset_moves_the_clock(tmp_path: Path) -> None:
    _write_fixes(tmp_path / "gps.csv.gz")
    options = PlaceOptions(centre="43,-72", utc_offset=-4, active=1)
    stays = read_stays(str(tmp_path / "gps.csv.gz"), options).stays["gps"]
    assert _encode(stays)[0, 1] == 20


@pytest.mark.parametrize(
    ("text", "error", "reason"),
    [
        ("when,place\n0,a\n", ConfigError, "no column 'time'"),
        ("time,where\n0,a\n", ConfigError, "no column 'latitude'"),
        ("time,place\nsoon,a\n", DataError, "line 2: time 'soon'"),
        ("time,place\n9e9,a\n", DataError, r"line 2: time '9e9' is no UNIX time \(s, ms, us, ns\)"),
        ("time,place\ninf,a\n", DataError, "line 2: time 'inf'"),
        ("time,latitude,longitude\n0,x,1\n", DataError, "line 2: the position is no number"),
        ("time,latitude,longitude\n0,91,1\n", DataError, "line 2: the position is outside"),
        ("time,latitude,longitude\n0,1,nan\n", DataError, "line 2: the position is outside"),
        ("time,place\n", DataError, "no usable row"),
        ("time,place\n0,a\n", DataError, "no sequences"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, error: type[Exception], reason: str) -> None:
    file = tmp_path / "log.csv"
    file.write_text(text)
    with pytest.raises(error, match=reason):
        read_places(str(file), PlaceOptions())


@pytest.mark.parametrize("centre", ["43", "a,b", "99,0", "nan,nan", "1,2,3"])
def test_a_centre_that_is_none_is_refused(tmp_path: Path, centre: str) -> None:
    _write_fixes(tmp_path / "gps.csv.gz")
    with pytest.raises(ConfigError, match="centre="):
        read_stays(str(tmp_path / "gps.csv.gz"), PlaceOptions(centre=centre))


def test_no_message_tells_a_position(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("time,latitude,longitude\n0,43.70221,secret\n")
    with pytest.raises(DataError) as caught:
        read_places(str(file), PlaceOptions())
    assert "43.7" not in str(caught.value)


def test_real_fixes_of_two_students_become_sequences(data_dir: Path) -> None:
    data = read_places(str(data_dir / "studentlife_gps" / "gps_u0[04].csv.gz"), PlaceOptions(utc_offset=-4))
    assert data.shape == (6, 16)
    assert len(data.classes) == 23 * 16
    assert data.subject_names == ("gps_u00", "gps_u04")
    assert len(data.train) > 200
    assert len(data.test) > 40
    assert (data.train.x.max(axis=(0, 2)) < np.array(feature_sizes(368))).all()
    # People sleep: far fewer next stays begin from 3 to 6 than from 12 to 15.
    hours = last_steps(data.train.x)[:, 1]
    assert ((hours >= 3) & (hours < 6)).sum() * 2 < ((hours >= 12) & (hours < 15)).sum()
