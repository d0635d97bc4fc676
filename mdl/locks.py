"""Locks on open files: between processes, and gone with the one that has them, however it ends.

flock, and LockFileEx on Windows (by filelock). Not every disk has them, as some over a network.
"""

from __future__ import annotations

import errno
import time
from typing import IO

# A process holds one for as long as it takes to write a small file. One that has been stopped would hold it for ever.
_WAIT_S, _LOOK_S = 20.0, 0.01


def take_lock(file: IO[bytes]) -> None:
    """Lock an open file until it is closed, there and in every child that has it open, too.

    Raises BlockingIOError if it is another process's, or this one's; OSError where the disk has no locks.
    """
    from filelock import lock_descriptor

    if not lock_descriptor(file.fileno(), blocking=False):
        raise BlockingIOError(errno.EWOULDBLOCK, "another process has locked it", file.name)


def wait_for_lock(file: IO[bytes], wait_s: float = _WAIT_S) -> None:
    """Lock an open file once nobody else has; where the disk has no locks, go on without.

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
