"""What the doctor says of this device's name in the mesh."""

from __future__ import annotations

from pathlib import Path

from mdl.peers.doctor.device import check_name
from mdl.peers.doctor.network import Severity
from mdl.peers.edge.identity import default_name
from mdl.peers.edge.membership import name_here
from mdl.transport.trust.membership import Membership
from tests.peers.doctor.test_device import KEYS, ME, OTHER, introduced, sight


def test_a_free_name_is_let_be(tmp_path: Path) -> None:
    membership = Membership(KEYS, ME)
    membership.join(default_name())
    (tmp_path / "dev2").mkdir()
    assert not [*check_name(sight(introduced("ann", OTHER), membership=membership), tmp_path)]
    assert not [*check_name(sight(membership=None), tmp_path)], "nothing is encrypted"


def test_the_hosts_name_of_another_device_is_told_with_the_name_that_a_peer_takes_here(tmp_path: Path) -> None:
    membership = Membership(KEYS, ME)
    membership.admit(introduced(default_name(), OTHER))
    (finding,) = check_name(sight(membership=membership), tmp_path)
    assert finding.verdict is Severity.NOTE
    assert repr(name_here(membership)) in finding.told


def test_a_name_that_a_peer_was_started_with_here_is_in_the_way_though_none_runs(tmp_path: Path) -> None:
    membership = Membership(KEYS, ME)
    membership.admit(introduced("dev2", OTHER))
    (tmp_path / "dev2").mkdir()
    (finding,) = check_name(sight(membership=membership), tmp_path)
    assert finding.verdict is Severity.FAIL
    assert "--name" in finding.do
    assert "mdl mesh revoke dev2" in finding.do
