"""Real mDNS over loopback."""

import queue
import time

import msgspec
import pytest

from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.discovery.mdns import Discovery
from tests.integration import product
from tests.integration.conftest import signed

PATIENCE_S = 10.0


class Neighbourhood:
    def __init__(self):
        self.discoveries, self.found = [], {}

    def add(self, peer_id, keys, incarnation=1, port=5750):
        seen = self.found.setdefault(peer_id, queue.SimpleQueue())
        me = PeerInfo(peer_id, incarnation, Role.TRAINER, "", port, "abc")
        self.discoveries.append(
            Discovery(me, "home", keys, seen.put, loopback=True, sign=lambda hosts: self.sign(me, keys, hosts))
        )
        return me

    @staticmethod
    def sign(me, keys, hosts):
        return signed(keys, msgspec.structs.replace(me, host=hosts[0]))

    def close(self):
        for discovery in self.discoveries:
            discovery.close()


@pytest.fixture
def neighbourhood():
    neighbourhood = Neighbourhood()
    yield neighbourhood
    neighbourhood.close()


def test_peers_of_a_mesh_find_each_other_within_a_second_and_another_mesh_stays_apart(neighbourhood, keys, other_keys):
    def told(peer_id, port):
        return neighbourhood.sign(PeerInfo(peer_id, 1, Role.TRAINER, "", port, "abc"), keys, ["127.0.0.1"])

    neighbourhood.add("a", keys, port=5751)
    neighbourhood.add("stranger", other_keys)
    started = time.monotonic()
    neighbourhood.add("b", keys, port=5752)
    assert neighbourhood.found["a"].get(timeout=PATIENCE_S) == told("b", 5752)
    assert neighbourhood.found["b"].get(timeout=PATIENCE_S) == told("a", 5751)
    assert time.monotonic() - started < 3
    assert neighbourhood.found["stranger"].empty()


def test_another_mesh_of_the_same_name_is_told_once(neighbourhood, keys, other_keys, caplog):
    neighbourhood.add("a", keys)
    neighbourhood.add("stranger", other_keys, port=5760)
    told = "another mesh named 'home' is on this network (at 127.0.0.1); it has another code"
    assert product.until(lambda: caplog.text.count(told) == 2)
    neighbourhood.add("third", other_keys, port=5761)
    assert neighbourhood.found["stranger"].get(timeout=PATIENCE_S).peer_id == "third"
    assert product.until(lambda: caplog.text.count(told) == 3)  # the third one tells of the first
    neighbourhood.add("b", keys, port=5752)
    assert neighbourhood.found["a"].get(timeout=PATIENCE_S).peer_id == "b"
    assert caplog.text.count(told) <= 4


def test_a_peer_started_anew_is_found_with_its_new_incarnation(neighbourhood, keys):
    neighbourhood.add("a", keys)
    neighbourhood.add("b", keys)
    assert neighbourhood.found["a"].get(timeout=PATIENCE_S).incarnation == 1
    neighbourhood.discoveries.pop().close()
    neighbourhood.add("b", keys, incarnation=2)
    assert neighbourhood.found["a"].get(timeout=PATIENCE_S).incarnation == 2


def test_another_start_of_this_node_is_handed_on_and_this_one_is_not(neighbourhood, keys):
    neighbourhood.add("a", keys, incarnation=1, port=5753)
    neighbourhood.add("b", keys)
    first = neighbourhood.found.pop("a")
    neighbourhood.add("a", keys, incarnation=2, port=5754)
    assert {(first.get(timeout=PATIENCE_S).peer_id) for _ in range(2)} == {"a", "b"}
    found = [neighbourhood.found["a"].get(timeout=PATIENCE_S) for _ in range(2)]
    assert {(info.peer_id, info.incarnation) for info in found} == {("a", 1), ("b", 1)}


def test_two_nodes_of_the_same_name_and_start_do_not_crash(neighbourhood, keys):
    neighbourhood.add("a", keys)
    neighbourhood.add("twin", keys, port=5753)
    neighbourhood.add("twin", keys, port=5754)
    assert neighbourhood.found["a"].get(timeout=PATIENCE_S).peer_id == "twin"
