"""On which link a link-local address is: added where this machine dials, and never told to anybody."""

from __future__ import annotations

import socket
from ipaddress import IPv4Interface, IPv6Interface

import pytest

from mdl.transport.discovery import directory, interfaces
from mdl.transport.discovery.directory import Scopes, bare, is_link_local, links_of, socket_address, unmapped, with_link
from mdl.transport.discovery.interfaces import choose_host, every_host, of_ipv4

CABLE, WIFI = (IPv6Interface(f"fe80::{number}%{name}/64") for number, name in ((1, "eth0"), (2, "wlan0")))
LEASE = IPv4Interface("192.168.1.20/24")
PEER = "fe80::abcd"


def test_an_address_is_dialled_on_the_link_that_it_was_heard_on_and_kept_without_it() -> None:
    known = Scopes([LEASE, CABLE, WIFI])
    assert known.note(f"{PEER}%wlan0") == PEER
    assert known.dial(PEER) == f"{PEER}%wlan0"
    assert known.note(PEER) == PEER, "nothing new is said of it"
    assert known.dial(PEER) == f"{PEER}%wlan0"


def test_one_that_was_never_heard_of_is_looked_for_on_the_first_link_and_others_have_none() -> None:
    known = Scopes([LEASE, CABLE, WIFI])
    assert [known.dial(host) for host in (PEER, "192.168.1.9", "2001:db8::1", "::1")] == [
        f"{PEER}%eth0",
        "192.168.1.9",
        "2001:db8::1",
        "::1",
    ]
    known.move([WIFI])
    assert known.dial(PEER) == f"{PEER}%wlan0"
    assert Scopes([LEASE]).dial(PEER) == PEER


def test_who_tells_of_another_one_is_on_the_same_link() -> None:
    known = Scopes([CABLE, WIFI])
    known.note("fe80::9%wlan0")
    for other in (PEER, "192.168.1.9"):
        known.follow(other, "fe80::9")
    assert [known.dial(PEER), known.dial("192.168.1.9")] == [f"{PEER}%wlan0", "192.168.1.9"]
    known.note(f"{PEER}%eth0")
    known.follow(PEER, "fe80::9")
    assert known.dial(PEER) == f"{PEER}%eth0", "what was heard counts more"


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_REMEMBERED", 2)
    known = Scopes()
    for number in range(3):
        known.note(f"fe80::{number}%eth0")
    assert [known.dial(f"fe80::{number}") for number in range(3)] == ["fe80::0", "fe80::1%eth0", "fe80::2%eth0"]


def test_addresses_are_told_apart() -> None:
    assert [is_link_local(host) for host in ("fe80::1", "febf::1%eth0", "fec0::1", "169.254.1.1", "::1")] == [
        *(True, True, False, False, False)
    ]
    assert (bare("fe80::1%eth0"), bare("10.0.0.1")) == ("fe80::1", "10.0.0.1")
    assert (unmapped("::ffff:10.0.0.1"), unmapped("::ffff:a00:1"), unmapped("fe80::1")) == (
        *("10.0.0.1", "::ffff:a00:1", "fe80::1"),
    )
    assert (links_of([LEASE, CABLE]), of_ipv4([CABLE, LEASE])) == (["eth0"], [LEASE])
    assert (with_link(CABLE), with_link(LEASE)) == ("fe80::1%eth0", "192.168.1.20")


def test_a_socket_for_both_kinds_takes_both() -> None:
    assert socket_address(socket.AF_INET, "10.0.0.1", 5) == ("10.0.0.1", 5)
    assert socket_address(socket.AF_INET6, "10.0.0.1", 5) == ("::ffff:10.0.0.1", 5, 0, 0)
    number = socket.if_nametoindex("lo")
    assert socket_address(socket.AF_INET6, "fe80::1%lo", 5) == ("fe80::1", 5, 0, number)
    assert socket_address(socket.AF_INET6, f"fe80::1%{number}", 5) == ("fe80::1", 5, 0, number)
    with pytest.raises(OSError, match="no interface"):
        socket_address(socket.AF_INET6, "fe80::1%gone0", 5)


@pytest.mark.parametrize(
    ("own", "is_on_link", "chosen"),
    [
        ([LEASE, CABLE], True, "192.168.1.9"),
        ([IPv4Interface("10.9.0.1/24"), CABLE], True, PEER),  # the same cable, another network
        ([IPv4Interface("10.9.0.1/24"), CABLE], False, "192.168.1.9"),  # behind a router
        ([CABLE], False, PEER),
        ([LEASE], True, "192.168.1.9"),
        ([IPv4Interface("10.9.0.1/24")], True, "192.168.1.9"),
    ],
)
def test_the_nearest_address_is_chosen_that_this_machine_can_dial(
    own: list[directory.Interface], is_on_link: bool, chosen: str
) -> None:
    assert choose_host([PEER, "192.168.1.9", "127.0.0.1"], own, is_on_link) == chosen


def test_a_peer_with_addresses_of_a_kind_that_this_machine_lacks_is_out_of_reach() -> None:
    assert choose_host([PEER, "127.0.0.1"], [LEASE]) is None
    assert choose_host(["192.168.1.9", "127.0.0.1"], [CABLE]) is None


def test_addresses_that_cannot_be_used_yet_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    listed = tmp_path / "if_inet6"
    monkeypatch.setattr(interfaces, "_IPV6_ADDRESSES", listed)
    assert interfaces._unready() == set()
    rows = (("fe80", "abcd", "40"), ("fe80", "abce", "c8"), ("fe80", "abcf", "80"))
    listed.write_text("".join(f"{start}{end.rjust(28, '0')} 04 40 20 {flags}     eth0\n" for start, end, flags in rows))
    assert interfaces._unready() == {"fe80::abcd", "fe80::abce"}


def test_without_ipv6_in_the_system_all_addresses_are_those_of_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unsupported(socket.socket):
        def __init__(self, *_: object) -> None:
            raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(interfaces.socket, "socket", Unsupported)
    assert every_host() == "0.0.0.0"
