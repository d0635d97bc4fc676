"""What an announcement must hold, and which interfaces it goes out on. No network."""

from ipaddress import IPv4Interface

import pytest
from zeroconf import EventLoopBlocked, NotRunningException

from mdl.errors import ConfigError, MeshNotFoundError, RemoteProtocolError
from mdl.protocol.vocabulary import PeerInfo, Role
from transport.discovery import mdns as discovery
from transport.discovery.interfaces import choose_host, host_to_listen_on, is_outer, usable_interfaces
from transport.discovery.mdns import Discovery, describe, read_description
from transport.links.sockets import answer_gate
from transport.trust.keys import MeshKeys, new_join_code

KEYS = MeshKeys.from_code(new_join_code("home", bytes(range(19))))
OTHER = MeshKeys.from_code(new_join_code("home", bytes(19)))
OWN = [IPv4Interface("192.168.1.20/24")]
ME = PeerInfo("phone", 7, Role.TRAINER, "192.168.1.30", 5750, "0123abcd")


def read(record, port=5750, keys=KEYS, mesh="home"):
    return read_description(record, port, keys, mesh, OWN)


def test_an_announcement_is_read_as_it_was_written():
    assert read(describe(ME, ["10.0.0.9", "192.168.1.30"], KEYS, "home")) == ME
    assert read(describe(ME, ["192.168.1.30"], None, "home"), keys=None) == ME


def test_another_mesh_stays_apart_by_name_and_by_code():
    record = describe(ME, ["192.168.1.30"], KEYS, "home")
    assert read(record, keys=OTHER) is None
    assert read(record, keys=None) is None
    assert read(record, mesh="lab") is None
    assert read({}) is None


@pytest.mark.parametrize("key", ["hosts", "id", "incarnation", "role", "schema", "version", "proof"])
def test_whatever_a_stranger_changes_breaks_the_proof(key):
    record = describe(ME, ["192.168.1.30"], KEYS, "home") | {key: "10.9.8.7"}
    with pytest.raises(RemoteProtocolError, match="proof"):
        read(record)


def test_a_moved_port_breaks_the_proof():
    with pytest.raises(RemoteProtocolError, match="proof"):
        read(describe(ME, ["192.168.1.30"], KEYS, "home"), port=5751)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("version", "9", "version 9, this one"),
        ("role", "king", "malformed"),
        ("incarnation", "soon", "malformed"),
        ("incarnation", "-1", "malformed"),
        ("id", "", "malformed"),
        ("hosts", "here", "malformed"),
    ],
)
def test_a_malformed_announcement_of_a_member_is_refused(key, value, problem):
    record = describe(ME, ["192.168.1.30"], None, "home") | {key: value}
    with pytest.raises(RemoteProtocolError, match=problem):
        read(record, keys=None)


def test_the_address_in_a_shared_network_is_chosen_then_any_but_loopback():
    assert choose_host(["10.1.1.1", "192.168.1.9"], OWN) == "192.168.1.9"
    assert choose_host(["127.0.0.1", "10.1.1.1"], OWN) == "10.1.1.1"
    assert choose_host(["127.0.0.1"], OWN) is None


@pytest.mark.parametrize("name", ["docker0", "veth12ab", "br-09f", "virbr0", "lo"])
def test_inner_networks_are_left_out(name):
    address = "127.0.0.1/8" if name == "lo" else "172.17.0.1/16"
    assert not is_outer(name, [IPv4Interface(address)])
    assert is_outer("wlan0", OWN)


def test_an_interface_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"'eth99' is not up.*there is .*lo"):
        usable_interfaces(["eth99"])
    assert usable_interfaces(["lo"])[0].ip.is_loopback


@pytest.mark.parametrize(
    ("asked", "host"),
    [("", "0.0.0.0"), ("0.0.0.0", "0.0.0.0"), ("::", "::"), ("127.0.0.1", "127.0.0.1"), ("127.0.0.9", "127.0.0.9")],
)
def test_one_listens_on_an_address_of_this_machine_or_on_all(asked, host):
    assert host_to_listen_on(asked) == host


def test_one_listens_on_an_interface_by_its_name():
    assert host_to_listen_on("lo") == "127.0.0.1"


@pytest.mark.parametrize(
    "asked", ["nonsense", "192.0.2.1", "127.0.0.1:5750", "*", "fe80::1%lo", "a\x1b[2J", "x" * 9999]
)
def test_what_is_no_address_or_interface_is_refused_with_those_there_are(asked):
    with pytest.raises(ConfigError, match=r"no address or interface of this machine; .*lo \(127\.0\.0\.1\)") as refused:
        host_to_listen_on(asked)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1000


def test_without_multicast_it_needs_an_address_to_join_and_then_only_warns(monkeypatch, caplog):
    def no_multicast(**_):
        raise OSError("no such device")

    monkeypatch.setattr(discovery, "Zeroconf", no_multicast)
    with pytest.raises(MeshNotFoundError, match="--join HOST:PORT"):
        Discovery(ME, "home", KEYS, print, loopback=True)
    Discovery(ME, "home", KEYS, print, loopback=True, required=False).close()
    assert "mDNS is not available" in caplog.text


class Busy:
    """In place of zeroconf: it is asked who announced itself, and cannot tell."""

    def __init__(self, problem):
        self.problem, self.asked = problem, 0

    def get_service_info(self, *_, **__):
        self.asked += 1
        raise self.problem

    def close(self):
        """Nothing is open."""

    add_service_listener = register_service = lambda *_, **__: None


@pytest.mark.parametrize("problem", [NotRunningException, EventLoopBlocked])
def test_a_service_that_cannot_be_asked_about_is_left_alone_and_one_that_appears_after_the_close(monkeypatch, problem):
    zeroconf, found = Busy(problem), []
    monkeypatch.setattr(discovery, "Zeroconf", lambda **_: zeroconf)
    watching = Discovery(ME, "home", KEYS, found.append, loopback=True)
    appeared = (zeroconf, "_mdl._tcp.local.", discovery.fingerprint_of(KEYS, "home"))
    watching.add_service(*appeared)
    watching.close()
    watching.add_service(*appeared)
    assert (found, zeroconf.asked) == ([], 1)


def test_the_gate_lets_in_the_meshs_client_key_alone():
    from zmq.utils import z85

    def request(mechanism, *credentials):
        return [b"1.0", b"1", b"home", b"192.0.2.9", b"", mechanism, *credentials]

    member = request(b"CURVE", z85.decode(KEYS.client_public))
    assert answer_gate(member, KEYS.client_public)[:3] == [b"1.0", b"1", b"200"]
    strangers = [
        request(b"CURVE", z85.decode(OTHER.client_public)),
        request(b"NULL"),
        request(b"PLAIN", b"user", b"word"),
        [],
        [b"1.0"],
    ]
    assert {answer_gate(stranger, KEYS.client_public)[2] for stranger in strangers} == {b"400"}
