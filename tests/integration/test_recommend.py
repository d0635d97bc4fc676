"""Recommendation by a cloud and its devices, as users run them: real processes, real sockets, killed in the middle."""

import json
import shutil
import signal
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.integration import product
from tests.peers.dccl.postgres import PASSWORD, Server, missing

USERS, ITEMS = 40, 220


@pytest.fixture
def home(tmp_path, tmp_path_factory):
    home = product.Home(tmp_path / "home", tmp_path_factory.getbasetemp() / "cache")
    yield home
    home.close()


@pytest.fixture
def code(home):
    return home.run("mesh", "new", "shop", "--json").result()["code"]


@pytest.fixture
def log(tmp_path):
    """Each user walks on from item to item."""
    rng, lines = np.random.default_rng(0), ["user,item,time"]
    for user in range(USERS):
        begin = rng.integers(ITEMS)
        lines += [f"u{user},i{(begin + at) % ITEMS},{at}" for at in range(25)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def start_cloud(home, port, out, log, *more):
    return home.start("cloud", "--task", "recommend", "--data", f"csv:{log}?least=1", "--model", "8-16", "--loopback",
                      "--port", port, "--out", out, "--seed", "1", "--json", *more)  # fmt: skip


def learn(home, port, log, user, out, *more, **variables):
    return home.start("learn", "--task", "recommend", "--data", f"csv:{log}", "--user", user, "--cloud",
                      f"127.0.0.1:{port}", "--out", out, "--json", *more, **variables)  # fmt: skip


def ask(out, question):
    if not (out / "vectors.sqlite").exists():
        return []
    database = sqlite3.connect(f"file:{out / 'vectors.sqlite'}?mode=ro", uri=True)
    try:
        return database.execute(question).fetchall()
    except sqlite3.OperationalError:  # not made yet
        return []
    finally:
        database.close()


def version_of(out):
    rows = ask(out, "SELECT max(version) FROM lessons")
    return (rows and rows[0][0]) or 0


@pytest.mark.slow
def test_devices_learn_with_a_cloud_that_is_killed_and_are_recommended_to(home, code, log, tmp_path):
    out, port = tmp_path / "cloud", product.free_port()
    cloud = start_cloud(home, port, out, log, "--updates", "3", "--patience", "600")
    devices = [learn(home, port, log, f"u{user}", tmp_path / f"u{user}", "--cycles", "1") for user in range(2)]
    for device in devices:
        assert device.end() == 0, device.told
        result = device.result()
        assert (result["studies"], result["version"], result["upload_bytes"]) == (1, 1, 16 + 4 * 32)
    assert version_of(out) == 1
    assert len(ask(out, "SELECT * FROM vectors WHERE counted_in = 0")) == 2
    cloud.process.kill()
    cloud.end()

    again = start_cloud(home, port, out, log, "--updates", "3", "--patience", "600")
    third = learn(home, port, log, "u2", tmp_path / "u2", "--cycles", "2", "--set", "cloud.patience_s=600")
    # With the third the round begins; the device learns once more, from its lesson. Killed again before it does.
    assert product.until(lambda: version_of(out) == 2), again.told + third.told
    again.process.kill()
    again.end()
    last = start_cloud(home, port, out, log, "--updates", "3", "--patience", "600")
    assert third.end() == 0, third.told
    assert third.result()["version"] == 2
    assert last.interrupt(signal.SIGINT) < 15
    result = last.result()
    assert result["refused"] == {}
    assert result["counted"] == {"1": 0, "2": 3}, "all three, each once"
    assert sorted(ask(out, "SELECT device, version FROM counted")) == [("u0", 2), ("u1", 2), ("u2", 2)]

    shown = home.run("recommend", "u0", "--out", tmp_path / "u0", "--top", "5", "--json").result()
    assert len(shown["with_vector"]) == len(shown["without"]) == 5
    met = {line.split(",")[1] for line in log.read_text().splitlines() if line.startswith("u0,")}
    assert not met & {each["item"] for each in shown["with_vector"]}
    told = home.run("recommend", "u0", "--out", tmp_path / "u0")
    assert told.code == 0
    assert "by the cloud's model (version 1)" in told.said
    (tmp_path / "products.csv").write_text("item,title\n" + "".join(f"i{n},Product {n}\n" for n in range(ITEMS)))
    titles = f"csv:{log}?titles={tmp_path / 'products.csv'}"
    assert "Product " in home.run("recommend", "u0", "--out", tmp_path / "u0", "--data", titles).said


@pytest.mark.slow
def test_a_cloud_keeps_vectors_on_a_postgresql_server_that_goes_and_comes_back(home, code, log, tmp_path):
    if why := missing():
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="mdl-pg-", dir="/tmp"))
    folder.chmod(0o755)
    server = Server(folder / "pg")
    try:
        url, out, port = server.make_database("shop"), tmp_path / "cloud", product.free_port()
        cloud = start_cloud(home, port, out, log, "--updates", "2", "--patience", "600", "--store", url)
        first = learn(home, port, log, "u0", tmp_path / "u0", "--cycles", "1")
        assert first.end() == 0, first.told
        cloud.process.kill()
        cloud.end()
        server.stop()
        away = start_cloud(home, port, out, log, "--store", url)
        assert away.end() == 2, away.told
        assert "postgresql://mdl@127.0.0.1:" in away.complaint
        server.start()
        again = start_cloud(home, port, out, log, "--updates", "2", "--patience", "600", "--store", url)
        second = learn(home, port, log, "u1", tmp_path / "u1", "--cycles", "2", "--set", "cloud.patience_s=600")
        assert second.end() == 0, second.told
        assert again.interrupt(signal.SIGINT) < 15
        result = again.result()
        assert result["counted"] == {"1": 0, "2": 2}, "both, each once"
        assert result["refused"] == {}
        assert not (out / "vectors.sqlite").exists()
        for said in (cloud.told, away.told, again.told):
            assert PASSWORD not in said
            assert "pa-ss" not in said
    finally:
        server.stop()
        shutil.rmtree(folder)


def test_a_bad_vector_is_refused_by_name(home, code, log, tmp_path):
    from mdl.peers.cloud.machine import CLOUD
    from mdl.peers.dccl.machine import TASK
    from mdl.protocol.cloud_messages import PupilRefused, UpdateTaken, VectorMessage
    from mdl.protocol.delta import Contributor
    from mdl.transport.links.hub import Spoke
    from mdl.transport.trust.keys import MeshKeys

    out, port = tmp_path / "cloud", product.free_port()
    cloud = start_cloud(home, port, out, log, "--updates", "9", "--patience", "600")
    assert product.until(lambda: version_of(out) == 1), cloud.told
    ((basis,),) = ask(out, "SELECT basis FROM lessons")
    spoke = Spoke(Contributor("joker", 1), MeshKeys.from_code(code), f"127.0.0.1:{port}", max_bytes=1)

    def offer(name, number, values, said=basis):
        packed = said + np.array(values, "<f4").tobytes()
        digest = f"{name}{number}{values[0]}".encode()[:32]
        message = VectorMessage(name, TASK, number, digest, 1, values=packed)
        return answer_to(spoke, CLOUD, message, (PupilRefused, UpdateTaken))

    good = [0.5] * 32
    assert isinstance(offer("ann", 5, good), UpdateTaken)
    assert isinstance(offer("ann", 5, good), UpdateTaken), "its answer was lost"
    assert "has come before" in offer("ann", 5, [0.7] * 32).reason
    assert "has come before" in offer("ann", 4, good).reason
    assert "NaN" in offer("bob", 1, [float("nan")] * 32).reason
    assert "at most 1000" in offer("cat", 1, [1e9] * 32).reason
    assert "expected 32 float32" in offer("dan", 1, [0.5] * 31).reason
    assert offer("eve", 1, good, b"another basis!!!").pull_again
    spoke.close()
    cloud.interrupt()
    result = cloud.result()
    assert set(result["refused"]) == {"ann", "bob", "cat", "dan"}
    assert result["taken"] == 2
    assert "refused bob" in cloud.told
    assert ask(out, "SELECT device FROM vectors") == [("ann",)]


@pytest.mark.slow
def test_a_user_is_the_device_that_spoke_for_them_first_also_after_a_restart(home, code, log, tmp_path):
    out, port = tmp_path / "cloud", product.free_port()
    cloud = start_cloud(home, port, out, log, "--updates", "9", "--patience", "600")
    mine = learn(home, port, log, "u0", tmp_path / "mine", MDL_KEY="11" * 32)
    assert mine.end() == 0, mine.told
    cloud.process.kill()
    cloud.end()
    cloud = start_cloud(home, port, out, log, "--updates", "9", "--patience", "600")
    theirs = learn(home, port, log, "u0", tmp_path / "theirs", "--name", "other", MDL_KEY="22" * 32)
    assert theirs.end() == 2, theirs.told
    told = "the cloud refused: user u0 belongs to another device here, which had it first; have its line removed from"
    assert told in theirs.complaint
    assert len(theirs.complaint.splitlines()) == 1
    assert product.until(lambda: "another device had the name pupil u0 first" in cloud.told), cloud.told
    again = learn(home, port, log, "u0", tmp_path / "mine", MDL_KEY="11" * 32)
    assert again.end() == 0, again.told
    assert [number for (number,) in ask(out, "SELECT count(*) FROM vectors")] == [1]


def answer_to(spoke, cloud, message, kinds):
    """What the cloud answers; asked until it does."""
    import time

    import zmq

    answers = []

    def hear():
        spoke.send(cloud, message, None, time.monotonic())
        for endpoint in spoke.pollable():
            endpoint.poll(500, zmq.POLLIN)
        for event in spoke.receive(time.monotonic()):
            if isinstance(event.message, kinds) and event.message.digest == message.digest:
                answers.append(event.message)
        return answers

    assert product.until(hear)
    return answers[0]


@pytest.mark.slow
def test_what_a_user_gets_wrong_is_said_in_one_line(home, code, log, tmp_path):
    at = ("--cloud", "127.0.0.1:1")
    for words, complaint in (
        (("cloud", "--task", "recommend"), "no interactions are named: give --data csv:PATH or movielens:PATH"),
        (("cloud", "--task", "recommend", "--data", "motion"), "no log of interactions"),
        (("cloud", "--task", "recommend", "--data", f"csv:{log}", "--store", "mysql://shop"), "mysql scheme; expected"),
        (("cloud", "--data", "motion", "--store", "postgresql://h/shop"), "only a cloud that recommends keeps vectors"),
        (("cloud", "--task", "recommend", "--data", f"csv:{log}", "--web"), "a cloud that recommends has no page yet"),
        (("cloud", "--task", "recommend", "--data", f"csv:{log}", "--model", "big"), "expected EMBEDDING-HIDDEN"),
        (("learn", "--task", "recommend", "--data", f"csv:{log}", *at), "name the user of this device with --user"),
        (
            ("learn", "--task", "recommend", "--data", f"csv:{log}", "--user", "eve", *at),
            "user 'eve' is not in the data",
        ),
        (("recommend", "eve"), "this device has learned nothing yet"),
    ):
        run = home.run(*words, "--out", tmp_path / "out")
        assert run.code == 2, (words, run.told)
        assert complaint in run.complaint, words
        assert "Traceback" not in run.told


@pytest.mark.slow
def test_a_device_keeps_to_its_conditions(home, code, log, tmp_path):
    out, port, sensors = tmp_path / "cloud", product.free_port(), tmp_path / "sensors.json"
    sensors.write_text(json.dumps({"charging": False}))
    start_cloud(home, port, out, log)
    device = learn(home, port, log, "u0", tmp_path / "u0", "--when", f"charging,file:{sensors}")
    assert product.until(lambda: "paused: on battery" in device.told), device.told
    assert product.until(lambda: version_of(out) == 1)
    assert not (tmp_path / "u0" / "device.json").exists()
    sensors.write_text(json.dumps({"charging": True}))
    assert device.end() == 0, device.told
    assert (tmp_path / "u0" / "device.json").exists()
