"""The tensors of a torch module that the mesh averages, and the demands on each. Knows no vector and no round.

The mesh averages all trainable parameters and the float buffers of the state_dict. A parameter that is frozen
(requires_grad is False) when the module is handed over stays as it is. It is neither sent nor merged, and may be of
any type and on any device. It must be the same everywhere, which its digest tells. The same holds for a buffer with
infinite values or NaN, such as a causal mask: it has no mean. The first round alone shows if training changes a finite
buffer (`Constants`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from mdl.errors import ConfigError
from mdl.protocol.delta import new_hash

# The attribute in which torch.compile keeps the wrapped module; it becomes a part of the names.
_COMPILED = "_orig_mod"


class Frozen:
    """The parameters of a module that are frozen now, and its buffers that are not finite.

    names: of each. size: values in all of them. Raises ConfigError if one has no values to compare with other devices'
    (meta, lazy).
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = unwrap(module)
        frozen = {name for name, parameter in _parameters(self._module) if not parameter.requires_grad}
        endless = {name for name, buffer in _float_buffers(self._module).items() if not _is_finite(name, buffer)}
        self.names = frozenset(frozen | endless)
        found = self._tensors()
        self.size = sum(tensor.numel() for tensor in found.values())
        self._digest = _digest_of(found) if found else ""
        self._marks = _marks_of(found)

    def __str__(self) -> str:
        """Return "12,288 frozen, 0f6a9b2c": the number of values, and the beginning of their digest; empty if none."""
        return f"{self.size:,} frozen, {self._digest[:8]}" if self._digest else ""

    @property
    def digest(self) -> str:
        """The digest of names, types, shapes and values, in hex digits; empty if nothing is frozen."""
        return self._digest

    def check(self) -> None:
        """Raise ConfigError naming the parameter if one is trained, gone or has other values by now.

        Values are compared if the tensor was written to, or moved, since the last look.
        """
        found = self._tensors()
        for name in sorted(self.names - found.keys()):
            raise ConfigError(f"model tensor {name} is gone since the model was handed over")
        for name, tensor in found.items():
            if tensor.requires_grad:
                raise ConfigError(
                    f"model tensor {name} was frozen when the model was handed over, so that the mesh leaves it out. "
                    "It is trained now (requires_grad): unfreeze it before"
                )
        marks = _marks_of(found)
        if marks == self._marks:
            return
        if self._digest and _digest_of(found) != self._digest:
            name = next(name for name in found if marks[name] != self._marks[name])
            what = "frozen parameters" if isinstance(found[name], nn.Parameter) else "buffers that were not finite"
            raise ConfigError(
                f"{what} of the model have other values than when it was handed over ({name} was written to)"
            )
        self._marks = marks

    def _tensors(self) -> dict[str, Tensor]:
        tensors = dict(_parameters(self._module)) | _float_buffers(self._module)
        found = {name: tensor for name, tensor in tensors.items() if name in self.names}
        for name, tensor in found.items():
            _check_values(name, tensor)
        return found


class Constants:
    """The values of the buffers that training may leave as they are, as a device brings them.

    Buffers of batch norms and of the scale of targets are not among them: they are learned.
    """

    def __init__(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Take the digests of the buffers. tensors: the averaged ones, by name."""
        learned = {
            f"{name}.{each}".lstrip(".")
            for name, part in unwrap(module).named_modules()
            if isinstance(part, _NormBase) or type(part).__module__.startswith("mdl.")
            for each, _ in part.named_buffers(recurse=False)
        }
        brought = _float_buffers(unwrap(module)).keys() & tensors.keys() - set(map(plain_name, learned))
        self._digests = {name: _digest_of({name: tensors[name]}) for name in sorted(brought)}

    @property
    def are_unchecked(self) -> bool:
        """True while there is something to compare."""
        return bool(self._digests)

    def check(self, trained: Mapping[str, Tensor], has_changed: Callable[[str], bool]) -> None:
        """Compare, once, the buffers that training did not change. Raises ConfigError naming one with other values.

        trained: by name, after this device's first round of training, which began with the mesh's values.
        """
        digests, self._digests = self._digests, {}
        for name, digest in digests.items():
            if not has_changed(name) and _digest_of({name: trained[name]}) != digest:
                raise ConfigError(
                    f"buffer {name} of the model has other values here than in the mesh, and training does not change "
                    "it. Give all devices the same, or leave it to each: register_buffer(..., persistent=False)"
                )


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module itself, without the wrappers of torch.compile or DataParallel."""
    while True:
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        elif isinstance(inner := getattr(module, _COMPILED, None), nn.Module):
            module = inner
        else:
            return module


def averaged_tensors(module: nn.Module, frozen: frozenset[str]) -> dict[str, Tensor]:
    """Return the averaged tensors by name: parameters and float buffers of the state_dict, without the frozen ones."""
    module = unwrap(module)
    tensors = dict(_parameters(module)) | _float_buffers(module)
    return {name: tensor for name, tensor in tensors.items() if name not in frozen}


def own_names(module: nn.Module, batch_norm: str) -> frozenset[str]:
    """Return the names of tensors that stay on each device: with "own" those of batch norms (FedBN, arXiv 2102.07623).

    They are its weights and statistics. Raises ConfigError if the module has no batch norm.
    """
    if batch_norm != "own":
        return frozenset()
    norms = [(name, part) for name, part in unwrap(module).named_modules() if isinstance(part, _BatchNorm)]
    found = {f"{name}.{each}" for name, part in norms for each in part.state_dict() if each != "num_batches_tracked"}
    if not found:
        raise ConfigError(f"training.batch_norm = own: {type(module).__name__} has no batch norm")
    return frozenset(plain_name(name).lstrip(".") for name in found)


class OwnState:
    """The tensors that a model leaves on this device, as a part of its training's state for a restart.

    tensors: of the live module, by name.
    """

    def __init__(self, tensors: Callable[[], dict[str, Tensor]]) -> None:
        self._tensors = tensors

    def state_dict(self) -> dict[str, Tensor]:
        return self._tensors()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on from a `state_dict`. Raises ValueError, and changes nothing, if it is of other tensors."""
        mine = self._tensors()
        for name, tensor in mine.items():
            found = state.get(name)
            if not isinstance(found, Tensor) or (found.shape, found.dtype) != (tensor.shape, tensor.dtype):
                raise ValueError(f"{name} is not there, or has another shape")
        for name, tensor in mine.items():
            tensor.copy_(state[name])  # type: ignore[arg-type]


def tied_names(module: nn.Module) -> dict[str, str]:
    """Return the further names of parameters that have several, with the first name of each."""
    first: dict[int, str] = {}
    return {
        plain_name(name): plain_name(known)
        for name, parameter in unwrap(module).named_parameters(remove_duplicate=False)
        if (known := first.setdefault(id(parameter), name)) != name
    }


def plain_name(name: str) -> str:
    return name.replace(f"{_COMPILED}.", "")


def check_kind(name: str, tensor: Tensor, since: str = "") -> None:
    """Raise ConfigError unless a vector can hold the tensor: dense float32 with values."""
    _check_values(name, tensor, since)
    if tensor.dtype != torch.float32:
        raise ConfigError(f"model tensor {name} is {tensor.dtype}{since}: use float32 (module.float())")
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise ConfigError(f"model tensor {name} is {kind}{since}: use a dense one")


def check_distinct(tensors: dict[str, Tensor]) -> None:
    """Raise ConfigError if tensors share memory: they would come apart in moving, silently another model."""
    spans = sorted((str(t.device), t.data_ptr(), _span_bytes(t), name) for name, t in tensors.items() if t.numel())
    for (device, start, size_bytes, name), (other_device, other_start, _, other) in pairwise(spans):
        if device == other_device and other_start < start + size_bytes:
            raise ConfigError(f"model tensors {name} and {other} share memory: tie the nn.Parameter itself instead")
    for _, _, size_bytes, name in spans:
        if size_bytes < tensors[name].nbytes:
            raise ConfigError(f"elements of model tensor {name} share memory (expand): give each its own (clone)")


def _check_values(name: str, tensor: Tensor, since: str = "") -> None:
    if is_lazy(tensor):
        raise ConfigError(f"model tensor {name} is not initialised: run the module once before handing it over")
    if tensor.device.type == "meta":
        raise ConfigError(f"model tensor {name} is on the meta device{since}: it has no values")


def _span_bytes(tensor: Tensor) -> int:
    """Return the bytes from the first to the last element in memory, with any gaps between."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (reach + 1) * tensor.element_size()


def _parameters(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    return ((plain_name(name), parameter) for name, parameter in module.named_parameters())


def _float_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the float and complex buffers of the state_dict, by name."""
    persistent = module.state_dict(keep_vars=True).keys()
    found = ((name, buffer) for name, buffer in module.named_buffers() if name in persistent)
    return {plain_name(name): b for name, b in found if b.is_floating_point() or b.is_complex()}


def _is_finite(name: str, tensor: Tensor) -> bool:
    """Return False if a value of a dense tensor is infinite or NaN. Raises ConfigError if it has no values."""
    _check_values(name, tensor)
    return tensor.layout != torch.strided or tensor.is_nested or bool(tensor.isfinite().all())


def _digest_of(tensors: Mapping[str, Tensor]) -> str:
    found = new_hash()
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.detach().resolve_neg().to("cpu").contiguous()
        found.update(values.reshape(-1).view(torch.uint8).numpy().data)
    return found.digest().hex()


def _marks_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """Return each tensor's address and number of writes: if both are as before, nothing has changed."""
    return {name: (tensor.data_ptr(), _version(tensor)) for name, tensor in tensors.items()}


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version
