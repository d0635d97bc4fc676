"""The last things a machine was told and what it decided: a failure in the field that can be read afterwards.

Each entry is one line of JSON, encoded when it happens, so that no model is kept alive by it: bulk values appear as
their length.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from mdl.machine import Effect, Event, Tick

# About ten minutes of a trainer that reports once a second to an agent, at some 300 bytes each.
STORY_LENGTH = 2_000


class Story:
    """A bounded record of (time, event, effects)."""

    def __init__(self, length: int = STORY_LENGTH) -> None:
        self._lines: deque[bytes] = deque(maxlen=length)
        self._encoder = msgspec.json.Encoder(enc_hook=_shorten)

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, now: float, event: Event, effects: list[Effect]) -> None:
        """Record one step; a tick that decided nothing is left out. now: seconds of the driver's clock."""
        if isinstance(event, Tick) and not effects:
            return
        entry = {"at_s": round(now, 6), "event": _named(event), "effects": [_named(effect) for effect in effects]}
        self._lines.append(self._encoder.encode(entry))

    def save(self, path: Path) -> None:
        """Write the story as JSON lines, oldest first."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(line + b"\n" for line in self._lines))


def _named(item: Event | Effect) -> dict[str, Any]:
    return {type(item).__name__: item}


def _shorten(value: object) -> object:
    if isinstance(value, np.ndarray):
        return {"dtype": str(value.dtype), "size": int(value.size)}
    raise NotImplementedError(f"{type(value).__name__} in a story")
