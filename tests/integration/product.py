"""`mdl` as a user runs it: commands in processes of their own, each with a home of its own, none left behind."""

import functools
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

SMALL = "motion?people=6&test_people=2&windows=40"
# For what takes seconds, on a machine that is busy with other things.
PATIENCE_S = 60.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def free_port():
    """A TCP port of loopback that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def until(claim, patience_s=PATIENCE_S):
    """Wait for a claim about other processes; returns whether it became true in time."""
    give_up_at = time.monotonic() + patience_s
    pause = threading.Event()
    while not (found := claim()) and time.monotonic() < give_up_at:
        pause.wait(0.02)
    return found


def take_signals(blocked):
    """In a new process. A shell starts what runs in its background with SIGINT ignored, and children inherit that."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    if blocked:
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


class Home:
    """A user on a machine: settings, file caches, a working directory; and the commands they have started."""

    preloaded = None  # of the session (conftest.py), where it can be

    def __init__(self, folder, cache, before=()):
        self.folder, self.before = Path(folder), before
        self.folder.mkdir(parents=True, exist_ok=True)
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("MDL_")}
        self.environment |= {
            "HOME": str(self.folder),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_CACHE_HOME": str(cache),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(self.folder),
            "PYTHONFAULTHANDLER": "1",  # see `Command.end`
        }
        self._started = []
        self._numbers = itertools.count()

    def start(self, *arguments, blocked=False, fresh=False, **variables):
        """`mdl ARGUMENTS` in the background."""
        return self.start_python("-m", "mdl", *arguments, blocked=blocked, fresh=fresh, **variables)

    def start_python(self, *arguments, blocked=False, fresh=False, **variables):
        """blocked: Ctrl-C and SIGTERM wait until the process takes them. fresh: by an interpreter of its own."""
        preloaded = None if fresh or self.before else self.preloaded
        words = tuple(map(str, arguments))
        if preloaded is None:
            words = (*self.before, sys.executable, *words)
        command = Command(words, self, next(self._numbers), variables, blocked, preloaded)
        self._started.append(command)
        return command

    def run(self, *arguments, **variables):
        """`mdl ARGUMENTS` to its end."""
        command = self.start(*arguments, **variables)
        command.end()
        return command

    def close(self):
        for command in self._started:
            command.kill_all()


class Command:
    """One process with its output in files."""

    def __init__(self, words, home, number, variables, blocked=False, preloaded=None):
        """preloaded: words are what `python` is given, and it is forked."""
        self.output, self.errors = home.folder / f"{number}.out", home.folder / f"{number}.err"
        self._family = []
        with open(os.devnull, "rb") as nothing, self.output.open("wb") as output, self.errors.open("wb") as errors:
            if preloaded:
                files, environment = (nothing, output, errors), home.environment | variables
                held = SIGNALS if blocked else ()
                self.process = preloaded.start(words, files, environment, home.folder, held)
                return
            self.process = subprocess.Popen(
                words,
                stdin=nothing,
                stdout=output,
                stderr=errors,
                cwd=home.folder,
                env=home.environment | variables,
                start_new_session=True,
                preexec_fn=functools.partial(take_signals, blocked),
            )

    @property
    def code(self):
        return self.process.poll()

    @property
    def said(self):
        """All of stdout."""
        return self.output.read_text()

    @property
    def told(self):
        """All of stderr."""
        return self.errors.read_text()

    @property
    def complaint(self):
        """The last line on stderr."""
        return self.told.splitlines()[-1] if self.told else ""

    def result(self):
        return json.loads(self.said.splitlines()[-1])

    def end(self, patience_s=PATIENCE_S):
        """Wait for its end; the exit code. Who does not end is made to tell where each of its threads is."""
        try:
            return self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            self.process.wait(PATIENCE_S)
            raise AssertionError(f"it has not ended after {patience_s:g} s:\n{self.told[-8000:]}") from None

    def children(self):
        """Its processes by now, also those that have ended since."""
        if self.code is None:
            known = {child.pid for child in self._family}
            found = psutil.Process(self.process.pid).children(recursive=True)
            self._family += [child for child in found if child.pid not in known]
        return self._family

    def interrupt(self, number=signal.SIGINT):
        """Send a signal; seconds until it and all of its processes have ended."""
        family, started = self.children(), time.monotonic()
        self.process.send_signal(number)
        self.end()
        psutil.wait_procs(family, PATIENCE_S)
        assert not [child for child in family if child.is_running()]
        return time.monotonic() - started

    def kill_all(self):
        family = self.children()
        if self.code is None:
            self.process.kill()
            self.process.wait(PATIENCE_S)
        for child in family:
            if child.is_running():
                child.kill()


def read_lines(path):
    """The whole JSON lines of a file that is being written; [] before it exists."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def processes_of(folder):
    """Live processes whose command line names this folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(str(folder) in word for word in words):
            found.append(process)
    return found
