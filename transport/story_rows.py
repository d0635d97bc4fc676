"""Steps that only pass segments on, as rows of a story's line: a round has hundreds of them, all alike.

A row is a list: [at_s, sender, its incarnation, [kind of message, its fields...], size of its values or null, their
checksum, effects].
An effect is [receiver, [kind, fields...], size or null]. Nothing is left out: `unpack_row` returns what a separate line
would hold.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
import numpy as np

from mdl.protocol.machine import Effect, Event, Received, Send
from mdl.protocol.segment_messages import PieceMessage, SegmentMessage, SegmentTaken

KINDS = {kind.__name__: kind for kind in (PieceMessage, SegmentMessage, SegmentTaken)}
_PASSED = tuple(KINDS.values())
Row: TypeAlias = tuple[float, str, int, list[Any], int | None, int, list[tuple[str, list[Any], int | None]]]


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
