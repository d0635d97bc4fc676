"""Ctrl-C and SIGTERM at any moment, to real processes: what they end with, what they say, what they leave."""

import random
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from safetensors import safe_open

from mdl.data.readers.catalogue import find_public_set
from mdl.files.export import import_model
from mdl.transport.trust.keys import new_join_code
from tests.integration import product

INTERRUPTED = 130
# The first line of ours comes some 50 ms after the interpreter was started, the last heavy import a second later.
MOMENTS, WITHIN_S = 20, 1.5
# Some seconds, and a minute on a machine that is busy with other things.
SLOW_S = 180.0
# Each goes on for longer than that.
COMMANDS = (
    ("up", "-n", "2", "--epochs", "1000", "--data", product.SMALL, "--out", "OUT"),
    ("up", "-n", "2", "--epochs", "1000", "--data", product.SMALL, "--out", "OUT", "--json"),
    ("peer", "--insecure", "--loopback", "--data", product.SMALL, "--out", "OUT"),
    ("sim", "run", "--seeds", "100000", "--processes", "2"),
    ("scheduler", "train", "--steps", "100000", "--processes", "1", "--out", "OUT.safetensors"),
)


@pytest.fixture
def home(tmp_path, tmp_path_factory):
    home = product.Home(tmp_path / "home", tmp_path_factory.getbasetemp() / "cache")
    yield home
    home.close()


@pytest.mark.slow
def test_an_interrupt_at_any_moment_of_a_start_is_code_130_without_a_traceback(home):
    """Signals wait until the first line of mdl: what the interpreter does before is not ours."""
    rng = random.Random(12)
    for number in range(MOMENTS):
        words = COMMANDS[number % len(COMMANDS)]
        words = [word.replace("OUT", f"{number}") for word in words]
        at_s, sent = rng.uniform(0.0, WITHIN_S), rng.choice((signal.SIGINT, signal.SIGTERM))
        command = home.start(*words, blocked=True, fresh=True)
        threading.Event().wait(at_s)  # the moment is what is tested
        command.interrupt(sent)
        logs = [path.read_text() for path in home.folder.rglob("logs/*.log")]
        case = (words, at_s, sent.name, command.told)
        assert command.code == INTERRUPTED, case
        for text in (command.told, *logs):
            assert "Traceback" not in text, (*case, text)
            assert "KeyboardInterrupt" not in text, (*case, text)
        assert command.complaint.startswith("mdl: "), case
        if "--json" in words:
            assert command.result()["exit_code"] == INTERRUPTED, case
        assert not list(home.folder.rglob("*.part")), case


# A command that is interrupted while it evaluates a string, which typer does with annotations.
EVALUATES = """
import os
from mdl.peers import interrupts
interrupts.begin()
from mdl.peers.cli.main import run_guarded
raise SystemExit(run_guarded(lambda: eval("[os.kill(os.getpid(), 2), sum(range(10))]"), False))
"""


def test_an_interrupt_in_the_evaluation_of_a_string_is_code_130_too(home):
    """The interpreter remembers it, and `python -m` would end by SIGINT."""
    (home.folder / "evaluates.py").write_text(EVALUATES)
    command = home.start_python("-m", "evaluates", fresh=True)
    assert (command.end(), command.told) == (INTERRUPTED, "mdl: interrupted\n")


# `mdl` that sends itself a signal when it comes to a named function in a round from `since` on, and goes on there.
AT_MOMENT = """
import importlib, os, sys
number, since, *places = sys.argv[1].split(",")
sent = []
def send(place):
    if not sent:
        sent.append(place)
        os.write(2, f"the signal comes in {place}\\n".encode())
        os.kill(os.getpid(), int(number))
def watch(place):
    module, holder, name = place.split(":")
    holder = getattr(importlib.import_module(module), holder)
    function = getattr(holder, name)
    def then(self, *given, **more):
        if max((getattr(each, "round_id", 0) for each in given), default=0) >= int(since):
            if name == "_save":  # not before half of it is done
                synced = os.fsync
                os.fsync = lambda file: (send(place), synced(file))
            else:
                send(place)
        return function(self, *given, **more)
    setattr(holder, name, then)
for place in places:
    watch(place)
del sys.argv[1]
from mdl.__main__ import main
main()
"""
# From which round on, and where: in the middle of training, of an exchange, of writing the model.
BUSY = {
    "trains": (2, "mdl.peers.edge.device:Device:_train"),
    "aggregates": (4, "mdl.peers.roles.trainer.exchange:SegmentExchange:take_piece"),
    "saves": (6, "mdl.peers.edge.device:Device:_save"),
}


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_device_saves_its_model_and_the_mesh_goes_on(home, tmp_path, sent):
    code = new_join_code("home")
    common = ("peer", "--code", code, "--loopback", "--data", product.SMALL, 
              "--set", "round.min_peers=5", "--json")  # fmt: skip
    names = ["stays-1", "stays-2", *BUSY]
    devices = {}
    for number, name in enumerate(names, 1):
        words = (*common, "--name", name, "--shard", f"{number}/{len(names)}", "--out", tmp_path / name)
        if name in BUSY:
            moment = ",".join(map(str, (int(sent), *BUSY[name])))
            devices[name] = home.start_python("-c", AT_MOMENT, moment, *words)
        else:
            devices[name] = home.start(*words)
    for name in BUSY:
        device = devices[name]
        assert device.end() == INTERRUPTED, (name, device.told)
        assert "the signal comes in" in device.told
        assert "Traceback" not in device.told, (name, device.told)
        _, saved = import_model(tmp_path / name / "global.safetensors")
        assert saved.round_id == device.result()["round_id"] >= BUSY[name][0] - 1, (name, device.told)
        assert not list((tmp_path / name).rglob("*.part"))

    def went_on():
        lines = [line for name in names for line in product.read_lines(tmp_path / name / "metrics.jsonl")]
        return any(line["contributors"] == ["stays-1", "stays-2"] for line in lines)

    assert product.until(went_on), [devices[name].told for name in names[:2]]


def at(sent, place):
    return "-c", AT_MOMENT, f"{int(sent)},0,{place}"


@pytest.mark.slow
def test_an_interrupted_computation_keeps_what_it_has(home):
    """SIGTERM; tests/peers/test_interrupt.py and test_cli_schedule.py have Ctrl-C."""
    campaign = home.start_python(
        *at(signal.SIGTERM, "mdl.peers.trials.campaign:Totals:merge"),
        *("sim", "run", "--seeds", 100_000, "--processes", 2, "--json"),
    )
    assert campaign.end(SLOW_S) == INTERRUPTED, campaign.told
    assert campaign.result()["error"] == f"interrupted after {campaign.result()['seeds']} seeds"
    training = home.start_python(
        *at(signal.SIGTERM, "mdl.scheduler.training.train:Report:__init__"),
        *("scheduler", "train", "--variant", "paper", "--n", 4, "--steps", 1_000_000, "--out", "policy.safetensors"),
    )
    assert training.end(SLOW_S) == INTERRUPTED, training.told
    assert training.complaint == "mdl: interrupted, what was learned is in policy.safetensors"
    with safe_open(home.folder / "policy.safetensors", "np") as saved:
        assert saved.keys()
    for command in (campaign, training):
        assert "Traceback" not in command.told
        assert not [child for child in command.children() if child.is_running()]
    assert not list(home.folder.rglob("*.part"))


class Stalling(BaseHTTPRequestHandler):
    """Hands out the first MB of a file and then nothing."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(50_000_000))
        self.end_headers()
        self.wfile.write(bytes(1_000_000))
        self.server.stalled.wait(product.PATIENCE_S)

    def log_message(self, *_):
        pass


@pytest.fixture
def stalling():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stalling)
    server.stalled = threading.Event()
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.stalled.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_download_goes_on_from_there_the_next_time(home, stalling, sent):
    known = find_public_set("uci-har")
    elsewhere = (
        "import sys, msgspec, mdl.data.readers.catalogue as c\n"
        f"c.find_public_set = lambda name, known=c.find_public_set({known.name!r}): "
        f"msgspec.structs.replace(known, url={stalling!r})\n"
        "from mdl.__main__ import main\nmain()"
    )
    got = home.start_python("-c", elsewhere, "data", "get", "uci-har", "--to", home.folder / "sets", "--json")
    part = home.folder / "sets" / "uci-har.zip.part"
    assert product.until(lambda: part.exists() and part.stat().st_size > 500_000), got.told
    assert got.interrupt(sent) < product.PATIENCE_S
    assert (got.code, got.complaint, got.result()["exit_code"]) == (INTERRUPTED, "mdl: interrupted", INTERRUPTED)
    assert "Traceback" not in got.told
    assert [path.name for path in part.parent.iterdir()] == [part.name]


@pytest.mark.slow
def test_what_the_caller_has_ignored_stays_ignored(home):
    """`nohup mdl up &`: neither the closed terminal nor Ctrl-C there is for it. SIGTERM is."""
    ignoring = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from mdl.__main__ import main\nmain()"
    )
    out = home.folder / "run"
    run = home.start_python("-c", ignoring, "up", "-n", 2, "--epochs", 1000, "--data", product.SMALL, "--out", out)
    metrics = out / "agent" / "metrics.jsonl"
    assert product.until(lambda: product.read_lines(metrics)), run.told
    run.process.send_signal(signal.SIGHUP)
    run.process.send_signal(signal.SIGINT)
    reached = len(product.read_lines(metrics))
    assert product.until(lambda: len(product.read_lines(metrics)) > reached)
    assert run.interrupt(signal.SIGTERM) < product.PATIENCE_S
    assert run.code == INTERRUPTED
    assert "the last global model is in" in run.complaint
