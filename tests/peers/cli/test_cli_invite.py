"""What surrounds an invitation on the command line: which mesh it opens, and the code as a picture."""

from __future__ import annotations

import builtins
from typing import Any

import pytest

from mdl.config import load_config
from mdl.errors import ConfigError
from mdl.peers.cli import invite

CODE = "home:k7q2-9xvd-k7q2-9xvd-k7q2"


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []

    def take(words: str, **_: object) -> tuple[str, str]:
        said.append(words)
        return "home", "home.code"

    monkeypatch.setattr(invite, "take_code", take)
    return said


def test_a_peer_trains_in_the_mesh_that_its_words_open_and_in_a_run_of_it(taken: list[str]) -> None:
    settings = load_config(None, {"data.spec": "motion"}, [])
    assert invite.be_let_in(None, "ward", settings) == "ward"
    assert not taken
    assert invite.be_let_in("a b c", None, settings) == "home"
    assert invite.be_let_in("a b c", "home/gait", settings) == "home/gait"
    with pytest.raises(ConfigError, match="the invitation was into 'home'"):
        invite.be_let_in("a b c", "ward", settings)


def test_words_are_not_used_up_by_a_command_that_names_no_data(taken: list[str]) -> None:
    with pytest.raises(ConfigError, match="data"):
        invite.be_let_in("a b c", None, load_config(None, {}, []))
    assert not taken


def test_the_code_is_drawn_with_a_margin_that_cameras_need() -> None:
    pytest.importorskip("segno")
    rows = invite.draw_qr(CODE).splitlines()
    assert len({len(row) for row in rows}) == 1
    assert set(rows[0]) == set(rows[1]) == {"█"}  # four light modules
    assert all(row.startswith("████") and row.endswith("████") for row in rows[:-1])
    assert invite.draw_qr(CODE.replace("k7", "k8")) != invite.draw_qr(CODE)


def test_without_segno_it_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *given: Any) -> Any:
        if name == "segno":
            raise ImportError(name)
        return real(name, *given)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match="pip install 'mdl"):
        invite.draw_qr(CODE)
