"""A host whose address changes in the middle of a run: another lease, another Wi-Fi."""

import json
import subprocess
import threading
import time
from pathlib import Path

import pytest

from mdl.transport.trust.keys import new_join_code
from tests.integration import lan, product

HERE = Path(__file__).parent

REASON = lan.why_not()
pytestmark = [pytest.mark.alone, pytest.mark.skipif(REASON is not None, reason=REASON or "")]

PATIENCE_S = 40.0
# Rounds of this mesh take a tenth of a second or two; a lost device costs 2 s.
BACK_S = 8.0


class Node:
    """A node of tests/integration/fault_node.py on a host, and the rounds it stands at so far."""

    def __init__(self, net, host, code, folder, *arguments):
        self.rounds, self.errors, self._changed = [], folder / f"{host}.err", threading.Condition()
        with self.errors.open("w") as stderr:
            self.process = net.start(
                host, HERE / "fault_node.py", code, f"p{host}", folder / f"host-{host}", *arguments, stderr=stderr
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            told = json.loads(line)
            if "global" in told:
                with self._changed:
                    self.rounds.append((time.monotonic(), told["global"], len(told["contributors"])))
                    self._changed.notify_all()

    def wait_for(self, rounds, contributors, since, patience_s=PATIENCE_S):
        """Whether it applies so many more rounds with so many contributors."""

        def there():
            return sum(at >= since and count == contributors for at, _, count in self.rounds) >= rounds

        with self._changed:
            return self._changed.wait_for(there, patience_s)


@pytest.mark.parametrize("multicast", [True, False])
def test_a_host_that_gets_another_address_is_back_within_seconds(tmp_path, multicast):
    code = new_join_code("moves")
    with lan.Lan(3, multicast=multicast) as net:
        joins = [] if multicast else [f"mesh.join={json.dumps([f'{host}:5750' for host in net.hosts])}"]
        options = ["--set", "round.min_peers=3", "mesh.port=5750", *joins]
        nodes = [Node(net, host, code, tmp_path, *options) for host in range(3)]
        assert all(node.wait_for(3, 3, 0.0) for node in nodes)
        for host, away_s in ((2, 0.5), (0, 0.5)):  # one of them, or both, led at some time
            net.move(host, f"10.213.0.{100 + host}", away_s)
            moved = time.monotonic()
            assert all(node.wait_for(5, 3, moved, BACK_S) for node in nodes), [n.errors.read_text() for n in nodes]
        # The other devices reach it by its link-local address, too, so rounds may go on before it has looked.
        errors, told = nodes[2].errors, "this device's address has changed: it is at 10.213.0.102 now"
        assert product.until(lambda: told in errors.read_text(), BACK_S), errors.read_text()
        assert errors.read_text().count(told) == 1


def test_who_listens_at_one_address_listens_at_the_new_one(tmp_path):
    code = new_join_code("moves")
    with lan.Lan(2) as net:
        first = Node(net, 0, code, tmp_path, "--set", "round.min_peers=2", f"mesh.listen={net.hosts[0]!r}")
        second = Node(net, 1, code, tmp_path, "--set", "round.min_peers=2")
        assert first.wait_for(2, 2, 0.0)
        net.move(0, "10.213.0.77", 0.5)
        moved = time.monotonic()
        assert second.wait_for(5, 2, moved, BACK_S), first.errors.read_text()
        assert "listening at 10.213.0.77 now" in first.errors.read_text()


def test_datagrams_come_to_the_new_address_of_one_that_listens_at_one_only(tmp_path):
    code, options = new_join_code("moves"), ["round.min_peers=2", "mesh.port=5750"]
    with lan.Lan(2, delay_s=0.1) as net:
        listening = ["--values", 100_000, "--set", *options, f"mesh.listen={net.hosts[0]!r}"]
        first = Node(net, 0, code, tmp_path, *listening)
        second = Node(net, 1, code, tmp_path, "--values", 100_000, "--set", *options)
        assert first.wait_for(3, 2, 0.0)
        net.move(0, "10.213.0.77", 0.5)
        moved = time.monotonic()
        assert second.wait_for(3, 2, moved, 2 * BACK_S), first.errors.read_text()
        before = datagrams_of(net, 0)
        assert second.wait_for(8, 2, moved, 2 * BACK_S), first.errors.read_text()
        # Each round brings a delta or a result of 400 KB: 340 packets, and as many acknowledgements of its own.
        assert datagrams_of(net, 0) - before > 300


def test_a_host_that_roams_to_another_subnet_and_back_is_in_its_rounds_within_seconds(tmp_path):
    code = new_join_code("moves")
    with lan.Lan(3, subnets=(0, 0, 1)) as net:
        join = f"mesh.join={json.dumps([f'{net.hosts[0]}:5750'])}"
        options = (["mesh.port=5750"], [], [join])  # the second one is found by mDNS, and passed on
        nodes = [Node(net, host, code, tmp_path, "--set", "round.min_peers=3", *options[host]) for host in range(3)]
        assert all(node.wait_for(3, 3, 0.0) for node in nodes), [node.errors.read_text() for node in nodes]
        for subnet in (1, 0):
            net.roam(1, subnet, 0.5)
            moved = time.monotonic()
            assert all(node.wait_for(5, 3, moved, BACK_S) for node in nodes), [n.errors.read_text() for n in nodes]


# Announces itself, and asks for somebody at each line of its stdin; its log is a user's.
ASKING = """
import sys
from mdl.transport.discovery.mdns import SERVICE, Discovery
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.peers.view.plain import log_plainly
log_plainly()
discovery = Discovery(PeerInfo("phone", 1, Role.TRAINER, "", 5750, ""), "home", None, print)
zeroconf = discovery._zeroconf
print("ready", flush=True)
for line in sys.stdin:
    zeroconf.get_service_info(SERVICE, f"{line.strip()}.{SERVICE}", timeout=300)
    print("asked", flush=True)
"""


def test_an_interface_that_goes_down_brings_no_traceback_to_the_log(tmp_path):
    with lan.Lan(1) as net, (tmp_path / "log").open("w") as log:
        asking = net.start(0, "-c", ASKING, stderr=log)
        assert asking.stdout.readline() == "ready\n"
        lan.ip(f"-n {net.names[0]} link set eth0 down")
        for name in ("one", "two"):
            asking.stdin.write(f"{name}\n")
            asking.stdin.flush()
            assert asking.stdout.readline() == "asked\n"
        told = (tmp_path / "log").read_text()
        assert "Traceback" not in told
        assert "Errno" not in told


WATCHING = """
import sys
from mdl.peers.view.plain import log_plainly
from mdl.transport.discovery import interfaces
log_plainly()
interfaces.LOOK_EVERY_S = interfaces.ASK_EVERY_S = 0.1
watch = interfaces.AddressWatch(None, print)
print("ready", flush=True)
sys.stdin.read()
watch.close()
"""


def test_an_address_that_two_hosts_have_is_named_by_one_that_runs(tmp_path):
    with lan.Lan(2) as net, (tmp_path / "log").open("w") as log:
        lan.ip(f"-n {net.names[1]} addr add {net.hosts[0]}/24 dev eth0")
        watching = net.start(0, "-c", WATCHING, stderr=log)
        assert watching.stdout.readline() == "ready\n"
        told = f"has this device's address {net.hosts[0]}, too"
        assert product.until(lambda: told in (tmp_path / "log").read_text(), PATIENCE_S)


def datagrams_of(net, host):
    """That have come to a host's sockets by IPv4."""
    command = ["ip", "netns", "exec", net.names[host], "cat", "/proc/net/snmp"]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
    names, values = (line.split() for line in told.splitlines() if line.startswith("Udp:"))
    return int(dict(zip(names, values, strict=True))["InDatagrams"])


def add_second_card(net):
    """All hosts are on a second switch, too, by a card of their own."""
    lan.ip(f"-n {net.switch} link add second type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
    lan.ip(f"-n {net.switch} link set second up")
    for at, name in enumerate(net.names):
        lan.ip(f"-n {net.switch} link add w{at} type veth peer name eth1 netns {name}")
        lan.ip(f"-n {net.switch} link set w{at} master second up")
        lan.ip(f"-n {name} addr add 10.214.0.{at + 1}/24 dev eth1")
        lan.ip(f"-n {name} link set eth1 up")


def test_a_host_whose_first_card_dies_without_a_word_is_reached_by_its_second_one(tmp_path):
    code = new_join_code("moves")
    with lan.Lan(3) as net:
        add_second_card(net)
        nodes = [Node(net, host, code, tmp_path, "--set", "round.min_peers=2") for host in range(3)]
        assert all(node.wait_for(3, 3, 0.0) for node in nodes), [node.errors.read_text() for node in nodes]
        for dead, alive in (("v0", ""), ("w0", "v0 master br0")):  # then the second one, while the first is there again
            if alive:
                lan.ip(f"-n {net.switch} link set {alive}")
            lan.ip(f"-n {net.switch} link set {dead} nomaster")
            died = time.monotonic()
            assert all(node.wait_for(5, 3, died, BACK_S + 4.0) for node in nodes), [n.errors.read_text() for n in nodes]
            print(f"{dead}: {time.monotonic() - died:.1f} s")
