"""What an announced invitation shows, and which addresses count as this network's."""

from __future__ import annotations

from ipaddress import IPv4Interface

import pytest
from zeroconf import ServiceInfo, Zeroconf

from mdl.errors import MeshNotFoundError
from mdl.transport.discovery import mdns
from mdl.transport.discovery.directory import Address
from mdl.transport.discovery.interfaces import LOOPBACK
from mdl.transport.discovery.mdns import announced, find_invitations, is_near

OWN = [IPv4Interface("192.168.1.10/24"), IPv4Interface("10.0.0.1/30")]


@pytest.mark.parametrize(
    ("host", "near"),
    [
        ("192.168.1.200", True),
        ("192.168.1.10", True),
        ("10.0.0.2", True),
        ("192.168.2.1", False),
        ("10.0.0.4", False),
        ("8.8.8.8", False),
        ("127.0.0.1", False),
        ("::1", False),
        ("nobody", False),
        ("", False),
    ],
)
def test_only_addresses_of_own_networks_are_near(host: str, near: bool) -> None:
    assert is_near(host, OWN) is near


@pytest.mark.slow
def test_an_invitation_is_found_and_shows_an_address_under_a_random_name(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[ServiceInfo] = []
    register = Zeroconf.register_service

    def look(self: Zeroconf, info: ServiceInfo, *given: object, **named: bool) -> None:
        said.append(info)
        register(self, info, **named)

    monkeypatch.setattr(Zeroconf, "register_service", look)
    monkeypatch.setattr(mdns, "_SETTLE_S", 0.01)
    for _ in range(2):
        with announced(4711, [LOOPBACK]):
            assert Address("127.0.0.1", 4711) in find_invitations([LOOPBACK], 20.0)
    first, second = said
    assert first.name != second.name
    assert first.name.removesuffix("._mdl-invite._tcp.local.").isalnum()
    assert first.server == first.name.replace("._mdl-invite._tcp.local.", ".local.")
    assert not first.properties


def test_an_address_elsewhere_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mdns, "is_near", lambda host, own: False)
    with announced(4711, [LOOPBACK]):
        assert find_invitations([LOOPBACK], 1.0) == []


def test_without_a_network_the_way_round_is_told() -> None:
    with pytest.raises(MeshNotFoundError, match="--at HOST:PORT"):
        find_invitations([], 0.1)
