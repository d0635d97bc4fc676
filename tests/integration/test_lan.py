"""Own processes on own hosts: found by mDNS alone, by address without multicast, and never by another mesh."""

import json
import queue
import threading
import time
from pathlib import Path

import pytest

from mdl.transport.trust.keys import new_join_code
from tests.integration import lan

HERE = Path(__file__).parent

REASON = lan.why_not()
pytestmark = [pytest.mark.alone, pytest.mark.skipif(REASON is not None, reason=REASON or "")]

NODE = HERE / "lan_node.py"
PATIENCE_S = 20.0
HOME, AWAY = new_join_code("home"), new_join_code("home")


class Node:
    """A process in a namespace, and the lines it has said so far."""

    def __init__(self, net, host, *arguments):
        self.lines, self.said = queue.SimpleQueue(), []
        self.process = net.start(host, NODE, *arguments)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(json.loads(line))

    def wait_for(self, patience_s=PATIENCE_S, **what):
        """The first line with these values; raises queue.Empty if it does not come in time."""
        give_up_at = time.monotonic() + patience_s
        while not (found := [line for line in self.said if what.items() <= line.items()]):
            self.said.append(self.lines.get(timeout=max(give_up_at - time.monotonic(), 0.001)))
        return found[0]

    def stays_without(self, patience_s, **what):
        try:
            self.wait_for(patience_s, **what)
        except queue.Empty:
            return True
        return False


@pytest.mark.parametrize("no_ipv6", [(), (0, 1, 2), (1,)])
def test_two_hosts_find_each_other_by_mdns_within_three_seconds_and_a_second_mesh_stays_apart(no_ipv6):
    with lan.Lan(3, no_ipv6=no_ipv6) as net:
        first, second = Node(net, 0, HOME, "first"), Node(net, 1, HOME, "second")
        stranger = Node(net, 2, AWAY, "stranger")
        ready = max(node.wait_for(ready=True)["seconds"] for node in (first, second))
        found = [first.wait_for(found="second"), second.wait_for(found="first")]
        assert [line["host"] for line in found] == [net.hosts[1], net.hosts[0]]
        assert all(line["seconds"] - ready < 3 for line in found), found
        first.wait_for(heard="second")
        second.wait_for(heard="first")
        stranger.wait_for(ready=True)
        assert stranger.stays_without(1.5, found="first")
        assert first.stays_without(0.01, found="stranger")


def test_without_multicast_an_address_is_enough_for_three_hosts_in_a_line():
    with lan.Lan(3, multicast=False) as net:
        first = Node(net, 0, HOME, "first", "--port", 5750, "--join", f"{net.hosts[1]}:5750")
        first.wait_for(ready=True)
        second = Node(net, 1, HOME, "second", "--port", 5750, "--join", f"{net.hosts[0]}:5750")
        third = Node(net, 2, HOME, "third", "--join", f"{net.hosts[1]}:5750")
        for node, others in ((first, "second third"), (second, "first third"), (third, "first second")):
            for other in others.split():
                node.wait_for(heard=other)


def test_the_network_is_gone_afterwards_even_if_the_test_failed():
    def fail():
        with lan.Lan(2) as net:
            names.extend([*net.names, net.switch])
            raise KeyError("in the middle")

    names = []
    with pytest.raises(KeyError):
        fail()
    left = lan.subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=10, check=True).stdout
    assert len(names) == 3
    assert not any(name in left for name in names)
