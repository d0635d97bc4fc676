"""Some seconds of `make fuzz` in each run of the tests, and what it has found once."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.hostile import Hostile, info_of
from tests.fuzz.machines import KINDS, Misbehaved, be_quiet, check_terminal
from tests.fuzz.run import TARGETS, run_case

ROOT = Path(__file__).resolve().parents[2]
# All targets together: some seconds of a usual core, and half a minute.
INPUTS = [pytest.param(8_000, id="some"), pytest.param(60_000, id="many", marks=pytest.mark.long)]
# (target, case, inputs): each has failed once.
FOUND = [
    ("wire", 7000021, 400),  # a refusal that quoted an escape character
    ("learner", 77, 3_400),  # due again and again while a synchronous cloud was silent
    ("cloud", 2000006, 3_300),  # a reason with an escape sequence in the log
    ("files", 1000003, 1_570),  # a reason in the log that quoted an unseen character of the file
    ("files", 1000003, 40),  # a story without a line
    ("mesh", 20000060, 1_500),  # an agent that has a device fetch the model from itself
    ("roster", 21000103, 500),  # an owner named by one who was named by another one since: forgotten by a restart
    ("observer", 20000079, 1_000),  # more that was made up than a message can hold
]


@pytest.mark.slow
@pytest.mark.parametrize("inputs", INPUTS)
def test_a_while_of_hostile_inputs_raises_hangs_and_grows_nothing(inputs):
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", str(inputs), "--processes", "1", "--short"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert all(target in done.stdout for target in TARGETS)


@pytest.fixture
def lines_checked():
    """Every line of a log is looked at, as in `make fuzz`."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    be_quiet()
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.slow
@pytest.mark.usefixtures("lines_checked")
@pytest.mark.parametrize(("target", "case", "inputs"), FOUND)
def test_what_was_found_once_is_handled(target, case, inputs):
    assert run_case(target, case, inputs).failures == []


def test_a_failure_is_told_with_its_case(monkeypatch):
    class Broken:
        def __init__(self, seed):
            self.left = 3

        def step(self):
            self.left -= 1
            return 1 // self.left == 0

    monkeypatch.setitem(TARGETS, "broken", (Broken, 1.0, 10))
    tally = run_case("broken", 5, 10)
    assert tally.inputs == 3
    assert "broken, case 5, input 3: ZeroDivisionError" in tally.failures[0]


def test_a_case_is_the_same_each_time():
    tallies = [run_case("mesh", 11, 200) for _ in range(2)]
    assert tallies[0].refused == tallies[1].refused > 0


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_message_can_be_made_hostile(kind):
    import random

    hostile = Hostile(random.Random(1))
    made = [hostile.make(info_of(kind)) for _ in range(20)]
    assert all(isinstance(message, kind) for message in made)
    assert len(set(map(repr, made))) > 1 or not kind.__struct_fields__


def test_the_terminal_check_has_teeth():
    check_terminal("\x1b[1mround\x1b[0m 3\n")
    for text in ("\x1b]0;title\x07", "\x1b[2J", "a\u202eb", "a\x07"):
        with pytest.raises(Misbehaved):
            check_terminal(text)
