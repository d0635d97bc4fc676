"""What `mdl data inspect` draws."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mdl.data.describe import draw_window, sparkline
from mdl.peers.cli.main import main


def test_a_line_rises_from_the_lowest_to_the_highest_value() -> None:
    assert sparkline(np.arange(8.0)) == "▁▂▃▄▅▆▇█"
    assert sparkline(np.ones(5)) == "▁" * 5
    assert len(sparkline(np.arange(1000.0))) == 48
    lines = draw_window(np.zeros((12, 20)))
    assert lines[0].startswith("  channel 1 ")
    assert lines[-1] == "  and 3 channels more"


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spec: str) -> int:
    monkeypatch.setattr("sys.argv", ["mdl", "data", "inspect", spec, "--cache", str(tmp_path / "cache")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_inspect_draws_a_window_of_each_class_and_says_how_long_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{row / 50:.2f},{row % 16},{'ab'[row // 100 % 2]}" for row in range(400)]
    (tmp_path / "a.csv").write_text("\n".join(["time,v,activity", *lines]))
    assert run(monkeypatch, tmp_path, f"{tmp_path}/a.csv?label=activity&window=16") == 0
    told = capsys.readouterr().out
    assert "a:\n  v ▁" in told
    assert "█ 0 to 15\nb:\n" in told
    assert "a window is 0.32 s" in told


def test_inspect_without_a_label_draws_the_stream_or_names_the_likely_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{row / 50:.2f},{row % 16}" for row in range(400)]
    (tmp_path / "a.csv").write_text("\n".join(["time,v", *lines]))
    assert run(monkeypatch, tmp_path, f"{tmp_path}/a.csv") == 0
    told = capsys.readouterr().out
    assert "3 windows of 1 channel x 128 samples at 50 Hz" in told
    assert "no label is said: mdl predict reads it so, training needs ?label=" in told
    assert "  v " in told
    (tmp_path / "b.csv").write_text("\n".join(["time,v,Activity", *(f"{line},sit" for line in lines)]))
    assert run(monkeypatch, tmp_path, f"{tmp_path}/b.csv") == 2
    assert "?label=Activity" in capsys.readouterr().err
