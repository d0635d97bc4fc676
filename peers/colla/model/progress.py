"""The models that a single device keeps between its studies: its own, and the origin of its updates.

personal.safetensors    its model, for people and `mdl predict`
own.safetensors         the same for the next study, and the origin that the cloud has too
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import nn

from mdl.errors import DataError, RemoteProtocolError
from mdl.files.checkpoint import read_safetensors, write_kept_safetensors, write_safetensors
from mdl.files.kept import read_kept
from mdl.peers.colla.model.model_kinds import ModelKind
from mdl.peers.colla.model.update_codec import pack_parts, unpack_parts
from mdl.protocol.cloud_messages import LessonMessage

PERSONAL, OWN = "personal.safetensors", "own.safetensors"
_PAIR = "own and origin"
# A cloud keeps 16 versions; a device takes a newer origin well before the cloud forgets the present one.
_OLDEST_ORIGIN = 8


class CloudProgress(msgspec.Struct, frozen=True):
    """own: the device's model. origin: the small model that it pulled; version, group: of that one's lesson."""

    own: nn.Module
    origin: nn.Module
    version: int
    group: int

    def fits(self, lesson: LessonMessage, studied: int) -> bool:
        """Return True if updates can still be changes of the origin. studied: version of the last lesson studied.

        If the same lesson comes again, the device asked for it again: the cloud may not know the origin any more.
        """
        return lesson.version != studied and 0 <= lesson.version - self.version < _OLDEST_ORIGIN


def write_progress(folder: Path, kind: ModelKind, progress: CloudProgress) -> None:
    pair = pack_parts([kind.pack(progress.own), kind.pack(progress.origin)])
    metadata = {"version": str(progress.version), "group": str(progress.group)}
    write_kept_safetensors(folder / OWN, {_PAIR: np.frombuffer(pair, np.uint8)}, metadata)


def read_progress(folder: Path, kind: ModelKind) -> CloudProgress | None:
    """Read the progress; None if there is none, as in the directories of older versions. Raises DamagedError."""

    def read(path: Path) -> CloudProgress:
        try:
            arrays, metadata = read_safetensors(path)
            own, origin = unpack_parts(arrays[_PAIR].tobytes(), 2)
            version, group = int(metadata["version"]), int(metadata["group"])
            return CloudProgress(kind.unpack(own), kind.unpack(origin), version, group)
        except (RemoteProtocolError, KeyError, ValueError) as error:
            raise DataError(f"{path} is no model of this device ({error})") from None

    return read_kept(folder / OWN, read, "what the last lesson taught is learned again with the next one")


def write_personal(folder: Path, model: nn.Module, metadata: dict[str, str]) -> None:
    """Write the model as named tensors."""
    named: dict[str, NDArray[Any]] = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    write_safetensors(folder / PERSONAL, named, metadata)
