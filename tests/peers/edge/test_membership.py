"""What this user's devices keep of a mesh on disk: one device key, and a roster that nobody's words are lost from."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from peers.edge import membership as kept


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(kept.KEY_VARIABLE, raising=False)


def test_a_device_has_one_key_also_where_there_are_no_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Android, FAT and some network disks."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "link", refuse)
    assert kept.device_key().public == kept.device_key().public
    assert stat.S_IMODE(kept.key_path().stat().st_mode) == 0o600


def test_whoever_starts_at_the_same_moment_has_the_same_key() -> None:
    with ThreadPoolExecutor(16) as pool:
        keys = {key.public for key in pool.map(lambda _: kept.device_key(), range(64))}
    assert len(keys) == 1
    assert [path.name for path in kept.key_path().parent.iterdir() if path.name != ".lock"] == [kept.key_path().name]
