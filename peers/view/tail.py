"""Follows files of lines that others write: returns what is new since the last look, however long they have become."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from mdl.files.figures import ROUNDS_KEPT
from mdl.protocol.status_messages import RoundSummary

# Read at one look: more than a run writes between two of them, and little memory if thousands of rounds wait.
_MOST_BYTES = 1 << 20
_ROUNDS = "metrics.jsonl"
_DECODER = msgspec.json.Decoder(RoundSummary)


class LineTail:
    """The lines of one file, each once. A file that was cut short or replaced is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._file_id = 0
        self._rest = b""

    def new(self) -> list[bytes]:
        """Return the whole lines that are new since the last look; an unfinished last line comes later.

        After a long pause they do not come all at once: call again until there is nothing new.
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


class RoundReader:
    """Follows the metrics.jsonl of one node, or of a run's nodes, while they write them.

    rounds: the last ROUNDS_KEPT, each once.
    """

    def __init__(self, out: Path) -> None:
        self.rounds: list[RoundSummary] = []
        self._out = out
        self._tails: dict[Path, LineTail] = {}

    def new(self) -> list[RoundSummary]:
        """Return the new rounds since the last call, by number."""
        found: dict[int, RoundSummary] = {}
        for path in [self._out / _ROUNDS, *sorted(self._out.glob(f"*/{_ROUNDS}"))]:
            tail = self._tails.setdefault(path, LineTail(path))
            while lines := tail.new():
                found |= {summary.round: summary for summary in map(_decode, lines)}
        known = {summary.round for summary in self.rounds}
        oldest = min(known, default=0)
        new = [found[number] for number in sorted(found) if number not in known and number >= oldest]
        if new:
            self.rounds = sorted([*self.rounds, *new], key=lambda summary: summary.round)[-ROUNDS_KEPT:]
        return new


def _decode(line: bytes) -> RoundSummary:
    return _DECODER.decode(line)
