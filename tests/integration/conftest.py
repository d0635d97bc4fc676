"""Real sockets on loopback, every wait with a deadline and none with a sleep."""

import os
import time

import pytest
import zmq

from mdl.peers.launch.nursery import Nursery
from mdl.protocol.vocabulary import PeerInfo, Role
from mdl.transport.links.mesh_links import Links
from mdl.transport.trust.keys import DeviceKey, MeshKeys, new_join_code
from mdl.transport.trust.membership import Membership
from tests.integration import preloaded, product
from tests.integration.browser import open_browser

PATIENCE_S = 20.0


@pytest.fixture(scope="session", autouse=True)
def _libraries_imported_once():
    """For the commands of all tests; it has time for that until the first one needs it."""
    if not Nursery.is_possible():
        yield
        return
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # each has its own
    environment["OMP_NUM_THREADS"] = "1"
    product.Home.preloaded = nursery = Nursery(preloaded.__file__, environment)
    yield
    product.Home.preloaded = None
    nursery.close()


@pytest.fixture(scope="session")
def _chromium():
    """Started by the first test that needs one; skips where there is none."""
    browser = open_browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(_chromium):
    _chromium.size(1440, 900)
    _chromium.dress("light")
    yield _chromium
    _chromium.go("about:blank")
    _chromium.complaints()
    _chromium.asked()


@pytest.fixture(scope="session")
def keys():
    return MeshKeys.from_code(new_join_code("home"))


@pytest.fixture(scope="session")
def other_keys():
    return MeshKeys.from_code(new_join_code("home"))


def device_of(peer_id):
    """The key of the device that these tests know by this name; a copy of it has the same."""
    return DeviceKey.of(peer_id.encode().ljust(32, b"."))


def signed(keys, info, device=None, *, link_port=None, serial=1):
    """A peer as its device introduces it. device: the key of another one. serial: milliseconds, long ago."""
    membership = Membership(keys, device or device_of(info.peer_id))
    return membership.introduce(info, link_port or info.port, [info.host], serial)


class Mesh:
    """Several nodes' links in one thread: `until` runs them all until something is true."""

    def __init__(self):
        self.links, self.events = {}, {}
        # How far its time is ahead of the clock.
        self.ahead_s = 0.0
        # Who does not run now.
        self.asleep = set()

    def now(self):
        return time.monotonic() + self.ahead_s

    def add(self, peer_id, keys, *, join=(), max_values=1 << 23, incarnation=1, insecure=False, port=0):
        return self.add_start(
            peer_id,
            PeerInfo(peer_id, incarnation, Role.TRAINER, "", port),
            keys,
            join=join,
            max_values=max_values,
            insecure=insecure,
        )

    def add_start(self, label, me, keys, *, join=(), max_values=1, insecure=False, share=None, membership=None):
        """A start of a peer that this test knows as `label`; what is called alike is the same device, or a copy."""
        joined = [self.address(other) for other in join]
        self.links[label] = Links(
            me,
            keys,
            membership=membership or (None if keys is None else Membership(keys, device_of(me.peer_id))),
            share=share,
            max_values=max_values,
            now=self.now(),
            listen_host="127.0.0.1",
            join=joined,
            insecure=insecure,
        )
        self.events[label] = []
        return self.links[label]

    def address(self, label):
        return f"127.0.0.1:{self.links[label].me.port}"

    def introduced(self, label):
        """A node as it introduces itself."""
        introducer = self.links[label].introducer
        return introducer.seen_from("127.0.0.1", introducer.me)

    def turn(self, longest_s=0.05):
        poller = zmq.Poller()
        for peer_id in self.links.keys() - self.asleep:
            for endpoint in self.links[peer_id].pollable():
                poller.register(endpoint, zmq.POLLIN)
        poller.poll(round(longest_s * 1000))
        for peer_id, links in self.links.items():
            if peer_id not in self.asleep:
                self.events[peer_id] += links.receive(self.now())

    def until(self, claim, patience_s=PATIENCE_S):
        """Run until `claim()` is true; returns whether it became so in time."""
        give_up_at = time.monotonic() + patience_s
        while not claim() and time.monotonic() < give_up_at:
            self.turn()
        return claim()

    def of(self, peer_id, kind):
        return [event for event in self.events[peer_id] if isinstance(event, kind)]

    def kill(self, peer_id):
        self.links.pop(peer_id).close()

    def close(self):
        for peer_id in list(self.links):
            self.kill(peer_id)


@pytest.fixture
def mesh():
    mesh = Mesh()
    yield mesh
    mesh.close()
