"""What the doctor says of interfaces, and where several of them carry multicast or do not."""

from __future__ import annotations

import socket
from collections import namedtuple
from collections.abc import Callable
from ipaddress import IPv4Interface

import psutil
import pytest

from mdl.config import MeshSection
from mdl.peers.doctor import network
from mdl.peers.doctor.network import Severity
from mdl.transport.discovery import interfaces
from mdl.transport.links.probe import Heard, Multicast

Address = namedtuple("Address", "family address netmask")
State = namedtuple("State", "isup")
LAN, VPN = IPv4Interface("192.0.2.5/24"), IPv4Interface("198.51.100.2/24")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has these interfaces: name -> address with its mask, "" for none; one with "_" behind it is down."""

    def set_up(**given: str) -> None:
        found: dict[str, list[Address]] = {}
        states = {}
        for name, text in given.items():
            at = IPv4Interface(text) if text else None
            found[name.strip("_")] = [Address(socket.AF_INET, str(at.ip), str(at.netmask))] if at else []
            states[name.strip("_")] = State(not name.endswith("_"))
        monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
        monkeypatch.setattr(psutil, "net_if_stats", lambda: states)
        monkeypatch.setattr(interfaces, "_default_address", lambda: str(LAN.ip))

    return set_up


def test_what_is_used_and_what_is_left_out_is_told_with_the_reason(machine: Callable[..., None]) -> None:
    machine(eth0=str(LAN), docker0="172.17.0.1/16", wlan0_="10.0.0.2/8", usb0="")
    finding, own = network.check_interfaces(MeshSection())
    assert (finding.verdict, own) == (Severity.OK, [LAN])
    left_out = "docker0 (of containers), usb0 (no address), wlan0 (no connection)"
    assert finding.told == f"eth0 {LAN}; left out: {left_out}"


def test_several_interfaces_are_noted_and_the_default_routes_is_the_first(machine: Callable[..., None]) -> None:
    machine(tun0=str(VPN), eth0=str(LAN))
    finding, own = network.check_interfaces(MeshSection())
    assert (finding.verdict, own) == (Severity.NOTE, [LAN, VPN])
    assert "the default route's first" in finding.told


def test_no_network_and_no_lease_are_told(machine: Callable[..., None]) -> None:
    machine(eth0="")
    assert network.check_interfaces(MeshSection())[0].verdict is Severity.FAIL
    assert "eth0 (no address)" in network.check_interfaces(MeshSection())[0].told
    machine(eth0="169.254.3.4/16")
    finding, own = network.check_interfaces(MeshSection())
    assert (finding.verdict, len(own)) == (Severity.NOTE, 1)
    assert "DHCP" in finding.told


@pytest.mark.parametrize(
    ("heard", "verdicts"),
    [
        ((Heard.OTHERS, Heard.NOTHING), [Severity.OK, Severity.NOTE]),
        ((Heard.ITSELF, Heard.NO_WAY), [Severity.NOTE, Severity.NOTE]),
        ((Heard.NOTHING, Heard.NOTHING), [Severity.FAIL, Severity.FAIL]),
        ((Heard.NOTHING,), [Severity.FAIL]),
        ((), []),
    ],
)
def test_multicast_is_in_the_way_only_where_no_interface_carries_it(
    heard: tuple[Heard, ...], verdicts: list[Severity], machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(eth0=str(LAN), tun0=str(VPN))
    own = [LAN, VPN][: len(heard)]
    by_host = {str(at.ip): Multicast(each) for at, each in zip(own, heard, strict=True)}
    monkeypatch.setattr(network, "try_multicast", lambda host, wait_s: by_host[host])
    found = network.check_multicast(own)
    assert [each.verdict for each in found] == verdicts
    assert all(each.do for each in found if each.verdict is not Severity.OK)
