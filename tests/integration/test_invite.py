"""Devices that come into a mesh by three words: real commands, on a LAN of two hosts, and strangers at the port."""

import contextlib
import socket
import struct
import threading
import time

import pytest

from mdl.errors import ConfigError, MeshNotFoundError
from mdl.transport.discovery.directory import Address
from mdl.transport.links import inviting
from mdl.transport.links.inviting import accept, serve
from mdl.transport.trust.invitation import MAX_FRAME_BYTES, TRIES, TRIES_OF_ONE, Invitation, Joining
from tests.integration import lan
from tests.integration.product import Home, until

WORDS, OTHERS, CODE = "maple otter violin", "maple otter visit", "home:k7q2-9xvd-k7q2-9xvd-k7q2"


class Door:
    """An invitation at a port of loopback, served by a thread of this test."""

    def __init__(self, is_near=lambda host: True):
        self.told, self.why = [], ""
        self.invitation = Invitation(WORDS, CODE, time.monotonic())
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.at = Address(*self.listener.getsockname())
        self.thread = threading.Thread(target=self._serve, args=(is_near,))
        self.thread.start()

    def _serve(self, is_near):
        self.why = serve(self.invitation, self.listener, is_near, self.told.append)

    def close(self):
        self.invitation.ends_at = 0.0
        self.thread.join(20)
        self.listener.close()
        assert not self.thread.is_alive()


@pytest.fixture
def door():
    door = Door()
    yield door
    door.close()


def test_three_wrong_guesses_over_real_sockets_shut_out_whoever_guessed_and_nobody_else(door):
    for _ in range(TRIES_OF_ONE):
        with pytest.raises(ConfigError, match="not the words"):
            accept(OTHERS, door.at)
    assert until(lambda: len(door.told) == TRIES_OF_ONE)
    assert [line.partition(": ")[2][:10] for line in door.told] == ["2 tries le", "1 try left", "0 tries le"]
    assert "let mdl mesh invite show new words" in door.told[-1]
    with pytest.raises(MeshNotFoundError):
        accept(WORDS, door.at)
    with socket.create_connection((door.at.host, door.at.port), 10, ("127.0.0.2", 0)) as device:
        joining = Joining(WORDS)
        said = joining.begin()
        while said:
            inviting._write(device, said, time.monotonic() + 20)
            said = joining.handle(inviting._read(device, MAX_FRAME_BYTES, time.monotonic() + 20))
        assert joining.text == CODE


def test_silent_connections_keep_nobody_waiting(door):
    """One at a time, each for two seconds, kept the device that was invited out for as long as they came."""
    with contextlib.ExitStack() as open_things:
        for number in range(3 * inviting.MOST_OPEN):
            host = f"127.0.0.{2 + number % 100}"
            where = (door.at.host, door.at.port)
            open_things.enter_context(socket.create_connection(where, 10, (host, 0)))
        assert accept(WORDS, door.at) == CODE
    assert door.invitation.tries_left == TRIES


def test_connections_of_one_address_make_place_for_each_other_alone(door):
    where = (door.at.host, door.at.port)
    with contextlib.ExitStack() as open_things:
        quiet = open_things.enter_context(socket.create_connection(where, 10, ("127.0.0.9", 0)))
        crowd = [
            open_things.enter_context(socket.create_connection(where, 10, ("127.0.0.8", 0)))
            for _ in range(inviting.MOST_OF_ONE + 1)
        ]
        crowd[0].settimeout(10)
        assert crowd[0].recv(1) == b"", "the one that has been silent longest"
        quiet.setblocking(False)
        with pytest.raises(BlockingIOError):
            quiet.recv(1)


def test_noise_silence_and_length_cost_the_stranger_its_connection_and_nobody_a_try(door, monkeypatch):
    monkeypatch.setattr(inviting, "_FIRST_WORD_S", 0.2)
    for noise in (b"GET / HTTP/1.1\r\n\r\n", struct.pack("!H", 65_000) + bytes(100), struct.pack("!H", 0), b"\0", b""):
        with socket.create_connection((door.at.host, door.at.port), 10) as stranger:
            stranger.sendall(noise)
            with contextlib.suppress(ConnectionResetError):  # what it sent too much of was not read
                assert stranger.recv(100) == b""
    assert door.invitation.tries_left == TRIES
    assert accept(WORDS, door.at) == CODE


def test_who_comes_beside_a_silent_stranger_is_heard(door):
    with socket.create_connection((door.at.host, door.at.port), 10):
        assert accept(WORDS, door.at) == CODE
    door.thread.join(20)
    assert door.told == ["127.0.0.1 knows the words: it has the join code"]


def test_another_network_is_not_heard():
    door = Door(is_near=lambda host: False)
    try:
        with pytest.raises(MeshNotFoundError):
            accept(WORDS, door.at)
        assert not door.told
        assert door.invitation.tries_left == TRIES
    finally:
        door.close()


@pytest.mark.slow
@pytest.mark.skipif(bool(lan.why_not()), reason=lan.why_not() or "")
def test_a_new_device_of_a_lan_comes_in_by_three_words(tmp_path):
    with lan.Lan(2) as net:
        homes = [
            Home(tmp_path / name, tmp_path / "cache", ("ip", "netns", "exec", net.names[host]))
            for host, name in enumerate(("ann", "bob"))
        ]
        ann, bob = homes
        try:
            assert ann.run("mesh", "new", "home").code == 0
            code = ann.run("mesh", "list", "--codes", "--json").result()["meshes"][0]["code"]
            inviting = ann.start("mesh", "invite")
            assert until(lambda: "--at" in inviting.told), inviting.told
            words = inviting.said.split()
            wrong = [*words[:2], "maple" if words[2] != "maple" else "otter"]
            refused = bob.run("mesh", "join", *wrong)
            assert (refused.code, "not the words" in refused.complaint) == (2, True), refused.told
            assert until(lambda: "2 tries left" in inviting.told), inviting.told
            joined = bob.run("mesh", "join", *words, "--json")
            assert joined.code == 0, joined.told
            assert inviting.end() == 0
            assert code not in inviting.told + inviting.said
            assert bob.run("mesh", "list", "--codes", "--json").result()["meshes"] == [{"mesh": "home", "code": code}]
            again = bob.run("mesh", "join", *words, "--wait", 1)
            assert (again.code, "no invitation is open" in again.complaint) == (3, True), again.told
            elsewhere = bob.run("mesh", "join", *words, "--at", "192.0.2.1:4711")
            assert (elsewhere.code, "not on a network of this device" in elsewhere.complaint) == (2, True)
        finally:
            for home in homes:
                home.close()
