"""One core of a small board is left to whatever else it does, unless its user says otherwise."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import pytest

from mdl.peers.edge import small as threads
from mdl.peers.edge.small import VARIABLE, board_model, choose_threads, leave_a_core


@pytest.mark.parametrize(("cores", "chosen"), [(1, 1), (2, 1), (4, 3), (8, 8)])
def test_few_cores_keep_one(cores: int, chosen: int) -> None:
    assert choose_threads(cores) == chosen


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv(VARIABLE, "9")  # put back after the test
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)
    (tmp_path / "proc/device-tree").mkdir(parents=True)
    (tmp_path / "proc/device-tree/model").write_bytes(b"Raspberry Pi 4 Model B Rev 1.4\0")
    return tmp_path


def test_a_raspberry_pi_trains_with_three_of_four_and_says_so(board: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        leave_a_core(board)
    assert os.environ[VARIABLE] == "3"
    assert "3 of 4 cores train on Raspberry Pi 4 Model B Rev 1.4" in caplog.text


def test_a_users_own_number_stands(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "4")
    leave_a_core(board)
    assert os.environ[VARIABLE] == "4"


def test_other_machines_are_left_as_they_are(board: Path, tmp_path: Path) -> None:
    leave_a_core(tmp_path / "elsewhere")
    assert VARIABLE not in os.environ
    assert board_model(tmp_path / "elsewhere") == ""
