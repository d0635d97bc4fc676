"""What is said of a device that lets us in and is not heard: another machine's, and one of this machine."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface

import pytest

from mdl.peers.doctor.mesh import Sight, _check_strangers, _check_work, _Device, _find_trouble
from mdl.peers.doctor.network import Severity
from mdl.protocol.messages import PROTOCOL_VERSION
from mdl.protocol.status_messages import MeshStatus
from mdl.transport.discovery.directory import Address
from mdl.transport.discovery.mdns import Announcement
from mdl.transport.links.probe import ProbeStage
from mdl.transport.trust.keys import Mesh, new_join_code

OWN = [IPv4Interface("192.0.2.7/24")]
NOTHING = Sight([], [], [], {}, {}, None, None, "")


def test_other_runs_of_the_mesh_that_are_active_are_named() -> None:
    run = Announcement("a device", "home--gait", "f" * 16, str(PROTOCOL_VERSION), "", "", ("192.0.2.8",), 7300, False)
    mesh = Mesh.from_code(new_join_code("home"))
    (found,) = _check_strangers(mesh, replace(NOTHING, announced=[run]))
    assert (found.check, found.verdict) == ("run", Severity.OK)
    assert found.told == "home/gait is active, at 192.0.2.8: mdl doctor --mesh home/gait looks at it"


@pytest.mark.parametrize(
    ("host", "check", "verdict"),
    [("192.0.2.7", "member", "note"), ("2001:db8::8", "port", "fail"), ("198.51.100.8", "way", "fail")],
)
def test_only_another_machine_is_said_to_be_kept_from_answering(host: str, check: str, verdict: str) -> None:
    at = Address(host, 7300)
    found = _find_trouble(_Device("ann", [at], None), at, ProbeStage.MEMBER, False, OWN, NOTHING)
    assert found is not None
    assert (found.check, found.verdict) == (check, Severity(verdict))
    assert found.do
    assert ("(NAT), or a firewall here" in found.told) == (check == "way"), "two causes are left beyond a router"
    assert _find_trouble(_Device("ann", [at], None), at, ProbeStage.MEMBER, True, OWN, NOTHING) is None


def test_what_the_mesh_says_of_its_devices_is_told_with_what_to_do() -> None:
    lines = {
        "cuts": "ann and cat do not reach each other",
        "doubts": "ann says another result than most",
        "unlike": "ax of device ann: 9.8 times smaller than all others': in g?",
    }
    said = {name: (line,) for name, line in lines.items()}
    status = MeshStatus(9, 5, 20, "aggregating", "greedy", (), (), **said)
    found = {each.told: each for each in _check_work([], replace(NOTHING, status=status))}
    assert set(found) == set(lines.values())
    assert {each.verdict for each in found.values()} == {Severity.NOTE}
    assert "mdl data inspect" in found[lines["unlike"]].do
