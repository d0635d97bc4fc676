"""The log file of a process that `mdl up` started. Apart, because `logging.handlers` loads sockets and pickle."""

from __future__ import annotations

import io
import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

from mdl.writing import Calm, open_private

# Size of one file: all three take 3 MB, some 8,000 rounds of a device and 4,000 of an agent of three.
LARGEST_LOG_BYTES = 1_000_000
_LOGS_KEPT = 3


class OwnLogFile(Calm, RotatingFileHandler):
    """The log file of a process with its stderr in a file: path, path.1 and path.2, of LARGEST_LOG_BYTES each.

    stderr follows, so that tracebacks and lines of libraries come behind the last line in the same file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=LARGEST_LOG_BYTES, backupCount=_LOGS_KEPT - 1, encoding="utf-8")

    def _open(self) -> io.TextIOWrapper:
        file = open_private(Path(self.baseFilename), "ab")
        os.dup2(file.fileno(), sys.stderr.fileno())
        return io.TextIOWrapper(file, self.encoding, errors="backslashreplace")
