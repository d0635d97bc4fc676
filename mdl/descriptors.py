"""Opening files where connections take every descriptor that a process may have.

Strangers can open connections faster than a node ends them: for some milliseconds its soft limit of open files is
reached. What it has to write then, a ballot or its model, is opened beyond that limit: a node keeps the soft one below
the hard one, and raises it for a single opening, by no more than that takes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from types import ModuleType

# How far below the hard limit the soft one has to stay.
SPARE = 32
RAISE_IT = "raise the limit: ulimit -n 1024, or LimitNOFILE=1024 of the service"
_raised = threading.Lock()


def open_descriptor(path: str, flags: int, mode: int = 0o600) -> int:
    """As os.open, for `open(..., opener=)` too; beyond the soft limit of open files when that is reached."""
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
