"""The board's meter is a command: it is asked beside the loop, and may fail in any way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mdl.devices.energy import BOARD, MeterReading
from mdl.errors import DataError
from mdl.peers.edge import sampler as meters
from mdl.peers.edge.sampler import BoardMeter, find_board, run_bounded

RAILS = "VDD_CORE_A current(7)=2.0A\nVDD_CORE_V volt(15)=0.75V"


@pytest.fixture
def vcgencmd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Return a function that puts a program of that name on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(script: str) -> Path:
        path = tmp_path / "vcgencmd"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    return write


def _answer(meter: BoardMeter) -> MeterReading | None:
    """Return the reading once the board has answered."""
    meter()
    assert meter._asking
    meter._asking.join(20.0)
    assert not meter._asking.is_alive()
    return meter()


def _meter() -> BoardMeter:
    meter = find_board()
    assert isinstance(meter, BoardMeter)
    return meter


def test_without_the_command_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    before = threading.active_count()
    assert find_board()() is None
    assert threading.active_count() == before


def test_the_board_is_asked_for_its_rails_in_another_thread(vcgencmd: Callable[[str], Path]) -> None:
    vcgencmd(f'test "$*" = pmic_read_adc || exit 1\nsleep 0.2\necho "{RAILS}"')
    meter = _meter()
    began = time.monotonic()
    first = meter()
    assert first == MeterReading(BOARD, 0.0), "not answered yet"
    assert time.monotonic() - began < 0.2, "the loop does not wait"
    reading = _answer(meter)
    assert reading
    assert (reading.source, reading.watts) == (BOARD, pytest.approx(1.5))
    assert began < reading.at_s <= time.monotonic()


def test_it_is_asked_again_after_two_seconds_and_not_before(vcgencmd: Callable[[str], Path], tmp_path: Path) -> None:
    path = vcgencmd(f'echo x >> "{tmp_path}/asked"\necho "{RAILS}"')
    now = [10.0]
    meter = BoardMeter((str(path), "pmic_read_adc"), lambda: now[0])
    for now[0] in (10.0, 11.0, 11.9, 12.0, 13.0):
        _answer(meter)
    assert (tmp_path / "asked").read_text() == "x\nx\n"


@pytest.mark.parametrize("script", ["echo 'error=1 error_msg=\"Command not registered\"'", "exit 1", ":"])
def test_a_board_before_the_fifth_is_given_up_after_three_tries(
    vcgencmd: Callable[[str], Path], tmp_path: Path, script: str
) -> None:
    path = vcgencmd(f'echo x >> "{tmp_path}/asked"\n{script}')
    now = [0.0]
    meter = BoardMeter((str(path), "pmic_read_adc"), lambda: now[0])
    for now[0] in range(0, 20, 2):
        assert _answer(meter) is None
    assert (tmp_path / "asked").read_text() == "x\n" * 3


def test_a_board_that_failed_once_after_an_answer_is_asked_on(vcgencmd: Callable[[str], Path]) -> None:
    path = vcgencmd(f'echo "{RAILS}"')
    now = [0.0]
    meter = BoardMeter((str(path), "pmic_read_adc"), lambda: now[0])
    _answer(meter)
    vcgencmd("exit 1")
    for now[0] in (2.0, 4.0, 6.0, 8.0):
        assert _answer(meter) == MeterReading(BOARD, 0.0, 1.5), "the last one, with its time"
    vcgencmd(f'echo "{RAILS}"')
    now[0] = 10.0
    assert _answer(meter) == MeterReading(BOARD, 10.0, 1.5)


def test_nonsense_is_an_error_in_one_line(vcgencmd: Callable[[str], Path]) -> None:
    vcgencmd("echo 'X_A current(1)=lotsA'\necho 'X_V volt(1)=1V'")
    with pytest.raises(DataError, match="'lotsA' is no current or voltage"):
        _answer(_meter())


def test_a_file_that_is_no_program_is_no_meter(vcgencmd: Callable[[str], Path]) -> None:
    vcgencmd("").write_bytes(b"\x7fELF nothing")
    assert _answer(_meter()) is None


def test_a_command_that_hangs_is_ended_with_its_children(
    vcgencmd: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meters, "_COMMAND_S", 0.3)
    vcgencmd("sleep 60 &\nsleep 60")
    began = time.monotonic()
    assert _answer(_meter()) is None
    assert time.monotonic() - began < 15.0


def test_output_without_an_end_is_not_read_to_it(vcgencmd: Callable[[str], Path]) -> None:
    path = vcgencmd("while :; do echo lots of text; done")
    assert len(run_bounded((str(path),))) == 16 << 10


def test_no_more_threads_is_no_meter(vcgencmd: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    vcgencmd(f'echo "{RAILS}"')
    meter = _meter()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert meter() is None
