"""Owners of a mesh as users meet them: real commands of three users on one machine, each a device of its own."""

import time

import pytest

from tests.integration import product

COMMON = ("--loopback", "--data", product.SMALL, "--seed", "1", "--set", "round.min_peers=2", "--json")


@pytest.fixture
def users(tmp_path, tmp_path_factory):
    cache = tmp_path_factory.getbasetemp() / "cache"
    homes = [product.Home(tmp_path / f"user-{number}", cache) for number in (1, 2, 3)]
    yield homes
    for home in homes:
        home.close()


def begin(user, number, code):
    return user.start("peer", "--code", code, "--name", f"p{number}", "--shard", f"{number}/3", *COMMON)


def trained_with(command, names):
    """Whether this device has applied a round of a mesh in which it knows these others."""
    return "the mesh's model is here" in command.told and all(f"found {name}" in command.told for name in names)


def members(user):
    """The name and state of everybody, as this user's machine knows."""
    found = user.run("mesh", "members", "ward", "--json").result()["members"]
    return {each["name"]: each["state"] for each in found}


@pytest.mark.alone
def test_a_revoked_device_ends_at_once_is_told_why_and_stays_out(users):
    code = users[0].run("mesh", "new", "ward", "--json").result()["code"]
    peers = [begin(user, number, code) for number, user in enumerate(users, 1)]
    assert product.until(lambda: trained_with(peers[0], ("p2", "p3"))), peers[0].told
    asked = time.monotonic()
    revoked = users[0].start("mesh", "revoke", "ward", "p3", "--reason", "sold", "--yes", "--loopback", "--json")
    assert product.until(lambda: "revoked this device: sold" in peers[2].told), peers[2].told
    assert peers[2].end() == 2
    assert time.monotonic() - asked < 20, "the command finds the mesh first; who is reached heeds it at once"
    assert revoked.end() == 0, revoked.told
    assert set(revoked.result()["agreed"]) >= {"p1", "p2"}
    rounds = peers[0].told.count("the mesh's model is here")
    assert product.until(lambda: peers[0].told.count("the mesh's model is here") > rounds + 2), "the others go on"
    again = users[2].run("peer", "--code", code, "--name", "p3", "--shard", "3/3", *COMMON)
    assert (again.code, "revoked this device: sold" in again.complaint) == (2, True)
    renamed = users[2].run("peer", "--code", code, "--name", "p4", "--shard", "3/3", *COMMON)
    assert (renamed.code, "revoked this device" in renamed.complaint) == (2, True), "the device is out, not its name"
    others = users[1].run("mesh", "revoke", "ward", "p1", "--yes", "--loopback", "--json")
    assert (others.code, "does not own mesh ward" in others.complaint) == (2, True)
    # A name is kept only once it was in for NEW_S: until then another device may have it.
    there = {"p1": "in", "p2": "in", "p3": "revoked: sold"}
    assert product.until(lambda: members(users[1]) == there), members(users[1])


@pytest.mark.slow
def test_after_a_change_of_the_code_members_stay_and_the_old_code_opens_nothing(users):
    code = users[0].run("mesh", "new", "ward", "--json").result()["code"]
    peers = [begin(user, number, code) for number, user in enumerate(users[:2], 1)]
    assert product.until(lambda: trained_with(peers[0], ("p2",))), peers[0].told
    changed = users[0].run("mesh", "rotate-code", "ward", "--yes", "--loopback", "--json")
    assert changed.code == 0, changed.told
    new = changed.result()["code"]
    assert new != code
    assert set(changed.result()["agreed"]) == {"p1", "p2"}
    assert users[1].run("mesh", "list", "--codes", "--json").result()["meshes"] == [{"mesh": "ward", "code": new}]
    rounds = peers[1].told.count("the mesh's model is here")
    assert product.until(lambda: peers[1].told.count("the mesh's model is here") > rounds)
    stranger = users[2].run("status", "--code", code, "--loopback", "--wait", "3", "--json")
    assert (stranger.result()["mesh"]["agent"], stranger.result()["round"]) == ("", None), (
        "it sees who announces itself, and nobody answers to the old code"
    )
    third = users[2].start("peer", "--code", new, "--name", "p3", "--shard", "3/3", *COMMON)
    assert product.until(lambda: trained_with(third, ("p1", "p2"))), third.told


@pytest.mark.slow
def test_an_old_mesh_is_given_an_owner_and_keeps_its_state(users):
    from mdl.transport.trust.keys import new_join_code

    old = new_join_code("ward")
    for user in users[:2]:
        assert user.run("status", "--code", old, "--loopback", "--wait", "0.2").code == 3
    refused = users[0].run("mesh", "revoke", "ward", "p1", "--yes", "--loopback", "--json")
    assert (refused.code, "mdl mesh upgrade" in refused.complaint) == (2, True)
    new = users[0].run("mesh", "upgrade", "ward", "--json").result()["code"]
    assert users[0].run("mesh", "owners", "ward", "--json").result()["owners"][0]["is_this"]
    assert users[1].run("status", "--code", new, "--loopback", "--wait", "0.2").code == 3, "taken for the same mesh"
    assert users[1].run("mesh", "list", "--codes", "--json").result()["meshes"] == [{"mesh": "ward", "code": new}]
    assert users[0].run("mesh", "upgrade", "ward").code == 2, "once"
