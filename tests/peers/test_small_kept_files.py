"""The small files of a device: one that has changed on the disk is told, and the version before it is gone on from."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdl.errors import ConfigError
from mdl.files.kept import previous_of
from mdl.peers.deeptype.home import PERSONAL_FILES, RECORD, PersonalRecord, read_record, write_record
from mdl.peers.edge import membership
from mdl.peers.sharing import SharedWindows, read_shares, write_shares

SHARES = [SharedWindows("00" * 16, "77" * 32, "watch", 40, 10), SharedWindows("11" * 16, "78" * 32, "pi", 20, 5)]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(membership.KEY_VARIABLE, raising=False)


def change(path: Path, before: bytes, after: bytes) -> None:
    content = path.read_bytes()
    assert before in content
    path.write_bytes(content.replace(before, after, 1))


def test_a_device_key_with_another_digit_is_no_other_device() -> None:
    secret = membership.device_key()
    path = membership.key_path()
    digit = path.read_bytes()[:1]
    change(path, digit, b"0" if digit != b"0" else b"1")
    with pytest.raises(ConfigError, match=r"has changed since it was written.*put a copy of it back, or remove it"):
        membership.device_key()
    path.write_bytes(digit + path.read_bytes()[1:])
    assert membership.device_key().public == secret.public


def test_a_device_key_of_before_the_checksum_is_read() -> None:
    public = membership.device_key().public
    path = membership.key_path()
    path.write_bytes(path.read_bytes()[:65])
    assert membership.device_key().public == public


def test_a_record_that_has_changed_is_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_record(tmp_path, PersonalRecord(words=100, trainings=1))
    write_record(tmp_path, PersonalRecord(words=200, trainings=2))
    change(tmp_path / RECORD, b"200", b"900")
    assert read_record(tmp_path) == PersonalRecord(words=100, trainings=1)
    assert "the last training is not counted" in caplog.text
    assert previous_of(Path(RECORD)).name in PERSONAL_FILES, "it is forgotten, too"


def test_a_book_of_shares_that_has_changed_is_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "state/mdl/home--shared").mkdir(parents=True)
    write_shares("home", SHARES[:1])
    write_shares("home", SHARES)
    book = next((tmp_path / "state").rglob("given.json"))
    assert read_shares("home") == SHARES
    change(book, b"40", b"80")
    assert read_shares("home") == SHARES[:1]
