"""Strangers without the code who only connect: more silent connections than a node may have descriptors."""

import contextlib
import shutil
import socket
import threading
import time

import psutil
import pytest

from mdl.protocol.cloud_messages import LessonWanted
from mdl.protocol.delta import Contributor
from mdl.transport.links.hub import Spoke
from mdl.transport.trust.keys import MeshKeys, new_join_code
from tests.integration import product
from tests.integration.outsider import is_over

# Of files, soft and hard: nothing can be raised. A node of a small mesh needs about 40.
LIMIT = 256
# Connections at a time, as many more each second as are ended, and all in all.
AT_ONCE, A_SECOND, MOST = 400, 400, 12_000

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit sets the limit of open files"),
]


class Strangers:
    """AT_ONCE connections that say nothing; each that is ended is opened again, MOST in all."""

    def __init__(self, port):
        self.opened = 0
        self._port, self._connections, self._ended = port, [], threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()
        for connection in self._connections:
            connection.close()

    def _run(self):
        while not self._ended.wait(0.05):
            for connection in [each for each in self._connections if is_over(each)]:
                connection.close()
                self._connections.remove(connection)
            new = A_SECOND // 20 if self.opened >= AT_ONCE else AT_ONCE
            for _ in range(min(new, AT_ONCE - len(self._connections), MOST - self.opened)):
                connection = socket.socket()
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    connection.connect(("127.0.0.1", self._port))
                self._connections.append(connection)
                self.opened += 1


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def homes(tmp_path):
    """Of whoever is attacked, and of the others."""
    few = ("prlimit", f"--nofile={LIMIT}:{LIMIT}")
    made = (
        product.Home(tmp_path / "few", tmp_path / "cache", few),
        product.Home(tmp_path / "others", tmp_path / "cache"),
    )
    yield made
    for home in made:
        home.close()


def descriptors(command):
    return psutil.Process(command.process.pid).num_fds()


def test_the_leading_node_stays_and_a_member_joins_while_strangers_open_more_connections_than_it_may(homes):
    few, others = homes
    code, port = new_join_code("home"), free_port()
    options = ("--data", product.SMALL, "--loopback", "--code", code)
    own = ("--name", "phone", "--out", "phone", "--shard", "1/3", "--port", port, "--fresh")  # leads, and does not wait
    phone = few.start("peer", *own, *options)
    assert product.until(lambda: "phone is the agent now" in phone.told), phone.told
    desk = others.start(
        "peer", "--name", "desk", "--out", "desk", "--shard", "2/3", "--join", f"127.0.0.1:{port}", *options
    )
    metrics = few.folder / "phone" / "metrics.jsonl"
    assert product.until(lambda: len(product.read_lines(metrics)) >= 2), phone.told
    most = 0

    def is_counted(name, rounds):
        nonlocal most
        most = max(most, descriptors(phone)) if phone.code is None else most
        return [1 for line in product.read_lines(metrics) if name in line["contributors"]][rounds - 1 :]

    with Strangers(port) as strangers:
        assert product.until(lambda: strangers.opened > 2 * AT_ONCE or phone.code is not None)
        late = others.start(
            "peer", "--name", "late", "--out", "late", "--shard", "3/3", "--join", f"127.0.0.1:{port}", *options
        )
        assert product.until(lambda: is_counted("late", 3) or phone.code is not None), phone.told
        assert (phone.code, desk.code, late.code) == (None, None, None), phone.told
    done = len(product.read_lines(metrics))
    assert product.until(lambda: len(product.read_lines(metrics)) > done + 1), "and goes on afterwards"
    assert "somebody opens too many" in phone.told
    assert phone.interrupt() < 10
    rounds = [line["round"] for line in product.read_lines(metrics)]
    assert rounds == list(range(1, len(rounds) + 1)), "no line is lost"
    assert (few.folder / "phone" / "story-phone.jsonl").exists()
    assert "Traceback" not in phone.told
    print(f"{strangers.opened} connections, {most} descriptors of {LIMIT} at most, {len(rounds)} rounds")


CLOUD = """
import sys, time, zmq
from mdl.protocol.delta import Contributor
from mdl.protocol.cloud_messages import LessonCurrent
from mdl.transport.links.hub import CloudHub
from mdl.transport.trust.keys import MeshKeys

hub = CloudHub(Contributor("cloud", 1), MeshKeys.from_code(sys.argv[1]), max_bytes=32, listen_host="127.0.0.1")
print(hub.port, flush=True)
poller = zmq.Poller()
for endpoint in hub.pollable():
    poller.register(endpoint, zmq.POLLIN)
while True:
    poller.poll(200)
    for event in hub.receive(time.monotonic()):
        hub.send(event.sender.peer_id, LessonCurrent(event.message.pupil, 7), None, time.monotonic())
"""


def test_a_clouds_port_stays_open_to_learners_while_strangers_open_more_connections_than_it_may(homes):
    few, _ = homes
    code = new_join_code("home")
    cloud = few.start_python("-c", CLOUD, code)
    assert product.until(lambda: cloud.said.endswith("\n") or cloud.code is not None), cloud.told
    port = int(cloud.said)
    with Strangers(port) as strangers:
        assert product.until(lambda: strangers.opened > 2 * AT_ONCE or cloud.code is not None)
        for number in range(3):
            spoke = Spoke(
                Contributor(f"learner-{number}", 1), MeshKeys.from_code(code), f"127.0.0.1:{port}", max_bytes=32
            )
            assert product.until(lambda spoke=spoke: is_answered(spoke) or cloud.code is not None)
            spoke.close()
        assert cloud.code is None, cloud.told
    assert "somebody opens too many" in cloud.told
    assert "Traceback" not in cloud.told


def is_answered(spoke):
    """Asked again and again, as a learner does."""
    spoke.send("cloud", LessonWanted("home", "schema"), None, time.monotonic())
    spoke.pollable()[0].poll(200)
    return spoke.receive(time.monotonic())
