"""A process that has imported torch, and forks a new process for each command that is asked of it.

Importing torch takes 1 to 3 s of processor time, more than all else that most commands do. A forked process has the
modules at once. It takes the arguments, environment, working directory, signals and files that `subprocess` would have
given it, and is a child of the process that asked. All processes of one nursery share the seed of hash().

Linux alone hands a grandchild over (PR_SET_CHILD_SUBREAPER): see `Nursery.is_possible`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mdl.peers.edge.small import VARIABLE as THREADS_VARIABLE
from mdl.signals import blocked

# Options of prctl.
_SET_NAME, _SUBREAPER = 15, 36
# Holds arguments and an environment.
_LARGEST_REQUEST_BYTES = 1 << 18
_FILES = 3
_READY, _HANDED_OVER = b"ready", b"handed over"


class Nursery:
    """The forking process, as seen from its parent. One thread at a time asks it. Use as a context manager."""

    @staticmethod
    def is_possible() -> bool:
        """Return True if this system can hand over a grandchild and wait for it."""
        try:
            os.close(os.pidfd_open(os.getpid()))
        except (AttributeError, OSError):  # another system, an old kernel, a sandbox that forbids it
            return False
        return sys.platform == "linux"

    def __init__(self, script: str, environment: Mapping[str, str], errors: int | None = None) -> None:
        """Start the process that forks.

        script: imports modules, calls `wait_for_a_command` with the number that is its argument, and does what that
        returns. environment: read by libraries at import, such as OMP_NUM_THREADS. errors: the file for stderr.
        """
        self._asking = threading.Lock()
        self._is_ready = False
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [sys.executable, "-P", script, str(theirs.fileno())]
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_until_ready(self) -> None:
        """Wait until the modules are imported, or the process has ended."""
        with self._asking:  # else one thread would take the answer that another one waits for
            if not self._is_ready:
                self._ours.recv(32)
                self._is_ready = True

    def start(
        self,
        words: Sequence[str],
        files: Sequence[IO[bytes]],
        environment: Mapping[str, str],
        folder: Path,
        blocked: Sequence[int] = (),
        name: str = "",
    ) -> Forked:
        """Run `mdl WORDS` with these files as stdin, stdout and stderr.

        blocked: signals that stay blocked until the process handles them. name: as `ps` and `top` show it. Raises
        OSError if the nursery has ended, or if the request is too large.
        """
        place = {"environment": dict(environment), "folder": str(folder)}
        message = json.dumps(place | {"words": words, "blocked": blocked, "name": name}).encode()
        self.wait_until_ready()
        if len(message) > _LARGEST_REQUEST_BYTES:
            raise OSError("the arguments and the environment are too large")
        with self._asking:
            _adopt_orphans(True)
            try:
                socket.send_fds(self._ours, [message], [file.fileno() for file in files])
                pid = self._ours.recv(32)
                if not pid:
                    raise ChildProcessError("the process that forks has ended")
                if self._ours.recv(32) != _HANDED_OVER:
                    raise ChildProcessError(f"process {pid.decode()} was not handed over")
                return Forked(int(pid))
            finally:
                _adopt_orphans(False)

    def close(self) -> None:
        """End the process that forks; processes that it has forked go on."""
        self._ours.close()
        self._process.kill()
        self._process.wait()


class Forked:
    """A forked process, with the part of subprocess.Popen that its users need. stdin: set by the caller."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self._waiting = threading.Lock()

    def poll(self) -> int | None:
        """Return the exit status, -N for signal N; None while it runs."""
        with self._waiting:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                ended, _, _ = select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
            if not ended:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the process if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process at once."""
        self.send_signal(signal.SIGKILL)


@contextmanager
def begun_nursery(script: Path, peers: int) -> Iterator[Nursery | None]:
    """Start the process that forks those of a run with so many peers; None if the system cannot do that.

    script: as in `Nursery`.
    """
    if not Nursery.is_possible():
        yield None
        return
    # numpy's threads, started at its import, would be missing in a forked process.
    environment = {**os.environ, THREADS_VARIABLE: str(share_of_threads(peers)), "OPENBLAS_NUM_THREADS": "1"}
    with blocked():
        nursery = Nursery(str(script), environment, subprocess.DEVNULL)
    with nursery:
        yield nursery


def share_of_threads(peers: int) -> int:
    """Return how many threads each of so many processes trains with on this machine."""
    return max(1, (os.cpu_count() or 1) // max(1, peers))


def _adopt_orphans(does: bool) -> None:
    """Become the parent of descendants that lose theirs; with False no longer."""
    _prctl(_SUBREAPER, int(does))


def _prctl(option: int, value: int | bytes) -> None:
    """Set an attribute of this process. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def wait_for_a_command(descriptor: int) -> tuple[dict[str, Any], list[int]]:
    """Serve requests in the process that forks. Return in each forked process, with its request and files."""
    source = socket.socket(fileno=descriptor)
    gc.freeze()  # pages that a collection does not touch stay shared
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing in what is forked"
    source.send(_READY)
    while True:
        message, files, *_ = socket.recv_fds(source, _LARGEST_REQUEST_BYTES, _FILES)
        if not message:  # the parent has ended
            os._exit(0)
        hears, says = os.pipe()
        if between := os.fork():
            os.waitpid(between, 0)
            for file in (*files, hears, says):
                os.close(file)
            source.send(_HANDED_OVER)
        elif pid := os.fork():
            source.send(str(pid).encode())
            os._exit(0)  # so the grandchild becomes a child of the process that asked
        else:
            source.close()
            os.close(says)
            os.read(hears, 1)  # until it has
            os.close(hears)
            return json.loads(message), files


def become(request: dict[str, Any], files: list[int]) -> None:
    """Set up the process as a shell would have, up to the first line of its program."""
    os.setsid()
    if request["name"]:
        _prctl(_SET_NAME, request["name"].encode())
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # a library has asked for it, and the answer was kept
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = os.fdopen(0, closefd=False)
    output = os.fdopen(1, "wb", buffering=0 if at_once else -1, closefd=False)
    sys.stdout = io.TextIOWrapper(output, write_through=at_once)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
