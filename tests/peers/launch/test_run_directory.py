"""What follows a run's files costs the same after thirteen thousand rounds as after the first."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from mdl.files import figures as tails
from mdl.files.figures import ROUNDS_KEPT, LineTail, RoundReader
from mdl.peers.launch.run_directory import CycleReader
from mdl.protocol.status_messages import RoundSummary

MANY = 13_000


def _line(number: int) -> bytes:
    summary = RoundSummary(
        round=number, theta=2.0, contributors=("a", "b"), hops=(("a", "b"),), seconds={"total": 0.5}, bytes=10,
        loss=0.5, lost=(), digest="00",
    )  # fmt: skip
    return msgspec.json.encode(summary) + b"\n"


def _append(path: Path, *lines: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(lines))


def test_a_look_costs_what_is_new_and_not_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, reader, decoded = tmp_path / "agent" / "metrics.jsonl", RoundReader(tmp_path), [b""]
    decode = tails._decode

    def count(line: bytes) -> RoundSummary:
        decoded.append(line)
        return decode(line)

    monkeypatch.setattr(tails, "_decode", count)
    _append(metrics, *(_line(number) for number in range(1, MANY + 1)))
    assert len(reader.new()) == MANY
    decoded.clear()
    for number in range(MANY + 1, MANY + 6):
        assert reader.new() == []
        _append(metrics, _line(number))
        assert [summary.round for summary in reader.new()] == [number]
    assert len(decoded) == 5
    assert (len(reader.rounds), reader.rounds[-1].round) == (ROUNDS_KEPT, MANY + 5)


def test_a_round_that_two_nodes_have_written_is_new_once(tmp_path: Path) -> None:
    reader = RoundReader(tmp_path)
    _append(tmp_path / "agent" / "metrics.jsonl", _line(1), _line(2))
    assert [summary.round for summary in reader.new()] == [1, 2]
    _append(tmp_path / "peer-1" / "metrics.jsonl", _line(2), _line(3))
    assert [summary.round for summary in reader.new()] == [3]


def test_of_the_clouds_cycles_the_newest_is_known(tmp_path: Path) -> None:
    reader = CycleReader(tmp_path)
    reader.look()
    assert reader.last is None
    _append(tmp_path / "cloud" / "cycles.jsonl", *(b'{"version":%d}\n' % version for version in range(1, MANY)))
    reader.look()
    assert reader.last == {"version": MANY - 1}


def test_a_line_that_is_being_written_comes_when_it_is_whole(tmp_path: Path) -> None:
    path, tail = tmp_path / "lines", LineTail(tmp_path / "lines")
    assert tail.new() == []
    _append(path, b"one\ntw")
    assert tail.new() == [b"one"]
    _append(path, b"o\nthree\n")
    assert tail.new() == [b"two", b"three"]
    assert tail.new() == []


def test_a_file_that_was_cut_short_or_replaced_is_read_from_its_beginning(tmp_path: Path) -> None:
    path, tail = tmp_path / "lines", LineTail(tmp_path / "lines")
    _append(path, b"one\ntwo\nth")
    assert tail.new() == [b"one", b"two"]
    path.write_bytes(b"new\n")
    assert tail.new() == [b"new"]
    (tmp_path / "other").write_bytes(b"longer than before\nby far\n")
    (tmp_path / "other").replace(path)
    assert tail.new() == [b"longer than before", b"by far"]
