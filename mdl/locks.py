"""Locks on open files between processes; a lock ends with its process, however that ends.

flock, and LockFileEx on Windows (by filelock). Some disks have no locks, for example some over a network.
"""

from __future__ import annotations

import errno
import time
from typing import IO

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
