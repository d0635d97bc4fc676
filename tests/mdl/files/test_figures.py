"""Rows as CSV."""

import csv
from pathlib import Path

import pytest

from mdl.errors import MdlError
from mdl.files.figures import write_table


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_table(path, [{"policy": "a,b", "s": 1.5, "note": None}, {"policy": 'say "c"', "s": 2, "note": "äß"}])
    assert path.read_bytes().splitlines()[0] == b"policy,s,note"
    with path.open(newline="", encoding="utf-8") as file:
        assert list(csv.DictReader(file)) == [
            {"policy": "a,b", "s": "1.5", "note": ""},
            {"policy": 'say "c"', "s": "2", "note": "äß"},
        ]


def test_a_row_with_another_column_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="other"):
        write_table(tmp_path / "t.csv", [{"a": 1}, {"other": 2}])
    (tmp_path / "file").touch()
    with pytest.raises(MdlError):
        write_table(tmp_path / "file" / "t.csv", [{"a": 1}])
