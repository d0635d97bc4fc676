"""Logs in the forms that recommenders' data sets have, each read to the same interactions."""

from __future__ import annotations

import json
import logging
import sys
import zipfile
from pathlib import Path

import pytest

from mdl.errors import ConfigError, DataError
from mdl.peers.cli.main import main
from mdl.peers.dccl.model.readers import read_interactions, read_titles

ROWS = [("1", "16", "5", "30"), ("1", "38", "4", "20"), ("2", "16", "1", "10"), ("2", "35", "1", "40")]
HEADER = ("user", "item", "rating", "time")


def table(separator: str, header: tuple[str, ...] = ()) -> str:
    return "".join(f"{separator.join(row)}\n" for row in ([header] if header else []) + ROWS)


def objects(names: tuple[str, ...] = HEADER) -> str:
    return "".join(
        json.dumps(dict(zip(names, (row[0], row[1], float(row[2]), int(row[3])), strict=True))) + "\n" for row in ROWS
    )


TYPED = ("user_id:token", "item_id:token", "rating:float", "timestamp:float")
FORMS = {
    "MovieLens 100K": ("movielens", "u.data", table("\t"), ""),
    "MovieLens 100K as a table": ("csv", "u.data", table("\t"), ""),
    "MovieLens 1M": ("movielens", "ratings.dat", table("::"), ""),
    "MovieLens 20M": ("movielens", "ratings.csv", table(",", ("userId", "movieId", "rating", "timestamp")), ""),
    "MovieLens 20M as a table": ("csv", "ratings.csv", table(",", ("userId", "movieId", "rating", "timestamp")), ""),
    "RecBole": ("csv", "ml.inter", table("\t", TYPED), ""),
    "tabs": ("csv", "log.tsv", table("\t", HEADER), ""),
    "semicolons": ("csv", "log.csv", table(";", HEADER), ""),
    "bars": ("csv", "log.txt", table("|", HEADER), ""),
    "without a header": ("csv", "log.csv", table(","), "&names=user,item,rating,time"),
    "without a header, by tabs": ("csv", "log.txt", table("\t"), "&names=user,item,rating,time&sep=tab"),
    "by spaces": ("csv", "log.txt", table(" "), "&names=user,item,rating,time&sep=space"),
    "JSON lines": ("csv", "log.jsonl", objects(), ""),
    "JSON lines of reviews": ("csv", "log.jsonl", objects(("reviewerID", "asin", "overall", "unixReviewTime")), ""),
    "UTF-16": ("csv", "log16.csv", table("\t", HEADER), ""),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_is_the_same_log(tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture) -> None:
    source, name, text, options = FORMS[form]
    (tmp_path / name).write_text(text, encoding="utf-16" if "16" in name else "utf-8")
    with caplog.at_level(logging.INFO):
        log = read_interactions(f"{source}:{tmp_path / name}?least=1{options}")
    assert log.users == ("1", "2")
    assert [[log.titles[item - 1] for item in log.of(user)] for user in (0, 1)] == [["38", "16"], ["16", "35"]]
    assert log.times is not None
    assert log.times.tolist() == [20, 30, 10, 40]
    assert "read 4 interactions of 2 users with 3 items by their times, left out 0" in caplog.text


def test_what_is_left_out_is_said_with_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "log.csv").write_text(table(",", HEADER) + "3,16,5,1\n")
    with caplog.at_level(logging.INFO):
        assert read_interactions(f"csv:{tmp_path / 'log.csv'}?least=1").users == ("1", "2", "3")
        with pytest.raises(DataError, match="lower `least`"):
            read_interactions(f"csv:{tmp_path / 'log.csv'}?least=2")
        (tmp_path / "log.csv").write_text(table(",", HEADER) + "1,35,5,9\n3,16,5,1\n")
        read_interactions(f"csv:{tmp_path / 'log.csv'}?least=2")
    assert (
        "read 4 interactions of 2 users with 2 items by their times, left out 2: users and items with fewer than 2"
        in caplog.text
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("ratings", "users", "films"),
    [
        (("u.data", table("\t")), ("u.user", "1|24|F|writer|85711\n2|53|M|other|94043\n"),
         ("u.item", "16|Caf\xe9 (1995)|01-Jan-1995||http://x|" + "|".join("0" * 19) + "\n")),
        (("ratings.dat", table("::")), ("users.dat", "1::F::24::writer::1\n2::M::53::other::2\n"),
         ("movies.dat", "16::Caf\xe9 (1995)::Drama\n")),
        (("ratings.csv", table(",", ("userId", "movieId", "rating", "timestamp"))), None,
         ("movies.csv", 'movieId,title,genres\n16,"Caf\xe9 (1995)",Drama\n')),
    ],
    ids=["100K", "1M", "20M"],
)  # fmt: skip
def test_movielens_in_all_its_forms(
    tmp_path: Path,
    ratings: tuple[str, str],
    users: tuple[str, str] | None,
    films: tuple[str, str],
    packed: bool,
) -> None:
    folder = tmp_path / "ml"
    folder.mkdir()
    for name, text in filter(None, (ratings, users, films)):
        (folder / name).write_text(text, encoding="latin-1")
    place = folder
    if packed:
        place = tmp_path / "ml.zip"
        with zipfile.ZipFile(place, "w") as archive:
            for file in folder.iterdir():
                archive.write(file, f"ml/{file.name}")
    log = read_interactions(f"movielens:{place}?least=1")
    assert [len(log.of(user)) for user in (0, 1)] == [2, 2]
    if users:
        assert {each.name: each.categories for each in log.features} == {
            "gender": ("F", "M"), "age": ("24", "53"), "occupation": ("other", "writer"),
        }  # fmt: skip
        assert log.profiles.tolist() == [[1, 1, 2], [2, 2, 1]]
    assert read_titles(f"movielens:{place}") == {"16": "Caf\xe9 (1995)"}
    assert read_titles(f"movielens:{folder / ratings[0]}") == {"16": "Caf\xe9 (1995)"}


def test_titles_of_any_table(tmp_path: Path) -> None:
    (tmp_path / "ml.item").write_text('item_id:token\tmovie_title:token_seq\n16\t"Quoted" once\n')
    (tmp_path / "log.csv").write_text(table(",", HEADER))
    assert read_titles(f"csv:{tmp_path / 'log.csv'}?titles={tmp_path / 'ml.item'}") == {"16": '"Quoted" once'}
    assert read_titles(f"csv:{tmp_path / 'log.csv'}") == {}


@pytest.mark.parametrize(
    ("text", "options", "kind", "told"),
    [
        (table("\t"), "", ConfigError, "line 1 holds values; say what its 4 columns are, as in ?names=user,item"),
        (table("\t"), "&names=user,item", ConfigError, "names= says 2 columns, line 1 has 4"),
        (table(","), "&names=who,item,rating,time", DataError, "no column 'user'; valid: who, item"),
        ('{"who": 1, "item": 2}\n', "", DataError, "no column 'user'"),
        ('{"user": 1, "item": 2}\n[1]\n', "", DataError, "line 2: Expected `object`"),
        ('{"user": 1, "item": 2}\n{"user": 1}\n', "", DataError, "line 2: '' is no name"),
        ("user,user_id,item,item\n1,2,3,4\n", "", DataError, "column 'item' comes twice"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_with_what_would_help(
    tmp_path: Path, text: str, options: str, kind: type[Exception], told: str
) -> None:
    (tmp_path / "log.txt").write_text(text)
    with pytest.raises(kind) as raised:
        read_interactions(f"csv:{tmp_path / 'log.txt'}?least=1{options}")
    assert told in str(raised.value)


def test_a_preview_shows_what_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "u.data").write_text(table("\t"))
    (tmp_path / "u.item").write_text("16|Cafe|||http://x|" + "|".join("0" * 19) + "\n")
    inspect = ["mdl", "data", "inspect", f"movielens:{tmp_path}?least=1", "--task", "recommend"]
    for words in (inspect, [*inspect, "--json"]):
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "read 4 interactions of 2 users with 3 items by their times, left out 0"
    assert [line.split() for line in shown[1:3]] == [["1", "38,", "Cafe", "..."], ["2", "Cafe,", "35", "..."]]
    assert json.loads(shown[3])["first"] == {"1": ["38", "Cafe"], "2": ["Cafe", "35"]}
