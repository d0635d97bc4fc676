"""The global model as a file with named tensors and a description, for `mdl eval`, `mdl predict` and anyone else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch
from torch import nn

from mdl.checkpoint import read_safetensors, write_safetensors
from mdl.errors import DataError
from mdl.models import build_model


class ModelDescription(msgspec.Struct, frozen=True):
    """What a stranger needs to use the parameters: how to build the model, what goes in and what comes out.

    data, seed: as given to `load_data`, so that the same test windows are found again.
    """

    model: str
    channels: int
    time: int
    class_names: tuple[str, ...]
    data: str
    mesh: str = ""
    round_id: int = 0
    seed: int = 0

    @property
    def classes(self) -> int:
        return len(self.class_names)


def export_model(path: Path, module: nn.Module, description: ModelDescription) -> None:
    """Write the module's state_dict, integer buffers included. Raises MdlError if the disk refuses."""
    arrays = {name: tensor.detach().numpy() for name, tensor in module.state_dict().items()}
    write_safetensors(path, arrays, {"mdl": msgspec.json.encode(description).decode(), "format": "pt"})


def read_description(path: Path) -> ModelDescription:
    """Raises DataError that names the file if it is missing, torn, or has no description."""
    return _decode(path, read_safetensors(path)[1])


def import_model(path: Path) -> tuple[nn.Module, ModelDescription]:
    """Build the described model and load its parameters; in evaluation mode.

    Raises DataError that names the file, or ConfigError if the described model cannot be built here.
    """
    arrays, metadata = read_safetensors(path)
    description = _decode(path, metadata)
    module = build_model(description.model, description.channels, description.time, description.classes, seed=0)
    try:
        module.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{path} does not fit model {description.model!r}: {reason}") from error
    return module.eval(), description


def _decode(path: Path, metadata: dict[str, str]) -> ModelDescription:
    try:
        return msgspec.json.decode(metadata.get("mdl", ""), type=ModelDescription)
    except msgspec.MsgspecError as error:
        raise DataError(f"{path} has no model description of mdl in its metadata: {error}") from error
