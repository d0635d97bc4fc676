"""A training loop's state for the next start: state_dicts of optimizers, schedules and gradient scalers.

A state_dict is a tree of dicts, lists, numbers, texts and tensors. The tensors become arrays of a safetensors file, the
tree around them a JSON text in its description: nothing on disk can run code. Two states are kept, as one may be of a
round that the mesh has not closed. Knows nothing of training.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from mdl.bounds import MAX_ROUND, whole_number
from mdl.errors import ConfigError, DataError
from mdl.files.checkpoint import read_safetensors, write_safetensors
from mdl.protocol.delta import new_hash

logger = logging.getLogger(__name__)

STATE_FILES = ("optimizer.safetensors", "optimizer.previous.safetensors")
# Nesting of dicts: a schedule of schedules has four levels.
_DEEPEST = 20
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_TYPES = {
    str(kind).removeprefix("torch."): kind for kind in (*_FLOATS, torch.int64, torch.int32, torch.uint8, torch.bool)
}


class StateFile:
    """The states of one loop in one directory. schema_hash: of its model; `load` ignores the state of another one."""

    def __init__(self, directory: Path, schema_hash: str) -> None:
        self._path, self._previous = (directory / name for name in STATE_FILES)
        self._schema_hash = schema_hash

    @cached_property
    def _saved_round(self) -> int | None:
        """The round of the state at _path; None if missing or not whole. It reads the whole file, so only on demand."""
        return _round_of(self._path)

    def save(self, round_id: int, state: Mapping[str, Any]) -> None:
        """Save the state of a round just trained. Raises ConfigError for unsupported values, MdlError of the disk."""
        tensors: list[Tensor] = []
        tree = msgspec.json.encode(_plain(state, tensors, "state", _DEEPEST)).decode()
        arrays = {str(number): _bytes_of(tensor) for number, tensor in enumerate(tensors)}
        metadata = {"round_id": str(round_id), "schema_hash": self._schema_hash, "tree": tree}
        metadata["blake3"] = _digest_of(arrays, metadata)
        keep = self._saved_round not in (None, round_id)
        write_safetensors(self._path, arrays, metadata, self._previous if keep else None, sealed=False)
        self._saved_round = round_id

    def load(self, round_id: int) -> dict[str, Any] | None:
        """Return the last state of this round or an earlier one; None if there is none."""
        for path in (self._path, self._previous):
            try:
                if path.exists() and (found := self._read(path, round_id)) is not None:
                    return found
            except (DataError, msgspec.DecodeError, ValueError, TypeError, LookupError, RuntimeError) as error:
                logger.warning("the state of the optimizer is skipped: %s: %s", path, error)
        return None

    def _read(self, path: Path, round_id: int) -> dict[str, Any] | None:
        arrays, metadata = _read_whole(path)
        trained = whole_number(metadata.get("round_id", ""), MAX_ROUND)
        if path == self._path:
            self._saved_round = trained
        if trained is None or trained > round_id or metadata.get("schema_hash") != self._schema_hash:
            return None
        state = _from_plain(msgspec.json.decode(metadata["tree"]), arrays)
        if not isinstance(state, dict):
            raise DataError("it is no state")
        return state


def load_kept(part: Any, state: Mapping[str, Any]) -> None:
    """Call `load_state_dict` after checking the tensors' shapes: torch's optimizers accept a moment of any shape.

    Raises ValueError that names the parameter, and the errors of the part itself.
    """
    for number, parameter in enumerate(p for group in getattr(part, "param_groups", ()) for p in group["params"]):
        for name, value in state.get("state", {}).get(number, {}).items():
            if isinstance(value, Tensor) and value.dim() and value.shape != parameter.shape:
                raise ValueError(f"{name} of parameter {number} is {list(value.shape)}, not {list(parameter.shape)}")
    part.load_state_dict(state)


def _round_of(path: Path) -> int | None:
    try:
        return whole_number(_read_whole(path)[1].get("round_id", ""), MAX_ROUND) if path.exists() else None
    except DataError:
        return None


def _read_whole(path: Path) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Return arrays and metadata. Raises DataError if the file has changed since it was written."""
    arrays, metadata = read_safetensors(path)
    try:
        is_whole = metadata.pop("blake3", "") == _digest_of(arrays, metadata)
    except KeyError:  # its arrays have other names
        is_whole = False
    if not is_whole:
        raise DataError("its checksum is wrong")
    return arrays, metadata


def _plain(value: object, tensors: list[Tensor], where: str, deep: int) -> object:
    """Return the value as JSON; other types become an object with one key that names the type."""
    if deep == 0:
        raise ConfigError(f"{where} cannot be kept: it lies too deep")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        if kind not in _TYPES:
            raise ConfigError(f"{where} cannot be kept: it is a tensor of {kind}")
        tensors.append(value)
        return {"tensor": [len(tensors) - 1, kind, list(value.shape)]}
    if isinstance(value, Mapping):
        pairs = [
            [_plain(key, tensors, where, deep - 1), _plain(item, tensors, f"{where}.{key}", deep - 1)]
            for key, item in value.items()
        ]
        return {"counter" if isinstance(value, Counter) else "dict": pairs}
    if isinstance(value, list | tuple):
        items = [_plain(item, tensors, f"{where}.{number}", deep - 1) for number, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    raise ConfigError(f"{where} cannot be kept: it is a {type(value).__name__}")


def _from_plain(value: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_from_plain(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, told),) = value.items()
    if kind == "tensor":
        number, name, shape = told
        raw = torch.from_numpy(arrays[str(number)].copy())
        return (raw.view(_TYPES[name]) if len(raw) else torch.empty(0, dtype=_TYPES[name])).view(shape)
    if kind == "float":
        return float(told)
    if kind == "tuple":
        return tuple(_from_plain(item, arrays) for item in told)
    pairs = {_from_plain(key, arrays): _from_plain(item, arrays) for key, item in told}
    return Counter(pairs) if kind == "counter" else pairs


def _digest_of(arrays: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
    found = new_hash()
    for key, text in sorted(metadata.items()):
        found.update(f"{key}={text}\n".encode())
    for number in range(len(arrays)):
        found.update(np.ascontiguousarray(arrays[str(number)]).data)
    return found.digest().hex()


def _bytes_of(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return the tensor's bytes, uint8 (bytes,): numpy has no bfloat16."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy()
