"""The global model as a file with named tensors and a description, for `mdl eval`, `mdl predict` and anyone else.

A model file may come from anybody, so its description is only data: it names a built-in model, and data without a path,
or else the user has to name both. Nothing is built that is larger than the tensors beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from numpy.typing import NDArray
from torch import nn

from mdl.data.sources import names_built_in
from mdl.data.windows import FASTEST_HZ
from mdl.errors import ConfigError, DataError
from mdl.files.checkpoint import read_safetensors, write_safetensors
from mdl.learning.flat import FlatModel, unwrap
from mdl.learning.models import build_model, built_in_shapes
from mdl.own import Own
from mdl.reading import decode_json
from mdl.task import Targets

# Far above any window or seed, and still a number that every library takes.
_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
_Rate = Annotated[float, msgspec.Meta(gt=0, le=FASTEST_HZ)]
_Seed = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class ModelDescription(msgspec.Struct, frozen=True):
    """The facts that a stranger needs to use the parameters: how to build the model, its inputs and its outputs.

    time: samples of a window, or the width of an image; height: of an image. model, data: the user's names for them in
    training, for people to read. seed: as given to `load_data`, so that the same test windows are found again.
    channel_names: empty if the data did not name them. channel_units: likewise; "" for a channel without a known one.
    rate_hz: of the windows; None if it was not known. targets: the kind of things that class_names names. units: of
    numbers, where they are known.
    own_batch_norm: the weights and statistics of batch norms are those of the one device that wrote the file.
    """

    model: str
    channels: _Size
    time: _Size
    class_names: tuple[str, ...]
    data: str
    mesh: str = ""
    round_id: int = 0
    seed: _Seed = 0
    channel_names: tuple[str, ...] = ()
    rate_hz: _Rate | None = None
    height: _Size | None = None
    own_batch_norm: bool = False
    targets: Targets = "classes"
    units: tuple[str, ...] = ()
    channel_units: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape (channels, time) of a window, or (channels, height, width) of an image."""
        return (self.channels, self.time) if self.height is None else (self.channels, self.height, self.time)

    @property
    def meaning(self) -> tuple[str, ...]:
        """The facts for `hash_task` beyond classes, channels and rate; () for classes of windows."""
        image = () if self.height is None else (f"image {self.height}x{self.time}",)
        targets = () if self.targets == "classes" else (f"targets {self.targets}",)
        return (*image, *targets, *(f"unit {number} {unit}" for number, unit in enumerate(self.units)))

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, with the units of numbers, for people."""
        units = (f" ({unit})" if unit else "" for unit in self.units)
        return tuple(map("".join, zip(self.class_names, units, strict=True))) if self.units else self.class_names

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def built_in_data(self) -> str:
        """The data that may be loaded because the file says so; "" if that would open a path or call a function."""
        return self.data if names_built_in(self.data) else ""


def export_model(path: Path, module: nn.Module, description: ModelDescription) -> None:
    """Write the module's state_dict, integer buffers included. Raises MdlError if the disk refuses."""
    export_state(path, module.state_dict(), description)


def export_state(
    path: Path, state: Mapping[str, torch.Tensor], description: ModelDescription, told: Mapping[str, str] = {}
) -> None:
    """Write a state_dict likewise. told: more entries for the file's metadata."""
    text = msgspec.json.encode(description).decode()
    write_safetensors(path, _arrays_of(state), {**told, "mdl": text, "format": "pt"})


def save_tensors(path: Path, model: FlatModel, told: dict[str, str]) -> None:
    """Write the module's state_dict without frozen tensors. Raises MdlError if the disk refuses."""
    kept = {name: t for name, t in unwrap(model.module).state_dict().items() if name not in model.frozen.names}
    write_safetensors(path, _arrays_of(kept), {**told, "format": "pt"})


def find_model_file(path: Path) -> Path:
    """Return the file itself, or the one in a run directory."""
    return path / "global.safetensors" if path.is_dir() else path


def read_description(path: Path) -> ModelDescription:
    """Read a model's description. Raises DataError naming the file if it is missing, torn, or has none."""
    return _decode(path, read_safetensors(path)[1])


def import_model(path: Path, model: str | Own | nn.Module | None = None) -> tuple[nn.Module, ModelDescription]:
    """Build the described model and load its parameters; return it in evaluation mode.

    model: the user's choice in place of the file's: a name, a function that builds it, or the module itself.
    Raises DataError that names the file, or ConfigError if the model cannot be built here, or is a function that only
    the file names.
    """
    arrays, metadata = read_safetensors(path)
    description = _decode(path, metadata)
    if model is None and ":" in description.model:
        raise ConfigError(
            f"{path} names the function {description.model[:200]!r} as its model, and mdl imports nothing because a "
            "file says so. If the function is yours, name it too: --model module:function"
        )
    chosen = description.model if model is None else model
    sizes = (description.channels, description.time, description.classes)
    if isinstance(chosen, str) and description.height is None:
        _check_shapes(path, chosen, sizes, description.targets, {name: array.shape for name, array in arrays.items()})
    if isinstance(chosen, nn.Module):
        module = chosen
    else:
        module = build_model(chosen, *sizes, seed=0, height=description.height, targets=description.targets)
    try:
        module.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{path} does not fit model {_name_of(chosen)!r}: {reason}") from error
    return module.eval(), description


def _name_of(model: str | Own | nn.Module) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else str(model)


def _arrays_of(state: Mapping[str, torch.Tensor]) -> dict[str, NDArray[Any]]:
    """Return numpy arrays. Frozen bfloat16 tensors become float32, and can come back: numpy has no bfloat16."""
    here = {name: tensor.detach().to("cpu") for name, tensor in state.items()}
    return {name: (t.float() if t.dtype is torch.bfloat16 else t).numpy() for name, t in here.items()}


def _check_shapes(
    path: Path, model: str, sizes: tuple[int, int, int], targets: Targets, given: dict[str, tuple[int, ...]]
) -> None:
    """Check shapes before any memory is taken: a few bytes of description may claim a model of terabytes."""
    for name, shape in built_in_shapes(model, *sizes, targets).items():
        if given.get(name, shape) != shape:
            raise DataError(f"{path} does not fit model {model!r}: {name} is {given[name]}, described is {shape}")
        if name not in given:
            raise DataError(f"{path} does not fit model {model!r}: Missing key {name}")


def _decode(path: Path, metadata: dict[str, str]) -> ModelDescription:
    where = f"{path} has no model description of mdl in its metadata"
    return decode_json(metadata.get("mdl", ""), ModelDescription, where)
