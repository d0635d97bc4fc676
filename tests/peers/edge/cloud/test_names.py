"""Whose names are, kept over the starts of a cloud."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from mdl.errors import DataError, RemoteProtocolError
from peers.edge.cloud.names import DEVICES, open_names

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


def test_a_line_that_was_not_finished_is_nobodys(tmp_path: Path) -> None:
    open_names(tmp_path).check(["ann", "bob"], ANN)
    path = tmp_path / DEVICES
    path.write_bytes(path.read_bytes()[:-2])
    again = open_names(tmp_path)
    again.check(["bob"], BOB)
    with pytest.raises(RemoteProtocolError, match="the name ann"):
        open_names(tmp_path).check(["ann"], BOB)
    open_names(tmp_path).check(["bob"], BOB)


def test_a_line_that_says_nothing_is_named(tmp_path: Path) -> None:
    open_names(tmp_path).check(["ann"], ANN)
    with (tmp_path / DEVICES).open("a") as file:
        file.write("whatever\n")
    with pytest.raises(DataError, match=r"devices.txt: line 2: expected 64 hexadecimal digits and a name"):
        open_names(tmp_path)
