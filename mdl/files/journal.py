"""A file that grows by a line now and then, beside something more important: it never ends its process.

Lines that the system refuses (a full disk, no descriptor left, a folder that is gone) stay in memory. One log line
tells of it, and they are written with the next line, or at the end.
"""

from __future__ import annotations

import logging
from collections import deque
from pathlib import Path

from mdl.writing import append_line

logger = logging.getLogger(__name__)

# Lines that wait for a disk: a night of rounds, at some kilobytes each. Beyond that the oldest are lost.
MAX_WAITING = 1_000


class Journal:
    """A growing file of lines. path: made with the first line. waiting: lines that are not in the file yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting: deque[bytes] = deque(maxlen=MAX_WAITING)
        self._said = ""

    def add(self, line: bytes) -> None:
        """Write a line, without its end, after those that still wait."""
        self.waiting.append(line)
        self.flush()

    def flush(self) -> None:
        """Try to write the waiting lines; each is in the file as a whole or not at all."""
        try:
            while self.waiting:
                append_line(self.path, self.waiting[0])
                self.waiting.popleft()
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._said:
                logger.warning("%s cannot be written (%s): its lines are kept and tried again", self.path, reason)
            self._said = reason
            return
        if self._said:
            logger.warning("%s is written again", self.path)
            self._said = ""
