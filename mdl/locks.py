"""Locks on open files between processes, and one live process for a run directory.

A lock ends with its process, however that ends, even if the clock jumps. It is flock, and LockFileEx on Windows (by
filelock). Some disks have no locks, for example some over a network. Two processes of one name would promise on one
ballot file, and each would forget the other's promises.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from pathlib import Path
from typing import IO

from mdl.writing import open_private

logger = logging.getLogger(__name__)

# A process holds a lock while it writes a small file. A stopped process would hold it for ever.
_WAIT_S, _LOOK_S = 20.0, 0.01


def take_lock(file: IO[bytes]) -> None:
    """Lock an open file until it is closed, here and in every child that has it open, too.

    Raises BlockingIOError if another process, or this one, has the lock; OSError where the disk has no locks.
    """
    from filelock import lock_descriptor

    if not lock_descriptor(file.fileno(), blocking=False):
        raise BlockingIOError(errno.EWOULDBLOCK, "another process has locked it", file.name)


def wait_for_lock(file: IO[bytes], wait_s: float = _WAIT_S) -> None:
    """Lock an open file as soon as it is free; return without a lock where the disk has none.

    Raises TimeoutError if others have had it for wait_s.
    """
    give_up_at = time.monotonic() + wait_s
    while True:
        try:
            take_lock(file)
            return
        except BlockingIOError:
            if time.monotonic() >= give_up_at:
                told = f"another process of mdl has had its lock for {wait_s:g} s; end that one"
                raise TimeoutError(errno.ETIMEDOUT, told) from None
        except OSError:
            return
        time.sleep(_LOOK_S)


_FILE = "pid"
# The errors of a file system without locks, for example over a network.
_NO_LOCKS = errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP
# Releasing a directory removes the file; a process that opened it before tries again with the new one.
_TRIES = 3

_held: dict[Path, IO[bytes]] = {}


def take(directory: Path) -> bool:
    """Take the directory for this process; return False if it is taken. Raises OSError if its file is not writable."""
    path = directory / _FILE
    for _ in range(_TRIES):
        file = open_private(path, "ab")
        try:
            _lock(file)
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                os.truncate(file.fileno(), 0)
                os.write(file.fileno(), b"%d\n" % os.getpid())
                _held[path.absolute()] = file
                return True
        except BlockingIOError:
            file.close()
            return False
        except BaseException:
            file.close()
            raise
        file.close()
    return False


def _lock(file: IO[bytes]) -> None:
    """Lock the file. Raises BlockingIOError if another process, or this one, has the lock."""
    try:
        take_lock(file)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        logger.warning("%s: no locks here, so that nothing keeps a second process of this name out", file.name)


def _leave_to_parent() -> None:
    """Close the locks in a forked child, which shares the descriptors: a lock must not outlive its owner."""
    for file in _held.values():
        with contextlib.suppress(OSError):
            file.close()
    _held.clear()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_leave_to_parent)


def let_go(directory: Path) -> None:
    """Release the directory, if this process has it, so that another process may take it."""
    path = (directory / _FILE).absolute()
    if (file := _held.pop(path, None)) is not None:
        with file, contextlib.suppress(PermissionError):  # Windows removes no open file: it stays, locked by nobody
            path.unlink(missing_ok=True)


def owner_of(directory: Path) -> str:
    """Name the owner of a directory that could not be taken, for people."""
    try:
        number = int((directory / _FILE).read_bytes()[:20])
    except (OSError, ValueError):
        return "another process"
    return "this process" if number == os.getpid() else f"another process ({number})"
