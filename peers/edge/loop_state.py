"""The state that a training loop keeps between rounds beside the model: optimizer, schedule, gradient scaler."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mdl.errors import MdlError
from mdl.files.state_file import StateFile, load_kept

logger = logging.getLogger(__name__)
told = logging.getLogger("mdl")


class LoopState:
    """Saves and restores the parts of a loop. parts: objects with `state_dict` and `load_state_dict`, by name.

    schema_hash: of the model they train.
    """

    def __init__(self, directory: Path, schema_hash: str, parts: Mapping[str, Any]) -> None:
        self._directory, self._parts = directory, parts
        self._file = StateFile(directory, schema_hash)

    def keep(self, round_id: int) -> None:
        """Keep the parts after a round's training. If the disk refuses, only the momentum is lost at a restart."""
        try:
            if self._parts:
                self._file.save(round_id, {name: _described(part) for name, part in self._parts.items()})
        except (MdlError, OSError) as error:
            logger.warning("the state of the optimizer in round %d is not kept: %s", round_id, error)

    def restore(self, round_id: int) -> None:
        """Go on from round_id; the state of another optimizer or schedule is logged and left."""
        kept = self._file.load(round_id) if round_id and self._parts else None
        for name, part in self._parts.items():
            if not kept or name not in kept:
                continue
            try:
                if kept[name]["kind"] != type(part).__name__:
                    raise ValueError(f"it was {kept[name]['kind']}, it is {type(part).__name__}")
                load_kept(part, kept[name]["state"])
            except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
                why = " ".join(str(error).split())[:200]
                logger.warning("the %s starts anew, since it differs from the one of round %d: %s", name, round_id, why)
                continue
            told.info("the %s goes on where it was in round %d, with the rates of then", name, round_id)


def _described(part: Any) -> dict[str, Any]:
    return {"kind": type(part).__name__, "state": part.state_dict()}
