"""The check that runs after every test has teeth: what a test would leave behind is found, and told by its name."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest

from tests.leftovers import Belongings, left_since


def test_a_thread_that_goes_on_is_named() -> None:
    before, end = Belongings.now(), threading.Event()
    thread = threading.Thread(target=end.wait, name="goes-on", daemon=True)
    thread.start()
    assert left_since(before, patience_s=0.0) == ["thread goes-on"]
    end.set()
    thread.join()
    assert left_since(before) == []


def test_a_process_that_goes_on_is_named_and_killed() -> None:
    before = Belongings.now()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        (told,) = left_since(before, patience_s=0.0)
        assert told.startswith(f"process {process.pid}: ")
        assert process.wait() < 0
    assert left_since(before) == []


@pytest.mark.parametrize(("kind", "name"), [(socket.SOCK_STREAM, "SOCK_STREAM"), (socket.SOCK_DGRAM, "SOCK_DGRAM")])
def test_a_socket_that_waits_for_others_is_named(kind: socket.SocketKind, name: str) -> None:
    before = Belongings.now()
    with socket.socket(type=kind) as mine:
        mine.bind(("127.0.0.1", 0))
        if kind is socket.SOCK_STREAM:
            mine.listen()
        (told,) = left_since(before, patience_s=0.0)
        assert told.startswith(f"socket {name} 127.0.0.1:{mine.getsockname()[1]} ")
    assert left_since(before) == []


def test_what_was_there_before_may_stay() -> None:
    with socket.create_server(("127.0.0.1", 0)):
        assert left_since(Belongings.now()) == []
