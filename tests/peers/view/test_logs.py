"""How much a command that runs long tells, and how large a log becomes."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mdl.config import Config
from mdl.data.readers.motion import MotionOptions, make_motion
from mdl.errors import ConfigError
from mdl.peers.cli.main import main
from mdl.peers.command.options import log_at
from mdl.peers.launch.processes import Children
from mdl.peers.launch.up import Run, _start
from mdl.peers.view.plain import LOG_VARIABLE, OUR_LOGGER, log_from

LONG = ("peer", "agent", "up", "cloud", "learn", "scheduler train", "sim run")


@pytest.fixture(autouse=True)
def _levels_as_before() -> Iterator[None]:
    before = {name: logging.getLogger(name).level for name in (OUR_LOGGER,)}
    handlers = list(logging.getLogger().handlers)
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().handlers[:] = handlers


@pytest.mark.parametrize("command", LONG)
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--log-level", "loud"], "--log-level 'loud': expected one of debug, info, warning, error"),
        (["--log-level", "debug", "--quiet"], "--quiet is --log-level warning: give one of them"),
    ],
)
def test_a_wrong_level_is_one_line(
    command: str, options: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["mdl", *command.split(), *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"mdl: {told}\n"


@pytest.mark.parametrize(
    ("level", "quiet", "shown"),
    [
        ("debug", False, ["debug", "info", "warning", "error"]),
        (None, False, ["info", "warning", "error"]),
        (None, True, ["warning", "error"]),
        ("warning", False, ["warning", "error"]),
        ("error", False, ["error"]),
    ],
)
def test_lines_below_the_level_are_not_written(
    level: str | None, quiet: bool, shown: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    log_at(level, quiet)
    for each in ("debug", "info", "warning", "error"):
        logging.getLogger(f"{OUR_LOGGER}.part").log(getattr(logging, each.upper()), each)
    assert [record.message for record in caplog.records] == shown


def test_a_level_that_is_none_changes_nothing() -> None:
    log_from("warning")
    with pytest.raises(ConfigError):
        log_from("DEBUG")
    assert logging.getLogger(OUR_LOGGER).level == logging.WARNING


def test_the_processes_of_mdl_up_get_its_level(tmp_path: Path) -> None:
    started: list[tuple[str, ...]] = []

    class Recorded(Children):
        def start(self, name: str, *arguments: str, trains: bool = True) -> None:  # type: ignore[override]
            started.append(arguments)

    _start(
        Run(Config(), 2, 1, make_motion(MotionOptions(), 1), tmp_path, False, log_level="warning"),
        Recorded(tmp_path, "", 1),
    )
    assert [words[0] for words in started] == ["agent", "peer", "peer"]
    assert all(words[words.index("--log-level") + 1] == "warning" for words in started)


_CRASHES = """
import logging, os, subprocess, sys
from mdl.peers.view import log_file, plain
log_file.LARGEST_LOG_BYTES = 10_000
plain.log_plainly()
for number in range(2_000):
    logging.getLogger("mdl.peers").info("line %d: %s", number, "x" * 60)
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
    numbers = [int(number) for number in re.findall(r" line (\d+): ", older + newest)]
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


_TELLS = """
import logging, sys
from mdl.peers.view import plain
plain.log_plainly()
plain.log_from(sys.argv[1])
logging.getLogger("mdl.peers.edge.node").info("round 7 is over")
logging.getLogger("zeroconf").warning("no interface")
"""


@pytest.mark.parametrize(
    ("level", "lines"),
    [
        ("info", ["round 7 is over", "zeroconf: no interface"]),
        ("debug", ["mdl.peers.edge.node: round 7 is over", "zeroconf: no interface"]),
    ],
)
def test_a_line_names_its_module_on_level_debug_alone(level: str, lines: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", _TELLS, level], capture_output=True, text=True, timeout=60, check=True)
    assert [line.split(" ", 2)[2] for line in done.stderr.splitlines()] == lines
