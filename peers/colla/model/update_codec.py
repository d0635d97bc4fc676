"""The bytes between a device and its cloud (Colla 3.1): the upload of changes, and the lesson that a device pulls.

An upload holds only the changes of a model since it was pulled, as safetensors bytes. A matrix with few changed rows
travels as those rows and their numbers, if that is smaller. Both sides hold the pulled model; applying the update to it
gives the device's model, bit for bit.

A lesson is the small model to begin with, its group's large one, and that one's name. The same form keeps two models on
a device's disk: its own, and the origin of its updates. Received bytes are checked fully before anything is built from
them. Knows nothing of how they travel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from mdl.errors import RemoteProtocolError
from mdl.peers.colla.model.recurrent import RecurrentModel
from mdl.protocol.delta import LARGEST_VALUE

_CLASSES, _ORIGIN = "class_ids", "origin"
_ROWS, _VALUES = "@rows", "@values"
_LAST_LAYER = ("classify.weight", "classify.bias")
# A built-in large model has a few MB at most; far longer bytes are no lesson.
LARGEST_LESSON_BYTES = 64 << 20


class OtherOriginError(RemoteProtocolError):
    """The update has another origin: neither it nor its device is at fault, but the device has to pull again."""


def changed_tensors(model: RecurrentModel, pulled: RecurrentModel) -> dict[str, Tensor]:
    """Return the tensors of `model` that differ from `pulled`; the last layer's rows are compared class by class.

    NAME: the whole tensor. NAME@rows (int32) and NAME@values: changed rows only. class_ids (int32): if the classes are
    not the pulled ones.
    """
    changed: dict[str, Tensor] = {}
    if model.class_ids.tolist() != pulled.class_ids.tolist():
        changed[_CLASSES] = model.class_ids.to(torch.int32)
    before = _align_last_layer(pulled, model.class_ids)
    for name, parameter in model.named_parameters():
        changed |= _difference(name, parameter.detach(), before[name])
    return changed


def encode_update(model: RecurrentModel, pulled: RecurrentModel) -> bytes:
    """Return the upload; its length is a cycle's cost. It names `pulled` in eight bytes, beside the changes."""
    changed = {name: tensor.contiguous() for name, tensor in changed_tensors(model, pulled).items()}
    return save({_ORIGIN: _name_origin(pulled), **changed})


def apply_update(pulled: RecurrentModel, update: bytes, longest: int) -> RecurrentModel:
    """Return the device's model. longest: bytes of any update.

    Raises RemoteProtocolError, naming the tensor, if the update does not fit `pulled`, and OtherOriginError if it is a
    change of another model, for example of a cloud that began anew."""
    tensors = decode_tensors(update, longest, "update")
    origin = tensors.pop(_ORIGIN, None)
    if origin is not None and origin.tolist() != _name_origin(pulled).tolist():
        raise OtherOriginError("update is a change of another model than the cloud has by this version")
    class_ids = _read_classes(tensors, pulled)
    state = _align_last_layer(pulled, class_ids)
    for name in {key.partition("@")[0] for key in tensors}:
        if name not in state:
            raise RemoteProtocolError(f"update names {name[:60]!r}, which is no tensor of this model")
        state[name] = _patch(name, state[name], tensors)
        if not bool((state[name].abs() <= LARGEST_VALUE).all()):
            raise RemoteProtocolError(f"update of {name} holds NaN, infinity or values beyond {LARGEST_VALUE:g}")
    fresh = [label for label in class_ids.tolist() if label not in set(pulled.class_ids.tolist())]
    if fresh and not set(_LAST_LAYER) <= {key.partition("@")[0] for key in tensors}:
        raise RemoteProtocolError(f"update adds class {fresh[0]} without its row of the last layer")
    with torch.random.fork_rng(devices=[]):
        made = RecurrentModel(pulled.size, pulled.places, class_ids.tolist())
    made.load_state_dict({**state, _CLASSES: class_ids})
    return made


def _name_origin(pulled: RecurrentModel) -> Tensor:
    """Return a digest of all values, uint8 (8,)."""
    digest = hashlib.blake2b(digest_size=8)
    for _, tensor in sorted(pulled.state_dict().items()):
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)


def _align_last_layer(pulled: RecurrentModel, class_ids: Tensor) -> dict[str, Tensor]:
    """Return the pulled tensors, with the last layer's rows in the order of `class_ids`; NaN for a new class."""
    state = {name: parameter.detach().clone() for name, parameter in pulled.named_parameters()}
    at = {label: row for row, label in enumerate(pulled.class_ids.tolist())}
    rows = [at.get(label, -1) for label in class_ids.tolist()]
    for name in _LAST_LAYER:
        aligned = state[name][rows]
        aligned[[row < 0 for row in rows]] = torch.nan
        state[name] = aligned
    return state


def _difference(name: str, now: Tensor, before: Tensor) -> dict[str, Tensor]:
    # NaN, a new row, differs from everything.
    rows = torch.nonzero((now != before).reshape(len(now), -1).any(dim=1))[:, 0]
    if not len(rows):
        return {}
    row_bytes = now[0].numel() * now.element_size()
    if now.ndim < 2 or len(rows) * (row_bytes + 4) >= len(now) * row_bytes:
        return {name: now}
    return {name + _ROWS: rows.to(torch.int32), name + _VALUES: now[rows]}


def decode_tensors(data: bytes, longest: int, what: str) -> dict[str, Tensor]:
    """Decode received bytes as named tensors. Raises RemoteProtocolError that names `what`, also beyond `longest`."""
    if len(data) > longest:
        raise RemoteProtocolError(f"{what} of {len(data)} bytes; at most {longest} can be one")
    try:
        tensors: dict[str, Tensor] = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise RemoteProtocolError(f"{what} is no safetensors: {' '.join(str(error).split())[:200]}") from None
    return tensors


def _read_classes(tensors: dict[str, Tensor], pulled: RecurrentModel) -> Tensor:
    if _CLASSES not in tensors:
        return pulled.class_ids
    # Taken out: all other keys name parameters.
    given = tensors.pop(_CLASSES)
    numbers = given.tolist() if given.dtype == torch.int32 and given.ndim == 1 else []
    if not numbers or len(set(numbers)) != len(numbers) or min(numbers) < 0 or max(numbers) >= pulled.places:
        raise RemoteProtocolError(f"update has wrong class_ids: expected distinct int32 below {pulled.places}")
    return given.to(torch.int64)


def _patch(name: str, before: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    whole, rows, values = tensors.get(name), tensors.get(name + _ROWS), tensors.get(name + _VALUES)
    if whole is not None and rows is None and values is None:
        if whole.dtype == before.dtype and whole.shape == before.shape:
            return whole
    elif whole is None and rows is not None and values is not None and _rows_fit(rows, values, before):
        patched = before.clone()
        patched[rows.long()] = values
        return patched
    raise RemoteProtocolError(f"update of {name} does not fit {tuple(before.shape)} {before.dtype}")


def _rows_fit(rows: Tensor, values: Tensor, before: Tensor) -> bool:
    return (
        rows.dtype == torch.int32
        and rows.ndim == 1
        and len(rows) > 0
        and values.dtype == before.dtype
        and values.shape == (len(rows), *before.shape[1:])
        and bool((rows >= 0).all())
        and bool((rows < len(before)).all())
    )


def pack_parts(parts: Sequence[bytes]) -> bytes:
    """Pack packed models, and a name, into one."""
    arrays = {str(at): torch.frombuffer(bytearray(part), dtype=torch.uint8) for at, part in enumerate(parts)}
    return save(arrays)


def unpack_parts(data: bytes, count: int) -> list[bytes]:
    """Unpack `count` parts. Raises RemoteProtocolError in one line for other bytes, or more than any lesson has."""
    tensors = decode_tensors(data, LARGEST_LESSON_BYTES, "lesson")
    names = [str(at) for at in range(count)]
    if tensors.keys() != set(names) or any(it.dtype != torch.uint8 or it.ndim != 1 for it in tensors.values()):
        raise RemoteProtocolError(f"lesson does not hold {count} parts")
    return [tensors[name].numpy().tobytes() for name in names]
