"""Whatever ends a command, `--json` ends stdout with one object that says so; there is one place that does it."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from mdl.errors import ConfigError, DataError, MeshNotFoundError, UnfinishedError
from mdl.peers.cli.main import main, run_guarded, whole

# What is wrong with each command's input -> a piece of the error. A command that is new needs a line here.
MISTAKES = {
    "agent": (["--until", "acuracy=0.9"], "did you mean accuracy?"),
    "cloud": (["--code", "hello"], "join code: no ':' in it"),
    "data accept": (["--mesh", "nosuch", "--from", "phone"], "no code is known for mesh 'nosuch'"),
    "data cluster": (["motion"], "only places have clusters"),
    "data get": (["nosuch"], "nosuch"),
    "data inspect": (["npz:gone.npz"], "gone.npz: no such file"),
    "data list": (["more"], "unexpected extra argument"),
    "data share": (["motion", "--mesh", "nosuch", "--with", "watch"], "no code is known for mesh 'nosuch'"),
    "data unshare": (["--mesh", "nosuch"], "no code is known for mesh 'nosuch'"),
    "export": (["gone.safetensors"], "gone.safetensors does not exist"),
    "eval": (["gone.safetensors"], "gone.safetensors does not exist"),
    "learn": ([], "no cloud is named"),
    "log": (["gone"], "gone has no rounds"),
    "mesh forget": (["home"], "--yes"),
    "mesh invite": (["nosuch"], "no code is known for mesh 'nosuch'"),
    "mesh join": (["maple", "otter", "vowel"], "'vowel' is in no invitation"),
    "mesh show": (["nosuch"], "no code is known for mesh 'nosuch'"),
    "mesh runs": (["more"], "unexpected extra argument"),
    "mesh list": (["more"], "unexpected extra argument"),
    "mesh members": (["nosuch"], "no code is known for mesh 'nosuch'"),
    "mesh owners": (["nosuch"], "no code is known for mesh 'nosuch'"),
    "mesh revoke": (["nosuch", "phone"], "no code is known for mesh 'nosuch'"),
    "mesh rotate-code": (["nosuch"], "no code is known for mesh 'nosuch'"),
    "mesh upgrade": (["nosuch"], "no code is known for mesh 'nosuch'"),
    "mesh new": (["No Name"], "mesh name"),
    "peer": (["--code", "hello"], "join code: no ':' in it"),
    "peers": (["--code", "hello"], "join code: no ':' in it"),
    "web": (["--code", "hello"], "join code: no ':' in it"),
    "status": (["--code", "hello"], "join code: no ':' in it"),
    "doctor": (["--peer", "home:99999"], "--peer 'home:99999': give HOST:PORT"),
    "personal adopt": ([], "Missing argument"),
    "personal join": ([], "Missing argument"),
    "personal eval": (["gone.safetensors", "text"], "gone.safetensors"),
    "personal export": (["gone"], "personal.safetensors does not exist"),
    "personal forget": (["more"], "unexpected extra argument"),
    "personal pretrain": (["gone"], "gone: no such file or folder"),
    "personal status": (["more"], "unexpected extra argument"),
    "personal train": (["gone"], "no global model is named"),
    "personal words": (["--out", "gone"], "personal.safetensors does not exist"),
    "predict": (["gone.safetensors"], "gone.safetensors does not exist"),
    "recommend": (["ann", "--out", "gone"], "gone: this device has learned nothing yet"),
    "replay": (["gone.jsonl"], "gone.jsonl: No such file or directory"),
    "schedule compare": (["--policies", "nosuch"], "nosuch"),
    "schedule decide": (["--policy", "nosuch"], "nosuch"),
    "schedule replay": (["gone"], "gone: no such directory"),
    "schedule rounds": (["--rules", "nosuch"], "nosuch"),
    "schedule scenarios": (["gone"], "gone: no such directory"),
    "schedule show": (["gone"], "gone"),
    "schedule what-if": (["gone"], "gone"),
    "scheduler eval": (["nosuch"], "nosuch"),
    "scheduler train": (["--steps", "3", "--out", "gone/policy.safetensors"], "gone does not exist"),
    "service install": (["up"], "'up' does not run on its own; expected one of peer, agent, cloud, learn"),
    "service logs": (["nosuch"], "name a service: no nosuch among those installed"),
    "service remove": (["nosuch"], "name a service: no nosuch among those installed"),
    "service status": (["nosuch"], "name a service: no nosuch among those installed"),
    "sim run": (["--faults", "hardest"], "expected one of none, mild, hard"),
    "sim search": (["--kinds", "nonsense"], "expected one of lose, late, crash"),
    "type": (["more"], "unexpected extra argument"),
    "up": (["-n", "0"], "expected at least 1 peer"),
}


def _commands() -> list[str]:
    def walk(command: Any, path: str) -> Iterator[str]:
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, f"{path} {name}".strip())
        if not hasattr(command, "commands"):
            yield path

    return sorted(walk(whole(), ""))


@pytest.fixture
def mdl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`mdl WORDS --json`: the exit code, the object, and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("MDL_CODE", raising=False)

    def run(*words: str) -> tuple[int, dict[str, Any], str]:
        monkeypatch.setattr(sys, "argv", ["mdl", *words, "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        (line,) = [line for line in out.splitlines() if line.startswith("{")]
        assert line == out.splitlines()[-1]
        return int(ended.value.code or 0), json.loads(line), err

    return run


def test_every_command_has_a_mistake_here() -> None:
    assert _commands() == sorted(MISTAKES)


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_object(mdl: Any, command: str) -> None:
    words, said = MISTAKES[command]
    code, told, err = mdl(*command.split(), *words)
    assert said in told["error"]
    assert told["exit_code"] == code == 2
    assert isinstance(told["hint"], str)
    assert err.splitlines()[-1] == f"mdl: {told['error']}"
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["", *sorted(MISTAKES), "nosuch", "mesh", "mesh nosuch"])
def test_an_option_that_there_is_not_is_one_object(mdl: Any, command: str) -> None:
    code, told, _ = mdl(*command.split(), "--nosuch")
    assert (code, told["exit_code"]) == (2, 2)
    assert "nosuch" in told["error"]
    assert told["hint"].startswith("mdl ")
    assert told["hint"].endswith("--help lists what is valid")


def _raise(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConfigError("a\n b"), ("a b", 2)),
        (DataError("a"), ("a", 2)),
        (MeshNotFoundError("a"), ("a", 3)),
        (KeyboardInterrupt(), ("interrupted", 130)),
        (typer.Abort(), ("interrupted", 130)),
        (SystemExit(1), ("nobody reads the output any more", 4)),
        (MemoryError(), ("out of memory", 4)),
        (OSError(errno.ENOSPC, "No space left on device", "runs/a"), ("runs/a: No space left on device", 4)),
        (OSError(errno.EMFILE, "Too many open files"), ("Too many open files", 4)),
        (OSError("odd"), ("odd", 4)),
        (ValueError("a bug"), ("ValueError: a bug", 4)),
    ],
)
def test_whatever_ends_a_command_is_one_line_and_one_object(
    error: BaseException, told: tuple[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_guarded(lambda: _raise(error), as_json=True)
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["error"], found["exit_code"]) == told
    assert code == told[1]
    assert set(found) == {"error", "hint", "exit_code"}
    assert err.splitlines()[-1] == f"mdl: {told[0]}"
    assert ("Traceback" in err) == isinstance(error, ValueError)
    assert ("ulimit -n" in found["hint"]) == (getattr(error, "errno", None) == errno.EMFILE)


def test_what_there_is_of_a_result_is_in_the_same_object(capsys: pytest.CaptureFixture[str]) -> None:
    error = UnfinishedError("3 of 5", 130, {"played": 3, "exit_code": 0}, "again")
    assert run_guarded(lambda: _raise(error), as_json=True) == 130
    assert json.loads(capsys.readouterr().out) == {"played": 3, "error": "3 of 5", "hint": "again", "exit_code": 130}


def test_without_json_nothing_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_guarded(lambda: _raise(ConfigError("a")), as_json=False) == 2
    assert capsys.readouterr() == ("", "mdl: a\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("words", [["data", "list"], ["data", "list", "--json"], ["data", "nosuch", "--json"]])
def test_an_output_that_takes_nothing_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "mdl", *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == (2 if "nosuch" in words else 4)
    (line,) = done.stderr.splitlines()
    assert line.startswith("mdl: ")


def test_the_version_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["mdl", "--version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    assert re.fullmatch(r"mdl \d+\.\d+\S*\n", capsys.readouterr().out)
