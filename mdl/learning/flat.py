"""One flat float32 vector that a torch module lives in.

Parameters and float buffers (batch-norm statistics) become views of one buffer: reading w is free, loading w(t) is one
copy, and what the mesh averages is exactly what the module computes with. Integer buffers are counters of one device
and stay where they are, as do buffers the module itself leaves out of its state_dict: they are constants.
Much of torch moves a tensor elsewhere without a word (`.to()`, `p.data = ...`, `share_memory()`, a buffer that is
assigned anew): there it stays, and its values are copied, out by `load` and in by `gather`.
Knows nothing of training, rounds or files.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mdl.errors import ConfigError, LocalProtocolError
from mdl.protocol.delta import Vector
from mdl.task import rate_step

Schema: TypeAlias = list[tuple[str, tuple[int, ...]]]

# Where torch.compile keeps the module that it wraps; it becomes a part of the names.
_COMPILED = "_orig_mod"


class FlatModel:
    """A module whose parameters and float buffers are views of one float32 vector of shape (size,).

    Tied parameters count once. `schema` lists (name, shape) in the vector's order, `schema_hash` is its 16 hex digits;
    both are the same for a module and for what torch.compile or DataParallel make of it.
    Raises ConfigError that names the tensor if one is not float32, not on the CPU, not initialised, or shares memory.
    """

    def __init__(self, module: nn.Module) -> None:
        tensors = _float_tensors(module)
        for name, tensor in tensors.items():
            _check_kind(name, tensor)
            if tensor.device.type != "cpu":
                raise ConfigError(f"model tensor {name} is on {tensor.device}: use the CPU (module.cpu())")
        _check_distinct(tensors)
        self.module = module
        self.schema: Schema = [(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
        self.schema_hash = hash_schema(self.schema)
        self.size = sum(tensor.numel() for tensor in tensors.values())
        if not self.size:
            raise ConfigError(f"model {type(module).__name__} has no parameters: there is nothing to train")
        self._tied = _tied_names(module)
        self._places = _places(self.schema)
        self._values: Vector = np.empty(self.size, np.float32)
        # Two views of the same memory each: share_memory() moves the storage of the one that the module has.
        self._views = _cut(self._values, self.schema)
        for tensor, view, home in zip(
            tensors.values(), _cut(self._values, self.schema).values(), self._views.values(), strict=True
        ):
            home.copy_(tensor.detach())
            tensor.data = view

    def values(self) -> Vector:
        """The live vector, float32, shape (size,): a view, so it changes with the next training step or load."""
        return self._values

    def load(self, vector: Vector) -> None:
        """Copy w into the module, wherever its tensors are by now.

        Raises LocalProtocolError if it is not float32 of shape (size,), ConfigError if the module's tensors changed
        (see `gather`).
        """
        if vector.shape != (self.size,) or vector.dtype != np.float32:
            raise LocalProtocolError(f"{vector.dtype} {vector.shape} does not fit float32 ({self.size},)")
        moved = self._moved()
        np.copyto(self._values, vector)
        for name, tensor in moved.items():
            if not self._come_home(name, tensor):
                with torch.inference_mode():  # else a tensor that was made in such a mode could not be written
                    tensor.copy_(self._views[name])

    def gather(self) -> Vector:
        """The live vector, once it holds what the module's tensors hold now, wherever they are.

        Raises ConfigError that names the tensor if one has another shape or dtype, no values, came, went, or shares
        memory with another.
        """
        moved = self._moved()
        found = {name: tensor.detach().to("cpu", copy=True) for name, tensor in moved.items()}
        for name, values in found.items():
            np.copyto(self._views[name].numpy(), values.resolve_neg().numpy())
            self._come_home(name, moved[name])
        return self._values

    def _moved(self) -> dict[str, Tensor]:
        """The tensors that are not in their place in the vector any more."""
        tensors = _float_tensors(self.module)
        self._check_schema(tensors)
        moved = {name: tensor for name, tensor in tensors.items() if not _is_at(tensor, self._views[name])}
        if moved:
            _check_distinct(tensors)
        return moved

    def _check_schema(self, tensors: dict[str, Tensor]) -> None:
        came = [name for name in tensors if name not in self._views]
        for name, shape in self.schema:
            if name not in tensors:
                now = f", {came[0]} is new" if came else ""
                raise ConfigError(f"model tensor {name} {list(shape)} is gone since the model was handed over{now}")
            _check_kind(name, tensors[name], " since the model was handed over")
            if tensors[name].shape != shape:
                raise ConfigError(
                    f"model tensor {name} was {list(shape)} when the model was handed over, it is "
                    f"{list(tensors[name].shape)} now"
                )
        for name in came:
            if name in self._tied:
                raise ConfigError(f"model tensor {name} was tied to {self._tied[name]} when the model was handed over")
            raise ConfigError(f"model tensor {name} is new since the model was handed over: add it before")

    def _come_home(self, name: str, tensor: Tensor) -> bool:
        """Whether the tensor lay elsewhere within the vector, where it would overwrite others: it does not any more."""
        is_inside = tensor.untyped_storage().data_ptr() == self._views[name].untyped_storage().data_ptr()
        if is_inside:
            tensor.data = _cut(self._values, self.schema)[name]
        return is_inside

    def trainable(self) -> list[range]:
        """Where in the vector trainable parameters lie, in order; neighbours are one stretch.

        Raises ConfigError if every parameter is frozen.
        """
        stretches: list[range] = []
        for name, parameter in self._parameters():
            if not parameter.requires_grad:
                continue
            place = self._places[name]
            if stretches and stretches[-1].stop == place.start:
                stretches[-1] = range(stretches[-1].start, place.stop)
            else:
                stretches.append(place)
        if not stretches:
            raise ConfigError(
                "every parameter of the model is frozen (requires_grad is False): there is nothing to train"
            )
        return stretches

    def buffers(self) -> list[range]:
        """Where in the vector lies what is no parameter, as a batch norm's statistics; neighbours are one stretch."""
        parameters = {name for name, _ in self._parameters()}
        stretches: list[range] = []
        for name, place in self._places.items():
            if name in parameters:
                continue
            if stretches and stretches[-1].stop == place.start:
                place = range(stretches.pop().start, place.stop)
            stretches.append(place)
        return stretches

    def attach_gradients(self, stretches: list[range], gradients: list[Tensor]) -> None:
        """Let autograd add its gradients into these vectors, one for each stretch of `trainable`.

        Raises ConfigError if other parameters are trainable by now.
        """
        if self.trainable() != stretches:
            raise ConfigError("parameters of the model were frozen or unfrozen (requires_grad) after training began")
        for name, parameter in self._parameters():
            if parameter.requires_grad:
                parameter.grad = self._gradient(name, stretches, gradients)

    def check_attached(self, stretches: list[range], gradients: list[Tensor]) -> None:
        """Raise ConfigError that names a parameter which is not in the vector, or its gradient not in these, any more.

        Who steps along the vector would then train something else than the module.
        """
        for name, parameter in self._parameters():
            if not _is_at(parameter, self._views[name]):
                raise ConfigError(
                    f"model tensor {name} was moved or replaced in training (.to(), .data, ...): assign to it in place"
                )
            if not parameter.requires_grad:
                continue
            if parameter.grad is None or not _is_at(parameter.grad, self._gradient(name, stretches, gradients)):
                raise ConfigError(f"the gradient of model tensor {name} was replaced in training (zero_grad, .grad)")

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in unwrap(self.module).named_parameters():
            yield _plain(name), parameter

    def _gradient(self, name: str, stretches: list[range], gradients: list[Tensor]) -> Tensor:
        place = self._places[name]
        index = bisect_right(stretches, place.start, key=lambda stretch: stretch.start) - 1
        begin = place.start - stretches[index].start
        return gradients[index][begin : begin + len(place)].view(self._views[name].shape)


def hash_schema(schema: Schema) -> str:
    """16 hex digits that tell two models' names and shapes apart."""
    lines = "\n".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in schema)
    return hashlib.blake2b(lines.encode(), digest_size=8).hexdigest()


def hash_task(
    schema: Schema, class_names: Iterable[str], channel_names: Iterable[str] = (), rate_hz: float | None = None
) -> str:
    """Of the schema, the classes, the channels and the rate: layers of one size that mean something else must not meet.

    Without channel names and a rate it is what it was before there were any.
    """
    classes, channels = (f"class {name}" for name in class_names), (f"channel {name!r}" for name in channel_names)
    rate = [] if rate_hz is None else [f"rate {rate_step(rate_hz)}"]
    return hash_schema([*schema, *((name, ()) for name in (*classes, *channels, *rate))])


def older_hashes(schema: Schema, class_names: Sequence[str], channel_names: Sequence[str]) -> tuple[str, ...]:
    """Of the same task, as versions wrote it that knew no rates, or no names of channels."""
    return hash_task(schema, class_names, channel_names), hash_task(schema, class_names)


def schema_difference(a: Schema, b: Schema) -> str:
    """One line that names the first difference between two schemas; empty if there is none."""
    for (name_a, shape_a), (name_b, shape_b) in zip(a, b, strict=False):
        if name_a != name_b:
            return f"{name_a} {list(shape_a)} here, {name_b} {list(shape_b)} there"
        if shape_a != shape_b:
            return f"{name_a} is {list(shape_a)} here, {list(shape_b)} there"
    if len(a) == len(b):
        return ""
    (name, shape), where = (a[len(b)], "here") if len(a) > len(b) else (b[len(a)], "there")
    return f"{name} {list(shape)} only {where}"


def unwrap(module: nn.Module) -> nn.Module:
    """The module itself, without what torch.compile or DataParallel put around it."""
    while True:
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            module = module.module
        elif isinstance(inner := getattr(module, _COMPILED, None), nn.Module):
            module = inner
        else:
            return module


def _float_tensors(module: nn.Module) -> dict[str, Tensor]:
    """What the mesh averages, by name: all parameters, and the float buffers of the state_dict."""
    module = unwrap(module)
    tensors: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        tensors[_plain(name)] = parameter
    persistent = module.state_dict(keep_vars=True).keys()
    for name, buffer in module.named_buffers():
        if name in persistent and (buffer.is_floating_point() or buffer.is_complex()):
            tensors[_plain(name)] = buffer
    return tensors


def _tied_names(module: nn.Module) -> dict[str, str]:
    """The further names of parameters that have several, with the first of each."""
    first: dict[int, str] = {}
    return {
        _plain(name): _plain(known)
        for name, parameter in unwrap(module).named_parameters(remove_duplicate=False)
        if (known := first.setdefault(id(parameter), name)) != name
    }


def _plain(name: str) -> str:
    return name.replace(f"{_COMPILED}.", "")


def _check_kind(name: str, tensor: Tensor, since: str = "") -> None:
    if is_lazy(tensor):
        raise ConfigError(f"model tensor {name} is not initialised: run the module once before handing it over")
    if tensor.device.type == "meta":
        raise ConfigError(f"model tensor {name} is on the meta device{since}: it has no values")
    if tensor.dtype != torch.float32:
        raise ConfigError(f"model tensor {name} is {tensor.dtype}{since}: use float32 (module.float())")
    if tensor.layout != torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise ConfigError(f"model tensor {name} is {kind}{since}: use a dense one")


def _check_distinct(tensors: dict[str, Tensor]) -> None:
    """Two tensors in the same memory would come apart when they move: silently another model."""
    spans = sorted((str(t.device), t.data_ptr(), _span_bytes(t), name) for name, t in tensors.items() if t.numel())
    for (device, start, size_bytes, name), (other_device, other_start, _, other) in pairwise(spans):
        if device == other_device and other_start < start + size_bytes:
            raise ConfigError(f"model tensors {name} and {other} share memory: tie the nn.Parameter itself instead")
    for _, _, size_bytes, name in spans:
        if size_bytes < tensors[name].nbytes:
            raise ConfigError(f"elements of model tensor {name} share memory (expand): give each its own (clone)")


def _span_bytes(tensor: Tensor) -> int:
    """From the first to the last element in memory, whatever lies between."""
    reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (reach + 1) * tensor.element_size()


def _is_at(tensor: Tensor, view: Tensor) -> bool:
    """Whether it lies where the view does, element by element."""
    return not tensor.numel() or (
        tensor.device == view.device and tensor.data_ptr() == view.data_ptr() and tensor.stride() == view.stride()
    )


def _places(schema: Schema) -> dict[str, range]:
    """Where in the vector each tensor lies."""
    sizes = [math.prod(shape) for _, shape in schema]
    return {
        name: range(stop - size, stop) for (name, _), size, stop in zip(schema, sizes, accumulate(sizes), strict=True)
    }


def _cut(values: Vector, schema: Schema) -> dict[str, Tensor]:
    """Views of the vector by name, in a torch storage of their own."""
    with torch.inference_mode(False):  # else autograd could never use them
        flat = torch.from_numpy(values)
        places = _places(schema)
        return {name: flat[places[name].start : places[name].stop].view(shape) for name, shape in schema}
