"""Commands that need not import torch first: one process has done so, and forks a new one for each.

Importing torch takes 1 to 3 s of processor time, more than all else that most commands of a test do. A forked process
has the libraries and nothing of ours: it imports mdl's modules itself, after it got the arguments, environment, working
directory, signals and files that `subprocess` would have given it, and it is a child of the tests, too.

A test of the interpreter's own start says `fresh=True`; processes that commands start are not forked in any case. All
that come from one process share the seed of hash().

Linux alone hands a grandchild over (PR_SET_CHILD_SUBREAPER): `Preloaded.is_possible`.
"""

import ctypes
import faulthandler
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types

# What a peer, an agent and a cloud import of others.
LIBRARIES = (
    "torch",
    "torch._dynamo",  # with the first optimizer of torch.optim
    "safetensors.numpy",
    "safetensors.torch",
    "zmq",
    "zeroconf",
    "psutil",
    "msgspec",
    "typer",
    "rich.live",
)
_SUBREAPER = 36
# Arguments and an environment.
_LARGEST_REQUEST_BYTES = 1 << 18
_FILES = 3
_HANDED_OVER = b"handed over"


class Preloaded:
    """The process that forks, as the tests see it. One thread at a time asks it."""

    is_possible = sys.platform == "linux"

    def __init__(self, environment):
        """environment: what libraries read when they are imported, as OMP_NUM_THREADS."""
        self._asking = threading.Lock()
        environment = {name: value for name, value in environment.items() if name != "PYTHONPATH"}  # each has its own
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, env=environment, pass_fds=[theirs.fileno()], start_new_session=True
            )

    def start(self, words, files, environment, folder, blocked=()):
        """A process that runs `python WORDS` with these files for stdin, stdout and stderr.

        blocked: signals that it does not hear of before it takes them.
        """
        request = {"words": words, "environment": environment, "folder": str(folder), "blocked": blocked}
        message = json.dumps(request).encode()
        assert len(message) <= _LARGEST_REQUEST_BYTES
        with self._asking:
            _adopt_orphans(True)
            try:
                socket.send_fds(self._ours, [message], [file.fileno() for file in files])
                pid = self._ours.recv(32)
                assert pid, "the process that forks has ended, and said why on stderr"
                assert self._ours.recv(32) == _HANDED_OVER
                return Forked(int(pid))
            finally:
                _adopt_orphans(False)

    def close(self):
        self._ours.close()
        self._process.wait()


class Forked:
    """What the tests use of subprocess.Popen."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None
        self._waiting = threading.Lock()

    def poll(self):
        with self._waiting:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout=None):
        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                ended, _, _ = select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
            if not ended:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.poll()

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _adopt_orphans(does):
    """Whether a process whose parent has ended becomes this one's child, if it descends from it."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, int(does), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _wait_for_a_command(source):
    """In the process that forks; returns in each one that it has forked, with what that is to do."""
    while True:
        message, files, *_ = socket.recv_fds(source, _LARGEST_REQUEST_BYTES, _FILES)
        if not message:  # whoever asks has ended
            os._exit(0)
        hears, says = os.pipe()
        if between := os.fork():
            os.waitpid(between, 0)
            for file in (*files, hears, says):
                os.close(file)
            source.send(_HANDED_OVER)
        elif pid := os.fork():
            source.send(str(pid).encode())
            os._exit(0)  # so that it becomes the child of whoever asked
        else:
            source.close()
            os.close(says)
            os.read(hears, 1)  # until it is
            os.close(hears)
            return json.loads(message), files


def _become(request, files):
    """A process as a shell would have started it, up to the first line of its program."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # a library has asked, so the answer was kept
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = os.fdopen(0, closefd=False)
    output = os.fdopen(1, "wb", buffering=0 if at_once else -1, closefd=False)
    sys.stdout = io.TextIOWrapper(output, write_through=at_once)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()


def _run(words):
    """`python WORDS`."""
    program, *arguments = words
    more = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if program == "-m":
        sys.path[:0] = [os.getcwd(), *more]
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif program == "-c":
        sys.path[:0] = ["", *more]
        code, sys.argv = arguments[0], [program, *arguments[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<command>", "exec"), main.__dict__)
    else:
        sys.path[:0] = [os.path.dirname(os.path.abspath(program)), *more]
        sys.argv = words
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    del sys.path[0]  # this folder
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()  # pages that a collection does not touch stay shared
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing in what is forked"
    request, files = _wait_for_a_command(socket.socket(fileno=int(sys.argv[1])))
    _become(request, files)
    _run(request["words"])
