"""Follows files of lines that others write: what is new since the last look, however long they have become."""

from __future__ import annotations

import os
from pathlib import Path

# Read at one look: more than a run writes between two of them, and little memory where thousands of rounds wait.
_MOST_BYTES = 1 << 20


class LineTail:
    """The lines of one file, each once. A file that was cut short or replaced is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._file_id = 0
        self._rest = b""

    def new(self) -> list[bytes]:
        """Whole lines that were not there at the last look; the last one may still be being written, and comes later.

        After a long pause not all at once: call again until there is nothing new.
        """
        try:
            with self._path.open("rb") as file:
                self._begin_anew_if_other(file.fileno())
                file.seek(self._offset)
                read = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return []
        self._offset += len(read)
        *lines, self._rest = (self._rest + read).split(b"\n")
        return lines

    def _begin_anew_if_other(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if found.st_ino != self._file_id or found.st_size < self._offset:
            self._file_id, self._offset, self._rest = found.st_ino, 0, b""
