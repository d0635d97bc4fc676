"""Windows shared between one person's devices: real commands, each user of the machine a device of its own."""

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from tests.integration import product

DATA = "motion?people=6&test_people=2&windows=40"
QUICK = ("--loopback", "--speed")


@pytest.fixture
def users(tmp_path, tmp_path_factory):
    cache = tmp_path_factory.getbasetemp() / "cache"
    homes = {name: product.Home(tmp_path / name, cache) for name in ("phone", "watch", "stranger")}
    code = homes["phone"].run("mesh", "new", "home", "--json").result()["code"]
    for home in homes.values():  # known here, nobody has met
        meshes = home.folder / "config" / "mdl" / "meshes"
        meshes.mkdir(parents=True, exist_ok=True)
        (meshes / "home.code").write_text(f"{code}\n")
    yield homes
    for home in homes.values():
        home.close()


def words_of(home):
    """Of the key of this user's device, which `mdl doctor` and owners read out."""
    script = (
        "from mdl.peers.edge.membership import device_key; from mdl.transport.trust.keys import fingerprint;"
        "print(fingerprint(device_key().public))"
    )
    command = home.start_python("-c", script)
    command.end()
    return command.said.strip()


def files_of(home):
    return sorted(path for path in (home.folder / "state" / "mdl" / "home--shared").glob("*") if path.is_file())


def share(users, *more, to="watch", wait="30"):
    named = ("--with", words_of(users[to]), "--name", "phone", "--yes", "--json")
    return users["phone"].start("data", "share", DATA, "--mesh", "home", *named, *QUICK, "200", "--wait", wait, *more)


def accept(users, who="watch", *more, speed="100"):
    named = ("--from", words_of(users["phone"]), "--name", who, "--json")
    return users[who].start("data", "accept", "--mesh", "home", *named, *QUICK, speed, *more)


@pytest.mark.slow
def test_windows_go_to_the_named_device_alone_and_are_deleted_when_they_are_taken_back(users):
    watch, stranger = accept(users), accept(users, "stranger")
    shared = share(users)
    assert shared.end() == 0, shared.told
    told = shared.result()
    (given,) = told["shares"]
    assert (given["train"], given["train"] + told["kept"]) == (80, 240), "a third for half the speed"
    assert product.until(lambda: "windows to train with" in watch.told), watch.told
    (windows, record) = sorted(files_of(users["watch"]), key=lambda path: path.suffix, reverse=True)
    assert {windows.suffix, record.suffix} == {".npz", ".json"}
    assert all(stat.S_IMODE(os.stat(path).st_mode) == 0o600 for path in (windows, record, *files_of(users["phone"])))
    assert len(np.load(windows)["y"]) == given["train"] + given["test"]
    assert stranger.code is None
    assert "found phone" in stranger.told
    assert files_of(users["stranger"]) == []
    assert "stranger asks for windows, and is not among the devices that are named" in shared.told

    ended = users["phone"].run("data", "unshare", "--mesh", "home", "--name", "phone", "--loopback", "--json")
    assert (ended.code, ended.result()["not_yet"]) == (0, []), ended.told
    assert product.until(lambda: files_of(users["watch"]) == []), watch.told
    assert "the windows are deleted" in watch.told
    again = users["phone"].run("data", "unshare", "--mesh", "home", "--loopback", "--json")
    assert (again.code, "nothing is shared in mesh home" in again.complaint) == (2, True)


@pytest.mark.slow
def test_a_member_that_is_not_named_gets_nothing_by_forged_words_either(users):
    """It knows the number of the sharing, asks for parts, offers windows of its own, and has others' deleted."""
    watch = accept(users)
    forger = users["stranger"].start_python(Path(__file__).with_name("sharing_forger.py"), "home")
    assert product.until(lambda: "found watch" in forger.told), forger.told
    shared = share(users)
    assert shared.end() == 0, shared.told
    assert product.until(lambda: files_of(users["watch"])), watch.told
    given = json.loads((users["phone"].folder / "state/mdl/home--shared/given.json").read_text())
    sharing_id = given["shares"][0]["sharing_id"]
    before = {path: path.read_bytes() for path in files_of(users["watch"])}
    (users["stranger"].folder / "sharing_id").write_text(sharing_id)
    again = users["phone"].start("data", "accept", "--mesh", "home", "--from", words_of(users["watch"]), *QUICK, "1")
    assert product.until(lambda: "has forged 20" in forger.told), forger.told
    assert "accepted from another device" in watch.told
    assert "heard windows" not in forger.told
    assert {path: path.read_bytes() for path in files_of(users["watch"])} == before
    assert files_of(users["stranger"]) == []
    assert (watch.code, again.code) == (None, None)


@pytest.mark.alone
def test_a_device_trains_with_what_it_was_given_until_it_is_taken_back(users):
    watch = accept(users, "watch", "--once")
    shared = share(users)
    assert (shared.end(), watch.end()) == (0, 0), (shared.told, watch.told)
    common = ("--mesh", "home", "--data", "shared:home", "--loopback", "--set", "round.theta=samples", "--json")
    peers = {name: users[name].start("peer", "--name", name, *common) for name in ("phone", "watch")}
    assert product.until(lambda: all("the mesh's model is here" in peer.told for peer in peers.values())), [
        peer.told for peer in peers.values()
    ]
    assert "watch holds 80 windows of shared:home" in peers["watch"].told
    assert "phone holds 160 windows of shared:home" in peers["phone"].told
    ended = users["phone"].run("data", "unshare", "--mesh", "home", "--loopback", "--json")
    assert (ended.code, ended.result()["not_yet"]) == (0, []), ended.told
    assert product.until(lambda: None not in (peers["watch"].code, peers["phone"].code), 150.0), [
        peer.told[-4000:] for peer in peers.values()
    ]
    assert (peers["watch"].code, peers["phone"].code) == (0, 0), peers["watch"].told
    for name, peer in peers.items():
        assert "the windows that it trained with were taken back" in peer.told
        assert not [path for path in files_of(users[name]) if path.name.startswith("from-")]
    again = users["watch"].run("peer", "--name", "watch", *common)
    assert (again.code, "no windows are shared with this device" in again.complaint) == (2, True)


@pytest.mark.slow
def test_a_revoked_device_is_told_and_deletes_what_it_was_given(users):
    watch = accept(users)
    assert share(users).end() == 0
    assert product.until(lambda: files_of(users["watch"])), watch.told
    words = words_of(users["watch"])
    met = [users[name].start("peer", "--name", name, "--mesh", "home", "--data", DATA, "--loopback") for name in users]
    assert product.until(lambda: "found watch" in met[0].told and "the mesh's model is here" in met[0].told)
    revoked = users["phone"].run("mesh", "revoke", "home", words, "--reason", "lost", "--yes", "--loopback", "--json")
    assert revoked.code == 0, revoked.told
    assert product.until(lambda: files_of(users["watch"]) == []), watch.told
    assert (watch.end(), "revoked this device: lost" in watch.complaint) == (2, True)
    refused = share(users, wait="1")
    assert (refused.end(), files_of(users["watch"])) == (3, []), refused.told
