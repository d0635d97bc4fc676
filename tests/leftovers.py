"""What a test may leave behind in its process: nothing. Its threads, child processes and sockets end with it.

What is there before a test (of a session's or a module's fixture, of pytest itself) may stay. So may what a library
begins once, for as long as the process lives: `_may_stay`, `_is_tracker`.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from multiprocessing import resource_tracker

import psutil
from zmq.utils.garbage import GarbageCollectorThread

# What is ending takes milliseconds; this is for a busy machine.
PATIENCE_S = 10.0
_LOOK_AGAIN_S = 0.01


@dataclass(frozen=True)
class Belongings:
    """Of this process: live threads, running children, and sockets that listen or wait for datagrams."""

    threads: frozenset[threading.Thread]
    children: frozenset[psutil.Process]
    sockets: frozenset[str]

    @classmethod
    def now(cls) -> Belongings:
        return cls(
            frozenset(thread for thread in threading.enumerate() if not _may_stay(thread)),
            frozenset(child for child in _children() if not _is_tracker(child)),
            frozenset(_open_sockets()),
        )

    def since(self, before: Belongings) -> list[str]:
        """What is here and was not before, in words."""
        threads = [f"thread {thread.name}" for thread in self.threads - before.threads]
        children = [f"process {child.pid}: {_command(child)}" for child in self.children - before.children]
        return sorted([*threads, *children, *(self.sockets - before.sockets)])


def left_since(before: Belongings, patience_s: float = PATIENCE_S) -> list[str]:
    """What a test left behind, in words; what is just ending is waited for. Child processes are killed."""
    give_up_at = time.monotonic() + patience_s
    while (left := Belongings.now()).since(before) and time.monotonic() < give_up_at:
        time.sleep(_LOOK_AGAIN_S)
    told = left.since(before)
    for child in left.children - before.children:
        child.kill()
    return told


def _may_stay(thread: threading.Thread) -> bool:
    """A C library's that called Python once (torch's autograd) is a dummy; pyzmq's frees what was sent uncopied."""
    return isinstance(thread, (threading._DummyThread, GarbageCollectorThread))


def _is_tracker(child: psutil.Process) -> bool:
    """multiprocessing starts one resource tracker, with the first pool, for as long as this process lives."""
    return child.pid == getattr(resource_tracker._resource_tracker, "_pid", None)


def _children() -> list[psutil.Process]:
    """Of this process, those that run. Asking the system for one that ended is cheap, reading all processes is not."""
    if hasattr(os, "waitid"):
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # there is none at all
            return []
    return [child for child in psutil.Process().children() if _runs(child)]


def _runs(child: psutil.Process) -> bool:
    try:
        return bool(child.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _command(child: psutil.Process) -> str:
    try:
        return " ".join(child.cmdline())
    except psutil.NoSuchProcess:
        return "has ended"


def _open_sockets() -> list[str]:
    """Not those of a connection: they end when the other side is gone, and listen to nobody."""
    process = psutil.Process()
    find = getattr(process, "net_connections", None) or process.connections  # its name before psutil 6
    waiting = [one for one in find("inet") if one.laddr and one.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)]
    return [f"socket {one.type.name} {one.laddr.ip}:{one.laddr.port} (file {one.fd})" for one in waiting]
