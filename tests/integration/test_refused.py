"""A device whose name is another's, and one that was locked out while it was away: real processes on loopback."""

import os
import shutil

import pytest

from tests.integration import product

COMMON = ("--loopback", "--data", product.SMALL, "--seed", "1", "--set", "round.min_peers=2", "--json")
# A device is refused within a second; loading the model and two rounds take the rest.
PATIENCE_S = 60.0


@pytest.fixture
def users(tmp_path, tmp_path_factory):
    cache = tmp_path_factory.getbasetemp() / "cache"
    homes = [product.Home(tmp_path / f"user-{number}", cache) for number in (1, 2, 3)]
    yield homes
    for home in homes:
        home.close()


def begin(user, number, code, *options):
    return user.start("peer", "--code", code, "--shard", f"{number}/3", *options, *COMMON)


def trains(command):
    """Whether this device has applied a round of the mesh."""
    return "the mesh's model is here" in command.told


def on_host(name):
    """What starts a command on a machine of this name."""
    return ("unshare", "--uts", "sh", "-c", 'hostname "$1"; shift; exec "$@"', "sh", name)


def finds(user, code):
    """What the doctor says of the device: verdict and text."""
    doctor = user.run("doctor", "--code", code, "--loopback", "--wait", "5", "--json")
    return {(each["verdict"], each["told"]) for each in doctor.result()["findings"] if each["check"] == "device"}


@pytest.mark.slow
def test_a_device_of_anothers_name_ends_and_says_what_to_type_and_the_doctor_names_it(users):
    code = users[0].run("mesh", "new", "ward", "--json").result()["code"]
    first, second = (begin(users[at - 1], at, code, "--name", f"dev{at}") for at in (1, 2))
    assert product.until(lambda: trains(first) and trains(second)), first.told
    replaced = begin(users[2], 3, code, "--name", "dev2")
    assert replaced.end() == 2, replaced.told
    assert "does not let this device in: 'dev2' is the name of another device of this mesh" in replaced.complaint
    assert "--name" in replaced.complaint
    assert "mdl mesh revoke dev2" in replaced.complaint
    assert "is the agent now" not in replaced.told
    again = begin(users[2], 3, code, "--name", "dev2")
    assert again.end() == 2, "what nobody has let in is not kept as this device's name"
    refused = "'dev2' is the name of another device of the mesh"
    assert any(verdict == "fail" and told.startswith(refused) for verdict, told in finds(users[2], code))
    seen = users[0].run("status", "--mesh", "ward", "--loopback", "--wait", "5", "--json").result()
    assert set(seen["mesh"]["devices"]) == {"dev1", "dev2"}
    other = begin(users[2], 3, code, "--name", "dev3")
    assert product.until(lambda: trains(other)), other.told
    assert (first.code, second.code) == (None, None)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="a host name needs root and unshare")
def test_new_boards_of_one_host_name_all_take_part_under_names_of_their_own(users):
    code = users[0].run("mesh", "new", "ward", "--json").result()["code"]
    for user in users:
        user.before = on_host("raspberrypi")
    founder, *others = (begin(user, number, code) for number, user in enumerate(users, 1))
    assert product.until(lambda: all(map(trains, (founder, *others)))), others[0].told + others[1].told
    assert "calls itself" not in founder.told, "who owns the mesh keeps its name"
    seen = users[0].run("status", "--mesh", "ward", "--loopback", "--wait", "5", "--json").result()
    names = set(seen["mesh"]["devices"])
    assert len(names) == 3, names
    assert "raspberrypi" in names
    assert all(name.startswith("raspberrypi") for name in names)
    taken = "'raspberrypi' is the name of another device of the mesh"
    assert any(verdict == "note" and told.startswith(taken) for verdict, told in finds(users[1], code))
    for other in others:
        other.interrupt()
    again = begin(users[1], 2, code)
    assert product.until(lambda: trains(again)), again.told
    assert "calls itself" not in again.told, "it remembers whose the host's name is"


LOOP = """
import sys, torch, mdl
model = torch.nn.Linear(4, 2)
with mdl.join(model=model, code=sys.argv[1], loopback=True, **dict(word.split("=") for word in sys.argv[2:])) as mesh:
    for this in mesh:
        with torch.no_grad():
            model.weight += 0.1
        print(mesh.name, this.round_id, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="a host name needs root and unshare")
def test_an_own_loop_takes_a_name_of_its_own_too_or_ends(users):
    code = users[0].run("mesh", "new", "ward", "--json").result()["code"]
    for user in users[:2]:
        user.before = on_host("raspberrypi")
        (user.folder / "loop.py").write_text(LOOP)
    first, second = (user.start_python("loop.py", code) for user in users[:2])
    assert product.until(lambda: "raspberrypi-" in second.said and "raspberrypi " in first.said), second.told
    (users[2].folder / "loop.py").write_text(LOOP)
    third = users[2].start_python("loop.py", code, "name=raspberrypi")
    assert third.end() != 0
    assert "'raspberrypi' is the name of another device" in third.told


@pytest.mark.slow
def test_a_device_that_was_revoked_while_it_was_away_is_told_so_by_whoever_is_there(users):
    code = users[0].run("mesh", "new", "ward", "--json").result()["code"]
    first, second = (begin(users[at - 1], at, code, "--name", f"dev{at}") for at in (1, 2))
    assert product.until(lambda: trains(first) and trains(second)), first.told
    second.interrupt()
    users[0].run("mesh", "revoke", "ward", "dev2", "--reason", "sold", "--yes", "--loopback", "--json")
    again = begin(users[1], 2, code, "--name", "dev2")
    assert again.end() == 2, again.told
    assert "an owner of the mesh has revoked this device: sold" in again.complaint
