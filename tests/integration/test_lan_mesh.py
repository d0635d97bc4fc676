"""`mdl agent` and `mdl peer` on hosts of their own: they meet by mDNS alone, or by one address, and train."""

import json
import re
from datetime import datetime

import pytest

from mdl.transport.trust.keys import new_join_code
from tests.integration import lan, product

REASON = lan.why_not()
pytestmark = [pytest.mark.alone, pytest.mark.skipif(REASON is not None, reason=REASON or "")]

CODE = new_join_code("field")
# Same name with another code, and another name: two meshes that share the wires with ours.
STRANGERS = (new_join_code("field"), new_join_code("barn"))
FOUND_S = 3.0


@pytest.fixture
def place(tmp_path):
    """A function that makes a user with a home of their own on host i of a network."""
    homes = []

    def make(net, host):
        before = ("ip", "netns", "exec", net.names[host])
        home = product.Home(tmp_path / f"host-{host}", tmp_path / "cache", before)
        homes.append(home)
        return home

    yield make
    for home in homes:
        home.close()


def train(agent_home, peer_homes, join=(), port=0):
    """Two rounds on two devices; the peers' commands, ended."""
    agent = agent_home.start("agent", "--code", CODE, "--rounds", 2, "--json", "--port", port)
    peers = [
        home.start(
            "peer", "--code", CODE, "--data", product.SMALL, "--shard", f"{i}/2", "--name", f"p{i}", "--json", *join
        )
        for i, home in enumerate(peer_homes, 1)
    ]
    assert [command.end() for command in (*peers, agent)] == [0, 0, 0], [command.told for command in (*peers, agent)]
    assert [peer.result()["round_id"] for peer in peers] == [2, 2]
    return peers


def read_moments(peer):
    """When this peer was ready, and when it had found whom, by its own log: seconds."""
    moments = {}
    for line in peer.told.splitlines():
        if found := re.match(r"(\S+ \S+) (?:found (\S+)|\S+ holds )", line):
            at = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
            moments.setdefault(found[2] or "ready", at)
    return moments


def test_hosts_find_each_other_by_mdns_within_three_seconds_train_and_other_meshes_stay_apart(place):
    with lan.Lan(4) as net:
        homes = [place(net, host) for host in range(4)]
        other = homes[3].start("agent", "--code", STRANGERS[0])
        peers = train(homes[0], homes[1:3])
        first, second = (read_moments(peer) for peer in peers)
        ready = max(first["ready"], second["ready"])
        found = (first["p2"], first["agent"], second["p1"], second["agent"])
        took = [moment - ready for moment in found]
        assert max(took) < FOUND_S
        rounds = product.read_lines(homes[0].folder / "state" / "mdl" / "field" / "agent" / "metrics.jsonl")
        assert [line["contributors"] for line in rounds] == [["p1", "p2"]] * 2
        seen = homes[2].run("status", "--code", STRANGERS[0], "--json", "--wait", 5).result()
        assert [device["host"] for device in seen["mesh"]["devices"].values()] == [net.hosts[3]]
        assert [device["role"] for device in seen["mesh"]["devices"].values()] == ["agent"]
        assert homes[1].run("status", "--code", STRANGERS[1], "--wait", 1).code == 3
        assert other.code is None


def test_without_multicast_one_address_is_enough_to_train(place):
    with lan.Lan(3, multicast=False) as net:
        homes = [place(net, host) for host in range(3)]
        train(homes[0], homes[1:], join=("--join", f"{net.hosts[0]}:5750"), port=5750)


def test_two_subnets_train_together_once_one_side_is_given_an_address(place):
    with lan.Lan(3, subnets=(0, 0, 1)) as net:
        homes = [place(net, host) for host in range(3)]
        assert homes[2].run("status", "--code", CODE, "--wait", 2).code == 3
        train(homes[0], homes[1:], join=("--join", f"{net.hosts[0]}:5750"), port=5750)


def test_with_ipv6_alone_a_mesh_trains_and_a_look_shows_its_devices_and_no_link(place):
    with lan.Lan(3, ipv4=(False,) * 3) as net:
        homes = [place(net, host) for host in range(3)]
        waiting = homes[2].start("agent", "--code", CODE)
        seen = homes[0].run("status", "--code", CODE, "--json", "--wait", 20).result()
        assert [device["host"][:6] for device in seen["mesh"]["devices"].values()] == ["fe80::"]
        assert "%" not in json.dumps(seen)
        waiting.interrupt()
        train(homes[0], homes[1:])
