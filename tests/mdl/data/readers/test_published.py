"""MHEALTH, PAMAP2, OPPORTUNITY and UniMiB from small files of the published formats."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from mdl.data import load_data
from mdl.data.readers import public_logs
from mdl.data.readers.public_logs import fill_gaps, read_log
from mdl.data.readers.unimib import read_matrix
from mdl.errors import DataError


def rows(table: np.ndarray, separator: str = " ") -> bytes:
    said = {True: "NaN", False: ""}
    lines = [separator.join(said[True] if np.isnan(v) else f"{v:g}" for v in row) for row in table]
    return ("\n".join(lines) + "\n").encode()


def mhealth(folder: Path, people: tuple[int, ...] = (1, 5)) -> Path:
    for person in people:
        table = np.full((300, 24), 9.81 * person)
        table[:, 23] = np.repeat([0, 4, 12], 100)
        (folder / f"mHealth_subject{person}.log").write_bytes(rows(table, "\t"))
    return folder


def test_mhealth_has_23_channels_and_tests_every_fifth_person(tmp_path: Path) -> None:
    data = load_data(f"mhealth:{mhealth(tmp_path)}?window=50&step=25", tmp_path / "cache")
    assert data.shape == (23, 50)
    assert (data.rate_hz, data.held_out, len(data.channels)) == (50.0, "subject", 23)
    assert sorted(set(data.train.y.tolist())) == [3, 11], "labels 4 and 12; 0 is none"
    assert (set(data.train.subject.tolist()), set(data.test.subject.tolist())) == ({1}, {5})
    assert np.allclose(data.train.x[:, 0], 1.0)


def pamap2(folder: Path, people: tuple[int, ...] = (101, 105)) -> Path:
    for part in ("Protocol", "Optional"):
        (folder / part).mkdir()
        for person in people:
            table = np.zeros((600, 54))
            table[:, 0] = np.arange(600) / 100
            table[:, 1] = np.repeat([0, 4, 24], 200)
            table[:, 2] = np.nan  # the heart rate is slower
            table[:, 4:7] = 9.81
            table[:, 21:24] = 2 * 9.81
            table[250:255, 4] = np.nan
            (folder / part / f"subject{person}.dat").write_bytes(rows(table))
    return folder


def test_pamap2_takes_acceleration_of_three_places_in_the_protocol(tmp_path: Path) -> None:
    data = load_data(f"pamap2:{pamap2(tmp_path)}?window=100&step=100", tmp_path / "cache")
    assert data.shape == (9, 100)
    assert [data.classes[y] for y in data.train.y] == ["walking"] * 2 + ["rope jumping"] * 2
    assert np.allclose(data.train.x[:, :3], 1.0), "what is missing for a moment is filled in"
    assert np.allclose(data.train.x[:, 3:6], 2.0)
    assert set(data.test.subject.tolist()) == {105}


def test_a_zip_of_the_folder_is_read_likewise(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    folder, packed = pamap2(tmp_path / "in"), tmp_path / "p.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(folder.rglob("*.dat")):
            archive.write(file, f"PAMAP2_Dataset/{file.relative_to(folder)}")
    whole, zipped = (load_data(f"pamap2:{path}?window=100", tmp_path / "cache") for path in (folder, packed))
    assert np.array_equal(whole.train.x, zipped.train.x)


def opportunity(folder: Path) -> Path:
    for run in ("ADL1", "ADL4", "Drill"):
        table = np.tile(np.arange(250.0), (200, 1))
        table[:, 243] = np.repeat([1, 5], 100)
        table[:, 249] = np.repeat([0, 405506], 100)
        (folder / f"S1-{run}.dat").write_bytes(rows(table))
    return folder


def test_opportunity_takes_units_and_shoes_without_quaternions(tmp_path: Path) -> None:
    data = load_data(f"opportunity:{opportunity(tmp_path)}", tmp_path / "cache")
    assert data.shape == (77, 32)
    columns = [round(1000 * float(value)) for value in data.train.x[0, :, 0]]
    assert columns[:10] == [*range(37, 46), 50]
    assert columns[45:] == list(range(102, 134))
    assert {data.classes[y] for y in data.train.y} == {"toggle switch"}
    assert len(data.train) == 2 * len(data.test), "ADL1 and Drill train, ADL4 tests"


def test_opportunity_may_be_about_locomotion(tmp_path: Path) -> None:
    data = load_data(f"opportunity:{opportunity(tmp_path)}?labels=locomotion", tmp_path / "cache")
    assert {data.classes[y] for y in data.test.y} == {"stand", "lie"}


def mat(array: np.ndarray, name: bytes = b"acc", packed: bool = True) -> bytes:
    """As MATLAB's -v7 writes a matrix of doubles."""

    def element(kind: int, content: bytes) -> bytes:
        return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)

    small = struct.pack("<HH", 1, len(name)) + name + bytes(4 - len(name))
    body = element(6, bytes([6, 0, 0, 0, 0, 0, 0, 0])) + element(5, struct.pack("<2i", *array.shape))
    body += small + element(9, array.astype("<f8").tobytes(order="F"))
    whole = element(14, body)
    whole = element(15, zlib.compress(whole)) if packed else whole
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM" + whole


def unimib(folder: Path) -> Path:
    labels = np.array([[c, p, 1] for p in (1, 5) for c in (1, 9, 10, 17)])
    data = np.repeat(np.array([[3.0, 4.0, 0.0]]) * 9.81, 151, axis=1) * np.ones((len(labels), 1))
    (folder / "acc_data.mat").write_bytes(mat(data))
    (folder / "acc_labels.mat").write_bytes(mat(labels, packed=False))
    return folder


def test_unimib_has_activities_and_falls(tmp_path: Path) -> None:
    data = load_data(f"unimib:{unimib(tmp_path)}", tmp_path / "cache")
    assert (data.shape, len(data.classes)) == ((3, 151), 17)
    assert data.train.y.tolist() == [0, 8, 9, 16]
    assert set(data.test.subject.tolist()) == {5}
    assert np.allclose(data.train.x[0], [[3.0], [4.0], [0.0]])


def test_unimib_may_be_the_length_of_the_vector_of_falls_alone(tmp_path: Path) -> None:
    data = load_data(f"unimib:{unimib(tmp_path)}?of=fall&signal=magnitude", tmp_path / "cache")
    assert (data.shape, len(data.classes), data.train.y.tolist()) == ((1, 151), 8, [0, 7])
    assert np.allclose(data.train.x, 5.0)


@pytest.mark.parametrize("source", ["mhealth", "pamap2", "opportunity", "unimib"])
def test_another_folder_is_refused_with_what_was_expected(tmp_path: Path, source: str) -> None:
    (tmp_path / "readme.txt").write_text("hello")
    with pytest.raises(DataError, match="expected"):
        load_data(f"{source}:{tmp_path}", tmp_path / "cache")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"1 2 3\n1 2\n", "line 2: 2 values; expected 3"),
        (b"1 2 3\n1 x 3\n", "line 2: 'x'; expected a number"),
        (b"1 2 0.5\n", "column 3 holds 0.5; expected the number of an activity"),
        (b"1 2 nan\n", "column 3 holds nan"),
        (b"", "empty"),
    ],
)
def test_what_is_wrong_with_a_log_is_said_with_its_line(text: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_log(io.BytesIO(text), 3, [0, 1], 2, 1, "log")


def test_a_log_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    text = rows(np.arange(300.0).reshape(100, 3))
    whole = read_log(io.BytesIO(text), 3, [1], 2, 1, "log")
    monkeypatch.setattr(public_logs, "_PIECE_BYTES", 7)
    pieces = read_log(io.BytesIO(text), 3, [1], 2, 1, "log")
    assert np.array_equal(whole.values, pieces.values)
    assert pieces.label.tolist() == list(range(2, 300, 3))
    with pytest.raises(DataError, match="line 101: 2 values"):
        read_log(io.BytesIO(text + b"1 2\n"), 3, [1], 2, 1, "log")


def test_short_gaps_are_filled_in_and_long_ones_stay() -> None:
    nan = np.nan
    values = np.array([[nan], [1], [nan], [3], [nan], [nan], [6], [nan]], np.float32)
    filled = fill_gaps(values, 1)[:, 0]
    assert np.array_equal(filled, np.array([nan, 1, 2, 3, nan, nan, 6, nan], np.float32), equal_nan=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"MATLAB 7.3 MAT-file".ljust(128), "not a MATLAB file of level 5"),
        (mat(np.ones((2, 2)))[:150], "expected one matrix"),
        (mat(np.ones((1000, 1000))), "unpacks to more than"),
        (
            mat(np.ones((2, 2)), packed=False).replace(bytes([6, 0, 0, 0, 0]), bytes([1, 0, 0, 0, 0]), 1),
            "another class",
        ),
    ],
)
def test_what_is_no_matrix_of_numbers_is_refused(content: bytes, words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_matrix(content, 100_000, "file")
