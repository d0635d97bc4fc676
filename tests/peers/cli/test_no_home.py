"""A user without a home directory, as any number may be in a container: it is told what to set, and nothing is left."""

from __future__ import annotations

import os

import pytest

from mdl.errors import ConfigError
from mdl.peers.command.options import need_home

KEPT_IN = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", *KEPT_IN):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54_321)  # nobody in the list of users


@pytest.mark.usefixtures("homeless")
def test_without_a_home_it_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="set HOME, or XDG_CONFIG_HOME, XDG_STATE_HOME, XDG_CACHE_HOME"):
        need_home()
    monkeypatch.setenv("XDG_STATE_HOME", "/srv/state")
    with pytest.raises(ConfigError, match="set HOME, or XDG_CONFIG_HOME, XDG_CACHE_HOME"):
        need_home()


@pytest.mark.usefixtures("homeless")
def test_a_home_or_all_three_places_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEPT_IN:
        monkeypatch.setenv(name, "/srv")
    need_home()
    for name in KEPT_IN:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/srv")
    need_home()
