"""A study on disk: its learned parameters, the optimizer's state, and the next batch.

One safetensors file, written whole or not at all, with a checksum. It holds the learning parameters alone: the other
layers are the global model's. `origin` names the study's model, text and settings; another one is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
from blake3 import blake3
from numpy.typing import NDArray

from mdl.errors import ConfigError, DataError
from mdl.files.checkpoint import read_safetensors, write_safetensors
from mdl.personal.study import Study, StudyProgress
from mdl.reading import decode_json


class _Description(msgspec.Struct, frozen=True):
    """progress: of the study. origin: its model, text and settings. checksum: of all tensors, hexadecimal."""

    progress: StudyProgress
    origin: str
    checksum: str


def save_study(path: Path, study: Study, origin: str) -> None:
    """Write the study. Raises MdlError if the disk refuses; the former file is then still there."""
    arrays: dict[str, NDArray[Any]] = {name: tensor.numpy() for name, tensor in study.state().items()}
    description = _Description(study.progress, origin, _checksum(arrays))
    write_safetensors(path, arrays, {"study": msgspec.json.encode(description).decode()})


def load_study(path: Path, study: Study, origin: str) -> bool:
    """Bring a new study to its saved state; return False if there was none.

    Raises DataError that names the file if it is damaged, ConfigError if it is of another origin.
    """
    if not path.exists():
        return False
    arrays, metadata = read_safetensors(path)
    description = decode_json(metadata.get("study", ""), _Description, f"{path} is no saved study")
    if description.checksum != _checksum(arrays):
        raise DataError(f"{path} has changed since it was written: its checksum is wrong")
    if description.origin != origin:
        raise ConfigError(f"{path} is of another model, text or settings: --fresh begins anew")
    study.restore({name: torch.from_numpy(array) for name, array in arrays.items()}, description.progress)
    return True


def _checksum(arrays: dict[str, NDArray[Any]]) -> str:
    found = blake3()
    for name in sorted(arrays):
        found.update(name.encode())
        found.update(arrays[name].tobytes())
    return found.hexdigest()
