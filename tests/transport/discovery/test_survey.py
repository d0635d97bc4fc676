"""A look around sees members, other meshes, other versions and forgers, each as what it is."""

from __future__ import annotations

import threading

import pytest

from mdl.protocol.messages import PROTOCOL_VERSION
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery import mdns
from mdl.transport.discovery.interfaces import LOOPBACK
from mdl.transport.discovery.mdns import Announcement, Discovery, Survey
from mdl.transport.trust.keys import Mesh, new_join_code

PATIENCE_S = 20.0
NOW = PROTOCOL_VERSION


def test_everybody_who_announces_mdl_is_seen_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    code = new_join_code("home")
    ours, run = Mesh.from_code(code), Mesh.from_code(code, "gait")
    alike, other = (Mesh.from_code(new_join_code(name)) for name in ("home", "ward"))
    survey = Survey("home", ours.keys, [LOOPBACK], ["home--gait", "home--swim"])
    announcing: list[Discovery] = []
    found: dict[str, Announcement] = {}
    try:
        for name, mesh, version in (
            ("ann", ours, NOW),
            ("bob", alike, NOW),
            ("cleo", other, NOW),
            ("old", ours, NOW - 1),
            ("walker", run, NOW),
        ):
            monkeypatch.setattr(mdns, "PROTOCOL_VERSION", version)
            me = PeerInfo(name, 1, Role.TRAINER, "", 4711 + len(found))
            discovery = Discovery(me, mesh.name, mesh.keys, lambda _: None, loopback=True)
            announcing.append(discovery)
            found[name] = _wait_for(survey, 4711 + len(found))  # it is announced under this version
        monkeypatch.undo()
    finally:
        for discovery in announcing:
            discovery.close()
        survey.close()
    told = {name: (each.peer_id, each.mesh, each.of_ours, bool(each.problem)) for name, each in found.items()}
    assert told == {
        "ann": ("ann", "home", True, False),
        "bob": ("a device", "home", False, False),
        "cleo": ("a device", "", False, False),
        "old": ("old", "home", True, False),
        "walker": ("a device", "home--gait", False, False),
    }
    assert [name for name, each in found.items() if each.is_other_version] == ["old"]
    assert (found["ann"].port, found["ann"].hosts) == (4711, ("127.0.0.1",))


def _wait_for(survey: Survey, port: int) -> Announcement:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.05)):
        if found := next((each for each in survey.found() if each.port == port), None):
            return found
        pause.wait(0.05)
    raise AssertionError(f"who listens at port {port} is not heard")
