"""The figures of a run: the rounds that nodes have written, one JSON line each (metrics.jsonl), and tables as CSV.

A table has one head and one line per row, for spreadsheets and plotting programs.

`Journal` is a file that grows by a line now and then, beside something more important: it never ends its process.
Lines that the system refuses (a full disk, no descriptor left, a folder that is gone) stay in memory. One log line
tells of it, and they are written with the next line, or at the end.

The readers follow files of lines that others write: they return what is new since the last look, however long these
have become.
"""

from __future__ import annotations

import csv
import io
import logging
import os
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from mdl.protocol.status_messages import RoundSummary
from mdl.reading import decode_json, open_regular
from mdl.writing import append_line, write_bytes


def read_run(out: Path) -> list[RoundSummary]:
    """Return the rounds of all nodes, each once: every device that was in the mesh then has a line for it."""
    rounds = {summary.round: summary for path in sorted(out.glob("*/metrics.jsonl")) for summary in read_rounds(path)}
    return [rounds[number] for number in sorted(rounds)]


def read_rounds(path: Path) -> list[RoundSummary]:
    """Return the completely written rounds; [] if there is no such file. Raises DataError for a malformed line."""
    if not path.exists():
        return []
    with open_regular(path) as file:
        lines = file.read().split(b"\n")[:-1]  # the last piece is empty, or not written to its end
    return [decode_json(line, RoundSummary, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


# Rounds that a view keeps: more than fit on any screen.
ROUNDS_KEPT = 500


def write_table(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write rows as CSV in UTF-8, with newline line ends. None is an empty cell.

    The first row gives the columns, which all rows must have. Raises MdlError if the disk refuses.
    """
    told = list(rows)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(told[0]) if told else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(told)
    write_bytes(path, text.getvalue().encode())


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
