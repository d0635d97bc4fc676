"""The secret that opens a page: of the device that serves it, kept for its user alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from mdl.errors import ConfigError
from mdl.peers.web.opening import FILE, TOKEN_VARIABLE, page_token
from mdl.transport.trust.keys import Mesh, new_join_code

CODE = new_join_code("home", bytes(range(19)))
MESH = Mesh.from_code(CODE)


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "one"))
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


def test_it_is_another_one_on_each_device_and_stays_for_a_bookmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, path = page_token(MESH)
    assert path == tmp_path / "one" / "mdl" / "home" / FILE
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == f"{token}\n", "Prometheus reads it from there"
    assert page_token(MESH) == (token, path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "two"))
    assert page_token(MESH)[0] != token, "who has the join code does not know it"


def test_one_that_others_could_read_or_that_is_damaged_is_replaced() -> None:
    token, path = page_token(MESH)
    assert path is not None
    path.chmod(0o644)
    other, _ = page_token(MESH)
    assert other != token
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("short")
    assert len(page_token(MESH)[0]) == 32


def test_a_run_that_is_over_and_a_disk_that_keeps_nothing_have_a_new_one_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert page_token(None)[0] != page_token(None)[0]
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    (first, path), (second, _) = page_token(MESH), page_token(MESH)
    assert path is None
    assert first != second


def test_one_token_for_several_devices_is_given_and_not_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("a" * 32)
    monkeypatch.setenv(TOKEN_VARIABLE, f"@{tmp_path / 'token'}")
    assert page_token(MESH) == ("a" * 32, tmp_path / "token")
    monkeypatch.setenv(TOKEN_VARIABLE, "b" * 32)
    assert page_token(None) == ("b" * 32, None)
    for wrong in ("short", "with space" * 4, f"@{tmp_path / 'missing'}"):
        monkeypatch.setenv(TOKEN_VARIABLE, wrong)
        with pytest.raises(ConfigError, match=TOKEN_VARIABLE):
            page_token(MESH)
