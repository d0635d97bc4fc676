"""Who could not join, or has not used what it got, joins again in the same process, as a notebook does."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from torch import nn

from mdl.errors import ConfigError, MdlError
from mdl.peers.api import join
from mdl.peers.loops import Member
from mdl.transport.trust.keys import new_join_code


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path))


def _join(code: str, port: int = 0) -> Member:
    return join("lab", model=nn.Linear(2, 2), code=code, port=port, loopback=True, quiet=True)


def test_a_join_that_failed_is_tried_again_under_the_same_name() -> None:
    code = new_join_code("lab")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(MdlError):
            _join(code, taken.getsockname()[1])
    with _join(code) as member:
        assert not member.name.endswith("-2")


def test_a_member_that_was_used_without_with_is_joined_again_under_its_name() -> None:
    code = new_join_code("lab")
    first = _join(code)
    with pytest.raises(ConfigError, match="a member is used as"):
        next(iter(first))
    with _join(code) as again:
        assert again.name == first.name
    with pytest.raises(ConfigError, match="a member is used as"), first:
        pass
