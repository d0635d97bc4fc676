"""The last things a machine was told and what it decided: a failure in the field that can be read, and replayed.

Each entry is one line of JSON, encoded when it happens, so that no model is kept alive by it: bulk data appears as
its length. Of values that are compared with a digest the event has it (`Received.digest`), so that a story costs no
hash of its own. Steps that only pass segments on are rows in the next entry's line (`mdl.transport.story_rows`), a
fifth as long. A story that still has its beginning and says in its header how the machine was built can be stepped
through the same machine again (`mdl replay`).
"""

from __future__ import annotations

import functools
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mdl.protocol.bulk import Packed
from mdl.protocol.machine import Effect, Event, Tick
from mdl.transport.story_rows import Row, pack_row
from mdl.writing import write_whole

# About ten minutes of a trainer that reports once a second to an agent, at some 300 bytes each.
STORY_LENGTH = 2_000
# Ticks that decided nothing, between two entries: half an hour of an agent that looks at its clock four times a second.
_MOST_TICKS = 8_000
# Steps that pass segments on, between two entries and in all: seventy rounds of eight devices, some 100 bytes each.
_MOST_ROWS, STORY_ROWS = 4_000, 40_000


class Story:
    """A bounded record of (time, event, effects). header: what it takes to build the machine again, set at the start.

    The file: if there is a header, a first line with it and with how many steps are left out at the beginning; then
    the entries. What came before an entry's own step is its `before`: the times of ticks that decided nothing, and
    rows. The last line may be of these alone.
    """

    def __init__(self, length: int = STORY_LENGTH, header: msgspec.Struct | None = None) -> None:
        self.header = header
        self.left_out = 0
        self._length = length
        self._lines: deque[tuple[int, bytes]] = deque()  # how many rows are in each
        self._rows = 0
        self._before: list[float | Row] = []
        self._rows_before = 0
        # Sets in order: the same run gives the same bytes.
        self._encode = msgspec.json.Encoder(enc_hook=_shorten, order="deterministic").encode

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, now: float, event: Event, effects: list[Effect]) -> None:
        """Record one step. now: seconds of the driver's clock.

        A tick that decided nothing is no entry; the next one says when it was, since it may have changed the machine.
        """
        if isinstance(event, Tick) and not effects:
            if len(self._before) - self._rows_before < _MOST_TICKS:
                self._before.append(now)
            return
        if self._rows_before < _MOST_ROWS and (row := pack_row(now, event, effects)) is not None:
            self._before.append(row)
            self._rows_before += 1
            return
        entry = {"at_s": now, "event": _named(event), "effects": [_named(effect) for effect in effects]}
        if self._before:
            entry["before"], self._before = self._before, []
        self._lines.append((self._rows_before, self._encode(entry)))
        self._rows, self._rows_before = self._rows + self._rows_before, 0
        while len(self._lines) > self._length or self._rows > STORY_ROWS:
            rows, _ = self._lines.popleft()
            self._rows -= rows
            self.left_out += 1 + rows

    def save(self, path: Path) -> None:
        """Write the story as JSON lines, oldest first. Raises MdlError if the disk refuses."""
        lines = [line for _, line in self._lines]
        if self._before:
            lines.append(self._encode({"before": self._before}))
        if self.header is not None:
            lines.insert(0, self._encode({"header": self.header, "left_out": self.left_out}))
        write_whole(path, lambda file: file.writelines(line + b"\n" for line in lines))


def _named(item: Event | Effect) -> dict[str, Any]:
    return {type(item).__name__: item}


@functools.lru_cache(maxsize=16)
def _name_of(dtype: np.dtype[Any]) -> str:
    """Kept: numpy puts it together anew each time, and each step's effects have some."""
    return str(dtype)


def _shorten(value: object) -> object:
    if isinstance(value, np.ndarray):
        return {"dtype": _name_of(value.dtype), "size": int(value.size)}
    if isinstance(value, Packed):
        return {"dtype": "bytes", "size": len(value)}
    raise NotImplementedError(f"{type(value).__name__} in a story")
