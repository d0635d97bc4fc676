"""The progress bar: where nobody sees it, nothing of it is there."""

from __future__ import annotations

import logging

import pytest
import rich.progress

from mdl.peers.command import progress
from mdl.peers.command.progress import progress_bar


def test_a_bar_that_is_not_shown_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With rich 13 the end of one that is switched off is an empty line, before the one line of an error."""

    def end(progress: rich.progress.Progress) -> None:
        progress.console.print()

    monkeypatch.setattr(rich.progress.Progress, "stop", end)
    with progress_bar() as show:
        show("steps", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_where_no_terminal_is_a_line_tells_it_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with caplog.at_level(logging.INFO), progress_bar() as show:
        for second in range(100):
            clock[0] = float(second)
            show("training", second, 100, "loss 1.5")
    assert [record.getMessage() for record in caplog.records] == [
        f"training: {percent}%, loss 1.5" for percent in (30, 60, 90)
    ]
