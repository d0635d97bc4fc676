"""What is forked from a process with all libraries is what `python` starts: the other tests rely on it."""

import os
import signal
import threading

import psutil
import pytest

from mdl.peers.launch.nursery import Nursery
from tests.integration import product

pytestmark = pytest.mark.skipif(not Nursery.is_possible(), reason="Linux alone hands a grandchild over")

# What a program can see of its start.
TELL = """
import json, os, signal, sys, tempfile
handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)]
handlers = [str(handler).split(" at ")[0] for handler in handlers]
print(json.dumps({
    "arguments": sys.argv, "path": sys.path, "main": sys.modules["__main__"].__dict__ is globals(), "name": __name__,
    "folder": os.getcwd(), "environment": dict(os.environ), "handlers": handlers,
    "temporary": tempfile.gettempdir(), "input": sys.stdin.read(), "encoding": sys.stdout.encoding.lower(),
    "blocked": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
    "files": sorted(os.listdir("/proc/self/fd")), "session": os.getsid(0) == os.getpid(), "parent": os.getppid(),
    "own": sorted(name for name in sys.modules if name.split(".")[0] in ("mdl", "tests")),
}))
"""


@pytest.fixture
def home(tmp_path):
    home = product.Home(tmp_path / "home", tmp_path / "cache")
    (home.folder / "tell.py").write_text(TELL)
    (home.folder / "folder").mkdir()
    (home.folder / "folder" / "tell.py").write_text(TELL)
    yield home
    home.close()


@pytest.mark.slow
@pytest.mark.parametrize("words", [("-m", "tell"), ("-c", TELL), ("folder/tell.py",)], ids=["module", "code", "script"])
@pytest.mark.parametrize("blocked", [False, True])
def test_a_program_sees_what_an_interpreter_of_its_own_would_show_it(home, words, blocked):
    started = [
        home.start_python(*words, "a word", "--x", fresh=fresh, blocked=blocked, TMPDIR=str(home.folder))
        for fresh in (True, False)
    ]
    assert [command.end() for command in started] == [0, 0], [command.told for command in started]
    fresh, forked = (command.result() for command in started)
    assert forked == fresh
    assert forked["parent"] == os.getpid()
    assert forked["own"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("", 0),
        ("raise SystemExit(3)", 3),
        ("raise KeyError('gone')", 1),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()", 0),
        ("import atexit; atexit.register(print, 'last')", 0),
    ],
)
def test_it_ends_as_an_interpreter_does(home, code, ended):
    commands = [home.start_python("-c", code, fresh=fresh) for fresh in (True, False)]
    assert [command.end() for command in commands] == [ended, ended]
    assert commands[0].said == commands[1].said
    assert commands[0].complaint == commands[1].complaint


def test_it_is_a_child_that_is_waited_for_signalled_and_left_behind_by_nobody(home):
    sleeps = home.start_python("-c", "import time; print('here', flush=True); time.sleep(60)")
    assert product.until(lambda: sleeps.said == "here\n")
    assert sleeps.code is None
    assert sleeps.process.pid in [child.pid for child in psutil.Process().children()]
    threading.Timer(0.1, sleeps.process.kill).start()
    assert sleeps.end() == -signal.SIGKILL
    assert not psutil.pid_exists(sleeps.process.pid)


def test_orphans_of_a_command_are_not_handed_to_the_tests(home):
    """The system's first process waits for them, or they would stay as zombies."""
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '0.2']).pid)"
    command = home.start_python("-c", code)
    assert command.end() == 0
    orphan = int(command.said)
    assert orphan not in [child.pid for child in psutil.Process().children()]
