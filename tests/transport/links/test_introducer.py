"""What a node says of itself, and which way leads to another one."""

from __future__ import annotations

from ipaddress import IPv6Interface

import pytest
from zmq.utils import z85

from mdl.errors import RemoteProtocolError
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery.directory import Address
from mdl.transport.links.introducer import Introducer, RosterTalk
from mdl.transport.trust.keys import DeviceKey, MeshKeys, new_join_code
from mdl.transport.trust.membership import Membership

CODE, NEW_CODE = (new_join_code("home", bytes([at]) * 19) for at in (1, 2))
KEYS = MeshKeys.from_code(CODE)
ME, OTHER = DeviceKey.of(bytes(32)), DeviceKey.of(b"x" * 32)


class Clock:
    def __init__(self) -> None:
        self.ms = 1000

    def __call__(self) -> int:
        self.ms += 1
        return self.ms


def introducer(host: str = "127.0.0.1", keys: MeshKeys | None = KEYS) -> tuple[Introducer, Clock]:
    clock, membership = Clock(), None if keys is None else Membership(keys, ME)
    talk = None if membership is None else RosterTalk(membership.roster, 0.0)
    return Introducer(PeerInfo("me", 1, Role.TRAINER, host, 5), 6, membership, talk, clock), clock


def test_what_it_says_of_itself_is_signed_once_and_anew_when_it_has_moved() -> None:
    mine, _ = introducer()
    info = mine.seen_from("127.0.0.9", mine.me)
    assert Membership(KEYS, OTHER).admit(info)
    assert (info.host, info.proof.link_port, info.proof.serial) == ("127.0.0.1", 6, 1001)
    assert mine.seen_from("127.0.0.9", mine.me) is info
    mine.move("127.0.0.2")
    moved = mine.seen_from("127.0.0.9", mine.me)
    other = Membership(KEYS, OTHER)
    assert (moved.host, other.admit(moved), other.admit(info)) == ("127.0.0.2", True, False)


def test_the_link_that_it_listens_on_is_told_to_nobody() -> None:
    mine, _ = introducer("fe80::1%lo")
    info = mine.seen_from("fe80::9", mine.me)
    assert (mine.me.host, info.host, info.proof.hosts) == ("fe80::1", "fe80::1", ("fe80::1",))
    assert mine.scopes.dial("fe80::1") == "fe80::1%lo"


def test_who_compares_clocks_is_told_the_time_and_nothing_older_is_said_from_then_on() -> None:
    mine, clock = introducer("0.0.0.0")
    before = [mine.seen_from(host, mine.me) for host in ("127.0.0.1", "127.0.0.9")]
    clock.ms += 7_000
    anew = mine.seen_from("127.0.0.9", mine.me, anew=True)
    assert anew.proof is not None
    assert anew.proof.serial == clock.ms
    other = Membership(KEYS, OTHER)
    assert other.admit(anew)
    assert not any(other.admit(info) for info in before)
    assert mine.seen_from("127.0.0.9", mine.me) is anew


def test_of_two_addresses_that_it_has_told_the_one_that_it_tells_again_counts_again() -> None:
    """Tell the first address again, as after a network card that died and came back when the other one died."""
    mine, _ = introducer("0.0.0.0")
    other = Membership(KEYS, OTHER)
    told = []
    for host in ("127.0.0.1", "::1", "127.0.0.1"):
        told.append(mine.seen_from(host, mine.me))
        assert other.admit(told[-1])
    assert mine.seen_from("127.0.0.1", mine.me) is told[-1]
    announced = mine.announced(["127.0.0.5"])
    assert other.admit(announced)
    assert other.admit(mine.seen_from("127.0.0.1", mine.me))


def test_a_peer_is_dialled_at_the_nearest_of_the_addresses_that_it_has_signed() -> None:
    mine, _ = introducer("127.0.0.1")
    hosts = ("fe80::9", "127.0.0.9")
    info = Membership(KEYS, OTHER).introduce(PeerInfo("x", 1, Role.TRAINER, "fe80::9", 5), 6, hosts, 1)
    assert mine.nearest(info).host == "127.0.0.9", "this node is on no link where it could be"
    assert mine.nearest(info, is_on_link=True).host == "127.0.0.9"
    bare = PeerInfo("x", 1, Role.TRAINER, "10.0.0.1", 5)
    assert mine.nearest(bare) is bare
    mine.scopes.note("fe80::1%wlan0")
    mine._own = (IPv6Interface("fe80::2%eth0/64"),)
    assert mine.nearest(info, PeerInfo("y", 1, Role.TRAINER, "fe80::1", 5)).host == "fe80::9"
    assert mine.scopes.dial("fe80::9") == "fe80::9%wlan0", "where the one is that tells of it"


def test_an_introduction_after_the_clock_was_set_back_counts_all_the_same() -> None:
    mine, clock = introducer()
    before, other = mine.seen_from("127.0.0.9", mine.me), Membership(KEYS, OTHER)
    assert other.admit(before)
    clock.ms -= 900
    mine.move("127.0.0.2")
    assert other.admit(mine.seen_from("127.0.0.9", mine.me))
    assert other.admit(mine.announced(["127.0.0.2"]))


def test_others_are_passed_on_as_they_are() -> None:
    mine, _ = introducer()
    info = Membership(KEYS, OTHER).introduce(PeerInfo("x", 1, Role.TRAINER, "10.0.0.1", 5), 7, ["10.0.0.1"], 1)
    assert mine.seen_from("127.0.0.9", info) is info
    address, curve = mine.way_to(info)
    assert address == Address("10.0.0.1", 7)
    assert curve is not None
    assert (z85.decode(curve.server), curve.public) == (OTHER.link_key, ME.curve_public)
    with pytest.raises(RemoteProtocolError, match="has not told where it takes words"):
        mine.way_to(PeerInfo("x", 1, Role.TRAINER, "10.0.0.1", 5))


def test_another_code_admits_this_device_from_then_on_and_opens_other_doors() -> None:
    mine, _ = introducer()
    before, new = mine.seen_from("127.0.0.9", mine.me), MeshKeys.from_code(NEW_CODE)
    mine._membership.keys = new
    mine.sign_anew()
    after = mine.seen_from("127.0.0.9", mine.me)
    assert mine.door is not None
    assert mine.door.server == new.server_public
    assert Membership(new, OTHER).admit(after)
    with pytest.raises(RemoteProtocolError):
        Membership(new, OTHER).admit(before)


def test_where_it_is_announced_it_names_those_addresses() -> None:
    mine, _ = introducer("0.0.0.0")
    info = mine.announced(["10.0.0.1", "10.1.0.1"])
    assert (info.host, info.proof.hosts) == ("10.0.0.1", ("10.0.0.1", "10.1.0.1"))
    assert mine.announced([]).proof is None


def test_without_encryption_nothing_is_signed_and_there_is_one_port() -> None:
    mine, _ = introducer(keys=None)
    assert mine.seen_from("127.0.0.9", mine.me) == mine.me
    assert mine.way_to(mine.me) == (Address("127.0.0.1", 5), None)
    assert mine.door is None
    assert mine.first_words("x") == []
