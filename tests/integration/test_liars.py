"""Real processes, one of which lies through the public API: it tampers with its parameters, or with its labels."""

import json
import re

import pytest

from mdl.transport.trust.keys import new_join_code
from tests.integration import product

LOOP = """
import sys
import torch
import mdl

name, lie, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
x = torch.randn(256, 8, generator=torch.Generator().manual_seed(seed))
y = (x @ torch.arange(24.0).reshape(8, 3).sin()).argmax(1)
times = {"sign-flip": -1.0, "scaling": 10.0}.get(lie, 1.0)
with mdl.join(model=model, name=name, loopback=True, check=True) as mesh:
    for this in mesh:
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        for _ in range(10):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for parameter, start in zip(model.parameters(), before):
                parameter.copy_(start + times * (parameter - start))
        this.loss, this.samples = float(loss), len(x)
print(float((model(x).argmax(1) == y).float().mean()))
"""
# What all six have in common: four kinds of waves, and noise. One has them under other labels.
WAVES = """
from dataclasses import replace
import numpy as np
from mdl.data import DataSet, Windows


def honest():
    return _waves(False)


def flipped():
    return _waves(True)


def _waves(turned):
    rng, classes = np.random.default_rng(7), 4
    parts = []
    for count in (3600, 300):
        y = rng.integers(0, classes, count)
        time = np.arange(64) / 64.0
        waves = np.sin(2 * np.pi * (y[:, None] + 1) * (time + rng.random((count, 1))))
        x = np.repeat(waves[:, None, :], 3, axis=1) + rng.normal(0.0, 0.3, (count, 3, 64))
        part, group = np.full(count, len(parts)), 10_000 * len(parts) + np.arange(count)
        parts.append(Windows(x.astype(np.float32), y.astype(np.int64), part, group))
    train, test = parts
    train = replace(train, y=classes - 1 - train.y) if turned else train
    return DataSet("waves", train, test, ("one", "two", "three", "four"), "given")
"""
HONEST = ("ann", "bob", "cleo")


@pytest.fixture
def home(tmp_path):
    home = product.Home(tmp_path / "home", tmp_path / "cache")
    home.environment["MDL_CODE"] = new_join_code("liars")
    yield home
    home.close()


def _agent(home, peers=4, rounds=8):
    checks = ("--set", f"round.min_peers={peers}", "--set", "defence.check=true")
    return home.start("agent", "--loopback", "--rounds", rounds, *checks, "--out", home.folder / "out")


def _rounds(home, agent):
    assert agent.end() == 0, agent.told
    return [json.loads(line) for line in (home.folder / "out" / "metrics.jsonl").read_text().splitlines()]


# A refusal for length alone has to come again before its device is left out.
@pytest.mark.slow
@pytest.mark.parametrize(("lie", "count"), [("sign-flip", 8), ("scaling", 16)])
def test_one_of_four_lies_is_left_out_and_told_and_the_others_learn(home, lie, count):
    script = home.folder / "loop.py"
    script.write_text(LOOP)
    agent = _agent(home, rounds=count)
    loops = {name: home.start_python(script, name, "none", seed) for seed, name in enumerate(HONEST)}
    liar = home.start_python(script, "liar", lie, 3)
    assert [loop.end() for loop in (*loops.values(), liar)] == [0] * 4, [loop.told for loop in loops.values()]
    rounds = _rounds(home, agent)
    assert [each["round"] for each in rounds] == list(range(1, count + 1))
    left_out = [each for each in rounds if "liar" in each["quarantined"]]
    assert len(left_out) >= 3, agent.told
    assert all("liar" not in each["contributors"] for each in rounds)
    assert "devices refused its work" in left_out[0]["quarantined"]["liar"]
    assert not any(set(each["quarantined"]) - {"liar"} for each in rounds)
    assert re.search(r"goes without this device's work: \d devices refused its work", liar.told)
    assert min(float(loop.said) for loop in loops.values()) > 0.85


@pytest.mark.slow
def test_one_of_six_that_trains_on_turned_labels_stands_out_in_the_first_round_and_the_others_learn(home):
    (home.folder / "waves.py").write_text(WAVES)
    agent, names = _agent(home, 6), (*HONEST, "dan", "eve", "liar")
    devices = []
    for number, name in enumerate(names, 1):
        data = "waves:flipped" if name == "liar" else "waves:honest"
        share = ("--shard", f"{number}/6", "--split", "iid", "--name", name)
        devices.append(home.start("peer", "--loopback", "--data", data, *share, "--set", "defence.check=true"))
    assert [device.end() for device in devices] == [0] * 6, [device.told for device in devices]
    rounds = _rounds(home, agent)
    assert [list(each["quarantined"]) for each in rounds[1:]] == [["liar"]] * 7, agent.told
    assert "it raises the loss of others' windows by" in rounds[-1]["quarantined"]["liar"]
    assert not any("liar" in each["contributors"] for each in rounds)
    assert "goes without this device's work: it raises the loss of others' windows by" in devices[-1].told
    assert rounds[-1]["accuracy"] > 0.8
