"""How many files a process may have open, and what a node makes of it: links, connections, and some in reserve.

A socket is a descriptor, and so is each connection; strangers can open connections. Who runs out of descriptors can
neither write its metrics nor listen, so a node asks for as many as it may have, and plans with what it gets.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from mdl.bounds import MAX_MEMBERS
from mdl.descriptors import RAISE_IT, SPARE, limits_of_processes
from mdl.errors import ConfigError

# Of a peer: a control and a bulk socket to it, each with a wake-up and a connection, and its two connections to us.
OF_A_PEER = 6
# Files of its own that a node has or opens at any time: logs, metrics, file cache, libraries, mDNS, its libzmq threads.
RESERVED = 64
# Connections without a handshake, 4 KB of libzmq's memory each: strangers have a megabyte of it at most. Who has shown
# a key is none of them, so that they are only as many as come in the same few milliseconds.
MOST_HALF_OPEN = 256
# Three quarters of what a node may have serve its mesh at least; the rest is for connections without a key yet.
WANTED = MAX_MEMBERS * OF_A_PEER * 4 // 3 + RESERVED
# A mesh has a peer, and one may come or go; connections of strangers, as few as they may be.
_FEWEST_PEERS, _FEWEST_HALF_OPEN = 2, 16
# What a node of the smallest mesh needs of its soft limit, and what the hard one has to be for that.
LEAST = RESERVED + _FEWEST_PEERS * OF_A_PEER + _FEWEST_HALF_OPEN
NEEDED = LEAST + SPARE
# Some limit has to be assumed where the system tells none.
_USUAL = 1024


@dataclass(frozen=True)
class Share:
    """What may be open at a time. peers: that a node holds links to. half_open: connections without a handshake."""

    peers: int
    half_open: int


def raise_limit() -> int:
    """Raise this process's soft limit of open files towards WANTED; returns the limit that holds.

    It stays SPARE below the hard limit, and is lowered for that: files are opened there when connections take the rest.
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


def share_out(limit: int) -> Share:
    """Return what a node may do with so many descriptors: two peers and some strangers even where they are few."""
    left = max(limit - RESERVED, 0)
    half_open = min(MOST_HALF_OPEN, max(_FEWEST_HALF_OPEN, left // 4))
    return Share(min(MAX_MEMBERS, max(_FEWEST_PEERS, (left - half_open) // OF_A_PEER)), half_open)


def claim_share() -> Share:
    """Raise the limit and share it out. Raises ConfigError below NEEDED: a node would listen, and hear nobody."""
    limit = raise_limit()
    if limit < LEAST:
        raise ConfigError(tell_too_few(limit))
    return share_out(limit)


def tell_too_few(limit: int) -> str:
    """Say how many files may be open, the soft limit being `limit`, and how many mdl needs."""
    return f"only {_hard_limit(limit)} files may be open at a time, mdl needs {NEEDED}; {RAISE_IT}"


def _hard_limit(limit: int) -> int:
    """Return the limit as the user has set it; `limit` where it is not told."""
    if (resource := limits_of_processes()) is None:
        return limit
    hard: int = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return limit if hard == resource.RLIM_INFINITY else hard
