"""The processes of `mdl up`: what they load does not depend on the folder they are started in."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdl.peers.launch.processes import Children


def test_a_folder_cannot_bring_its_own_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "from pathlib import Path\nPath('imported').touch()\nraise SystemExit(9)\n"
    for name in ("msgspec", "typer", "json"):
        (tmp_path / f"{name}.py").write_text(hostile)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with Children(tmp_path / "logs", "", 1) as children:
        child = children.start("list", "mesh", "list", "--json")
        child.process.wait(60)
    assert child.result() == {"meshes": []}, child.log.read_text()
    assert not (tmp_path / "imported").exists()
