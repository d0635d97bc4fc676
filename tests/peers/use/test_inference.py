"""`mdl eval` and `mdl predict` on files that came from somebody else."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from mdl.files.export import ModelDescription, export_model
from mdl.learning.models import build_model
from mdl.peers.cli.main import main

OWN = """
from pathlib import Path
Path("imported").touch()
import numpy as np
from torch import nn
def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
def data(n="60"):
    n = int(n)
    return np.ones((n, 16, 3)), np.arange(n) // 2 % 2, np.arange(n) // 6
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_of_this_test.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "own_of_this_test", raising=False)
    return tmp_path


def write_model(folder: Path, model: str, data: str) -> str:
    description = ModelDescription(model, 3, 16, ("0", "1"), data)
    own = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    export_model(folder / "m.safetensors", own if ":" in model else build_model(model, 3, 16, 2, 0), description)
    return str(folder / "m.safetensors")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["mdl", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("command", ["eval", "predict"])
@pytest.mark.parametrize(
    ("model", "data", "answer"),
    [
        ("own_of_this_test:make", "motion", "--model module:function"),
        ("lenet", "own_of_this_test:data", "--data SPEC"),
        ("lenet", "os:system?command=touch imported", "--data SPEC"),
        ("lenet", "csv:/etc/passwd?label=x", "--data SPEC"),
        ("lenet", "npz:own.npz", "--data SPEC"),
    ],
)
def test_a_model_file_makes_mdl_neither_import_nor_open_anything(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, model: str,
    data: str, answer: str,
) -> None:  # fmt: skip
    file = write_model(folder, model, data)
    assert run(monkeypatch, command, file) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mdl: ")
    assert answer in line
    assert not (folder / "imported").exists()


@pytest.mark.parametrize("command", ["eval", "predict"])
def test_the_user_may_say_what_a_file_may_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    arrays = {"x": np.ones((60, 16, 3)), "y": np.arange(60) // 2 % 2, "subject": np.arange(60) // 6}
    np.savez(folder / "own.npz", **arrays)  # type: ignore[arg-type]
    file = write_model(folder, "own_of_this_test:make", "os:abort")
    for data in ("own_of_this_test:data", f"npz:{folder}/own.npz"):
        assert run(monkeypatch, command, file, "--model", "own_of_this_test:make", "--data", data, "--json") == 0
        assert "predict" in command or '"accuracy"' in capsys.readouterr().out


def test_a_model_the_user_names_must_fit_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_model(folder, "lenet", "motion")
    assert run(monkeypatch, "eval", file, "--model", "alexnet") == 2
    assert "does not fit model 'alexnet'" in capsys.readouterr().err
