"""What an announcement must hold, and which interfaces it goes out on. No network."""

import base64
import errno
import io
import logging
import threading
from ipaddress import IPv4Interface
from types import SimpleNamespace

import pytest
from zeroconf import EventLoopBlocked, NotRunningException

from mdl.errors import ConfigError, MeshNotFoundError, RemoteProtocolError
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery import mdns as discovery
from mdl.transport.discovery.interfaces import choose_host, every_host, host_to_listen_on, is_outer, usable_interfaces
from mdl.transport.discovery.mdns import Discovery, _Flood, describe, is_namesake, name_mark, read_description
from mdl.transport.trust.keys import DeviceKey, MeshKeys, founder_mark, new_join_code
from mdl.transport.trust.membership import Membership

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
    assert read(describe(ME, ["192.168.1.30"], None, "home"), keys=None, mesh="lab") is None
    assert read({}) is None


@pytest.mark.parametrize("key", ["hosts", "named", "s0", "s1"])
def test_whatever_a_stranger_changes_breaks_the_seal(key):
    signed = Membership(KEYS, DeviceKey.of(bytes(32))).introduce(ME, 5751, [ME.host], 1)
    record = describe(signed, ["192.168.1.30"], KEYS, "home")
    assert read(record) == signed
    first = "10.9.8.7" if key == "hosts" else "A" if record[key][0] != "A" else "B"
    with pytest.raises(RemoteProtocolError, match="without the seal of a member"):
        read(record | {key: first + record[key][1:]})
    with pytest.raises(RemoteProtocolError, match="seal"):
        read({field: said for field, said in record.items() if field != key})


def test_a_moved_port_is_noticed():
    with pytest.raises(RemoteProtocolError, match="another port than the one that it is sealed with"):
        read(describe(ME, ["192.168.1.30"], KEYS, "home"), port=5751)


def test_who_listens_learns_addresses_and_neither_names_nor_what_is_trained():
    record = describe(ME, ["192.168.1.30"], KEYS, "home")
    in_clear = " ".join(f"{key}={said}" for key, said in record.items() if not key.startswith("s"))
    assert set(record) - {"s0", "s1"} == {"version", "fingerprint", "named", "hosts"}
    for secret in (ME.peer_id, ME.schema_hash, "home"):
        assert secret not in in_clear
    assert record["named"] == name_mark(record["fingerprint"], "home") != name_mark(record["fingerprint"], "lab")
    again = describe(ME, ["192.168.1.30"], KEYS, "home")
    assert again["s0"] != record["s0"], "nobody sees that it says the same"


def test_another_mesh_of_the_same_name_is_told_from_our_own_and_from_other_names():
    other = describe(ME, ["192.168.1.30"], OTHER, "home")
    assert is_namesake(other, KEYS, "home")
    assert not is_namesake(other, KEYS, "lab")
    assert not is_namesake(describe(ME, ["192.168.1.30"], KEYS, "home"), KEYS, "home")
    assert not is_namesake({}, KEYS, "home")
    assert not is_namesake({"fingerprint": "\u00e9" * 200, "named": "0"}, KEYS, "home")


def test_every_code_and_run_of_a_founded_mesh_opens_its_announcements_and_tells_runs_apart():
    mark = founder_mark(bytes(32))
    first, changed = (MeshKeys.from_code(new_join_code("home", bytes([at]) * 19, mark)) for at in (1, 2))
    assert read(describe(ME, ["192.168.1.30"], first, "home"), keys=changed) == ME
    run = MeshKeys.from_code(new_join_code("home", bytes(19), mark), "gait")
    assert read(describe(ME, ["192.168.1.30"], run, "home--gait"), keys=first) is None


def test_an_announcement_of_another_version_is_told_by_its_number():
    record = describe(ME, ["192.168.1.30"], KEYS, "home") | {"version": "99"}
    with pytest.raises(RemoteProtocolError, match="version 99, this one"):
        read(record)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"trainer", b"kingdom"),
        (b"incarnation\x07", b"incarnation\xff"),
        (b"phone", b"pho e"),
        (b"192.168.1.30", b"192.168.1.3\n"),
    ],
)
def test_a_malformed_announcement_of_a_member_is_refused(old, new):
    record = describe(ME, ["192.168.1.30"], None, "home")
    said = base64.b64decode(record["s0"])
    assert old in said
    with pytest.raises(RemoteProtocolError, match="malformed"):
        read(record | {"s0": base64.b64encode(said.replace(old, new)).decode()}, keys=None)


@pytest.mark.parametrize("change", [{"hosts": "here"}, {"s0": "?"}, {"s0": ""}])
def test_a_record_that_cannot_be_read_is_refused(change):
    with pytest.raises(RemoteProtocolError, match="malformed"):
        read(describe(ME, ["192.168.1.30"], None, "home") | change, keys=None)


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
    [("", every_host()), ("0.0.0.0", "0.0.0.0"), ("::", "::"), ("127.0.0.1", "127.0.0.1"), ("127.0.0.9", "127.0.0.9")],
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

    remove_all_service_listeners = add_listener = add_service_listener = register_service = lambda *_, **__: None


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


@pytest.mark.parametrize("problem", [EventLoopBlocked(), TimeoutError(), OSError("no such device")])
def test_who_cannot_say_goodbye_ends_and_moves_all_the_same(monkeypatch, caplog, problem):
    """Else a run would end without its model, and the next change of an address would not be heard."""

    class Stuck(Busy):
        def close(self):
            raise self.problem

    opened = []
    monkeypatch.setattr(discovery, "Zeroconf", lambda **_: opened.append(Stuck(problem)) or opened[-1])
    watching = Discovery(ME, "home", KEYS, print, loopback=True)
    watching.move(OWN)
    watching.close()
    assert len(opened) == 2
    assert caplog.text.count("mDNS has not said goodbye") == 2


def test_a_flood_of_new_records_is_told_once_and_the_usual_ones_never():
    told = []
    flood = _Flood(told.append)
    known, new = ([SimpleNamespace(old=old)] * 500 for old in ("before", None))
    for second in range(100):
        flood.async_update_records("zc", 1000.0 * second, known + new[:20])
    assert told == []
    for _ in range(10):
        flood.async_update_records("zc", 100_000.0, new)
    assert told == ["zc"]


def test_a_flood_ends_what_is_heard_at_once_and_not_when_goodbye_is_said(monkeypatch):
    """In zeroconf's own thread, as it is called there: its sockets are closed when `_pause` returns."""
    monkeypatch.setattr(discovery, "PAUSE_S", 0.0)
    told, came = [], threading.Event()
    zeroconf = SimpleNamespace(
        done=False,
        engine=SimpleNamespace(close=lambda: told.append("closed")),
        remove_all_service_listeners=lambda: told.append("left"),
        close=lambda: (told.append("goodbye"), came.set()),
        add_listener=lambda *_: None,
        add_service_listener=lambda *_: None,
        register_service=lambda *_, **__: None,
    )
    monkeypatch.setattr(discovery, "Zeroconf", lambda **_: zeroconf)
    watching = Discovery(ME, "home", KEYS, print, loopback=True)
    with watching._turn:  # whoever says goodbye waits for its turn
        watching._pause(zeroconf)
        assert (zeroconf.done, told) == (True, ["closed"])
    assert came.wait(10.0)
    assert told == ["closed", "left", "goodbye"]
    watching.close()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENETUNREACH, "Network is unreachable"), ""),
        (OSError(errno.ENODEV, "No such device"), ""),
        (PermissionError(errno.EPERM, "Operation not permitted"), "mDNS: Operation not permitted\n"),
        (ValueError("a bug"), "mDNS: None\nValueError: a bug\n"),
    ],
    ids=["no way", "no interface", "a firewall", "a bug"],
)
def test_a_packet_that_cannot_leave_is_a_line_at_most_and_a_bug_keeps_its_traceback(error, told):
    discovery.open_zeroconf(usable_interfaces(["lo"])).close()
    written, library = io.StringIO(), logging.getLogger("zeroconf")
    handler = logging.StreamHandler(written)
    library.addHandler(handler)
    try:
        library.warning("mDNS: %s", getattr(error, "strerror", None), exc_info=error)
    finally:
        library.removeHandler(handler)
    assert written.getvalue() == told
