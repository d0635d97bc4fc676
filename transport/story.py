"""The last events of a machine and its decisions: a record of a failure in the field that can be read and replayed.

Each entry is one line of JSON. It is encoded at once, so that it keeps no model in memory: bulk data appears as its
length. Values that are compared by digest appear with it (`Received.digest`), so that a story computes no hash of its
own. `mdl replay` steps the same machine through a story again, if the story still has its beginning and its header says
how the machine was built.

Steps that only pass segments on are rows in the next entry's line, a fifth as long: a round has hundreds of them, all
alike. A row is a list: [at_s, sender, its incarnation, [kind of message, its fields...], size of its values or null,
their checksum, effects]. An effect is [receiver, [kind, fields...], size or null]. Nothing is left out: `unpack_row`
returns what a separate line would hold.
"""

from __future__ import annotations

import functools
from collections import deque
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from mdl.protocol.machine import Effect, Event, Received, Send, Tick
from mdl.protocol.round_messages import PieceMessage, SegmentMessage, SegmentTaken
from mdl.protocol.vocabulary import Packed
from mdl.writing import write_whole

# About ten minutes of a trainer that reports once a second to an agent, at some 300 bytes each.
STORY_LENGTH = 2_000
# Ticks without effects between two entries: half an hour of an agent that looks at its clock four times a second.
_MOST_TICKS = 8_000
# Steps that pass segments on, between two entries and in all: seventy rounds of eight devices, some 100 bytes each.
_MOST_ROWS, STORY_ROWS = 4_000, 40_000
KINDS = {kind.__name__: kind for kind in (PieceMessage, SegmentMessage, SegmentTaken)}
_PASSED = tuple(KINDS.values())
Row: TypeAlias = tuple[float, str, int, list[Any], int | None, int, list[tuple[str, list[Any], int | None]]]


class Story:
    """A bounded record of (time, event, effects). header: the data to build the machine again, set at the start.

    The file begins with a line for the header, if there is one, and the number of steps left out at the beginning. The
    entries follow. An entry's `before` holds the steps before its own: times of ticks without effects, and rows. The
    last line may hold these alone.
    """

    def __init__(self, length: int = STORY_LENGTH, header: msgspec.Struct | None = None) -> None:
        self.header = header
        self.left_out = 0
        self._length = length
        self._lines: deque[tuple[int, bytes]] = deque()  # with the number of rows in each
        self._rows = 0
        self._before: list[float | Row] = []
        self._rows_before = 0
        # Sets are sorted: the same run gives the same bytes.
        self._encode = msgspec.json.Encoder(enc_hook=_shorten, order="deterministic").encode

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, now: float, event: Event, effects: list[Effect]) -> None:
        """Record one step. now: seconds of the driver's clock.

        A tick without effects is no entry; the next entry tells its time, since the tick may have changed the machine.
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
    """Return the name of a dtype. Cached: numpy builds it anew each time, and the effects of every step have some."""
    return str(dtype)


def _shorten(value: object) -> object:
    if isinstance(value, np.ndarray):
        return {"dtype": _name_of(value.dtype), "size": int(value.size)}
    if isinstance(value, Packed):
        return {"dtype": "bytes", "size": len(value)}
    raise NotImplementedError(f"{type(value).__name__} in a story")


def pack_row(now: float, event: Event, effects: list[Effect]) -> Row | None:
    """Return the step as a row; None if it does more than receive one segment message and send others."""
    if type(event) is not Received or type(event.message) not in _PASSED or event.digest:
        return None
    said: list[tuple[str, list[Any], int | None]] = []
    for effect in effects:
        if type(effect) is not Send or type(effect.message) not in _PASSED:
            return None
        said.append((effect.receiver, _fields(effect.message), _size(effect.values)))
    sender, size = event.sender, _size(event.values)
    return now, sender.peer_id, sender.incarnation, _fields(event.message), size, event.checksum, said


def unpack_row(row: Row) -> tuple[float, dict[str, Any], list[dict[str, Any]]]:
    """Return time, event and effects as in a separate line. Raises ValueError if there are no such messages."""
    at_s, peer_id, incarnation, message, size, checksum, said = row
    sender = {"peer_id": peer_id, "incarnation": incarnation}
    values = _described(size)
    heard = {"sender": sender, "message": _message(message), "values": values, "digest": "", "checksum": checksum}
    effects = [
        {"Send": {"receiver": receiver, "message": _message(sent), "values": _described(sent_size)}}
        for receiver, sent, sent_size in said
    ]
    return at_s, {"Received": heard}, effects


def _fields(message: msgspec.Struct) -> list[Any]:
    return [type(message).__name__, *msgspec.structs.astuple(message)]


def _size(values: Any) -> int | None:
    return None if values is None else int(values.size)


def _message(packed: list[Any]) -> dict[str, Any]:
    name, *fields = packed or [""]
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"a row with a message {str(name)[:40]!r}")
    return {"type": name, **dict(zip(kind.__struct_fields__, fields, strict=True))}


def _described(size: int | None) -> dict[str, Any] | None:
    return None if size is None else {"dtype": str(np.dtype(np.float32)), "size": size}
