"""`mdl data`: what it prints, what it keeps, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mdl.errors import ConfigError, DataError
from mdl.peers.cli.data import app


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def run(*arguments: str) -> str:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False).stdout


def last_json(*arguments: str) -> dict[str, object]:
    found = json.loads(run(*arguments).splitlines()[-1])
    assert isinstance(found, dict)
    return found


def test_inspect_ends_in_one_json_object(own_folders: Path) -> None:
    found = last_json("inspect", "motion?people=2&test_people=1&windows=12", "--json")
    assert found["synthetic"] is True
    assert found["channels"] == 9
    assert found["train"]["windows"] == 24  # type: ignore[index]


def test_inspect_says_in_words_that_motion_is_synthetic(own_folders: Path) -> None:
    shown = run("inspect", "motion?people=2&test_people=1&windows=12")
    assert "SYNTHETIC" in shown
    assert "walking" in shown


def test_list_names_every_source_and_what_is_here(own_folders: Path) -> None:
    assert "SYNTHETIC" in run("list")
    sets = last_json("list", "--json")["sets"]
    assert [known["name"] for known in sets] == ["uci-har", "semg"]  # type: ignore[attr-defined]
    assert [known["path"] for known in sets] == [None, None]  # type: ignore[attr-defined]


def write_uci_har(path: Path) -> Path:
    arrays: dict[str, np.ndarray] = {}
    for side, subject in (("train", 1), ("test", 2)):
        arrays[f"{side}_X"] = np.zeros((4, 128, 9), dtype=np.float32)
        arrays[f"{side}_y"] = np.arange(1, 5)
        arrays[f"{side}_subject"] = np.full(4, subject)
    np.savez(path, **arrays)
    return path


def test_a_file_that_was_handed_over_is_used_without_a_path(own_folders: Path) -> None:
    with pytest.raises(DataError, match="mdl data get uci-har"):
        run("inspect", "uci-har")
    got = last_json("get", "uci-har", "--from", str(write_uci_har(own_folders / "mine.npz")), "--json")
    assert got["spec"] == "uci-har"
    assert last_json("inspect", "uci-har", "--json")["window"] == 128


def test_a_file_can_be_kept_elsewhere(own_folders: Path) -> None:
    source = str(write_uci_har(own_folders / "mine.npz"))
    got = last_json("get", "uci-har", "--from", source, "--to", str(own_folders / "sets"), "--json")
    assert got["spec"] == f"uci-har:{own_folders}/sets/uci-har.npz"


def test_a_file_that_is_something_else_is_not_kept(own_folders: Path) -> None:
    np.savez(own_folders / "other.npz", x=np.zeros(3))
    with pytest.raises(DataError, match="no array 'train_X'"):
        run("get", "uci-har", "--from", str(own_folders / "other.npz"))
    with pytest.raises(DataError, match="SHA-256"):
        run("get", "uci-har", "--from", str(write_uci_har(own_folders / "mine.npz")), "--sha256", "0" * 64)
    with pytest.raises(DataError, match=r"expected the \.zip or \.npz"):
        run("get", "uci-har", "--from", str(own_folders / "absent.zip"))
    assert not (own_folders / "share").exists()


def test_an_unknown_set_names_the_closest(own_folders: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean uci-har"):
        run("get", "uci_har")


def test_the_command_loads_neither_numpy_nor_torch() -> None:
    code = (
        "import sys, mdl.peers.cli.data; "
        "print([name for name in ('numpy', 'torch', 'rich.table') if name in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
