"""One live process for a run directory: a lock that ends with its process, wherever the clock goes meanwhile.

Two of one name would promise on one ballot file, and each would forget what the other has promised.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from mdl.writing import open_private

_FILE = "pid"
# Whoever lets a directory go removes the file; who has opened it before tries again with the new one.
_TRIES = 3

_held: dict[Path, IO[bytes]] = {}


def take(directory: Path) -> bool:
    """Whether this process has the directory, from now on. Raises OSError if its file cannot be written, or locked."""
    path = directory / _FILE
    for _ in range(_TRIES):
        file = open_private(path, "ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def let_go(directory: Path) -> None:
    """Another process may take it from now on, if this one has it."""
    path = (directory / _FILE).absolute()
    if (file := _held.pop(path, None)) is not None:
        path.unlink(missing_ok=True)
        file.close()


def owner_of(directory: Path) -> str:
    """Who has a directory that could not be taken, for people."""
    try:
        number = int((directory / _FILE).read_bytes()[:20])
    except (OSError, ValueError):
        return "another process"
    return "this process" if number == os.getpid() else f"another process ({number})"
