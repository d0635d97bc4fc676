"""A cloud and devices that learn with it, as users run them: real processes, killed and started again."""

import contextlib
import json
import re
import signal
from types import SimpleNamespace

import numpy as np
import pytest

from tests.integration import product
from tests.integration.web_server import Reader

DATA = "motion?people=6&test_people=2&windows=60"
CODE = "ward:2222-2222-2222-2222-2222"
COMMON = ("--data", DATA, "--set", "cloud.people=2", "--seed", "1")


@pytest.fixture
def home(tmp_path, tmp_path_factory):
    home = product.Home(tmp_path / "home", tmp_path_factory.getbasetemp() / "cache")
    yield home
    home.close()


@pytest.fixture
def code(home):
    return home.run("mesh", "new", "ward", "--json").result()["code"]


def start_cloud(home, port, out, *more):
    return home.start("cloud", *COMMON, "--large", "lenet", "--loopback", "--port", port, "--out", out, "--json", *more)


def shown_at(command, claim):
    """The snapshot of the page that a command has printed the address of, once the claim about it is true."""
    url, token = re.search(r"the page: (http://127\.0\.0\.1:\d+/\?token=(\S+))", command.told).groups()
    with contextlib.closing(Reader(SimpleNamespace(url=url, token=token))) as reader:
        reader.next()
        while not claim(reader.shown):
            reader.next()
        return reader.shown


def version_of(out):
    path = out / "cloud.json"
    return json.loads(path.read_bytes())["version"] if path.exists() else 0


@pytest.mark.slow
def test_devices_learn_with_a_cloud_that_is_killed_in_the_middle_of_a_cycle(home, code, tmp_path):
    out, port = tmp_path / "cloud", product.free_port()
    cloud = start_cloud(home, port, out, "--synchronous", "--updates", "2")
    learners = [
        home.start("learn", *COMMON, "--cloud", f"127.0.0.1:{port}", "--name", f"dev-{index}", "--shard", f"{index}/2",
                   "--cycles", "2", "--out", tmp_path / f"dev-{index}", "--json")
        for index in (1, 2)
    ]  # fmt: skip
    # Both first updates are on the disk and a cycle has begun: its lessons are half written, or not at all.
    assert product.until(lambda: len(list((out / "pupils").glob("*.safetensors"))) == 2), cloud.told
    assert version_of(out) == 1
    kept = {path.name: path.read_bytes() for path in (out / "pupils").glob("*.safetensors")}
    cloud.process.kill()
    cloud.end()
    assert version_of(out) == 1
    assert {path.name: path.read_bytes() for path in (out / "pupils").glob("*.safetensors")} == kept

    web = product.free_port()
    again = start_cloud(home, port, out, "--synchronous", "--updates", "2", "--web", web)
    for index, learner in enumerate(learners, 1):
        assert learner.end() == 0, learner.told
        result = learner.result()
        assert (result["studies"], result["version"]) == (2, 2)
        assert len(result["upload_bytes"]) == 2
        assert (tmp_path / f"dev-{index}" / "personal.safetensors").exists()
    assert product.until(lambda: version_of(out) == 3), again.told
    assert f"mdl: the page: http://127.0.0.1:{web}/?token=" in again.told
    cycles = shown_at(again, lambda shown: "3" in shown["cloud"]["cycles"])["cloud"]["cycles"]
    taught = [name for names in cycles["3"]["groups"].values() for name in names]
    assert sorted(taught) == ["dev-1", "dev-2"]
    assert again.interrupt(signal.SIGINT) < 15
    result = again.result()
    assert (result["version"], result["pupils"], result["refused"]) == (3, 2, {})
    versions = [line["version"] for line in product.read_lines(out / "cycles.jsonl")]
    assert versions == [1, 2, 3], "the cycle that was cut off is done once"
    assert again.code == 0, again.told


@pytest.mark.slow
def test_garbage_and_another_task_are_refused_and_named(home, code, tmp_path):
    from mdl.peers.cloud.machine import CLOUD
    from mdl.protocol.delta import Contributor
    from mdl.protocol.vocabulary import Packed
    from mdl.transport.links.hub import Spoke
    from mdl.transport.trust.keys import MeshKeys

    out, port = tmp_path / "cloud", product.free_port()
    cloud = start_cloud(home, port, out)
    assert product.until(lambda: version_of(out) == 1), cloud.told
    stranger = home.run("learn", "--data", DATA, "--model", "alexnet", "--cloud", f"127.0.0.1:{port}",
                        "--name", "stranger", "--out", tmp_path / "stranger")  # fmt: skip
    assert stranger.code == 2
    assert stranger.complaint.startswith("mdl: the cloud refused: another task: alexnet")

    schema = json.loads((out / "cloud.json").read_bytes())["schema_hash"]
    noise = Packed(np.full(1000, np.nan, np.float32).tobytes())
    reason = offer_garbage(Spoke(Contributor("joker", 1), MeshKeys.from_code(code), f"127.0.0.1:{port}", max_bytes=1),
                           schema, noise, CLOUD)  # fmt: skip
    assert "update of 4000 bytes" in reason
    cloud.interrupt()
    result = cloud.result()
    assert set(result["refused"]) == {"stranger", "joker"}
    assert result["pupils"] == 0
    assert "refused joker" in cloud.told
    assert not list(out.glob("pupils/*"))


def offer_garbage(spoke, schema, values, cloud):
    """What the cloud answers to an update of these values."""
    import time

    import zmq

    from mdl.protocol.cloud_messages import PupilRefused, UpdateMessage, UpdateOffered, UpdateWanted
    from mdl.protocol.delta import digest_of

    digest, answers = digest_of(values), []
    spoke.send(cloud, UpdateOffered("joker", schema, 1, digest), None, time.monotonic())

    def hear():
        for endpoint in spoke.pollable():
            endpoint.poll(50, zmq.POLLIN)
        for event in spoke.receive(time.monotonic()):
            if isinstance(event.message, UpdateWanted):
                spoke.send(cloud, UpdateMessage("joker", schema, 1, digest), values, time.monotonic())
            elif isinstance(event.message, PupilRefused):
                answers.append(event.message.reason)
        return answers

    assert product.until(hear)
    spoke.close()
    return answers[0]


@pytest.mark.slow
def test_up_with_a_cloud_trains_with_lessons_and_gives_the_meshs_model_back(home, tmp_path):
    out = tmp_path / "run"
    web = product.free_port()
    run = home.start("up", "-n", 2, "--cloud", "--epochs", 6, "--data", DATA, "--set", "cloud.upload_every=1",
                     "--set", "cloud.large=lenet", "--verify", "--web", web, "--json", "--out", out)  # fmt: skip
    assert product.until(lambda: f"the page: http://127.0.0.1:{web}/?token=" in run.told or run.code is not None)

    shown_at(run, lambda shown: set(shown["mesh"]["devices"]) == {"agent", "peer-1", "peer-2"})
    shown = shown_at(run, lambda shown: shown["cloud"]["cycles"] and shown["learning"]["confusion"])
    assert shown["learning"]["classes"][0] == "walking"
    assert run.end() == 0, run.told
    result = run.result()
    assert (result["rounds"], result["cloud"]["people"]) == (6, 1)
    assert result["max_relative_error"] <= 1e-6, "a teacher changes what a device learns, not how deltas are added"
    assert result["cloud"]["version"] >= 1
    for peer in ("peer-1", "peer-2"):
        assert "lesson 1 of the cloud is here" in (out / "logs" / f"{peer}.log").read_text()
    assert len(list((out / "cloud" / "pupils").iterdir())) == 1
    assert not product.processes_of(out)


@pytest.mark.slow
def test_a_mesh_goes_on_without_its_cloud(home, tmp_path):
    nobody = f"cloud.address=127.0.0.1:{product.free_port()}"
    run = home.run("up", "-n", 2, "--epochs", 2, "--data", DATA, "--set", nobody, "--json", "--out", tmp_path / "run")
    assert run.code == 0, run.told
    assert run.result()["rounds"] == 2


@pytest.mark.slow
def test_what_a_user_gets_wrong_is_said_in_one_line(home, code, tmp_path):
    for words, complaint in (
        (("learn", "--data", DATA), "no cloud is named: give --cloud HOST:PORT"),
        (("learn", "--data", DATA, "--cloud", "nowhere"), "give HOST:PORT"),
        (("learn", "--data", DATA, "--cloud", "127.0.0.1:1", "--when", "idle,chargin"), "did you mean 'charging'?"),
        (("learn", "--data", DATA, "--cloud", "127.0.0.1:1", "--when", ""), "--when: '' is no condition"),
        (
            ("learn", "--data", DATA, "--cloud", "127.0.0.1:1", "--when", "idle,file:none.json"),
            "none.json: No such file",
        ),
        (("cloud", "--data", DATA, "--set", "cloud.people=6"), "the data has 6 training people; leave at least one"),
        (("up", "--cloud", "--donors", "6", "--data", DATA), "the data has 6 training people; leave at least one"),
        (("learn", "--cloud", "127.0.0.1:1", "--set", "cloud.upload_every=0"), "cloud.upload_every is 0"),
    ):
        run = home.run(*words, "--out", tmp_path / "out")
        assert run.code == 2, (words, run.told)
        assert complaint in run.complaint, words
        assert "Traceback" not in run.told


@pytest.mark.slow
def test_a_learner_trains_while_its_conditions_hold_and_ends_at_once_while_they_do_not(home, code, tmp_path):
    port, sensors, out = product.free_port(), tmp_path / "sensors.json", tmp_path / "dev-1"
    sensors.write_text('{"charging": false, "battery_percent": 42}')
    start_cloud(home, port, tmp_path / "cloud")
    learner = home.start("learn", *COMMON, "--cloud", f"127.0.0.1:{port}", "--name", "dev-1", "--cycles", "0",
                         "--when", f"charging,battery>50,file:{sensors}", "--out", out, "--json")  # fmt: skip
    assert product.until(lambda: "paused: on battery (42 % < 50 %)" in learner.told), learner.told
    assert product.until(lambda: version_of(tmp_path / "cloud") == 1)
    assert not (out / "personal.safetensors").exists()
    sensors.write_text('{"charging": true, "battery_percent": 80}')
    assert product.until(lambda: (out / "personal.safetensors").exists()), learner.told
    assert "going on: all conditions hold" in learner.told
    sensors.write_text('{"charging": false, "battery_percent": 80}')
    assert product.until(lambda: "paused: on battery (80 %)" in learner.told), learner.told
    assert learner.interrupt(signal.SIGINT) < 15
    assert learner.code == 130, learner.told
