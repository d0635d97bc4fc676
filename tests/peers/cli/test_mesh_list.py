"""`mdl mesh list` is for looking over somebody's shoulder; the codes are shown to whoever asks for them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mdl.peers.cli.main import main


@pytest.fixture
def mdl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def run(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["mdl", *words])
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr().out.strip()

    return run


def test_a_join_code_is_shown_only_where_it_is_asked_for(mdl: Any) -> None:
    code = mdl("mesh", "new", "home")
    assert mdl("mesh", "list") == "home"
    assert json.loads(mdl("mesh", "list", "--json")) == {"meshes": [{"mesh": "home"}]}
    assert mdl("mesh", "list", "--codes").split() == ["home", code]
    assert json.loads(mdl("mesh", "list", "--codes", "--json"))["meshes"] == [{"mesh": "home", "code": code}]


@pytest.mark.parametrize(("command", "port"), [("cloud", "7777 by default"), ("peer", "7300 or any free one")])
def test_each_command_tells_its_own_port(mdl: Any, command: str, port: str) -> None:
    assert port in " ".join(mdl(command, "--help").split())
