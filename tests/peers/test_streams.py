"""What a command says reaches whatever its output is: another encoding, nothing at all, a pipe."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

from mdl.peers.streams import open_streams
from mdl.peers.view.terminal import PlainConsole, draw_curve

NAME = "\udce9t\udcff"  # as Python reads the bytes E9 74 FF of a file's name


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    places = {"HOME": tmp_path, "XDG_CACHE_HOME": tmp_path / "cache", "XDG_CONFIG_HOME": tmp_path / "config"}
    return os.environ | {name: str(place) for name, place in places.items()}


def written(encoding: str, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    open_streams()
    PlainConsole().print(text)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_written_in_other_characters(monkeypatch, encoding):
    assert written(encoding, monkeypatch, "peer-1→peer-2 …") == "peer-1->peer-2 ...\n"
    assert written(encoding, monkeypatch, draw_curve([0, 1])) == "_#\n"
    assert written(encoding, monkeypatch, "日") == "\\u65e5\n"


def test_what_an_encoding_has_stays(monkeypatch):
    assert written("latin-1", monkeypatch, "café") == "café\n"
    assert written("utf-8", monkeypatch, "a→b ▁█") == "a→b ▁█\n"


def test_a_pipe_gets_whole_lines_and_whole_cells(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    console = PlainConsole(file=io.StringIO())
    table = Table("peer", "battery", box=None)
    table.add_row("p" * 90, "mains")
    console.print(table)
    console.print("word " * 40)
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "battery" in shown[0]
    assert "mains" in shown[1]
    assert shown[2].count("word") == 40


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_command_whose_output_is_closed_does_its_work(tmp_path, environment, closed):
    command = f'exec "{sys.executable}" -m mdl mesh new home {closed}'
    ended = subprocess.run(["sh", "-c", command], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr
    (kept,) = (tmp_path / "config").rglob("home.code")
    assert len(kept.read_text().splitlines()) == 1  # nothing that was said went into it


def test_recordings_whose_names_are_no_utf_8_are_read(tmp_path, environment):
    folder = tmp_path / NAME
    folder.mkdir()
    rows = "".join(f"{number / 50},{number % 7},{'walk' if number % 400 < 200 else 'sit'}\n" for number in range(1600))
    (folder / f"{NAME}.csv").write_text(f"time,acc_x,activity\n{rows}")
    spec = f"csv:{folder}?label=activity&window=50"
    ended = subprocess.run(
        [sys.executable, "-m", "mdl", "data", "inspect", spec], env=environment, capture_output=True, check=False
    )
    assert ended.returncode == 0, ended.stderr.decode()
    assert b"\\udce9t\\udcff" in ended.stdout
