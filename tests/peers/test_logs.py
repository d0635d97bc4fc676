"""How large a log becomes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from peers.plain import LOG_VARIABLE
from peers.processes import Children

_CRASHES = """
import logging, os, subprocess, sys
from peers import plain
plain.LARGEST_LOG_BYTES = 10_000
plain.log_plainly()
for number in range(2_000):
    logging.getLogger("peers").info("line %d: %s", number, "x" * 60)
assert "MDL_LOG_FILE" not in os.environ
subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('what a library prints\\\\n')"])
raise RuntimeError("broken")
"""


def test_a_log_is_bounded_and_ends_with_the_traceback(tmp_path: Path) -> None:
    log = tmp_path / "peer-1.log"
    with log.open("wb") as errors:
        done = subprocess.run(
            [sys.executable, "-c", _CRASHES], stderr=errors, env={LOG_VARIABLE: str(log)}, timeout=60, check=False
        )
    assert done.returncode == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["peer-1.log", "peer-1.log.1", "peer-1.log.2"]
    assert all(path.stat().st_size <= 11_000 for path in tmp_path.iterdir())
    assert log.stat().st_mode & 0o077 == 0
    older, newest = (tmp_path / "peer-1.log.1").read_text(), log.read_text()
    numbers = [int(number) for number in re.findall(r"peers: line (\d+)", older + newest)]
    assert numbers == list(range(numbers[0], 2_000)), "none is lost where a new file begins"
    assert newest.index("line 1999") < newest.index("what a library prints") < newest.index("Traceback")
    assert newest.endswith("RuntimeError: broken\n")


def test_a_log_that_cannot_be_turned_over_costs_lines_alone(tmp_path: Path) -> None:
    log = tmp_path / "peer-1.log"
    script = _CRASHES.replace("for number", "import os; os.mkdir(os.environ['D'])\nfor number")
    (tmp_path / "peer-1.log.1").mkdir()
    (tmp_path / "peer-1.log.1" / "in the way").touch()
    with log.open("wb") as errors:
        environment = {LOG_VARIABLE: str(log), "D": str(tmp_path / "peer-1.log.2")}
        done = subprocess.run([sys.executable, "-c", script], stderr=errors, env=environment, timeout=60, check=False)
    assert done.returncode == 1
    assert "Logging error" not in log.read_text()
    assert log.read_text().endswith("RuntimeError: broken\n")
    assert log.stat().st_size <= 11_000


def test_why_a_process_ended_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with Children(tmp_path / "logs", "", 1) as children:
        child = children.start("peer-1", "up", "-n", "0")
        assert child.process.wait(60) == 2
    told = "-n 0: expected at least 1 peer"
    assert child.problem() == told
    child.log.unlink()
    assert child.problem() == told
