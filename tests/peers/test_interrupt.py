"""Ctrl-C in any phase, and pauses: what is told, what is kept, and no word of anybody else's."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from mdl.peers.cloud.machine import Learner, LearnerSettings
from mdl.peers.edge import relearner
from mdl.peers.edge.narrate import Narrator
from mdl.peers.interrupts import stopped_by_signals
from mdl.peers.launch.run_directory import describe_interrupt
from mdl.protocol.machine import Finish, StopRequested
from mdl.protocol.status_messages import RoundSummary


class _Loop:
    def __init__(self) -> None:
        self.stops, self.is_over = 0, False

    def stop(self) -> None:
        self.stops += 1


def test_the_first_ctrl_c_never_breaks_off_what_is_saved_and_the_second_does() -> None:
    loop = _Loop()
    with stopped_by_signals(loop):  # type: ignore[arg-type]
        loop.is_over = True  # the model is being saved
        signal.raise_signal(signal.SIGINT)
        assert loop.stops == 1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_second_ctrl_c_ends_the_loop_which_leaves_nothing_half_done() -> None:
    loop = _Loop()
    with stopped_by_signals(loop):  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert loop.stops == 2


def test_an_interrupted_run_says_what_there_is(tmp_path: Path) -> None:
    assert "before the first round was finished" in describe_interrupt(tmp_path)
    lines = [RoundSummary(number, 2.0, ("a", "b"), (("b", "a"),), {"total": 1.0}, 1, None) for number in (1, 2)]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    told = describe_interrupt(tmp_path)
    assert told.startswith("interrupted after 2 finished rounds; no device was quick enough")
    (tmp_path / "global.safetensors").touch()
    assert "the last global model is in" in describe_interrupt(tmp_path)


def test_ctrl_c_in_the_terminal_does_not_reach_a_slot_of_learning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, object]] = []

    def refuse(_: object, **options: object) -> None:
        started.append(options)
        raise KeyboardInterrupt  # far enough

    monkeypatch.setattr(relearner.subprocess, "Popen", refuse)
    learner = relearner.Relearner(tmp_path, relearner.BusySection(), lambda: None, lambda _: None, True)
    with pytest.raises(KeyboardInterrupt):
        learner._start_slot(["ann charges"])
    assert started[0]["start_new_session"] is True


def test_libraries_tell_nothing_at_the_end_and_we_do() -> None:
    told = """
import atexit, logging
from mdl.peers.view.plain import log_plainly
log_plainly()
atexit.register(lambda: logging.getLogger("torch._subclasses.fake_tensor").info("FakeTensor cache stats:"))
logging.getLogger("mdl").info("ours")
logging.getLogger("torch").warning("a warning")
"""
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, env=os.environ)
    assert [line.split(" ", 2)[2] for line in done.stderr.splitlines()] == ["ours", "torch: a warning"]


def test_a_learner_that_is_stopped_before_its_last_lesson_was_interrupted() -> None:
    learner = Learner("me", "s", "m", LearnerSettings(studies=2), 0.0)
    assert learner.handle(StopRequested(), 1.0) == [Finish(exit_code=130)]


def test_a_pause_is_told_once_with_what_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    narrator = Narrator("home")
    held_up = "p2: 1 of 2 members are here; up to 15 s, then without"
    for second in range(10):
        narrator.hear_waiting(float(second), held_up)
    assert caplog.messages == [f"waiting for {held_up}"]
    narrator.hear_waiting(10.0, "")
    for second in range(11, 14):
        narrator.hear_waiting(float(second), "trainers")
    assert len(caplog.messages) == 1
    narrator.hear_waiting(14.0, "trainers")
    assert caplog.messages[1:] == ["waiting for trainers"]


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_ctrl_c_before_the_modules_are_there_is_no_traceback(words: list[str]) -> None:
    """The signal comes while typer is imported: its place is taken by a module that sends it."""
    told = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("it goes on")
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
from mdl.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", told, "up", *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "mdl: interrupted\n")
    assert done.stdout == ('{"error": "interrupted", "hint": "", "exit_code": 130}\n' if words else "")
