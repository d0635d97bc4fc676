"""An own PyTorch loop as a peer: the examples as they stand, and loops that end in every way a loop can end."""

import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import mdl
from mdl.errors import ConfigError
from mdl.transport.limits import LINES_OF_A_TEXT
from mdl.transport.trust.keys import new_join_code
from tests.integration import product

HERE = Path(__file__).parent

EXAMPLES = HERE.parents[1] / "examples"
EXAMPLE = EXAMPLES / "own_loop.py"
LOOP = """
import threading
import torch
import mdl

model = torch.nn.Linear({inputs}, 2)
try:
    with mdl.join(model=model, name="{name}", loopback=True) as mesh:
        for this in mesh:
            raise KeyError("in the middle")
finally:
    print([thread.name for thread in threading.enumerate() if thread.name == "mdl-member"])
"""

# A loop that moves the model's tensors about, another way in each round, beside one that does not.
MOVING = """
import copy, hashlib, sys
import torch
import mdl
from mdl.learning.flat import FlatModel

moves = int(sys.argv[1]) == 1
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
x = torch.randn(64, 6, generator=torch.Generator().manual_seed(int(sys.argv[1])))

def move(round_id):
    if round_id == 1:
        model.double(); model.float()
    if round_id == 2:
        for p in model.parameters():
            p.data = p.data.clone()
    if round_id == 3:
        model.share_memory()
    if round_id == 4:
        model[1].running_mean = model[1].running_mean * 1
    if round_id == 5:
        model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)

with mdl.join(model=model, name="loop-" + sys.argv[1], loopback=True) as mesh:
    for this in mesh:
        if moves:
            move(this.round_id)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
        optimizer.step()
state = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
print(mesh.round_id, hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in state)).hexdigest())
"""
RESHAPING = """
import torch
import mdl

model = torch.nn.Linear(10, 2)
with mdl.join(model=model, name="reshaping", loopback=True) as mesh:
    for this in mesh:
        model.weight.data = torch.zeros(4, 5)
"""

# A loop that must pause in the middle of its first round, and has the round again.
# The other gives nothing before this one has its round again. If the agent hears the pause, it does not wait for this
# one any more: its second work is then taken into round 2, which it does not train.
PAUSING = """
import sys
import torch
import mdl

name, meeting = sys.argv[1:]
model, seen = torch.nn.Linear(10, 2), []
with mdl.join(model=model, name=name, loopback=True, classes=["no", "yes"], rounds=2) as mesh:
    for this in mesh:
        seen.append(this.round_id)
        if len(seen) == (2 if name == "pausing" else 1):
            open(meeting, "w" if name == "pausing" else "r").close()
        first = name == "pausing" and len(seen) == 1
        with torch.no_grad():
            model.weight.add_(float("nan") if first else 1.0)
        if first:
            mesh.pause("somebody plays")
            this.given_up = True
            mesh.pause("")
print(seen[:2], bool(torch.isfinite(model.weight).all()))
"""

IDLE = """
import copy
import torch
import mdl

model = torch.nn.Linear(10, 2)
mine = copy.deepcopy(model)
with mdl.join(model=model, name="idle", loopback=True) as mesh:
    for this in mesh:
        with torch.no_grad():
            mine.weight.add_(1)
    model.half()
print(model.weight.dtype)
"""

# Its first layer is frozen; the base follows from the second number.
TUNED = """
import sys
import torch
import mdl

device, base = map(int, sys.argv[1:])
torch.manual_seed(base)
model = torch.nn.Sequential(torch.nn.Linear(40, 30).requires_grad_(False), torch.nn.ReLU(), torch.nn.Linear(30, 2))
before = model[0].weight.clone()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 40, generator=torch.Generator().manual_seed(device))
try:
    with mdl.join(model=model, name=f"tuned-{device}", loopback=True) as mesh:
        for this in mesh:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
            optimizer.step()
            print("round", this.round_id, flush=True)
finally:
    print("the base is", "what it was" if torch.equal(model[0].weight, before) else "another one")
"""

# A causal mask, and inputs that are divided by a constant, which follows from the second number.
CONSTANT = """
import sys
import torch
import mdl

device, deviation = map(int, sys.argv[1:])
torch.manual_seed(0)
model = torch.nn.Linear(6, 2)
model.register_buffer("mask", torch.triu(torch.full((3, 3), float("-inf")), 1))
model.register_buffer("deviation", torch.full((6,), float(deviation)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 6, generator=torch.Generator().manual_seed(device))
with mdl.join(model=model, name=f"constant-{device}", loopback=True) as mesh:
    for this in mesh:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x / model.deviation), (x.sum(1) > 0).long()).backward()
        optimizer.step()
        print("round", this.round_id, flush=True)
"""

# A program that has set up no logging. device, rounds, and whether it is quiet.
READY = """
import sys
import torch
import mdl

device, rounds, quiet = map(int, sys.argv[1:])
torch.manual_seed(0)
model = torch.nn.Linear(6, 2)
x = torch.randn(64, 6, generator=torch.Generator().manual_seed(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
done = []
mesh = mdl.join(
    model=model, optimizer=optimizer, scheduler=torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
    data=[(x, (x.sum(1) > 0).long())], loss=torch.nn.functional.cross_entropy, name=f"ready-{device}", loopback=True,
    rounds=rounds, progress=done.append, quiet=bool(quiet),
)
print("begins", flush=True)
mesh.run()
print([this.round_id for this in done], {this.samples for this in done}, {this.devices for this in done})
print(all(this.sent_bytes > 0 and this.received_bytes > 0 and this.loss > 0 for this in done))
print(round(optimizer.param_groups[0]["lr"], 9), int(optimizer.state[model.weight]["step"]))
print(mesh.round_id, mesh.path)
"""

# The slow one waits in its first round until the quick one is in its second, and has its last long after it.
OVERLAPPING = """
import sys
import torch
import mdl

name, meeting = sys.argv[1:]
torch.manual_seed(0)
model, seen, done = torch.nn.Linear(6, 2), [], []
x = torch.randn(64, 6, generator=torch.Generator().manual_seed(len(name)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
with mdl.join(
    model=model, optimizer=optimizer, name=name, loopback=True, overlap=True, rounds=3, progress=done.append
) as mesh:
    for this in mesh:
        seen.append(this.round_id)
        if (name, this.round_id) in (("slow", 1), ("quick", 2)):
            open(meeting, "r" if name == "slow" else "w").close()
        for _ in range(2000 if (name, this.round_id) == ("slow", 3) else 1):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
            optimizer.step()
        this.loss, this.samples = this.round_id / 10, 64
print(seen, [(each.round_id, each.loss, each.devices) for each in done])
print(mesh.path)
"""

FLOODED = """
import collections, json, logging
import torch
import mdl

told = collections.Counter()
class Count(logging.Handler):
    def emit(self, record):
        told[record.name] += 1
logging.basicConfig(level=logging.INFO, handlers=[Count()])
with mdl.join(model=torch.nn.Linear(10, 2), name="flooded", loopback=True) as mesh:
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "mdl"]
    for name in [*names, "mine"]:
        for number in range(1000):
            logging.getLogger(name).info(name + ": %d leads now", number)
assert not logging.root.filters
print(json.dumps(told))
"""


@pytest.fixture
def home(tmp_path):
    home = product.Home(tmp_path / "home", tmp_path / "cache")
    home.environment["MDL_CODE"] = new_join_code("loops")
    yield home
    home.close()


@pytest.mark.slow
def test_the_example_trains_with_another_device_to_the_end(home):
    agent = home.start("agent", "--loopback", "--rounds", 3)
    loops = [home.start_python(EXAMPLE, device, "--loopback") for device in (1, 2)]
    assert [loop.end() for loop in loops] == [0, 0], [loop.told for loop in loops]
    assert agent.end() == 0
    for device, loop in enumerate(loops, 1):
        *rounds, last = loop.said.splitlines()
        assert [line.split(":")[0] for line in rounds] == ["round 1", "round 2", "round 3"]
        assert last == f"the result of round 3 is in loop-{device}.safetensors"
    one, other = (load_file(home.folder / f"loop-{device}.safetensors") for device in (1, 2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_loop_that_must_pause_gives_the_round_up_and_has_it_again(home):
    (home.folder / "loop.py").write_text(PAUSING)
    os.mkfifo(meeting := home.folder / "meeting")
    loops = [home.start_python(home.folder / "loop.py", name, meeting) for name in ("pausing", "other")]
    assert [loop.end() for loop in loops] == [0, 0], [loop.told for loop in loops]
    assert [loop.said.split() for loop in loops] == [["[1,", "1]", "True"], ["[1,", "2]", "True"]]


@pytest.mark.alone
@pytest.mark.parametrize("example", ["own_loop.py", "ready_loop.py"])
def test_an_example_says_what_it_waits_for_and_ctrl_c_saves_the_result(home, example):
    first = home.start_python(EXAMPLES / example, 1, "--loopback")
    assert product.until(lambda: "waits for its devices" in first.told), first.told
    second = home.start_python(EXAMPLES / example, 2, "--loopback")
    for loop in (first, second):
        assert product.until(lambda loop=loop: "round 3: the mesh's model is here" in loop.told), loop.told
    for loop in (first, second):
        assert loop.interrupt() < 8
        assert loop.code == 130
        assert "Traceback" not in loop.told
        round_id, file = re.fullmatch(r"the result of round (\d+) is in (\S+)", loop.said.splitlines()[-1]).groups()
        assert int(round_id) >= 3
        assert all(tensor.isfinite().all() for tensor in load_file(home.folder / file).values())


def test_an_example_that_knows_no_mesh_says_so_in_one_line(home):
    del home.environment["MDL_CODE"]
    for example in ("own_loop.py", "ready_loop.py"):
        loop = home.start_python(EXAMPLES / example, "--loopback")
        assert loop.end() == 1
        assert loop.complaint.startswith(f"{example.removesuffix('.py')}: no mesh is named")
        assert "Traceback" not in loop.told


@pytest.mark.slow
def test_a_loop_that_moves_the_models_tensors_ends_with_the_same_model_as_the_others(home):
    script = home.folder / "moving.py"
    script.write_text(MOVING)
    agent = home.start("agent", "--loopback", "--rounds", 6)
    loops = [home.start_python(script, device) for device in (1, 2)]
    assert [loop.end() for loop in loops] == [0, 0], [loop.told for loop in loops]
    assert agent.end() == 0
    assert loops[0].said == loops[1].said
    assert loops[0].said.startswith("6 ")


def test_a_tensor_of_another_shape_is_named_at_the_end_of_the_round(home):
    home.start("agent", "--loopback", "--set", "round.min_peers=1")
    script = home.folder / "reshaping.py"
    script.write_text(RESHAPING)
    loop = home.start_python(script)
    assert loop.end() == 1
    assert loop.complaint == (
        "mdl.errors.ConfigError: model tensor weight was [2, 10] when the model was handed over, it is [4, 5] now"
    )
    assert "the model does not hold the result of round 0" in loop.told


def test_a_loop_that_trains_another_model_is_warned_once_and_keeps_what_it_makes_of_the_result(home):
    agent = home.start("agent", "--loopback", "--rounds", 2, "--set", "round.min_peers=1")
    script = home.folder / "idle.py"
    script.write_text(IDLE)
    loop = home.start_python(script)
    assert loop.end() == agent.end() == 0, loop.told
    assert loop.said == "torch.float16\n"
    assert loop.told.count("the loop has changed nothing: it has to train the model") == 1


def test_an_optimizer_of_another_model_is_refused_before_anything_is_written():
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(other.parameters(), 0.1)
    with pytest.raises(ConfigError, match="the optimizer holds none of the model's parameters"):
        mdl.join(model=model, optimizer=optimizer, code=new_join_code("loops"))


@pytest.mark.slow
def test_a_frozen_base_is_not_exchanged_and_another_one_is_refused(home):
    home.start("agent", "--loopback", "--set", "round.min_peers=1")
    script = home.folder / "tuned.py"
    script.write_text(TUNED)
    first = home.start_python(script, 1, 0)
    assert product.until(lambda: "round 2" in first.said), first.told
    second, other = home.start_python(script, 2, 0), home.start_python(script, 3, 1)
    assert other.end() == 1
    told = r"Sequential with 1,230 frozen, \w{8}, 62 values"
    assert re.search(rf"your model \({told}\) differs from the mesh's \({told}\)", other.complaint), other.told
    assert product.until(lambda: "round 2" in second.said), second.told
    for loop in (first, second):
        loop.interrupt()
        assert "the base is what it was" in loop.said


@pytest.mark.slow
def test_a_mask_is_not_exchanged_and_a_device_of_other_constants_is_named_before_its_work_is_merged(home):
    home.start("agent", "--loopback", "--set", "round.min_peers=1")
    script = home.folder / "constant.py"
    script.write_text(CONSTANT)
    first = home.start_python(script, 1, 3)
    assert product.until(lambda: "round 3" in first.said), first.told
    second, other = home.start_python(script, 2, 3), home.start_python(script, 3, 4)
    assert other.end() == 1
    assert "buffer deviation of the model has other values here than in the mesh" in other.complaint, other.told
    assert other.said.count("round") == 1
    assert product.until(lambda: "2 devices" in second.told), second.told


@pytest.mark.alone
def test_a_loop_ends_by_ctrl_c_or_by_a_refusal_and_leaves_nothing_running(home):
    home.start("agent", "--loopback", "--set", "round.min_peers=1")
    first = home.start_python(EXAMPLE, 1, "--loopback")
    assert product.until(lambda: "round 3" in first.said), first.told
    other = home.folder / "other.py"
    other.write_text(LOOP.format(inputs=7, name="other"))
    refused = home.start_python(other)
    assert refused.end() == 1
    assert "mdl.errors.ConfigError: your model (Linear, 16 values) differs from the mesh's (Sequential" in refused.told
    assert refused.said == "[]\n"
    assert first.interrupt() < 8
    assert first.code == 130
    assert first.said.splitlines()[-1].endswith("is in loop-1.safetensors")


def test_an_error_in_the_loop_is_raised_and_the_node_ends(home):
    home.start("agent", "--loopback", "--set", "round.min_peers=1")
    broken = home.folder / "broken.py"
    broken.write_text(LOOP.format(inputs=10, name="broken"))
    loop = home.start_python(broken)
    assert loop.end() == 1
    assert loop.complaint == "KeyError: 'in the middle'"
    assert loop.said == "[]\n"


def test_lines_about_others_do_not_flood_the_log_of_a_program_that_joins(home):
    """Who is hostile makes machines tell of it as often as they like; the program's own lines are its own affair."""
    done = home.start_python("-c", FLOODED)
    assert done.end() == 0, done.told
    told = done.result()
    assert told.pop("mine") == 1000
    assert {
        "mdl.peers.roles.membership.succession",
        "mdl.peers.roles.trainer.trainer",
        "mdl.peers.roles.agent.agent",
        "mdl.transport.links.mesh_links",
        "mdl",
    } <= told.keys()
    assert max(told.values()) < 2 * LINES_OF_A_TEXT


def test_a_loop_ends_after_its_rounds_and_says_a_line_for_each(home):
    script = home.folder / "ready.py"
    script.write_text(READY)
    loud, quiet = home.start_python(script, 1, 3, 0), home.start_python(script, 2, 3, 1)
    assert [loud.end(), quiet.end()] == [0, 0], loud.told + quiet.told
    for loop in (loud, quiet):
        begins, rounds, counted, _, result = loop.said.splitlines()
        assert (begins, rounds, counted) == ("begins", "[1, 2, 3] {64} {2}", "True")
        round_id, path = result.split()
        assert round_id == "3"
        assert set(load_file(path)) == {"weight", "bias"}
    one, other = (load_file(loop.said.split()[-1]) for loop in (loud, quiet))
    assert torch.equal(one["weight"], other["weight"])
    told = [
        line for line in loud.told.splitlines() if re.match(r"mdl: round \d of 3: loss \S+ on 64 samples, 2 dev", line)
    ]
    assert len(told) == 3, loud.told
    assert re.search(r"\d s, 0\.\d{3} MB sent, 0\.\d{3} MB received$", told[-1])
    assert loud.complaint == f"mdl: the result of round 3 is in the model, and in {loud.said.split()[-1]}"
    assert "received" not in loud.told.replace("MB received", "")  # steps within a round are for who sets up logging
    assert quiet.told == ""


@pytest.mark.slow
def test_loops_that_overlap_train_ahead_but_for_no_round_after_their_last(home):
    script, meeting = home.folder / "overlapping.py", home.folder / "meeting"
    script.write_text(OVERLAPPING)
    os.mkfifo(meeting)
    agent = home.start("agent", "--loopback")  # the mesh has no last round, each of the devices has
    loops = [home.start_python(script, name, meeting) for name in ("slow", "quick")]
    assert [loop.end() for loop in loops] == [0, 0], loops[0].told + loops[1].told
    for loop in loops:
        assert loop.said.splitlines()[0] == "[1, 2, 3] [(1, 0.1, 2), (2, 0.2, 2), (3, 0.3, 2)]", loop.told
    agent.interrupt()
    agent.end()
    one, other = (load_file(loop.said.splitlines()[1]) for loop in loops)
    assert torch.equal(one["weight"], other["weight"])


@pytest.mark.slow
def test_a_restart_goes_on_with_the_optimizer_and_its_schedule(home):
    script = home.folder / "ready.py"
    script.write_text(READY)
    for total, rate, steps in ((2, 0.0125, 2), (5, 0.0015625, 5)):
        loops = [home.start_python(script, device, total - (total > 2) * 2, 0) for device in (1, 2)]
        assert [loop.end() for loop in loops] == [0, 0], loops[0].told
        assert loops[0].said.splitlines()[-2] == f"{rate} {steps}", loops[0].said
    assert "mdl: the optimizer goes on where it was in round 2" in loops[0].told
    assert "mdl: the scheduler goes on where it was in round 2" in loops[0].told


@pytest.mark.alone
def test_ctrl_c_ends_a_loop_that_does_not_expect_it_without_a_traceback(home):
    script = home.folder / "ready.py"
    script.write_text(READY)
    loops = [home.start_python(script, device, 0, 0, fresh=True) for device in (1, 2)]
    for loop in loops:
        assert product.until(lambda loop=loop: "mdl: round 3: loss" in loop.told), loop.told
    for loop in loops:
        loop.interrupt()
        assert loop.code == -2, loop.told  # as Python ends by Ctrl-C: 130 in a shell
        assert "Traceback" not in loop.told
        file = re.search(r"the result of round \d+ is in the model, and in (\S+)$", loop.complaint).group(1)
        assert load_file(file)["weight"].isfinite().all()
