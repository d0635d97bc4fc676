"""Commands on a system that lacks what Linux has: what macOS and Windows do not have is hidden from every process."""

import ast
from pathlib import Path

import pytest

from mdl.transport.trust.keys import new_join_code
from tests.integration import product

ROOT = Path(__file__).resolve().parents[2]
# Run by each interpreter as it starts. Libraries are the builds for this system, and see all of it; mdl does not.
SITECUSTOMIZE = """
import builtins, importlib, sys, types

ABSENT, CUT = {modules!r}, {cut!r}
import_whole = builtins.__import__


class Cut(types.ModuleType):
    def __init__(self, module):
        super().__init__(module.__name__)
        self.__dict__["whole"] = module

    def __getattr__(self, name):
        if name in CUT[self.__name__]:
            raise AttributeError(f"module {{self.__name__!r}} has no attribute {{name!r}}")
        return getattr(self.whole, name)


def import_what_is_there(name, globals=None, locals=None, fromlist=(), level=0):
    if (globals or {{}}).get("__name__", "").startswith(("mdl", "__main__")):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        if name in CUT:
            return Cut(importlib.import_module(name))
    return import_whole(name, globals, locals, fromlist, level)


builtins.__import__ = import_what_is_there


def hide(event, arguments):
    if event == "open":
        path = arguments[0]
        path = path.decode() if isinstance(path, bytes) else path
        if isinstance(path, str) and path.startswith(("/proc", "/sys", "/run/systemd")) and not is_for_a_library():
            raise FileNotFoundError(2, "No such file or directory", path)


def is_for_a_library():
    frame = sys._getframe()
    while frame is not None and "site-packages" not in frame.f_code.co_filename:
        if frame.f_globals.get("__name__", "").startswith(("mdl", "__main__")):
            return False
        frame = frame.f_back
    return frame is not None


sys.addaudithook(hide)
"""
MODULES = ("fcntl", "termios", "tty", "pty", "resource", "pwd", "grp", "syslog")
CUT = {
    "os": (
        *("fork", "register_at_fork", "geteuid", "getuid", "nice", "sched_getaffinity", "fchmod", "fdatasync", "uname"),
        *("getloadavg", "pidfd_open", "statvfs", "sysconf", "waitid", "killpg", "setsid"),
    ),
    "signal": ("SIGHUP", "SIGALRM", "SIGVTALRM", "SIGUSR1", "SIGPIPE", "SIGKILL", "setitimer", "pthread_sigmask"),
    "socket": ("SO_REUSEPORT", "AF_UNIX", "AF_PACKET", "TCP_INFO"),
}
CODE = new_join_code("home")


@pytest.fixture
def lacking(tmp_path):
    home = product.Home(tmp_path / "home", tmp_path.parent / "cache")
    (home.folder / "sitecustomize.py").write_text(SITECUSTOMIZE.format(modules=MODULES, cut=CUT))
    yield home
    home.close()


HIDDEN = """
import importlib.util, os, signal, socket
print(*(hasattr({"os": os, "signal": signal, "socket": socket}[name], each) for name in CUT for each in CUT[name]))
for name in MODULES:
    try:
        __import__(name, globals())
        print(True)
    except ModuleNotFoundError:
        pass
open("/proc/self/stat")
"""


def test_what_is_hidden_is_hidden(lacking):
    command = lacking.start_python("-P", "-c", f"CUT, MODULES = {CUT!r}, {MODULES!r}\n{HIDDEN}", fresh=True)
    assert command.end() == 1
    assert set(command.said.split()) == {"False"}
    assert "FileNotFoundError" in command.complaint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "codes"),
    [
        (("--version",), (0,)),
        (("mesh", "new", "home"), (0,)),
        (("doctor", "--json"), (0, 3, 4)),  # by what the network is like
        (("peers", "--wait", "1", "--code", CODE), (3,)),
        (("service", "install", "--print", "--", "peer", "--insecure", "--data", "motion"), (0,)),
        (("service", "install", "--", "peer", "--insecure", "--data", "motion"), (2,)),
        (("type",), (2,)),
    ],
)
def test_a_command_does_its_work_or_says_in_a_line_why_not(lacking, words, codes):
    command = lacking.start(*words, fresh=True)
    assert command.end() in codes, command.told
    assert "Traceback" not in command.told


@pytest.mark.slow
def test_two_devices_train_together(lacking):
    peer = ("peer", "--code", CODE, "--loopback", "--data", product.SMALL, "--json")
    peer += ("--set", "round.rounds=2", "--set", "round.min_peers=2")
    running = [
        lacking.start(*peer, "--name", name, "--shard", f"{number}/2", fresh=True)
        for number, name in enumerate(("desk", "laptop"), 1)
    ]
    assert [command.end() for command in running] == [0, 0], [command.told for command in running]
    assert [command.result()["round_id"] for command in running] == [2, 2]
    for command in running:
        assert "Traceback" not in command.told


@pytest.mark.slow
def test_what_a_system_may_lack_is_imported_where_it_is_used_and_may_be_missing():
    """At the top of a module, `import fcntl` ends each command that imports the module."""
    for folder in ("mdl", "transport", "sim", "scheduler", "peers"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.parse(path.read_text()).body:
                names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
                names += [node.module] if isinstance(node, ast.ImportFrom) else []
                assert not set(names) & {*MODULES, "msvcrt", "winreg"}, path
