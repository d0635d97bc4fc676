"""Logs as people have them; what is wrong is told in one line."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from mdl.errors import ConfigError, DataError
from mdl.peers.dccl.model.interactions import Feature
from mdl.peers.dccl.model.readers import read_interactions

ROWS = "user,item,time\nann,tea,3\nann,milk,1\nbob,tea,2\nbob,milk,9\nann,salt,2\n"


def test_a_csv_is_ordered_by_time_for_each_user(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(ROWS)
    log = read_interactions(f"csv:{tmp_path / 'log.csv'}?least=1")
    assert log.users == ("ann", "bob")
    assert [log.titles[item - 1] for item in log.of(0)] == ["milk", "salt", "tea"]
    assert log.times is not None
    assert log.times.tolist() == [1, 2, 3, 2, 9]


def test_dates_and_other_column_names(tmp_path: Path) -> None:
    text = "who,when,what\na,2026-01-02,x\na,2026-01-01T12:00:00Z,y\n"
    (tmp_path / "log.csv").write_text(text)
    log = read_interactions(f"csv:{tmp_path / 'log.csv'}?user=who&item=what&time=when&least=1")
    assert [log.titles[item - 1] for item in log.items] == ["y", "x"]


def test_profiles_are_read_beside_a_csv(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(ROWS)
    (tmp_path / "who.csv").write_text("user,age,town\nbob, 30 ,\nzoe,90,Rome\nann,20,Bern\n")
    log = read_interactions(f"csv:{tmp_path / 'log.csv'}?least=1&profiles={tmp_path / 'who.csv'}")
    assert log.features == (Feature("age", ("20", "30")), Feature("town", ("Bern",)))  # of the log's users alone
    assert log.profiles.tolist() == [[1, 1], [2, 0]]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("who,age\n", "who.csv: line 1: no column 'user'; "),
        ("user,age\nann\n", "who.csv: line 2: 1 fields; its header has 2"),
        ("user,age\nann,2\nbob,3\nann,2\n", "who.csv: line 4: user 'ann' has a row already"),
        ("user,age\nann,\x1b[2J\n", "who.csv: line 2: '\\x1b[2J' is no name"),
        ("user,age,age\nann,2,3\n", "who.csv: line 1: column 'age' comes twice"),
        ("user," + ",".join(f"f{n}" for n in range(65)) + "\nann" + ",1" * 65, "profiles of 65 features; at most 64"),
    ],
)
def test_profiles_that_are_wrong_are_told_with_their_line(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "log.csv").write_text(ROWS)
    (tmp_path / "who.csv").write_text(text)
    with pytest.raises(DataError) as raised:
        read_interactions(f"csv:{tmp_path / 'log.csv'}?least=1&profiles={tmp_path / 'who.csv'}")
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_without_times_the_order_of_the_rows_counts(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("user,item\na,z\nb,y\na,x\n")
    log = read_interactions(f"csv:{tmp_path / 'log.csv'}?least=1")
    assert log.times is None
    assert [log.titles[item - 1] for item in log.of(0)] == ["z", "x"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("who,item,time\n", "line 1: no column 'user'; "),
        ("user,item,time\n", "no interactions"),
        ("user,item,time\na,b\n", "line 2: 2 fields; its header has 3"),
        ("user,item,time\na,b,soon\n", "line 2: time 'soon' is no number and no date"),
        ("user,item,time\na,b,nan\n", "line 2: time 'nan'"),
        ("user,item,time\n,b,1\n", "line 2: '' is no name"),
        ("user,item,time\na,b\x1b[2J,1\n", "line 2: 'b\\x1b[2J' is no name"),
        ("user,item,time\na,b,1\n", "no user and item are left with at least 5"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(DataError) as raised:
        read_interactions(f"csv:{tmp_path / 'log.csv'}")
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("", "no interactions are named"),
        ("motion", "no log of interactions"),
        ("movielens", "no log of interactions; did you mean movielens:PATH?"),
        ("csv:x.csv?least=0", "option least=0"),
        ("csv:x.csv?lest=1", "unknown option 'lest'; did you mean least?"),
    ],
)
def test_a_spec_that_names_no_log_is_refused(spec: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told.replace("?", r"\?")):
        read_interactions(spec)


def test_movielens_as_it_is_distributed(tmp_path: Path) -> None:
    folder = tmp_path / "ml-1m"
    folder.mkdir()
    (folder / "ratings.dat").write_text("1::10::5::978300760\n2::10::3::978302109\n1::20::3::978300019\n")
    (folder / "users.dat").write_text("1::F::1::10::48067\n2::M::56::16::70072\n")
    log = read_interactions(f"movielens:{folder}?least=1")
    assert [log.titles[item - 1] for item in log.of(0)] == ["20", "10"]
    assert log.features == (
        Feature("gender", ("F", "M")),
        Feature("age", ("1", "56")),
        Feature("occupation", ("10", "16")),
    )
    assert log.profiles.tolist() == [[1, 1, 1], [2, 2, 2]]


def test_movielens_with_dates_in_a_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "ml.zip", "w") as archive:
        archive.writestr("ml/ratings.csv", "userId,movieId,rating,timestamp\n1,3,4.0,7\n1,2,4.0,5\n")
    log = read_interactions(f"movielens:{tmp_path / 'ml.zip'}?least=1")
    assert [log.titles[item - 1] for item in log.items] == ["2", "3"]
    assert log.features == ()


def test_movielens_as_sequences_without_dates(tmp_path: Path) -> None:
    arrays = {"user": np.array([4, 9], np.uint16), "offset": np.array([0, 2, 3]), "movie": np.array([8, 5, 8])}
    np.savez(tmp_path / "ml1m_sequences.npz", **arrays)  # type: ignore[arg-type]
    log = read_interactions(f"movielens:{tmp_path}?least=1")
    assert log.users == ("4", "9")
    assert [log.titles[item - 1] for item in log.items] == ["8", "5", "8"]
    arrays["offset"] = np.array([0, 2, 9])
    np.savez(tmp_path / "ml1m_sequences.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="offset has 3 entries for 2 users and 3 films"):
        read_interactions(f"movielens:{tmp_path}?least=1")
