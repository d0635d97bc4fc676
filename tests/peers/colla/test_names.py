"""Whose names are, kept over the starts of a cloud."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mdl.errors import DamagedError, RemoteProtocolError
from mdl.peers.cloud.names import DEVICES, NAME_FILES, open_names
from mdl.transport.links import hub as names_module

ANN, BOB = bytes([1]) * 32, bytes([2]) * 32


def test_names_are_kept_for_this_user_alone_and_hold_after_a_start(tmp_path: Path) -> None:
    out = tmp_path / "cloud"
    open_names(out).check(["device-ann", "pupil a.b"], ANN)
    assert stat.S_IMODE((out / DEVICES).stat().st_mode) == 0o600
    again = open_names(out)
    again.check(["device-ann"], ANN)
    for name in ("device-ann", "pupil a.b"):
        with pytest.raises(RemoteProtocolError, match="another device"):
            again.check([name], BOB)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def test_a_line_that_was_not_finished_is_nobodys(tmp_path: Path) -> None:
    open_names(tmp_path).check(["ann", "bob"], ANN)
    for each in NAME_FILES:
        _cut(tmp_path / each)
    again = open_names(tmp_path)
    again.check(["bob"], BOB)
    with pytest.raises(RemoteProtocolError, match="the name ann"):
        open_names(tmp_path).check(["ann"], BOB)
    open_names(tmp_path).check(["bob"], BOB)


def test_a_line_that_says_nothing_is_named(tmp_path: Path) -> None:
    open_names(tmp_path).check(["ann"], ANN)
    for each in NAME_FILES:
        with (tmp_path / each).open("a") as file:
            file.write("whatever\n")
    with pytest.raises(
        DamagedError, match=r"devices.txt: line 2 is damaged: expected 64 hexadecimal digits and a name"
    ):
        open_names(tmp_path)


def test_names_of_an_older_version_are_read(tmp_path: Path) -> None:
    (tmp_path / DEVICES).write_text(f"{ANN.hex()} ann\n{BOB.hex()} pupil a.b\n")
    with pytest.raises(RemoteProtocolError, match=r"the name pupil a\.b"):
        open_names(tmp_path).check(["pupil a.b"], ANN)


def test_a_name_whose_line_was_removed_by_hand_is_whose_comes_next(tmp_path: Path) -> None:
    open_names(tmp_path).check(["ann", "bob"], ANN)
    path = tmp_path / DEVICES
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))
    open_names(tmp_path).check(["bob"], BOB)


def test_no_damaged_byte_gives_a_name_to_another_device(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_names(tmp_path).check(["ann", "pupil a.b"], ANN)
    path = tmp_path / DEVICES
    whole = path.read_bytes()
    for at in range(len(whole)):
        for bit in (0x01, 0x02, 0x40):
            broken = bytearray(whole)
            broken[at] ^= bit
            path.write_bytes(broken)
            caplog.clear()
            again = open_names(tmp_path)
            for name in ("ann", "pupil a.b"):
                with pytest.raises(RemoteProtocolError, match="another device"):
                    again.check([name], BOB)
            assert len(caplog.records) == 1, at
            assert path.read_bytes() == whole
    for damage in (b"", bytes(len(whole)), whole[:50], whole[:-9]):
        path.write_bytes(damage)
        open_names(tmp_path)
        assert path.read_bytes() == whole
    path.unlink()
    open_names(tmp_path)
    assert path.read_bytes() == whole


def test_who_gave_something_keeps_its_name_over_starts_and_a_full_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = open_names(tmp_path)
    names.check(["ann"], ANN)
    names.note_worked("ann")
    names.note_worked("nobody")
    monkeypatch.setattr(names_module, "MOST_NAMES", 8)
    for start in range(3):
        again = open_names(tmp_path)
        for number in range(20):
            again.check([f"made up {start} {number}"], bytes([number]) * 32)
        with pytest.raises(RemoteProtocolError, match="another device"):
            again.check(["ann"], BOB)
    lines = [(tmp_path / each).read_text().splitlines() for each in NAME_FILES]
    assert lines[0] == lines[1]
    assert len(lines[0]) <= 8


def test_a_name_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    names = open_names(tmp_path)
    for name in ("two\nlines", "#ann", "tab\there", "x" * 100):
        with pytest.raises(RemoteProtocolError, match="cannot be kept: it is no name"):
            names.check([name], ANN)
    names.check(["ann"], ANN)
    open_names(tmp_path).check(["ann"], ANN)
