"""A real `mdl peer` that is alone: small, told of, ended by a signal, and off as soon as a second one is there."""

from pathlib import Path

import psutil
import pytest

from mdl.transport.trust.keys import new_join_code
from tests.integration.product import SMALL, Home, until

# What a Raspberry Pi has room for beside its other work; measured: 68 MB, and 253 at most while the LeNet trains.
MOST_BYTES, MOST_TRAINING_KB = 80 << 20, 275 << 10


def peak_kb(pid):
    """Of its resident memory until now; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


@pytest.mark.slow
def test_a_peer_waits_without_torch_and_trains_when_somebody_comes(tmp_path):
    code = new_join_code("home")
    home = Home(tmp_path, tmp_path / "cache")
    peer = ("peer", "--code", code, "--loopback", "--data", SMALL, "--rounds", 2, "--json")
    try:
        first = home.start(*peer, "--name", "ann", "--shard", "1/2", fresh=True)
        assert until(lambda: "nobody else of mesh 'home' is found yet" in first.told), first.told
        process = psutil.Process(first.process.pid)
        assert not [each.path for each in process.memory_maps() if "libtorch" in each.path]
        assert process.memory_info().rss < MOST_BYTES
        look = home.run("status", "--code", code, "--loopback", "--wait", 20)
        assert "waits for somebody to train with" in look.said, look.told
        second = home.start(*peer, "--name", "bob", "--shard", "2/2", fresh=True)
        peaks = [0]
        assert until(lambda: peaks.append(peak_kb(first.process.pid)) or first.code is not None), first.told
        assert [command.end(120) for command in (first, second)] == [0, 0], first.told + second.told
        assert [command.result()["round_id"] for command in (first, second)] == [2, 2]
        assert first.told.count("found bob") >= 1
        print(f"{max(peaks)} kB while it trained")
        assert MOST_BYTES >> 10 < max(peaks) < MOST_TRAINING_KB
    finally:
        home.close()


@pytest.mark.slow
def test_a_peer_that_waits_ends_at_once_and_can_be_started_again(tmp_path):
    home = Home(tmp_path, tmp_path / "cache")
    peer = ("peer", "--code", new_join_code("home"), "--loopback", "--data", SMALL, "--json")
    try:
        for _ in range(2):
            alone = home.start(*peer, "--name", "ann", fresh=True)
            assert until(lambda alone=alone: "waits for others" in alone.told), alone.told
            alone.interrupt()
            assert alone.code == 130, alone.told
            assert "no round was finished, nothing is saved" in alone.told
            assert "Traceback" not in alone.told
    finally:
        home.close()


def test_wrong_data_is_told_before_anybody_comes(tmp_path):
    home = Home(tmp_path, tmp_path / "cache")
    try:
        answer = home.run("peer", "--code", new_join_code("home"), "--loopback", "--data", "csv:gone.csv", fresh=True)
        assert (answer.code, "gone.csv" in answer.complaint) == (2, True), answer.told
    finally:
        home.close()
