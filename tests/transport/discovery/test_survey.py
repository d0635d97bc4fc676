"""A look around sees members, other meshes, other versions and forgers, each as what it is."""

from __future__ import annotations

import threading

import pytest

from mdl.protocol.messages import PROTOCOL_VERSION
from mdl.protocol.vocabulary import PeerInfo, Role
from transport.discovery import mdns
from transport.discovery.interfaces import LOOPBACK
from transport.discovery.mdns import Discovery
from transport.discovery.survey import Announcement, Survey
from transport.trust.keys import Mesh, new_join_code

PATIENCE_S = 20.0
NOW = PROTOCOL_VERSION


def test_everybody_who_announces_mdl_is_seen_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, alike, other = (Mesh.from_code(new_join_code(name)) for name in ("home", "home", "ward"))
    survey = Survey("home", ours.keys, [LOOPBACK])
    announcing = []
    try:
        for name, mesh, version in (
            ("ann", ours, NOW),
            ("bob", alike, NOW),
            ("cleo", other, NOW),
            ("old", ours, NOW - 1),
        ):
            monkeypatch.setattr(mdns, "PROTOCOL_VERSION", version)
            me = PeerInfo(name, 1, Role.TRAINER, "", 4711)
            discovery = Discovery(me, mesh.name, mesh.keys, lambda _: None, loopback=True)
            announcing.append(discovery)
            _wait_for(survey, name)  # it is announced under this version
        monkeypatch.undo()
        found = {each.peer_id: each for each in survey.found()}
    finally:
        for discovery in announcing:
            discovery.close()
        survey.close()
    told = {name: (each.mesh, each.of_ours, bool(each.problem)) for name, each in found.items()}
    assert (
        told.items()
        >= {
            "ann": ("home", True, False),
            "bob": ("home", False, False),
            "cleo": ("ward", False, False),
        }.items()
    )
    assert found["old"].is_other_version
    assert found["ann"].port == 4711


def _wait_for(survey: Survey, name: str) -> Announcement:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.05)):
        if found := next((each for each in survey.found() if each.peer_id == name), None):
            return found
        pause.wait(0.05)
    raise AssertionError(f"{name} is not heard")
