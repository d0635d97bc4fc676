"""The progress bar: where nobody sees it, nothing of it is there."""

from __future__ import annotations

import pytest
import rich.progress

from peers.cli.progress import progress_bar


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
