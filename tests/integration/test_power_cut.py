"""A device whose machine lost power does not rely on its ballot: real processes on loopback, one of them killed."""

import pytest
from msgspec.structs import replace

from mdl.config import MeshSection
from mdl.files.ballot import BALLOT, BallotFile
from mdl.peers.view.watch import Watcher
from mdl.transport.trust.keys import Mesh, new_join_code
from tests.integration import product

FORGOTTEN = "the last ballot of this device may be lost, since its machine has lost power or crashed"


@pytest.fixture
def home(tmp_path):
    home = product.Home(tmp_path / "home", tmp_path / "cache")
    yield home
    home.close()


def counts(watcher, name, incarnation):
    """Return True if this start of a device is a member, and a round since its start has its work."""
    members = watcher.status.members if watcher.status else ()
    is_member = any((member.peer_id, member.incarnation) == (name, incarnation) for member in members)
    return is_member and any(name in found.contributors for found in watcher.rounds)


@pytest.mark.slow
def test_a_killed_device_relies_on_its_ballot_unless_its_machine_was_started_since(home, monkeypatch):
    code, folder = new_join_code("home"), home.folder / "phone"

    def start(name, shard):
        options = ("--data", product.SMALL, "--shard", f"{shard}/2", "--loopback", "--code", code)
        return home.start("peer", "--name", name, "--out", home.folder / name, *options)

    def until_counted():
        incarnation = int((folder / "incarnation").read_text())
        with Watcher(Mesh.from_code(code), MeshSection(loopback=True)) as watcher:
            assert product.until(lambda: counts(watcher, "phone", incarnation)), phone.told
        return incarnation

    start("desk", 1)
    phone = start("phone", 2)
    assert product.until((folder / BALLOT).exists), phone.told
    first = until_counted()
    phone.kill_all()

    phone = start("phone", 2)
    assert product.until(lambda: int((folder / "incarnation").read_text()) > first)
    second = until_counted()
    assert FORGOTTEN not in phone.told
    assert BallotFile(folder / BALLOT).load().starts == (first, second)
    phone.kill_all()

    monkeypatch.setattr("mdl.files.ballot.name_boot", lambda: "the boot before")
    file = BallotFile(folder / BALLOT)
    file.save(replace(file.load()))
    phone = start("phone", 2)
    assert product.until(lambda: int((folder / "incarnation").read_text()) > second)
    third = until_counted()
    assert FORGOTTEN in phone.told
    assert BallotFile(folder / BALLOT).load().starts == (third,)

    phone.interrupt()  # ended by its user: it has promised nothing since
    file.save(file.load(), is_last=True)
    phone = start("phone", 2)
    assert product.until(lambda: int((folder / "incarnation").read_text()) > third)
    fourth = until_counted()
    assert FORGOTTEN not in phone.told
    assert BallotFile(folder / BALLOT).load().starts == (third, fourth)
