"""Files that were made to do harm, given to each command that reads one: one line, exit code 2, in bounded time."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from mdl.peers.cli import main as cli
from mdl.scheduler.paper.policy import PaperRules

DEEP = b"[" * 100_000
DIGITS = b"9" * 5000
BINARY = bytes(range(256)) * 64


def tensors(metadata: dict[str, str], **arrays: np.ndarray) -> bytes:
    return save(arrays or {"a": np.zeros(2, np.float32)}, metadata)


def header(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def scenario(count: int = 1, **change: object) -> bytes:
    device = {"ready_s": 0.0, "link_mb_s": 1.0, "merge_mb_s": 1.0} | change
    known = {"scenario_id": "a", "family": "b", "size_mb": 1.0, "latency_s": 0.0}
    return json.dumps(known | {"devices": [device, device] * count}).encode()


def plan(**change: object) -> bytes:
    return json.dumps({"seed": 0, "peers": 3, "rounds": 2} | change).encode()


def described(**change: object) -> bytes:
    known = {"model": "lenet", "channels": 3, "time": 32, "class_names": ["a", "b"], "data": "motion"}
    return tensors({"mdl": json.dumps(known | change)})


MODELS: dict[str, bytes] = {
    "a header of 2^63 bytes": struct.pack("<Q", 1 << 63) + b"{}",
    "a nested header": header(DEEP),
    "a header of digits": header(b'{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,4]}}' % DIGITS) + bytes(4),
    "a tensor of terabytes": header(b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4]}}') + bytes(4),
    "a type that numpy has not": header(b'{"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}') + bytes(4),
    "nested metadata": tensors({"mdl": DEEP.decode()}),
    "metadata of digits": tensors({"mdl": f'{{"channels":{DIGITS.decode()}}}'}),
    "nothing": b"",
    "binary": BINARY,
    "another type of tensor": described(),
    "a model by path": described(model="../../etc/passwd"),
}
PAPER = {"kind": "paper-dqn", "n": 3, "sizes": [15, 3], "counts": False, "rules": asdict(PaperRules())}
POLICIES: dict[str, bytes] = {
    **{name: content for name, content in MODELS.items() if name not in ("another type of tensor", "a model by path")},
    "a list as metadata": tensors({"mdl": "[]"}),
    "rules of words": tensors({"mdl": json.dumps(PAPER | {"rules": {"battery_cost": "x"}})}),
    "a huge mesh": tensors({"mdl": json.dumps(PAPER | {"n": 1 << 40})}),
    "layers that do not fit": tensors(
        {"mdl": json.dumps(PAPER)},
        **{"layer0.weight": np.zeros((3, 9), np.float32), "layer0.bias": np.zeros(3, np.float32)},
    ),
    "layers of no shape": tensors(
        {"mdl": json.dumps(PAPER)}, **{"layer0.weight": np.zeros(()), "layer0.bias": np.zeros(())}
    ),
}
CONFIGS: dict[str, bytes] = {
    "nested": b"a = " + DEEP,
    "nested tables": b"a = " + b"{b=" * 20_000,
    "digits": b"seed = " + DIGITS,
    "20,000 dots": b"a." * 20_000 + b"a = 1",
    "many dots": b"\n".join(b"a%d." % line + b"a." * 2000 + b"a = 1" for line in range(15)),
    "binary": BINARY,
    "NUL": b"seed = \0",
    "a megabyte": b"# \n" * (1 << 20),
}
JSON: dict[str, bytes] = {
    "nested": DEEP,
    "nested in a field": b'{"at_s": 0.0, "zz": ' + DEEP,
    "digits": b'{"seed": %s, "at_s": %s, "round": %s}' % (DIGITS, DIGITS, DIGITS),
    "binary": BINARY,
    "a number": b"9" * 5000,
    "half a character": b'{"at_s": "\xed\xa0\x80"}',
}
PLANS: dict[str, bytes] = {
    **JSON,
    "nothing": b"",
    "years": plan(faults=[{"type": "Crash", "at_s": 1e300, "peer": "p0"}]),
    "a million rounds": plan(rounds=1_000_000),
    "unknown nodes": plan(faults=[{"type": "Crash", "at_s": 1.0, "peer": "\x1b[31mp9"}]),
    "a million peers": plan(peers=1_000_000),
    "two megabytes": b" " * (2 << 20),
}
SCENARIOS: dict[str, bytes] = {
    **JSON,
    "nothing": b"",
    "no speed at all": scenario(link_mb_s=5e-324),
    "no end": scenario(ready_s=1e308),
    "a strange class": scenario(device_class=1 << 62),
    "1,000 devices": scenario(count=500),
}
STORIES: dict[str, bytes] = {
    **JSON,
    "two events": b'{"at_s": 0.0, "event": {"Tick": {}, "StopRequested": {}}}\n',
    "no event": b'{"at_s": 0.0, "event": {}}\n',
}

COMMANDS: dict[str, tuple[tuple[str, ...], dict[str, bytes]]] = {
    "eval": (("eval", "FILE"), MODELS),
    "predict": (("predict", "FILE"), MODELS),
    "scheduler eval": (("scheduler", "eval", "FILE", "--n", "3", "--count", "2"), POLICIES),
    "scheduler train": (("scheduler", "train", "--resume", "--steps", "9", "--out", "FILE"), POLICIES),
    "config": (("up", "-n", "1", "--config", "FILE"), CONFIGS),
    "sim run": (("sim", "run", "--plan", "FILE"), PLANS),
    "schedule show": (("schedule", "show", "FILE", "--policy", "greedy"), SCENARIOS),
    "schedule compare": (("schedule", "compare", "--scenarios", "FILE", "--policies", "greedy"), SCENARIOS),
    "replay": (("replay", "FILE"), STORIES),
}
CASES = [(command, name) for command, (_, files) in COMMANDS.items() for name in files]
# What is no file at all, in the place of each.
STRANGE: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
}


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["mdl", *arguments])
        began_s = time.thread_time()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert time.thread_time() - began_s < 20
        return int(ended.value.code or 0), capsys.readouterr().err

    return call


def is_one_line(code: int, said: str) -> bool:
    (line,) = said.splitlines()
    return code == 2 and line.startswith("mdl: ") and len(line) < 2000 and line.isprintable()


@pytest.mark.parametrize(("command", "name"), CASES)
def test_a_hostile_file_is_one_line(
    command: str, name: str, tmp_path: Path, run: Callable[..., tuple[int, str]]
) -> None:
    words, files = COMMANDS[command]
    path = tmp_path / ("file.safetensors" if files is POLICIES else "file")
    path.write_bytes(files[name])
    code, said = run(*(str(path) if word == "FILE" else word for word in words))
    assert is_one_line(code, said), (code, said[:2000])


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_file_is_one_line(
    command: str, kind: str, tmp_path: Path, run: Callable[..., tuple[int, str]]
) -> None:
    words, files = COMMANDS[command]
    path = tmp_path / ("file.safetensors" if files is POLICIES else "file")
    STRANGE[kind](path)
    if kind == "folder" and command in ("eval", "predict"):
        os.mkfifo(path / "global.safetensors")
    code, said = run(*(str(path) if word == "FILE" else word for word in words))
    assert is_one_line(code, said), (code, said[:2000])


@pytest.mark.parametrize("name", [*JSON, "pipe"])
def test_a_run_directory_of_hostile_lines_is_one_line(
    name: str, tmp_path: Path, run: Callable[..., tuple[int, str]]
) -> None:
    if name == "pipe":
        os.mkfifo(tmp_path / "metrics.jsonl")
        os.mkfifo(tmp_path / "config.toml")
    else:
        (tmp_path / "metrics.jsonl").write_bytes(JSON[name] + b"\n")
        (tmp_path / "config.toml").write_bytes(CONFIGS["nested"])
    for command in ("show", "replay"):
        code, said = run("schedule", command, str(tmp_path))
        assert is_one_line(code, said), (code, said[:2000])


@pytest.mark.parametrize(
    "words",
    [
        ("up", "--set", "round.rounds=" + DEEP.decode()),
        ("up", "--set", "round.rounds=" + "{a=" * 20_000),
        ("up", "--set", "a." * 20_000 + "a=1"),
        ("up", "--set", "round." + "a." * 20_000 + "a=1"),
        ("up", "--set", "seed=" + DIGITS.decode()),
        ("up", "--set", "round=" + "[" * 150 + "]" * 150),
        ("schedule", "what-if", "dynamic:3:1", "--set", "1.link=" + DIGITS.decode()),
        ("schedule", "what-if", "dynamic:3:1", "--set", "1.link=1e300"),
        ("schedule", "what-if", "dynamic:3:1", "--set", "1.busy=" + DIGITS.decode()),
        ("schedule", "show", "dynamic:3:" + DIGITS.decode()),
        ("schedule", "show", f"dynamic:{DIGITS.decode()}:3"),
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_hostile_words_are_one_line(words: tuple[str, ...], run: Callable[..., tuple[int, str]]) -> None:
    code, said = run(*words)
    assert is_one_line(code, said), (code, said[:2000])
