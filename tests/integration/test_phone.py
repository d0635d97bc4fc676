"""Two devices, one of which closes to programs what Android does as of version 10."""

import pytest

from mdl.transport.trust.keys import new_join_code
from tests.integration import product

# In place of Android's own refusals, for all that Python opens in this process.
PHONE = """
import sys

CLOSED = "/proc/stat", "/proc/net", "/proc/loadavg", "/proc/uptime", "/sys/class/net", "/sys/class/power_supply"
CLOSED += "/sys/class/thermal", "/sys/class/hwmon"


def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "glob.glob"):
        path = arguments[0]
        path = path.decode() if isinstance(path, bytes) else path
        if isinstance(path, str) and path.startswith(CLOSED):
            raise PermissionError(13, "Permission denied", path)


sys.addaudithook(refuse)
from mdl.__main__ import main

main()
"""


@pytest.fixture
def phone(tmp_path):
    home = product.Home(tmp_path / "home", tmp_path.parent / "cache")
    (home.folder / "phone.py").write_text(PHONE)
    yield home
    home.close()


@pytest.mark.slow
def test_a_phone_takes_part_and_tells_of_itself_what_it_may_know(phone):
    peer = (
        "peer",
        "--code",
        new_join_code("home"),
        "--loopback",
        "--data",
        product.SMALL,
        "--json",
    )
    peer += ("--set", "round.rounds=3", "--set", "round.min_peers=2")
    running = [phone.start_python(phone.folder / "phone.py", *peer, "--name", "phone", "--shard", "1/2", fresh=True)]
    running.append(phone.start(*peer, "--name", "board", "--shard", "2/2"))
    assert [command.end() for command in running] == [0, 0], [command.told for command in running]
    assert [command.result()["round_id"] for command in running] == [3, 3]
    for command in running:
        assert "Traceback" not in command.told


@pytest.mark.slow
@pytest.mark.parametrize("words", [("doctor",), ("peers", "--wait", "0.5", "--code", new_join_code("home"))])
def test_what_a_phone_does_not_tell_ends_no_command(phone, words):
    command = phone.start_python(phone.folder / "phone.py", *words, "--json", fresh=True)
    assert command.end() in (0, 1, 2, 3, 4)
    assert "Traceback" not in command.told
    assert "Permission denied" not in command.told
    assert command.result() is not None
