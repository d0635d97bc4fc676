"""Who waits without its model: a device on its own, for which nothing could go wrong later that can be told now."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mdl.config import Config, load_config
from mdl.peers.edge import node as waiting
from mdl.peers.edge.identity import claim_again, claim_identity
from mdl.peers.edge.node import _introduced, _may_wait, wait_for_others
from mdl.peers.interrupts import LIFELINE_VARIABLE
from mdl.protocol.delta import Contributor
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.trust.keys import Mesh

SMALL = "motion?people=3&test_people=1&windows=20"


@pytest.fixture(autouse=True)
def _no_torch_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.delenv(LIFELINE_VARIABLE, raising=False)


def _config(**overrides: object) -> Config:
    given = {"data.spec": SMALL} | {key.replace("__", "."): value for key, value in overrides.items()}
    return load_config(None, given, [])


def test_a_new_device_with_a_built_in_model_waits(tmp_path: Path) -> None:
    assert _may_wait(_config(), tmp_path, False)


@pytest.mark.parametrize(
    "overrides",
    [
        {"model__name": "nosuch"},
        {"model__name": "my:model"},
        {"training__device": "cuda"},
        {"cloud__address": "10.0.0.1:7777"},
        {"round__min_peers": 1},
        {"device__max_memory_mb": 10.0},
    ],
)
def test_what_may_fail_with_the_model_is_not_put_off(tmp_path: Path, overrides: dict[str, object]) -> None:
    assert not _may_wait(_config(**overrides), tmp_path, False)


def test_a_device_that_has_trained_begins_anew_or_was_started_by_another_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not _may_wait(_config(), tmp_path, True)
    monkeypatch.setenv(LIFELINE_VARIABLE, "1")
    assert not _may_wait(_config(), tmp_path, False)
    monkeypatch.delenv(LIFELINE_VARIABLE)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert not _may_wait(_config(), tmp_path, False)


def test_where_torch_is_there_already_nothing_is_put_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", sys)
    assert not _may_wait(_config(), tmp_path, False)


def test_windows_too_short_for_the_model_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the model itself: the device does not wait."""
    monkeypatch.setattr(waiting, "SHORTEST_TIME", 10_000)
    config, me = _config(), Contributor("ann", 1)
    assert wait_for_others(config, me, Mesh("home", None), tmp_path, False) == (config, me)


@pytest.mark.parametrize(
    ("role", "schema", "joined"),
    [(Role.TRAINER, "abc", ("10.0.0.2:4711",)), (Role.AGENT, "", ("10.0.0.2:4711",)), (Role.TRAINER, "", ())],
)
def test_who_was_met_is_greeted_again_unless_it_waited_too(role: Role, schema: str, joined: tuple[str, ...]) -> None:
    met = PeerInfo("bob", 1, role, "10.0.0.2", 4711, schema)
    assert _introduced(_config(), met).mesh.join == joined
    assert _introduced(_config(), None).mesh.join == ()


def test_the_trainer_is_a_later_start_than_the_one_that_waited(tmp_path: Path) -> None:
    me, directory = claim_identity(tmp_path, "ann")
    again = claim_again(directory, me)
    assert (again.peer_id, again.incarnation > me.incarnation) == ("ann", True)
