"""The number of files that a process may have open: how a node divides it, and opening one beyond it.

A socket is a descriptor, and so is each connection; strangers can open connections faster than a node ends them, which
exhausts its soft limit of open files for some milliseconds. A node without free descriptors can neither write its
metrics nor listen. So it asks for as many as it may have, and plans with what it gets.
Files that the node must write then, a ballot or its model, are opened beyond that limit. A node keeps the soft limit
below the hard one, and raises it for a single opening, by no more than that takes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from dataclasses import dataclass
from types import ModuleType

from mdl.bounds import MAX_MEMBERS
from mdl.errors import ConfigError

# The soft limit stays this far below the hard limit.
SPARE = 32
RAISE_IT = "raise the limit: ulimit -n 1024, or LimitNOFILE=1024 of the service"
_raised = threading.Lock()


def open_descriptor(path: str, flags: int, mode: int = 0o600) -> int:
    """Open a file like os.open, also for `open(..., opener=)`; exceed the soft limit of open files if it is reached."""
    flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags, mode)
    except OSError as error:
        if error.errno != errno.EMFILE or (resource := limits_of_processes()) is None:
            raise
        refused = error
    with _raised:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            for more in range(1, SPARE + 1):  # others are open there, or a connection was faster
                with contextlib.suppress(ValueError):  # beyond the hard limit
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft + more, hard))
                try:
                    return os.open(path, flags, mode)
                except OSError as error:
                    if error.errno != errno.EMFILE:
                        raise
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    raise refused


def limits_of_processes() -> ModuleType | None:
    """Return the module `resource`; None on a system without such limits, as Windows."""
    try:
        import resource
    except ImportError:
        return None
    return resource


# Descriptors for one peer: a control and a bulk socket to it, each with a wake-up and a connection, and its two
# connections to us.
OF_A_PEER = 6
# Files that a node itself may have open: logs, metrics, file cache, libraries, mDNS, libzmq's threads.
RESERVED = 64
# Connections without a handshake take 4 KB of libzmq's memory each, so strangers have a megabyte of it at most. Clients
# that have shown a key do not count, so this bounds only those that come in the same few milliseconds.
MOST_HALF_OPEN = 256
# At least three quarters of the descriptors serve the mesh; the rest is for connections without a key yet.
WANTED = MAX_MEMBERS * OF_A_PEER * 4 // 3 + RESERVED
# The fewest that a node needs: one peer plus one that comes or goes, and a few connections of strangers.
_FEWEST_PEERS, _FEWEST_HALF_OPEN = 2, 16
# LEAST: the soft limit that a node of the smallest mesh needs. NEEDED: the hard limit that allows it.
LEAST = RESERVED + _FEWEST_PEERS * OF_A_PEER + _FEWEST_HALF_OPEN
NEEDED = LEAST + SPARE
# Assumed where the system tells no limit.
_USUAL = 1024


@dataclass(frozen=True)
class DescriptorShare:
    """Bounds on what is open at a time. peers: that a node has links to. half_open: connections without a handshake."""

    peers: int
    half_open: int


def raise_limit() -> int:
    """Raise this process's soft limit of open files towards WANTED; return the limit that holds.

    The soft limit stays SPARE below the hard limit, and is lowered if it is higher: that leaves room to open files when
    connections take the rest.
    """
    if (resource := limits_of_processes()) is None:
        return _USUAL
    limits: tuple[int, int] = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = limits
    most = None if hard == resource.RLIM_INFINITY else max(hard - SPARE, hard // 2)
    wanted = WANTED if most is None else min(WANTED, most)
    if most is not None and soft > most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return WANTED if soft == resource.RLIM_INFINITY else soft
    while wanted > soft:
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit that it does not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
        wanted //= 2
    return soft


def share_out(limit: int) -> DescriptorShare:
    """Divide this many descriptors; even a small limit leaves two peers and some connections of strangers."""
    left = max(limit - RESERVED, 0)
    half_open = min(MOST_HALF_OPEN, max(_FEWEST_HALF_OPEN, left // 4))
    return DescriptorShare(min(MAX_MEMBERS, max(_FEWEST_PEERS, (left - half_open) // OF_A_PEER)), half_open)


def claim_share() -> DescriptorShare:
    """Raise the limit and share it out. Raises ConfigError below LEAST: a node would listen and hear nobody."""
    limit = raise_limit()
    if limit < LEAST:
        raise ConfigError(tell_too_few(limit))
    return share_out(limit)


def tell_too_few(limit: int) -> str:
    """Return the error text: how many files may be open with the soft limit `limit`, and how many mdl needs."""
    return f"only {_hard_limit(limit)} files may be open at a time, mdl needs {NEEDED}; {RAISE_IT}"


def _hard_limit(limit: int) -> int:
    """Return the limit as the user has set it; `limit` where the system does not tell it."""
    if (resource := limits_of_processes()) is None:
        return limit
    hard: int = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return limit if hard == resource.RLIM_INFINITY else hard
