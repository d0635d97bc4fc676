"""A device's directory is copied to another device (an SD card, say), and both run: real processes on loopback."""

import shutil

import pytest

from mdl.config import MeshSection
from mdl.peers.view.watch import Watcher
from mdl.transport.trust.keys import Mesh, new_join_code
from tests.integration import product

MESH = MeshSection(loopback=True)


class Devices:
    """Processes on one machine, each with a directory of its own."""

    def __init__(self, home):
        self.home, self.code = home, new_join_code("home")

    def start(self, label, name, shard):
        options = ("--data", product.SMALL, "--shard", f"{shard}/2", "--loopback", "--code", self.code)
        return self.home.start("peer", "--name", name, "--out", self.home.folder / label, *options)

    def copy(self, label):
        """As the other device sees it: no process of that number runs there. What it is writing is not there yet."""
        half_written = shutil.ignore_patterns(".*.part")
        shutil.copytree(self.home.folder / label, self.home.folder / "copy", ignore=half_written)
        (self.home.folder / "copy" / "pid").unlink()


@pytest.fixture
def devices(tmp_path):
    devices = Devices(product.Home(tmp_path / "home", tmp_path / "cache"))
    yield devices
    devices.home.close()


def takes_part(watcher, incarnation, after):
    """Whether this start of the phone is the mesh's member, and a round later than that has counted it."""
    members = watcher.status.members if watcher.status else ()
    is_member = any(member.peer_id == "phone" and member.incarnation == incarnation for member in members)
    return is_member and any("phone" in found.contributors for found in watcher.rounds if found.round > after)


@pytest.mark.slow
def test_of_a_device_and_its_copy_the_copy_leaves_and_the_first_takes_part_again_though_it_led(devices):
    phone = devices.start("phone", "phone", 1)
    assert product.until(lambda: "phone is the agent now" in phone.told), phone.told
    incarnation = int((devices.home.folder / "phone" / "incarnation").read_text())
    desk = devices.start("desk", "desk", 2)
    with Watcher(Mesh.from_code(devices.code), MESH) as watcher:
        assert product.until(lambda: takes_part(watcher, incarnation, 1)), phone.told
        devices.copy("phone")
        copy = devices.start("copy", "phone", 1)
        assert copy.end() == 2, copy.told
        assert copy.complaint.startswith("mdl: another device of this mesh at 127.0.0.1:")
        assert copy.complaint.endswith(
            "is called 'phone' too (was its data directory copied?): give this one its own --name and --out"
        )
        done = watcher.status.round_id
        assert product.until(lambda: takes_part(watcher, incarnation, done + 2)), phone.told
    assert "started later, is called 'phone' too" in phone.told
    assert (phone.code, desk.code) == (None, None)
    assert "Traceback" not in phone.told + desk.told + copy.told
