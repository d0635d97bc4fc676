"""What is told of a machine's own addresses. No network: the looks are given."""

from ipaddress import IPv4Interface, IPv6Interface

import pytest

from mdl.errors import ConfigError
from mdl.transport.discovery import interfaces
from mdl.transport.discovery.interfaces import AddressWatch

HOME, LEASE, CABLE = (IPv4Interface(f"{host}/24") for host in ("192.168.1.20", "192.168.1.77", "10.0.0.2"))

LINK = IPv6Interface("fe80::1%eth0/64")


@pytest.fixture
def watch(monkeypatch):
    """A function that changes the addresses and has the watch look; returns what was told."""
    told, now = [], [HOME]
    monkeypatch.setattr(interfaces, "LOOK_EVERY_S", 3600.0)
    monkeypatch.setattr(interfaces, "usable_interfaces", lambda asked: list(now))
    watching = AddressWatch(None, lambda own, kept: told.append((list(own), set(kept))))

    def look(*interfaces):
        told.clear()
        now[:] = interfaces
        watching.look()
        return list(told)

    yield look
    watching.close()


def test_nothing_is_told_as_long_as_nothing_changes(watch):
    assert watch(HOME) == []


def test_another_address_is_told_with_those_that_were_there_all_along(watch, caplog):
    assert watch(HOME, CABLE) == [([HOME, CABLE], {"192.168.1.20"})]
    assert watch(LEASE, CABLE) == [([LEASE, CABLE], {"10.0.0.2"})]
    assert "it is at 192.168.1.77, 10.0.0.2 now" in caplog.text


def test_a_link_local_address_is_none_that_was_there_all_along_and_is_told_where_there_is_no_other(watch, caplog):
    assert watch(HOME, LINK) == [([HOME, LINK], {"192.168.1.20"})]
    assert caplog.text == "", "nothing that people would notice has changed"
    assert watch(LEASE, LINK) == [([LEASE, LINK], set())]
    assert watch(LINK) == [([LINK], set())]
    assert [line.partition("it is at ")[2].partition(" now")[0] for line in caplog.messages] == [
        "192.168.1.77",
        "fe80::1",
    ]


def test_without_any_address_nothing_can_be_done_until_one_is_back_even_the_old_one(watch, caplog):
    assert watch() == []
    assert "this device is on no network any more (it was at 192.168.1.20)" in caplog.text
    assert watch() == []
    assert watch(HOME) == [([HOME], set())]
    assert watch(HOME, CABLE) == [([HOME, CABLE], {"192.168.1.20"})]


def test_an_interface_that_was_asked_for_and_is_down_is_no_network(monkeypatch):
    def gone(asked):
        raise ConfigError(f"interfaces: {asked[0]!r} is not up")

    monkeypatch.setattr(interfaces, "usable_interfaces", gone)
    told = []
    watching = AddressWatch(["wlan0"], lambda own, kept: told.append(own))
    watching.look()
    watching.close()
    assert told == []


def test_without_a_descriptor_to_ask_with_nothing_has_changed(monkeypatch):
    told = []
    monkeypatch.setattr(interfaces, "LOOK_EVERY_S", 3600.0)
    monkeypatch.setattr(interfaces, "usable_interfaces", lambda asked: [HOME])
    watching = AddressWatch(None, lambda own, kept: told.append(own))

    def refuse(asked):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(interfaces, "usable_interfaces", refuse)
    watching.look()
    watching.close()
    assert told == []


def test_an_address_that_another_machine_has_too_is_told_once_until_it_is_gone(monkeypatch, caplog):
    others, own = {"192.168.1.20": "02:00:00:00:00:07"}, [HOME, CABLE, LINK]
    monkeypatch.setattr(interfaces, "LOOK_EVERY_S", 3600.0)
    monkeypatch.setattr(interfaces, "usable_interfaces", lambda asked: own)
    monkeypatch.setattr(interfaces, "name_of", lambda host: "eth0")
    monkeypatch.setattr(interfaces, "who_else_has", lambda host, name, wait_s: others.get(host))
    watching = AddressWatch(None, lambda own, kept: None)
    try:
        watching.ask()
        watching.ask()
        assert [line[:75] for line in caplog.messages] == [
            "another machine (hardware address 02:00:00:00:00:07) has this device's addr"
        ]
        assert "192.168.1.20, too" in caplog.text
        others.clear()
        watching.ask()
        others["192.168.1.20"] = "02:00:00:00:00:07"
        watching.ask()
        assert len(caplog.messages) == 2
    finally:
        watching.close()
