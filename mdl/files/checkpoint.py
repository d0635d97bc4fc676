"""A device's files on disk: the file cache of its w(t), and the named export of the global model.

Both are safetensors files, so that nothing on disk can run code. A file appears whole or not at all. A checksum finds
changed bytes in a cache file, and the file before it is used. Knows nothing of rounds beyond their number.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from mdl.bounds import MAX_ROUND, whole_number
from mdl.errors import DataError
from mdl.files.kept import CHECKSUM, NO_DIGITS, changed, previous_of
from mdl.protocol.delta import digest_of, new_hash
from mdl.protocol.grid import Vector
from mdl.reading import decode_json, open_regular, read_bytes, shorten
from mdl.writing import write_whole

logger = logging.getLogger(__name__)

Arrays: TypeAlias = Mapping[str, NDArray[Any]]

# safetensors names of the types that a state_dict can hold here; the flat model takes only float32 for trained floats.
_TYPE_NAMES = {
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
# The checksum in the JSON of a header, where quotes in a text are escaped.
_SEAL = re.compile(rb'"mdl_checksum": ?"([0-9a-f]{64})"')
_PACKED = "packed"
# Bytes that a header adds to a packed model.
_AROUND_BYTES = 4096
# Values to read at once: 50 ms of a memory card.
_PIECE_VALUES = 1 << 18


class CachedModel(msgspec.Struct, frozen=True):
    """w(round_id) of one peer. values: float32, shape (P,). extra: more of the peer's data to keep, as strings.

    digest: of values and momentum, if it is known already; writing the file then need not hash them once more.
    momentum: of the outer optimizer, float32 (P,); None if it has none.
    """

    values: Vector
    round_id: int
    schema_hash: str
    mesh: str
    extra: dict[str, str] = {}
    digest: bytes = b""
    momentum: Vector | None = None


class ModelCache:
    """The last two states of one peer in one directory. Every method raises MdlError if the disk refuses."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "model.safetensors"
        self.previous_path = directory / "model.previous.safetensors"
        self._current_is_whole = False

    def save(self, model: CachedModel) -> None:
        """Write atomically; the former file becomes the previous state, unless it is torn."""
        metadata = {
            **{f"extra.{key}": value for key, value in model.extra.items()},
            "round_id": str(model.round_id),
            "schema_hash": model.schema_hash,
            "mesh": model.mesh,
            "blake3": (model.digest or _digest_of(model.values, model.momentum)).hex(),
        }
        metadata["checksum"] = _checksum(metadata)
        keep = self._current_is_whole or _read_cache(self.path) is not None
        arrays = {"values": model.values} | ({} if model.momentum is None else {"momentum": model.momentum})
        write_safetensors(self.path, arrays, metadata, self.previous_path if keep else None, sealed=False)
        self._current_is_whole = True

    def load(self) -> CachedModel | None:
        """Return the newest whole state, or None; skip a torn file with a warning that names it."""
        current = _read_cache(self.path)
        self._current_is_whole = current is not None
        return current or _read_cache(self.previous_path)

    def find(self, digest: str) -> CachedModel | None:
        """Return the one of the two states with this hexadecimal digest; None if neither has it, or it is torn."""
        found = (_read_cache(path) for path in (self.path, self.previous_path) if _told_digest(path) == digest)
        return next((model for model in found if model), None)


def write_safetensors(
    path: Path, arrays: Arrays, metadata: Mapping[str, str], previous: Path | None = None, *, sealed: bool = True
) -> None:
    """Write through a temporary file, so that `path` is never half a file; raises MdlError if the disk refuses.

    The arrays are streamed, never copied into one buffer: a small device has no second model's worth of memory.
    previous: the new name of an existing file at `path`.
    sealed: put a checksum (`mdl/files/kept.py`) into the metadata; False where the caller keeps one of its own.
    """
    write_whole(path, lambda file: _write_arrays(file, arrays, metadata, sealed), previous)


def write_kept_safetensors(path: Path, arrays: Arrays, metadata: Mapping[str, str]) -> None:
    """Write likewise; the version before stays beside it, unless it is damaged."""
    write_safetensors(path, arrays, metadata, previous_of(path) if _is_whole(path) else None)


def write_packed(path: Path, packed: bytes) -> None:
    """Write a packed model or lesson, which is safetensors itself, with a checksum around it. Raises MdlError."""
    write_safetensors(path, {_PACKED: np.frombuffer(packed, np.uint8)}, {})


def read_packed(path: Path, largest: int) -> bytes:
    """Return the bytes that `write_packed` wrote; older versions wrote no checksum: return their whole file.

    Raises DataError.
    """
    content = read_bytes(path, largest + _AROUND_BYTES)
    arrays, _ = read_safetensors(path)
    return arrays[_PACKED].tobytes() if arrays.keys() == {_PACKED} else content


def read_safetensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return arrays and metadata. Raises DataError naming the file if it is missing, torn, changed or of another kind.

    The header cannot claim more than the file has, so that no more memory is taken than that.
    """
    try:
        if not path.exists():
            raise FileNotFoundError
        header = _read_header(path)
        with safe_open(path, framework="numpy") as file:
            arrays = {name: _read_array(file, name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        if not _is_as_sealed(header, arrays):
            raise changed(path)
        return arrays, {key: text for key, text in metadata.items() if key != CHECKSUM}
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist") from error
    except (OSError, SafetensorError, TypeError, ValueError, KeyError, AttributeError) as error:
        # The last four: types that numpy lacks, and malformed tensors.
        raise DataError(f"{path} is not a whole safetensors file: {shorten(error)}") from error


def _read_array(file: Any, name: str) -> NDArray[Any]:
    """Read an array piece by piece: each read stops the interpreter, and with it the loop that sends heartbeats."""
    part = file.get_slice(name)
    shape = part.get_shape()
    rows = max(1, _PIECE_VALUES // max(1, math.prod(shape[1:])))
    if not shape or shape[0] <= rows:
        whole: NDArray[Any] = file.get_tensor(name)
        return whole
    whole = np.empty(shape, part[:1].dtype)
    for start in range(0, shape[0], rows):
        stop = min(start + rows, shape[0])  # a slice beyond the end is refused there
        whole[start:stop] = part[start:stop]
    return whole


def read_metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file without reading its arrays; {} if the file is missing or torn."""
    try:
        with safe_open(path, framework="numpy") as file:
            return {key: text for key, text in (file.metadata() or {}).items() if key != CHECKSUM}
    except (OSError, SafetensorError, ValueError, TypeError):
        return {}


def _told_digest(path: Path) -> str:
    return read_metadata(path).get("blake3", "")


def _read_cache(path: Path) -> CachedModel | None:
    if not path.exists():
        return None
    try:
        arrays, metadata = read_safetensors(path)
        return _check_cache(path, arrays, metadata)
    except DataError as error:
        logger.warning("file cache skipped: %s", error)
        return None


def _check_cache(path: Path, arrays: Arrays, metadata: dict[str, str]) -> CachedModel:
    checksum = metadata.pop("checksum", "")
    values, momentum = arrays.get("values"), arrays.get("momentum")
    known = [array for array in (values, momentum) if array is not None]
    if values is None or {array.dtype.name for array in known} != {"float32"} or checksum != _checksum(metadata):
        raise DataError(f"{path} is no file cache, or its description has changed")
    if momentum is not None and momentum.shape != values.shape:
        raise DataError(f"{path} has {values.size} values and a momentum of {momentum.size}")
    digest = _digest_of(values, momentum)
    if not _is_of(values, digest, metadata):
        raise DataError(f"{path} has changed since it was written: its checksum is wrong")
    extra = {key.removeprefix("extra."): value for key, value in metadata.items() if key.startswith("extra.")}
    round_id = whole_number(metadata.get("round_id", ""), MAX_ROUND)
    if round_id is None:
        raise DataError(f"{path}: {metadata.get('round_id', '')[:40]!r} is no number of a round")
    schema_hash, mesh = metadata.get("schema_hash", ""), metadata.get("mesh", "")
    return CachedModel(values, round_id, schema_hash, mesh, extra, digest, momentum)


def _digest_of(values: Vector, momentum: Vector | None) -> bytes:
    """Return the digest of the values, with momentum of both one after the other."""
    if momentum is None:
        return digest_of(values)
    both = new_hash()
    for part in (values, momentum):
        both.update(np.ascontiguousarray(part).data.cast("B"))
    return both.digest()


def _is_of(values: Vector, digest: bytes, metadata: Mapping[str, str]) -> bool:
    """Return True if these values were written; older files have another digest of them."""
    if "blake3" in metadata:
        return digest.hex() == metadata["blake3"]
    return hashlib.blake2b(values.tobytes(), digest_size=16).hexdigest() == metadata.get("digest")


def _checksum(metadata: Mapping[str, str]) -> str:
    """Return the checksum of the description, which holds the values' digest: together they cover the file."""
    return hashlib.blake2b(json.dumps(metadata, sort_keys=True).encode(), digest_size=16).hexdigest()


def _is_whole(path: Path) -> bool:
    try:
        return bool(read_safetensors(path))
    except DataError:
        return False


def _read_header(path: Path) -> bytes:
    """Return the length and the text that a file begins with; only the length if the file is too short for the text."""
    with open_regular(path) as file:
        length = file.read(8)
        size = int.from_bytes(length, "little")
        return length + (file.read(size) if size < os.fstat(file.fileno()).st_size else b"")


def _is_as_sealed(header: bytes, arrays: Arrays) -> bool:
    """Return False if the content does not fit the file's checksum; True if it fits, or the file has none."""
    found = _SEAL.search(header)
    if found is None:
        return True
    start, stop = found.span(1)
    told = decode_json(header[8:], dict[str, Any], "its header")
    there = sorted((told[name]["data_offsets"][0], name) for name in arrays if arrays[name].size)
    whole = blake3(header[:start] + NO_DIGITS + header[stop:])
    for _, name in there:
        whole.update(arrays[name].reshape(-1).view(np.uint8).data)
    return whole.hexdigest().encode() == found[1]


def _write_arrays(file: BinaryIO, arrays: Arrays, metadata: Mapping[str, str], sealed: bool) -> None:
    seal = {CHECKSUM: NO_DIGITS.decode()} if sealed else {}
    header: dict[str, Any] = {"__metadata__": {**seal, **metadata}}
    start = 0
    for name, array in arrays.items():
        stop = start + array.nbytes
        if array.dtype.name not in _TYPE_NAMES:
            raise DataError(f"cannot save {name}: it is {array.dtype}, valid are {', '.join(_TYPE_NAMES)}")
        header[name] = {"dtype": _TYPE_NAMES[array.dtype.name], "shape": array.shape, "data_offsets": (start, stop)}
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    begin = len(text).to_bytes(8, "little") + text
    file.write(begin)
    whole = blake3(begin) if sealed else None
    for array in arrays.values():
        content = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data
        file.write(content)
        if whole is not None:
            whole.update(content)
    if whole is not None and (found := _SEAL.search(begin)):
        file.seek(found.start(1))
        file.write(whole.hexdigest().encode())
