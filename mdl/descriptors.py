"""Opening files while connections take every descriptor that the process may have.

Strangers can open connections faster than a node ends them, which exhausts its soft limit of open files for some
milliseconds. Files that the node must write then, a ballot or its model, are opened beyond that limit. A node keeps
the soft limit below the hard one, and raises it for a single opening, by no more than that takes.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from types import ModuleType

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
