"""Every reader ends with one line on what it read and left out, and keeps samples of the latter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mdl.data import describe_data, read_data
from mdl.data.describe import suspect_channels
from mdl.data.readers.unlabelled import describe_unlabelled
from mdl.data.windows import make_windows
from mdl.reading import Tally


def test_the_line_names_the_commonest_reason_first() -> None:
    tally = Tally("pictures")
    assert tally.line() == "read 0 pictures, left out none"
    tally.see(2000)
    tally.leave("too dark", sample="a.png")
    for number in range(9):
        tally.leave("too bright", 100, f"{number}.png")
    assert tally.line() == "read 1,099 pictures, left out 901: 900 too bright, 1 too dark"
    assert tally.samples() == ("too dark: a.png", *(f"too bright: {number}.png" for number in range(3)))


def test_rows_of_tables_are_counted_by_why_they_are_left_out(tmp_path: Path) -> None:
    labels = ["sit"] * 60 + [""] * 5 + ["walk"] * 60 + ["skip"] * 3 + ["walk"] * 4
    rows = [f"{at * 0.02:.2f},{at % 7 if at != 70 else ''},{label}" for at, label in enumerate(labels)]
    (tmp_path / "a.csv").write_text("\n".join(["time,v,label", *rows]) + "\n2.64,")
    spec = f"csv:{tmp_path}/a.csv?label=label&skip=skip&missing=drop&window=10&step=10"
    for _ in range(2):  # the second time from the cache
        data = read_data(spec, tmp_path / "cache")
        told = data.notes[-1]
        assert told.startswith("read 114 rows, left out 19: 9 in stretches of less than 10 rows (?window=), ")
        assert "5 without a label, 3 that ?skip= names, " in told
        assert "1 that miss a value" in told
        assert f"without a label: {tmp_path}/a.csv: data row 61:" in data.left_out
        assert describe_data(data)["left_out"] == list(data.left_out)


def test_recordings_without_labels_and_arrays_say_it_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("v,w\n" + "".join(f"{at % 7},1\n" for at in range(50)) + "3")
    found = describe_unlabelled(f"csv:{tmp_path}/a.csv?window=10", tmp_path / "cache")
    assert found
    assert "read 50 rows, left out 1: 1 cut off at the end of a file" in found.lines
    assert f"left out cut off at the end of a file: {tmp_path}/a.csv: the last row" in found.lines
    x = np.random.default_rng(0).normal(size=(40, 10, 2))
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(40) % 2)
    data = read_data(f"npz:{tmp_path}/a.npz", tmp_path / "cache")
    assert data.notes[-1] == f"read {len(data.train) + len(data.test)} windows"


def test_places_say_what_is_in_no_stay(tmp_path: Path) -> None:
    """Of 10,021 check-ins of a traveller nearly all lie outside the cells around the median."""
    day, lines = 86_400, []
    for number in range(10):
        for stay in range(8):
            moment = 1_700_006_400 + number * day + stay * 3600
            lines.append(f"{moment},{43.7 + 0.002 * (stay % 3)},-72.3,10")
    lines += [f"{1_700_000_000 + 40 * day + 60 * number},10.0,20.0,10" for number in range(50)]
    lines += [f"{1_700_000_000 + 60 * day},43.7,-72.3,10", f"{1_700_000_000},43.7,-72.3,5000"]
    (tmp_path / "ann.csv").write_text("\n".join(["time,latitude,longitude,accuracy", *lines]) + "\n")
    data = read_data(f"places:{tmp_path}/ann.csv", tmp_path / "cache")
    assert data.notes == (
        "read 80 moments, left out 52: 50 outside the cells (cell=, rows=, columns=), 1 coarser than accuracy=100 m, "
        "1 on days with fewer than 3 stays (active=)",
    )
    assert data.left_out[0] == f"coarser than accuracy=100 m: {tmp_path}/ann.csv, line 133: 5000 m"
    assert data.left_out[1].startswith("outside the cells (cell=, rows=, columns=): ann from 2023-12-24 ")


def test_files_beside_pictures_are_counted(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / "in" / name).mkdir(parents=True)
        for number in range(5):
            image.new("RGB", (4, 4), (number, 9, 9)).save(tmp_path / "in" / name / f"{number}.png")
    (tmp_path / "in" / "cat" / "more.webp").write_bytes(b"RIFF")
    data = read_data(f"images:{tmp_path}/in", tmp_path / "cache")
    assert data.notes == ("read 10 pictures, left out 1: 1 that are neither PNG nor JPEG",)
    assert data.left_out == (f"that are neither PNG nor JPEG: {tmp_path}/in/cat/more.webp",)


def test_a_value_thousands_of_deviations_away_is_named() -> None:
    x = np.random.default_rng(0).normal(9.8, 1, size=(300, 2, 50)).astype(np.float32)
    none = np.zeros(300, np.int64)
    assert suspect_channels(make_windows(x, none, none, none), ("a", "b")) == ()
    x[100, 1, 7] = 1_774_776_600
    [told] = suspect_channels(make_windows(x, none, none, none), ("a", "b"))
    assert told.startswith("channel 'b' holds 1.77478e+09, 1,")
    assert "deviations from its middle 9.78: is it a time, a counter or an error code" in told
