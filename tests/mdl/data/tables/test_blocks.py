"""Blocks of lines read as a whole give what the rows give one by one: values, errors, and what is left out."""

from __future__ import annotations

import csv
import io
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdl.data.readers import archive
from mdl.data.readers.csv_streams import CsvOptions, read_csv
from mdl.data.tables import recordings, rows
from mdl.data.tables.dialect import Dialect, is_nothing, parse_line
from mdl.data.tables.recordings import look_at_recording, read_table
from mdl.data.tables.rows import Block, Cells, read_instants, read_rows, take_apart, to_numbers
from mdl.data.tables.times import _iso_seconds
from mdl.errors import MdlError
from tests.mdl.data.tables.polluted import NOTHING, ODD_NUMBERS, draw_file

SEEDS = range(100)


def dialect(width: int, delimiter: str = ",", row_end: str = "") -> Dialect:
    return Dialect(
        "utf-8-sig", delimiter, tuple(f"c{place}" for place in range(width)), ("",) * width, 0, row_end=row_end
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Borders of blocks everywhere."""
    monkeypatch.setattr(archive, "_BLOCK_BYTES", 700)
    monkeypatch.setattr(archive, "_NARROW_CHARACTERS", 200)
    monkeypatch.setattr(rows, "ROWS_AT_ONCE", 50)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    """The blocks that were read as a whole."""
    found: list[Block] = []

    def take(*given: Any) -> Block | None:
        if (block := take_apart(*given)) is not None:
            found.append(block)
        return block

    monkeypatch.setattr(rows, "take_apart", take)
    return found


def read(path: str, options: CsvOptions) -> tuple[object, ...] | str:
    """All that reading gives, to the last bit; or the error."""
    try:
        data = read_csv(path, options)
    except MdlError as error:
        return f"{type(error).__name__}: {error}"
    arrays = [getattr(side, name) for side in (data.train, data.test) for name in ("x", "y", "subject", "group")]
    told = (data.classes, data.channels, data.notes, data.warnings, data.left_out, data.rate_hz, data.channel_units)
    return (*(each.tobytes() for each in arrays), *told)


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("tenth", range(10))
def test_a_polluted_table_is_read_as_it_is_row_by_row(
    tenth: int, tmp_path: Path, taken: list[Block], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = 0
    for seed in SEEDS[tenth::10]:
        drawn = draw_file(seed)
        path, options = str(drawn.write(tmp_path)), CsvOptions(**drawn.options)
        with monkeypatch.context() as patch:
            as_blocks = read(path, options)
            patch.setattr(rows, "take_apart", lambda *_: None)
            assert as_blocks == read(path, options), (seed, drawn.kinds)
        good += isinstance(as_blocks, tuple)
    assert good
    assert len(taken) > 20


def values_of(texts: list[str], together: bool) -> np.ndarray:
    """The numbers of one column, read with its neighbour or by itself."""
    lines = "".join(f"{text};5\n" for text in texts)
    block = take_apart(lines, dialect(2, ";"), 2, [0, 1] if together else [0])
    assert block is not None
    values = block.values(0)
    assert values is not None
    return values


@pytest.mark.parametrize("together", [True, False])
@settings(max_examples=100, deadline=None)
@given(numbers=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30), form=st.data())
def test_a_number_is_the_one_that_python_reads(together: bool, numbers: list[float], form: st.DataObject) -> None:
    forms = st.sampled_from(["%r", "%.17g", "%.25e", "%.3e", "%.0f", "%.6f"])
    texts = [
        text for number in numbers if len(text := form.draw(forms) % number) <= 60 and float(text) - float(text) == 0
    ]
    if texts:
        assert values_of(texts, together).tobytes() == np.array([float(text) for text in texts]).tobytes()


@pytest.mark.parametrize("together", [True, False])
def test_numbers_of_all_sizes_and_halfway_between_two_are_python_s(together: bool) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 0x7FF0 << 48, 3000).tolist()
    doubles = [struct.unpack("<d", struct.pack("<q", each))[0] for each in bits]
    texts = [f"{double:.{digits}e}" for double in doubles for digits in (14, 16, 17, 30)]
    texts += ["9007199254740993", "9007199254740992.99999999999999999", "4.9e-324", "2.4703282292062327e-324", "1e-400"]
    texts += ["-0", "-0.0", "-0e5", "0", "0e0", "-1", "1.7976931348623157e308", "18446744073709551616"]
    assert values_of(texts, together).tobytes() == np.array([float(text) for text in texts]).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("cell", [*ODD_NUMBERS, *NOTHING, '"1.5"', '""', '"NaN"', '" 2"', '"-0"'])
def test_an_odd_cell_is_the_same_number_or_the_same_error(delimiter: str, cell: str, tmp_path: Path) -> None:
    if delimiter in cell:
        return
    file, form = tmp_path / "odd.csv", dialect(3, delimiter)

    def numbers(column: int, texts: list[str], numeric: list[int]) -> list[str] | str:
        file.write_bytes("".join(f"{text}\n" for text in texts).encode())
        found = []
        try:
            for part in read_rows(file, form, [column], numbers=numeric):
                found += [value.hex() for value in to_numbers(part.columns[0], file, part.first, "c", form).tolist()]
        except MdlError as error:
            return str(error)
        return found

    for column in range(3):
        texts = [delimiter.join(["1", "2.5", "-3"])] * 4
        texts[2] = delimiter.join([*["7"] * column, cell, *["8"] * (2 - column)])
        # Without a number that is asked for, cells are texts, which are read one by one.
        expected = numbers(column, texts, [])
        assert numbers(column, texts, [0, 1, 2]) == expected
        assert numbers(column, texts, [column]) == expected


@settings(max_examples=300, deadline=None)
@given(
    cells=st.lists(
        st.text(alphabet="019.,-+eE_ xinfaN#\t\N{NO-BREAK SPACE}\N{MINUS SIGN}\N{ARABIC-INDIC DIGIT THREE}", max_size=8)
        | st.sampled_from((*ODD_NUMBERS, *NOTHING)),
        min_size=1,
        max_size=6,
    ),
    delimiter=st.sampled_from(",;|"),
)
def test_any_cells_are_the_same_numbers_or_the_same_error(cells: list[str], delimiter: str) -> None:
    cells = [cell for cell in cells if delimiter not in cell] or ["1"]
    text, form = "".join(f"5{delimiter}{cell}\n" for cell in cells), dialect(2, delimiter)
    block = take_apart(text, form, 2, [1], [0])
    assert block is not None

    def numbers(found: Sequence[str]) -> list[str] | str:
        try:
            return [value.hex() for value in to_numbers(found, Path("t.csv"), 1, "c", form).tolist()]
        except MdlError as error:
            return str(error)

    values = block.values(1)
    if values is not None:
        assert numbers(Cells(len(cells), lambda: cells, values, block.is_plain)) == numbers(cells)
    assert block.texts(1) == cells


@settings(max_examples=500, deadline=None)
@given(
    times=st.lists(
        st.datetimes().map(lambda time: time.isoformat())
        | st.datetimes(timezones=st.timezones()).map(lambda time: time.isoformat(sep=" "))
        | st.datetimes().map(lambda time: time.isoformat(timespec="milliseconds") + "Z")
        | st.text(alphabet="0123456789-:T.Z+ ", max_size=28)
        | st.sampled_from(("0000-01-01", "2026-02-30", "9999-12-31T23:59:59.999999", "2026-05-04T12", "", "NaN", "-")),
        min_size=1,
        max_size=4,
    )
)
def test_instants_are_those_of_the_standard_library(times: list[str]) -> None:
    found = read_instants(pa.chunked_array([pa.array(times, pa.string())]))
    if found is not None:
        expected = [np.nan if is_nothing(time) else _iso_seconds(time) for time in times]
        assert found.tobytes() == np.array(expected, np.float64).tobytes()


def test_instants_of_a_logger_are_read_at_once() -> None:
    times = ["2026-05-04T12:00:00", "2026-05-04T12:00:00.020", "", "2026-05-04 12:00:00.040001"]
    found = read_instants(pa.chunked_array([pa.array(times, pa.string())]))
    assert found is not None
    assert (found - found[0]).tolist()[:2] == [0.0, pytest.approx(0.02)]
    zoned = read_instants(pa.chunked_array([pa.array(["2026-05-04T14:00:00+02:00"], pa.string())]))
    assert zoned is not None
    assert zoned[0] == found[0]


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    opened: list[Path] = []
    whole = archive.open_blocks

    def open_counted(file: Path, encoding: str) -> Any:
        opened.append(file)
        return whole(file, encoding)

    monkeypatch.setattr(rows, "open_blocks", open_counted)
    return opened


def write_walk(file: Path, cell: str = "1.5", time: str = "{:.2f}") -> Path:
    lines = [f"{time.format(row / 50)},{row}.5,{cell if row == 300 else '2'},walk\n" for row in range(400)]
    file.write_text("time,ax,ay,activity\n" + "".join(lines))
    return file


@pytest.mark.parametrize("time", ["{:.2f}", "2026-05-04T12:00:0{:.2f}"])
def test_a_table_with_times_is_read_once(time: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = count_reads(monkeypatch)
    assert len(read(str(write_walk(tmp_path / "a.csv", time=time)), CsvOptions(label="activity", window=8))) > 3
    assert len(opened) == 1


@pytest.mark.parametrize(("cell", "reads"), [("", 1), ("1_0", 1), ("1e300", 2), ("x", 1)])
def test_a_cell_of_kept_rows_is_told_as_it_was_written(
    cell: str, reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, options = write_walk(tmp_path / "a.csv", cell), CsvOptions(label="activity", window=8)
    once = read(str(file), options)
    assert "data row 301: column 'ay'" in str(once) or cell == "1e300"
    opened = count_reads(monkeypatch)
    dropped = read(str(file), CsvOptions(label="activity", window=8, missing="drop"))
    assert len(opened) == reads
    monkeypatch.setattr(recordings, "_LARGEST_BYTES", 0)
    assert read(str(file), options) == once
    assert read(str(file), CsvOptions(label="activity", window=8, missing="drop")) == dropped
    assert len(opened) == reads + 4


def test_a_full_disk_costs_a_second_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, options = write_walk(tmp_path / "a.csv"), CsvOptions(label="activity", window=8)
    once = read(str(file), options)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    opened = count_reads(monkeypatch)
    monkeypatch.setattr(recordings.pa.ipc, "new_stream", refuse)
    assert read(str(file), options) == once
    assert len(opened) == 2


@pytest.mark.usefixtures("small")
def test_cells_are_those_of_the_standard_library(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    cells = ["walk", "stairs up", "", "1.5", "-0", "läuft", "a,b", "x" * 70, " y "]
    table = [[cells[place] for place in rng.integers(0, len(cells), 4)] for _ in range(300)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(table)
    file = tmp_path / "t.csv"
    file.write_text(text.getvalue(), encoding="utf-8-sig")
    parts = list(read_rows(file, dialect(4), range(4), numbers=[3]))
    assert [list(row) for part in parts for row in zip(*part.columns, strict=True)] == table
    assert [part.first for part in parts] == [1, 50, 100, 150, 200, 250, 300]


@pytest.mark.usefixtures("small")
def test_only_the_block_with_an_unusual_row_is_read_row_by_row(tmp_path: Path) -> None:
    lines = [f"{row},{row}.5\n" for row in range(2000)]
    lines[700] = '700,"700\n.5"\n'
    lines[1200] = "1200\n"
    file = tmp_path / "t.csv"
    file.write_text("".join(lines))
    with archive.open_blocks(file, "utf-8") as source:
        pieces = list(rows._read_pieces(file, source, 2, dialect(2), [0, 1], []))
    slow = [piece for piece in pieces if isinstance(piece, list)]
    assert sum(map(len, pieces)) == 2000
    assert 2 < sum(map(len, slow)) < 300
    assert all(piece.values(1) is not None for piece in pieces if isinstance(piece, Block))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("cut", range(0, 40, 3))
def test_a_quoted_line_end_may_lie_at_the_end_of_a_block(cut: int, tmp_path: Path) -> None:
    lines = [*(["12345,walk\n"] * 60), f'{"1" * (1 + cut)},"wa\nlk"\n', *(["3,run\n"] * 60)]
    file = tmp_path / "t.csv"
    file.write_text("".join(lines))
    found = [cell for part in read_rows(file, dialect(2), [1], numbers=[0]) for cell in part.columns[0]]
    assert found == ["walk"] * 60 + ["wa\nlk"] + ["run"] * 60


@pytest.mark.usefixtures("small")
def test_a_line_too_long_is_told_by_its_number_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,b\n" + "1,2\n" * 900 + "1," + "2" * archive.LONGEST_LINE + "\n" + "1,2\n")
    with pytest.raises(MdlError, match=r"t.csv, line 902: more than"):
        list(read_rows(file, dialect(2), [0, 1], numbers=[0, 1]))


def test_quotes_around_whole_cells_are_part_of_a_block() -> None:
    block = take_apart('"a,b",1\n"","2"\nc,3\n', dialect(2), 2, [1], [0])
    assert block is not None
    assert block.texts(0) == ["a,b", "", "c"]
    values = block.values(1)
    assert values is not None
    assert values.tolist() == [1, 2, 3]


@pytest.mark.parametrize("text", ["1\n\n2\n", "\n1\n", '"1\n2"\n', '1"2"\n', '"1""2"\n', "1,2\n", '"1\n'])
def test_lines_that_are_not_one_row_each_are_no_block(text: str) -> None:
    assert take_apart(text, dialect(1), 1) is None


def test_rows_with_a_mark_at_their_end_are_a_block() -> None:
    block = take_apart("1,walk,2.5;\n2,run,3;3,run,4,;\n\n", dialect(3, row_end=";"), 3, [0, 2])
    assert block is not None
    assert [block.texts(column) for column in range(3)] == [["1", "2", "3"], ["walk", "run", "run"], ["2.5", "3", "4"]]
    assert block.lines == 3


def test_a_merged_recording_keeps_the_numbers_of_its_sensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "walk"
    (folder / "meta").mkdir(parents=True)
    (folder / "meta" / "time.csv").write_text('"event","experiment time","system time"\n"START",0,1\n')
    (folder / "meta" / "device.csv").write_text('"property","value"\n"version","1"\n')
    for name, rate in (("Accelerometer", 50), ("Gyroscope", 20)):
        unit = "m/s^2" if rate == 50 else "rad/s"
        header = ",".join(['"Time (s)"', *(f'"{name} {axis} ({unit})"' for axis in "xyz")])
        lines = [f"{row / rate!r},{row / 7!r},{row / -3!r},1E-3" for row in range(rate * 5)]
        (folder / f"{name}.csv").write_text("\n".join([header, *lines]))
    form = look_at_recording(folder)
    assert len(form.parts) == 2
    wanted = list(range(len(form.header)))

    def numbers() -> list[float]:
        parts = list(read_table(folder, form, wanted, numbers=wanted))
        return [value for part in parts for cells in part.columns for value in map(float, cells)]

    found = numbers()
    monkeypatch.setattr(rows, "take_apart", lambda *_: None)
    assert found == numbers()
    assert len(found) > 500


def test_cells_are_a_sequence_of_texts() -> None:
    cells = Cells(3, lambda: ["1", "2", "x"], np.array([1.0, 2.0, 3.0]))
    assert (len(cells), cells[2], cells[1:], list(cells), "x" in cells) == (3, "x", ["2", "x"], ["1", "2", "x"], True)
    some = cells.take([2, 0])
    assert list(some) == ["x", "1"]
    assert some.values is not None
    assert some.values.tolist() == [3.0, 1.0]


@settings(max_examples=100, deadline=None)
@given(line=st.text(alphabet='ab1 ,;\t|"\r\n', max_size=20), delimiter=st.sampled_from(",;\t| "))
def test_a_line_of_a_header_is_parsed_as_by_the_standard_library(line: str, delimiter: str) -> None:
    try:
        expected = next(csv.reader([line.strip("\r\n")], delimiter=delimiter, skipinitialspace=delimiter == " "), [])
    except csv.Error:
        expected = []
    assert parse_line(line, delimiter) == expected
