"""What the doctor says of this device's key, of how the mesh sees it, and of its clock."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mdl.peers.doctor.device import check_clocks, check_key, check_standing
from mdl.peers.doctor.mesh import Sight
from mdl.peers.doctor.network import Finding, Severity
from mdl.peers.edge.identity import default_name
from mdl.peers.edge.membership import key_path
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.trust.keys import DeviceKey, MeshKeys, founder_mark, new_join_code
from mdl.transport.trust.membership import Membership

FOUNDER, ME, OTHER = (DeviceKey.of(bytes([at]) * 32) for at in range(3))
KEYS = MeshKeys.from_code(new_join_code("home", bytes(19), founder_mark(FOUNDER.public)))


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("MDL_KEY", raising=False)


def sight(*known: PeerInfo, clocks_s: dict[str, float] | None = None, membership: Membership | None = None) -> Sight:
    return Sight([], list(known), list(known), clocks_s or {}, {}, None, membership or Membership(KEYS, ME), "")


def introduced(name: str, device: DeviceKey, host: str = "192.0.2.7") -> PeerInfo:
    return Membership(KEYS, device).introduce(PeerInfo(name, 1, Role.TRAINER, host, 5), 6, [host], 1)


def verdicts(findings: list[Finding]) -> list[Severity]:
    assert all(each.check == "device" and each.do for each in findings)
    return [each.verdict for each in findings]


def test_a_key_is_made_and_told_by_its_words() -> None:
    first = check_key()
    assert (first.verdict, first.check, key_path().exists()) == (Severity.OK, "device", True)
    assert check_key() == first


def test_a_key_that_is_damaged_or_cannot_be_kept_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    check_key()
    key_path().write_bytes(bytes(65))
    assert verdicts([check_key()]) == [Severity.FAIL]
    shutil.rmtree(key_path().parent)
    key_path().parent.write_text("a file in its place")
    assert verdicts([check_key()]) == [Severity.FAIL]
    assert "another device at each start" in check_key().told
    monkeypatch.setenv("MDL_KEY", "ab" * 32)
    assert verdicts([check_key()]) == [Severity.NOTE], "the key is given; the roster is not kept"


def test_a_device_that_is_as_the_mesh_knows_it_is_let_be() -> None:
    membership = Membership(KEYS, ME)
    membership.join(default_name())
    here = introduced(default_name(), ME, "127.0.0.1")
    assert not [*check_standing(sight(here, introduced("ann", OTHER), membership=membership))]


def test_a_copied_card_is_told_and_in_the_way_under_the_same_name() -> None:
    assert verdicts([*check_standing(sight(introduced(default_name(), ME)))]) == [Severity.FAIL]
    assert verdicts([*check_standing(sight(introduced("another", ME)))]) == [Severity.NOTE]


def test_a_device_that_is_locked_out_hears_the_owners_reason() -> None:
    owner = Membership(KEYS, FOUNDER)
    owner.roster.add(owner.found())
    membership = Membership(KEYS, ME, [owner.found(), *owner.revoke(ME.public, 0, "it was sold")])
    (finding,) = check_standing(sight(membership=membership))
    assert verdicts([finding]) == [Severity.FAIL]
    assert "it was sold" in finding.told


@pytest.mark.parametrize(
    ("clocks_s", "told"),
    [
        ({}, []),
        ({"ann": 0.2, "bob": -12.0}, []),
        ({"ann": 7200.0}, ["clocks differ: ann's is 2 hours ahead"]),
        ({"ann": -45.0}, ["clocks differ: ann's is 45 seconds behind"]),
        ({"ann": 1.7e9, "bob": 1.7e9}, ["clocks differ: this machine's clock, or theirs: ann's is 19676 days ahead"]),
    ],
)
def test_clocks_that_differ_are_told(clocks_s: dict[str, float], told: list[str]) -> None:
    findings = [*check_clocks(sight(clocks_s=clocks_s))]
    assert [each.told.partition(", bob")[0] for each in findings] == told
    assert all(each.verdict is Severity.NOTE and each.do for each in findings)
