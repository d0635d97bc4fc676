"""`mdl peer --when` as a user runs it: real processes, and a script's file of sensors."""

import json
import re
import signal

import pytest

from tests.integration import product

# A line of the log, behind its time.
PAUSED = re.compile(r"^\S+ \S+ paused: ", re.MULTILINE)
WHEN = "charging,battery>50,file:{}"
ON_CHARGER, ON_BATTERY = (
    '{"charging": true, "battery_percent": 80}',
    '{"charging": false, "battery_percent": 42}',
)


@pytest.fixture
def home(tmp_path, tmp_path_factory):
    home = product.Home(tmp_path / "home", tmp_path_factory.getbasetemp() / "cache")
    yield home
    home.close()


@pytest.mark.slow
def test_a_paused_peer_is_not_waited_for_has_the_meshs_model_and_comes_back(home, tmp_path):
    code = home.run("mesh", "new", "ward", "--json").result()["code"]
    files = [tmp_path / f"sensors-{name}.json" for name in "ab"]
    files[0].write_text(ON_CHARGER)
    files[1].write_text(ON_BATTERY)
    common = ("peer", "--code", code, "--loopback", "--data", product.SMALL, "--seed", "1", "--json")
    peers = [
        home.start(*common, "--name", f"p{index}", "--shard", f"{index}/2", "--when", WHEN.format(file),
                   "--out", tmp_path / f"p{index}")
        for index, file in enumerate(files, 1)
    ]  # fmt: skip

    def contributors():
        """Of each round that has been told, on either device."""
        lines = [line for index in (1, 2) for line in product.read_lines(tmp_path / f"p{index}" / "metrics.jsonl")]
        rounds = {line["round"]: tuple(line["contributors"]) for line in lines}
        return [rounds[number] for number in sorted(rounds)]

    assert product.until(lambda: "paused: on battery (42 % < 50 %)" in peers[1].told), peers[1].told
    assert product.until(
        lambda: "1 more of 2 devices: p2 is paused (on battery (42 % < 50 %))" in peers[0].told + peers[1].told
    ), peers[0].told
    files[1].write_text(ON_CHARGER)
    assert product.until(lambda: ("p1", "p2") in contributors()), peers[0].told
    files[1].write_text(ON_BATTERY)
    assert product.until(lambda: ("p1",) in contributors()), peers[0].told
    assert len(re.findall(PAUSED, peers[1].told)) == 2
    before = len(contributors())
    files[1].write_text(ON_CHARGER)
    assert product.until(lambda: ("p1", "p2") in contributors()[before:]), peers[0].told
    files[1].write_text(json.dumps({"charging": False}))
    assert product.until(lambda: len(re.findall(PAUSED, peers[1].told)) == 3), peers[1].told
    assert peers[1].interrupt(signal.SIGINT) < 15
    assert peers[1].code == 130
    assert (tmp_path / "p2" / "global.safetensors").exists()


def test_a_wrong_condition_of_a_peer_is_one_line(home):
    run = home.run("peer", "--loopback", "--insecure", "--data", product.SMALL, "--when", "idle,hours=22")
    assert run.code == 2
    assert "--when: 'hours=22': expected two times of day, like hours=22-6" in run.complaint
