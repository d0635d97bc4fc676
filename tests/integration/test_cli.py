"""What users get wrong: one line that says what is wrong and what would be right, exit code 2, nothing left behind."""

import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from safetensors.numpy import save_file

from mdl.peers.cli.main import main
from mdl.transport.trust.keys import new_join_code
from tests.integration import product

SMALL = product.SMALL
CODE = new_join_code("lab")
PEER = ("peer", "--code", CODE, "--loopback", "--data", SMALL)
CSV = "csv:walk.csv?columns=ax,ay,az&label=activity&rate=50&window=100"
# What is typed -> what the one line must say.
WRONG = {
    "no peers": (("up", "-n", 0), "-n 0: expected at least 1 peer"),
    "more peers than subjects": (("up", "-n", 7, "--data", SMALL), "7 peers but 6 training subjects"),
    "missing path": (("up", "--data", "npz:gone.npz"), "gone.npz: no such file or folder"),
    "wrong shape": (
        ("up", "--data", "npz:flat.npz"),
        "of shape (10, 5); expected numbers of shape (n, time, channels)",
    ),
    "unknown label": (("up", "--data", CSV), "no column 'activity' (did you mean act?); the header is: t, ax, ay, az"),
    "unknown key": (("up", "--set", "training.learnig_rate=1"), "did you mean training.learning_rate?"),
    "no value": (("up", "--set", "seed"), "expected key=value"),
    "bad config": (("up", "--config", "bad.toml"), "bad.toml: Invalid value (at line 1"),
    "config gone": (("up", "--config", "gone.toml"), "cannot read gone.toml"),
    "unknown option": (("up", "--polices", "ring"), "No such option: --polices"),
    "unknown command": (("uo",), "No such command 'uo'"),
    "unknown policy": (("up", "--policy", "rings"), "valid: dqn"),
    "no directory": (("up", "--data", SMALL, "--out", "bad.toml/run"), "--out bad.toml/run: Not a directory"),
    "no data": (
        ("peer", "--code", CODE, "--loopback"),
        "no data is named: give --data, as in --data 'csv:walk.csv?label=",
    ),
    "no data to learn from": (("learn", "--code", CODE, "--cloud", "127.0.0.1:1"), "--data motion is synthetic"),
    "no data for a cloud": (("cloud", "--code", CODE, "--loopback"), "no data is named: give --data"),
    "malformed code": (("peer", "--code", "hello"), "join code: no ':' in it"),
    "no code": (("agent", "--mesh", "attic"), "no code is known for mesh 'attic'"),
    "wrong address": (("agent", "--code", CODE, "--join", "host"), "give HOST:PORT, for example"),
    "insecure beyond": (("agent", "--insecure"), "add --loopback"),
    "no model": (("eval", "gone.safetensors"), "gone.safetensors does not exist"),
    "torn model": (("eval", "torn.safetensors"), "torn.safetensors is not a whole safetensors file"),
    "foreign model": (("eval", "foreign.safetensors"), "foreign.safetensors has no model description of mdl"),
}
# Those that reach the model, or a directory, in a process of their own.
WRONG_LATER = {
    "empty shard": ((*PEER, "--shard", "7/7"), "7 peers but 6 training subjects"),
    "unknown model": (("up", "-n", 1, "--data", SMALL, "--model", "lenett", "--out", "run"), "unknown model 'lenett'"),
    "no such factory": ((*PEER, "--name", "a", "--model", "mine:gone"), "module 'mine' has no attribute 'gone'"),
    "factory of nonsense": ((*PEER, "--name", "b", "--model", "mine:five"), "returned int, not a torch.nn.Module"),
    "full directory": (("up", "--data", SMALL, "--out", "full"), "--out full is not empty"),
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = product.Home(tmp_path_factory.mktemp("home"), tmp_path_factory.getbasetemp() / "cache")
    np.savez(home.folder / "flat.npz", x=np.zeros((10, 5), np.float32), y=np.zeros(10, int))
    rows = "".join(f"{row},0,0,9.8,walk\n" for row in range(300))
    (home.folder / "walk.csv").write_text(f"t,ax,ay,az,act\n{rows}")
    (home.folder / "mine.py").write_text("def five(channels, time, classes):\n    return 5\n")
    (home.folder / "bad.toml").write_text("seed = = 0\n")
    (home.folder / "full").mkdir()
    (home.folder / "full" / "letter.txt").write_text("mine")
    save_file({"a": np.zeros(3, np.float32)}, home.folder / "foreign.safetensors")
    (home.folder / "torn.safetensors").write_bytes((home.folder / "foreign.safetensors").read_bytes()[:-4])
    yield home
    home.close()


@pytest.fixture(scope="module")
def answers(home):
    """Two at a time."""
    if home.preloaded:
        home.preloaded.wait_until_ready()  # not in two threads: one would take the other one's answer for this
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda wrong: home.run(*wrong[0]), WRONG_LATER.values())
        return dict(zip(WRONG_LATER, found, strict=True))


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_answered_in_one_line(home, mistake, monkeypatch, capsys):
    words, answer = WRONG[mistake]
    monkeypatch.chdir(home.folder)
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, home.environment[name])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # a line of its own says so
    monkeypatch.setattr("sys.argv", ["mdl", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("mdl: ")
    assert answer in line
    assert ended.value.code == 2


@pytest.mark.slow
@pytest.mark.parametrize("mistake", WRONG_LATER)
def test_a_mistake_that_shows_later_is_answered_in_one_line_too(answers, mistake):
    answer = answers[mistake]
    assert answer.code == 2
    assert answer.complaint.startswith("mdl: ")
    assert WRONG_LATER[mistake][1] in answer.complaint
    assert answer.told.count("mdl: ") == 1
    assert "Traceback" not in answer.told
    assert len(answer.said.splitlines()) < 4  # no page of settings before it


@pytest.mark.slow
def test_mistakes_leave_no_process_and_no_run_behind(home, answers):
    assert not product.processes_of(home.folder)
    assert not (home.folder / "run").exists()
    assert not (home.folder / "runs").exists()
    assert [path.name for path in (home.folder / "full").iterdir()] == ["letter.txt"]


def test_a_port_that_is_taken_is_named(home):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = home.run("agent", "--code", CODE, "--loopback", "--port", port)
    assert answer.code == 2
    assert f"port {port} is taken on 127.0.0.1" in answer.complaint


def test_a_look_at_a_mesh_where_nobody_is_ends_with_code_3(home):
    answer = home.run("peers", "--code", new_join_code("empty"), "--loopback", "--wait", 0.5)
    assert answer.code == 3
    assert "nobody of mesh 'empty' answered within 0.5 s" in answer.complaint


@pytest.mark.slow
def test_who_trains_nothing_runs_without_torch(home):
    """`mdl agent`, and a look at its mesh: from the first import to the last."""
    code = new_join_code("light")
    commands = [("agent",), ("status", "--wait", 30)]
    agent, look = running = [
        home.start_python("-X", "importtime", "-m", "mdl", *words, "--code", code, "--loopback", fresh=True)
        for words in commands
    ]
    assert look.end() == 0, look.complaint
    agent.interrupt()
    assert agent.code == 130, agent.complaint
    for command in running:
        lines = [line for line in command.told.splitlines() if line.startswith("import time:")]
        loaded = {line.rpartition("|")[2].strip() for line in lines}
        assert "zmq" in loaded
        assert not {name.partition(".")[0] for name in loaded} & {"torch", "gymnasium", "stable_baselines3", "sklearn"}
        assert not [name for name in loaded if name.startswith("mdl.sim")]


@pytest.mark.slow
def test_a_mesh_goes_on_from_its_saved_round_and_refuses_another_model(home, tmp_path):
    code = new_join_code("home")
    agent = ("agent", "--code", code, "--loopback", "--rounds", 2, "--json")
    peer = ("peer", "--code", code, "--loopback", "--data", SMALL, "--json")
    for reached in (2, 4):
        running = [home.start(*agent), *(home.start(*peer, "--name", f"p{i}", "--shard", f"{i}/2") for i in (1, 2))]
        assert [command.end() for command in running] == [0, 0, 0], [command.told for command in running]
        assert [command.result()["round_id"] for command in running[1:]] == [reached, reached]
    rounds = product.read_lines(home.folder / "state" / "mdl" / "home" / "agent" / "metrics.jsonl")
    assert [line["round"] for line in rounds] == [1, 2, 3, 4]

    first = home.start("peer", "--code", code, "--loopback", "--data", SMALL, "--name", "p1")
    # On a machine that is slow enough a device left alone goes on as a fork, and has a fifth round.
    leader = home.start("agent", "--code", code, "--loopback", "--set", "faults.on_partition=wait")
    assert product.until(lambda: "found agent" in first.told), first.told
    assert "continuing at round 4" in first.told
    other = home.run("peer", "--code", code, "--loopback", "--data", SMALL, "--name", "p3", "--model", "alexnet")
    assert other.code == 2
    assert "your model (alexnet" in other.complaint
    assert "differs from the mesh's (lenet" in other.complaint
    first.process.kill()
    first.process.wait()
    again = home.start("peer", "--code", code, "--loopback", "--data", SMALL, "--name", "p1", "--json")
    assert product.until(lambda: "found agent" in again.told), again.told
    again.interrupt()
    assert (again.code, again.result()["round_id"]) == (130, 4)
    assert (
        f"the model of round 4 is in {home.folder / 'state' / 'mdl' / 'home' / 'p1' / 'global.safetensors'}"
        in again.told
    )
    leader.kill_all()
