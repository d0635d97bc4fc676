"""One flat float32 vector that a torch module lives in.

Parameters and float buffers (batch-norm statistics) become views of one buffer: reading w is free, loading w(t) is one
copy, and what the mesh averages is exactly what the module computes with. Integer buffers are counters of one device
and stay where they are, as do buffers the module itself leaves out of its state_dict: they are constants.
Knows nothing of training, rounds or files.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mdl.delta import Vector
from mdl.errors import ConfigError, LocalProtocolError

Schema: TypeAlias = list[tuple[str, tuple[int, ...]]]


class FlatModel:
    """A module whose parameters and float buffers are views of one float32 vector of shape (size,).

    Tied parameters count once. `schema` lists (name, shape) in the vector's order, `schema_hash` is its 16 hex digits.
    Raises ConfigError that names the tensor if one is not float32, not on the CPU, not initialised, or shares memory.
    """

    def __init__(self, module: nn.Module) -> None:
        tensors = list(_float_tensors(module))
        _check_distinct(tensors)
        self.module = module
        self.schema: Schema = [(name, tuple(tensor.shape)) for name, tensor in tensors]
        self.schema_hash = hash_schema(self.schema)
        self.size = sum(tensor.numel() for _, tensor in tensors)
        if not self.size:
            raise ConfigError(f"model {type(module).__name__} has no parameters: there is nothing to train")
        self._values: Vector = np.empty(self.size, np.float32)
        _move_into(torch.from_numpy(self._values), [tensor for _, tensor in tensors])

    def values(self) -> Vector:
        """The live vector, float32, shape (size,): a view, so it changes with the next training step or load."""
        return self._values

    def load(self, vector: Vector) -> None:
        """Copy w into the module. Raises LocalProtocolError if it is not float32 of shape (size,)."""
        if vector.shape != (self.size,) or vector.dtype != np.float32:
            raise LocalProtocolError(f"{vector.dtype} {vector.shape} does not fit float32 ({self.size},)")
        np.copyto(self._values, vector)

    def trainable(self) -> list[Tensor]:
        """The stretches of the vector that hold trainable parameters: views, float32, one-dimensional, in order.

        Raises ConfigError if every parameter is frozen.
        """
        flat = torch.from_numpy(self._values)
        stretches = [flat[start:stop] for start, stop in self._trainable_ranges()]
        if not stretches:
            raise ConfigError(
                "every parameter of the model is frozen (requires_grad is False): there is nothing to train"
            )
        return stretches

    def gather_gradients(self, stretches: list[Tensor]) -> None:
        """Let autograd add its gradients into these vectors, one for each stretch of `trainable`."""
        starts = [start for start, _ in self._trainable_ranges()]
        for parameter, offset in zip(self.module.parameters(), self._offsets(), strict=True):
            if parameter.requires_grad:
                index = bisect_right(starts, offset) - 1
                begin = offset - starts[index]
                parameter.grad = stretches[index][begin : begin + parameter.numel()].view_as(parameter)

    def _offsets(self) -> list[int]:
        """Where each parameter begins in the vector."""
        base = self._values.__array_interface__["data"][0]
        return [(parameter.data_ptr() - base) // 4 for parameter in self.module.parameters()]

    def _trainable_ranges(self) -> list[tuple[int, int]]:
        ranges: list[tuple[int, int]] = []
        for parameter, start in sorted(
            zip(self.module.parameters(), self._offsets(), strict=True), key=lambda pair: pair[1]
        ):
            if not parameter.requires_grad:
                continue
            stop = start + parameter.numel()
            if ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], stop)
            else:
                ranges.append((start, stop))
        return ranges


def hash_schema(schema: Schema) -> str:
    """16 hex digits that tell two models' names and shapes apart."""
    lines = "\n".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in schema)
    return hashlib.blake2b(lines.encode(), digest_size=8).hexdigest()


def hash_task(schema: Schema, class_names: Iterable[str]) -> str:
    """Of the schema and the classes: last layers of one size whose rows mean different classes must not meet."""
    return hash_schema([*schema, *((f"class {name}", ()) for name in class_names)])


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


def _float_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in module.named_parameters():
        yield name, _checked(name, parameter)
    persistent = module.state_dict().keys()
    for name, buffer in module.named_buffers():
        if name in persistent and (buffer.is_floating_point() or buffer.is_complex()):
            yield name, _checked(name, buffer)


def _checked(name: str, tensor: Tensor) -> Tensor:
    if is_lazy(tensor):
        raise ConfigError(f"model tensor {name} is not initialised: run the module once before handing it over")
    if tensor.dtype != torch.float32:
        raise ConfigError(f"model tensor {name} is {tensor.dtype}: use float32 (module.float())")
    if tensor.device.type != "cpu":
        raise ConfigError(f"model tensor {name} is on {tensor.device}: use the CPU (module.cpu())")
    return tensor


def _check_distinct(tensors: list[tuple[str, Tensor]]) -> None:
    """Two tensors in the same memory would come apart when they move: silently another model."""
    spans = sorted((tensor.data_ptr(), tensor.nbytes, name) for name, tensor in tensors if tensor.numel())
    for (start, size_bytes, name), (other_start, _, other) in pairwise(spans):
        if other_start < start + size_bytes:
            raise ConfigError(f"model tensors {name} and {other} share memory: tie the nn.Parameter itself instead")


def _move_into(flat: Tensor, tensors: list[Tensor]) -> None:
    start = 0
    for tensor in tensors:
        view = flat[start : start + tensor.numel()].view(tensor.shape)
        view.copy_(tensor.detach())
        tensor.data = view
        start += tensor.numel()
