"""Families of models that a cloud teaches: its own large one, and the small one its clients train (Colla 3.1, 3.2).

RecurrentKind: the M-RNN for sequences of places; a device's last layer has the classes its owner has seen, and only
changes are uploaded. WindowKind: any two models for windows of sensor data; all classes always, one flat vector.
UpdateMode: the classes of a device's model, and the part of it that learns (5.4).
Received bytes are checked fully before a model is built from them. Knows nothing of peers, rounds or messages.
"""

from __future__ import annotations

import copy
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import msgspec
import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from mdl.bounds import printable
from mdl.data.readers.visits import FEATURES
from mdl.data.windows import DataSet
from mdl.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from mdl.learning.built_in import MODELS
from mdl.learning.flat import FlatModel, Schema, hash_task, older_hashes, units_meaning
from mdl.learning.models import build_model, built_in_shapes
from mdl.own import Own
from mdl.peers.colla.model.distillation import run_in_batches
from mdl.peers.colla.model.recurrent import (
    CLOUD_SIZE,
    DEVICE_SIZE,
    SIZES,
    RecurrentModel,
    build_recurrent,
    customize_classes,
    grow_classes,
    pretrain_places,
)
from mdl.peers.colla.model.update_codec import apply_update, decode_tensors, encode_update
from mdl.protocol.delta import LARGEST_VALUE, check_values
from mdl.protocol.grid import Vector
from mdl.task import describe_task

_CLASSES = "class_ids"
_VALUES = "values"
# Bytes that safetensors adds to the tensors: a line of JSON for each, and M-RNN has 11.
_HEADER_BYTES = 64 << 10
# Adam's rate for the embedding of places alone: it learns a place's neighbours in some 100 steps.
_PRETRAIN_RATE = 0.05


class ModelKind(Protocol):
    """A cloud's knowledge of the models it teaches."""

    @property
    def schema_hash(self) -> str:
        """The hash of the small model and its classes; a client with another one has another task."""

    @property
    def older_hashes(self) -> tuple[str, ...]:
        """The same hash as older versions wrote it."""

    @property
    def large(self) -> str:
        """The name of the cloud's own model."""

    @property
    def summary(self) -> str:
        """One line for people."""

    @property
    def largest_bytes(self) -> int:
        """The limit for a packed small model, and for an update."""

    def build_large(self, seed: int) -> nn.Module:
        """Build the cloud's model, all classes, its parameters fixed by `seed`."""

    def build_small(self, seed: int) -> nn.Module:
        """Build the clients' model, all classes, its parameters fixed by `seed`."""

    def pretrain(self, model: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
        """Train the part of a model that learns before the whole; most kinds have none."""

    def class_ids(self, model: nn.Module) -> Tensor:
        """Return the class numbers of the last layer's rows, int64 (K,)."""

    def pack(self, model: nn.Module) -> bytes:
        """Return the whole model as safetensors."""

    def unpack(self, data: bytes, *, large: bool = False) -> nn.Module:
        """Return the packed model. Raises RemoteProtocolError in one line if it does not fit."""

    def unpack_large(self, data: bytes, name: str) -> nn.Module:
        """Return a cloud's large model called `name`: this kind's own, or a built-in one; no name is imported.
        Raises RemoteProtocolError in one line."""

    def customize(
        self, start: nn.Module, seen: Sequence[int], mode: UpdateMode, generator: torch.Generator
    ) -> nn.Module:
        """Return a copy to train on, for a device that has now seen these classes. Raises ConfigError for a mode that
        this kind lacks."""

    def split_last_layer(
        self, model: nn.Module, x: Tensor, stopped: Callable[[], bool] = lambda: False
    ) -> tuple[nn.Module, Tensor]:
        """Return the last layer, and its inputs for x, if nothing else learns. stopped: as in `run_in_batches`."""

    def encode_update(self, model: nn.Module, pulled: nn.Module) -> bytes:
        """Return a client's upload of its model. pulled: the model it began with, as the cloud knows it."""

    def apply_update(self, pulled: nn.Module, update: bytes) -> nn.Module:
        """Return the client's model. Raises RemoteProtocolError naming the problem: garbage, NaN, another shape, values
        beyond any model's."""


class RecurrentKind:
    """M-RNN, 32-128 in the cloud and 4-16 on the devices; a device's last layer may have classes of its own (3.1).

    classes: names of all places.
    """

    def __init__(self, classes: Sequence[str], small: str = DEVICE_SIZE, large: str = CLOUD_SIZE) -> None:
        self._names, self._sizes = tuple(classes), (small, large)
        self.large = large
        whole = self.build_small(0)
        self.schema_hash = hash_task(_shapes(whole), self._names)
        self.largest_bytes = _largest_bytes(whole)
        self.older_hashes = (self.schema_hash,)
        self.summary = f"M-RNN {small} of {large} -> {_shorten(self._names)}"

    def build_large(self, seed: int) -> RecurrentModel:
        return build_recurrent(self._sizes[1], len(self._names), range(len(self._names)), seed)

    def build_small(self, seed: int) -> RecurrentModel:
        return build_recurrent(self._sizes[0], len(self._names), range(len(self._names)), seed)

    def pretrain(self, model: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
        if steps:
            pretrain_places(_recurrent(model), x, y, steps, _PRETRAIN_RATE)

    def class_ids(self, model: nn.Module) -> Tensor:
        return _recurrent(model).class_ids

    def pack(self, model: nn.Module) -> bytes:
        return save({name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()})

    def unpack(self, data: bytes, *, large: bool = False) -> RecurrentModel:
        size = self._sizes[1 if large else 0]
        whole = self.build_large(0) if large else self.build_small(0)
        tensors = decode_tensors(data, _largest_bytes(whole), "model")
        classes = self._read_classes(tensors.pop(_CLASSES, None))
        model = build_recurrent(size, len(self._names), classes, 0)
        _check_tensors(tensors, dict(_shapes(model)))
        model.load_state_dict({**tensors, _CLASSES: torch.tensor(classes)})
        return model

    def unpack_large(self, data: bytes, name: str) -> nn.Module:
        if name == self.large:
            return self.unpack(data, large=True)
        if name not in SIZES:
            raise _unknown_large(name)
        return RecurrentKind(self._names, self._sizes[0], name).unpack(data, large=True)

    def customize(
        self, start: nn.Module, seen: Sequence[int], mode: UpdateMode, generator: torch.Generator
    ) -> RecurrentModel:
        """Return a copy: with own classes the cloud's model of all places is cut to `seen`, a smaller one grows."""
        model, every = _recurrent(start), range(len(self._names))
        if mode.own_classes and len(model.class_ids) < len(every):
            made = grow_classes(model, seen, generator)
        else:
            made = customize_classes(model, seen if mode.own_classes else every, generator)
        made.train_body(mode.whole)
        return made

    def split_last_layer(
        self, model: nn.Module, x: Tensor, stopped: Callable[[], bool] = lambda: False
    ) -> tuple[nn.Module, Tensor]:
        recurrent = _recurrent(model)
        return recurrent.classify, run_in_batches(recurrent.read_sequences, x, stopped)

    def encode_update(self, model: nn.Module, pulled: nn.Module) -> bytes:
        return encode_update(_recurrent(model), _recurrent(pulled))

    def apply_update(self, pulled: nn.Module, update: bytes) -> RecurrentModel:
        return apply_update(_recurrent(pulled), update, self.largest_bytes)

    def _read_classes(self, given: Tensor | None) -> list[int]:
        numbers = given.tolist() if given is not None and given.dtype == torch.int64 and given.ndim == 1 else []
        distinct = len(set(numbers)) == len(numbers)
        if not numbers or not distinct or min(numbers) < 0 or max(numbers) >= len(self._names):
            raise RemoteProtocolError(f"model has wrong class_ids: expected distinct int64 below {len(self._names)}")
        return [int(number) for number in numbers]


class WindowKind:
    """Two models of `mdl.learning.models` for windows (channels, length); clients have all classes, upload all values.

    classes, channel_names: their names. seed: of the module that takes received values, as a user's own factory may
    draw. Raises ConfigError if a model does not fit the windows.
    """

    def __init__(
        self,
        small: str | Own,
        large: str | Own,
        channels: int,
        length: int,
        classes: Sequence[str],
        seed: int = 0,
        channel_names: Sequence[str] = (),
        rate_hz: float | None = None,
        channel_units: Sequence[str] = (),
    ) -> None:
        self._models, self._shape, self._names, self._seed = (small, large), (channels, length), tuple(classes), seed
        flat = FlatModel(self.build_small(seed))
        about = self._names, channel_names, rate_hz
        self.schema_hash = hash_task(flat.task_schema, *about, units_meaning(channel_units))
        older = older_hashes(flat.task_schema, self._names, channel_names)
        self.older_hashes = (hash_task(flat.task_schema, *about), *older)
        self.large = str(large)
        name, shape = f"{small} of {large}", (channels, length)
        self.summary = describe_task(name, shape, channel_names, self._names, rate_hz, channel_units=channel_units)
        self._size = flat.size
        self.largest_bytes = 4 * flat.size + _HEADER_BYTES

    def build_large(self, seed: int) -> nn.Module:
        return build_model(self._models[1], *self._shape, len(self._names), seed)

    def build_small(self, seed: int) -> nn.Module:
        return build_model(self._models[0], *self._shape, len(self._names), seed)

    def pretrain(self, model: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
        """Do nothing: no part of a convolutional model is trained before the whole."""

    def class_ids(self, model: nn.Module) -> Tensor:
        return torch.arange(len(self._names))

    def pack(self, model: nn.Module) -> bytes:
        """Return one float32 vector called "values", as `FlatModel.load` takes it, with batch-norm statistics."""
        return save({_VALUES: torch.from_numpy(_flat_values(model))})

    def unpack(self, data: bytes, *, large: bool = False) -> nn.Module:
        flat = FlatModel(self.build_large(self._seed) if large else self.build_small(self._seed))
        tensors = decode_tensors(data, 4 * flat.size + _HEADER_BYTES, "model")
        _check_tensors(tensors, {_VALUES: (flat.size,)})
        flat.load(tensors[_VALUES].numpy())
        return flat.module

    def unpack_large(self, data: bytes, name: str) -> nn.Module:
        if name == self.large:
            return self.unpack(data, large=True)
        if name not in MODELS:
            raise _unknown_large(name)
        shapes = built_in_shapes(name, *self._shape, len(self._names))
        count = sum(math.prod(shape) for key, shape in shapes.items() if not key.endswith("num_batches_tracked"))
        if len(data) < 4 * count:  # before memory is taken for it
            raise RemoteProtocolError(f"model of {len(data)} bytes, where {name} has {count} values")
        return WindowKind(self._models[0], name, *self._shape, self._names, self._seed).unpack(data, large=True)

    def customize(
        self, start: nn.Module, seen: Sequence[int], mode: UpdateMode, generator: torch.Generator
    ) -> nn.Module:
        """Return a copy with all classes: peers of a mesh exchange models of one shape."""
        self._check_mode(mode)
        return copy.deepcopy(start)

    def split_last_layer(
        self, model: nn.Module, x: Tensor, stopped: Callable[[], bool] = lambda: False
    ) -> tuple[nn.Module, Tensor]:
        raise LocalProtocolError("models of windows learn as a whole")

    def _check_mode(self, mode: UpdateMode) -> None:
        if mode != UPDATE_MODES["same-whole"]:
            raise ConfigError("models of windows learn as a whole: cloud.update can only be same-whole")

    def encode_update(self, model: nn.Module, pulled: nn.Module) -> bytes:
        """Return the whole model as little-endian float32: after an epoch every value has changed."""
        return self.encode_values(_flat_values(model))

    def encode_values(self, values: Vector) -> bytes:
        """Return the upload for a model's values, float32 (P,)."""
        return values.astype("<f4", copy=False).tobytes()

    def apply_update(self, pulled: nn.Module, update: bytes) -> nn.Module:
        if len(update) != 4 * self._size:
            raise RemoteProtocolError(f"update of {len(update)} bytes, where this model has {4 * self._size}")
        values = np.frombuffer(update, "<f4").astype(np.float32)
        check_values(values, self._size)
        flat = FlatModel(copy.deepcopy(pulled))
        flat.load(values)
        return flat.module


def kind_of(data: DataSet, small: str | Own, large: str | Own, seed: int) -> ModelKind:
    """Return the kind that fits `data`; "" for the usual sizes or models. Raises ConfigError.

    Places: M-RNN of sizes EMBEDDING-HIDDEN. Windows: models that `build_model` takes.
    """
    if is_places(data):
        return RecurrentKind(data.classes, str(small) or DEVICE_SIZE, str(large) or CLOUD_SIZE)
    if data.is_of_images or data.targets != "classes":
        held = "images" if data.is_of_images else data.targets
        raise ConfigError(f"{data.name} holds {held}: a cloud teaches classes of sensor windows, and places")
    models, (channels, time) = (small or "lenet", large or "alexnet"), data.shape
    return WindowKind(*models, channels, time, data.classes, seed, data.channels, data.rate_hz, data.channel_units)


def is_places(data: DataSet) -> bool:
    """Return True if the data's windows are sequences of stays."""
    return data.name == "places" and data.shape[0] == len(FEATURES)


def _recurrent(model: nn.Module) -> RecurrentModel:
    if not isinstance(model, RecurrentModel):
        raise LocalProtocolError(f"an M-RNN was expected, this is {type(model).__name__}")
    return model


def _unknown_large(name: str) -> RemoteProtocolError:
    told = printable(name)[:60]
    return RemoteProtocolError(f"the cloud's large model is {told!r}: if that is yours, say --set cloud.large={told}")


def _shapes(model: nn.Module) -> Schema:
    return [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]


def _largest_bytes(model: RecurrentModel) -> int:
    """Return the limit for this model packed, and for any update of it, which has fewer tensors or smaller rows."""
    return sum(int(tensor.nbytes) for tensor in model.state_dict().values()) + _HEADER_BYTES


def _shorten(names: Sequence[str]) -> str:
    return textwrap.shorten(", ".join(names), 120, placeholder=" ...")


def _flat_values(model: nn.Module) -> Vector:
    return FlatModel(copy.deepcopy(model)).values()


def _check_tensors(tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise RemoteProtocolError unless names and shapes agree, and all values are float32 and possible parameters."""
    for name in sorted(tensors.keys() ^ shapes.keys()):
        raise RemoteProtocolError(
            f"tensor {name[:60]!r} is {'no tensor of this model' if name in tensors else 'missing'}"
        )
    for name, shape in shapes.items():
        tensor = tensors[name]
        if tensor.dtype != torch.float32 or tuple(tensor.shape) != shape:
            raise RemoteProtocolError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, not float32 {shape}")
        if not bool((tensor.abs() <= LARGEST_VALUE).all()):
            raise RemoteProtocolError(f"{name} holds values that are not finite or beyond {LARGEST_VALUE:g}")


class UpdateMode(msgspec.Struct, frozen=True):
    """own_classes: the last layer has the classes this device has seen, and grows with them; else all classes.

    whole: the whole model learns and travels; else the last layer alone.
    """

    own_classes: bool
    whole: bool


# The first three are the paper's; the last is our answer where a frozen body does not fit a device's data.
UPDATE_MODES: Mapping[str, UpdateMode] = MappingProxyType(
    {
        "same-whole": UpdateMode(own_classes=False, whole=True),
        "same-fc": UpdateMode(own_classes=False, whole=False),
        "customisation": UpdateMode(own_classes=True, whole=False),
        "customised-whole": UpdateMode(own_classes=True, whole=True),
    }
)


def find_mode(name: str) -> UpdateMode:
    """Return the mode of this name. Raises ConfigError that names the valid ones."""
    if name not in UPDATE_MODES:
        raise ConfigError(f"cloud.update is {name[:40]!r}: expected one of {', '.join(UPDATE_MODES)}")
    return UPDATE_MODES[name]
