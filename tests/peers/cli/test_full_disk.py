"""A disk that takes nothing, and a place that is none: one line, an exit code, and nothing that was there is lost."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from mdl.data.readers.catalogue import find_public_set
from mdl.errors import MdlError, StorageError
from mdl.peers.cli import data as cli_data
from mdl.transport.trust.keys import new_join_code
from mdl.writing import check_writable, save_or_rescue, write_bytes

CODE = new_join_code("lab")
PEER = ["peer", "--code", CODE, "--loopback", "--data", "motion?people=6&test_people=2&windows=40"]
COMMANDS = {
    "mesh new": ["mesh", "new", "home"],
    "peer": PEER,
    "scheduler train": ["scheduler", "train", "--steps", "1", "--out", "policy.safetensors"],
    "up": ["up", "-n", "2", "--data", "motion?people=6&test_people=2&windows=40", "--out", "run"],
}


def _no_room() -> None:
    """Of this process: a file is full as soon as it has a byte. Python ignores the signal, so that writing fails."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _run(folder: Path, words: list[str], full: bool) -> tuple[int, list[str], dict[str, object]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MDL_")}
    environment |= {
        "HOME": str(folder / "home"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment |= {name: str(folder / "home") for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME")}
    done = subprocess.run(
        [sys.executable, "-m", "mdl", *words, "--json"],
        cwd=folder,
        env=environment | {"PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=180,
        preexec_fn=_no_room if full else None,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr.splitlines(), json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policy.safetensors").write_bytes(b"the old one")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_one_line(folder: Path, command: str) -> None:
    code, lines, told = _run(folder, COMMANDS[command], full=True)
    assert code == told["exit_code"]
    assert code in (2, 4)
    assert lines[-1] == f"mdl: {told['error']}"
    assert "File too large" in lines[-1] or "cannot write" in lines[-1], lines
    assert (folder / "policy.safetensors").read_bytes() == b"the old one"
    assert not [path for path in folder.rglob("*") if path.suffix in (".part", ".probe")]


@pytest.mark.parametrize("command", ["mesh new", "peer"])
def test_a_home_that_cannot_be_written_to_is_one_line(folder: Path, command: str) -> None:
    (folder / "home").write_text("a file where a folder should be")  # root may write everywhere else
    code, lines, told = _run(folder, COMMANDS[command], full=False)
    assert (code, told["exit_code"]) == (2, 2)
    assert lines[-1] == f"mdl: {told['error']}"
    assert "Not a directory" in lines[-1]


def test_a_data_set_is_kept_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, target: object) -> None:
        target.write(b"half")  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mdl.data.readers.catalogue.check_content", lambda *_: None)
    given, kept = tmp_path / "given.npz", tmp_path / "kept"
    given.write_bytes(b"whole")
    known = find_public_set("uci-har")
    assert cli_data._take(known, given, kept, "").read_bytes() == b"whole"
    given.write_bytes(b"newer")
    monkeypatch.setattr("shutil.copyfileobj", refuse)
    with pytest.raises(StorageError, match="No space left on device") as raised:
        cli_data._take(known, given, kept, "")
    assert raised.value.exit_code == 4
    assert [path.read_bytes() for path in kept.iterdir()] == [b"whole"]
    with pytest.raises(StorageError, match="Not a directory"):
        cli_data._take(known, given, given, "")


def test_what_was_learned_is_saved_elsewhere_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(MdlError, match=r"Not a directory; it is in .*policy\.safetensors instead") as raised:
        save_or_rescue(tmp_path / "file" / "policy.safetensors", lambda path: write_bytes(path, b"learned"))
    assert raised.value.exit_code == 4
    (saved,) = tmp_path.glob("mdl-*-policy.safetensors")
    assert saved.read_bytes() == b"learned"


def test_a_place_is_tried_before_hours_of_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    check_writable(tmp_path / "file")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]
    with pytest.raises(StorageError, match="Not a directory") as raised:
        check_writable(tmp_path / "file" / "policy")
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 4), (errno.EIO, 4), (errno.EROFS, 2), (errno.EACCES, 2)])
def test_a_place_that_is_none_is_told_apart_from_one_that_is_full(number: int, code: int) -> None:
    assert StorageError("a", OSError(number, os.strerror(number))).exit_code == code
