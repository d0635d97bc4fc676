"""One flat float32 vector that a torch module lives in; and a module with other values beside the one that trains.

Parameters and float buffers (batch-norm statistics) become views of one buffer. Reading w is free, loading w(t) is one
copy, and the mesh averages exactly the values that the module computes with. Integer buffers are counters of one device
and stay in place. So do the constants: buffers that the module leaves out of its state_dict, parameters that are frozen
when the module is handed over, and buffers without a mean (`mdl/learning/tensors.py`). Tensors on a GPU are copied.
Much of torch moves a tensor elsewhere without a word (`.to()`, `p.data = ...`, `share_memory()`, a buffer that is
assigned anew). It stays there, and its values are copied, out by `load` and in by `gather`.

The module beside is the same tree of modules with its own tensors, which are views of given values: a few kilobytes. So
tests need neither a turn nor a second model. Tensors outside the vector (frozen parameters, counts) are shared.
Knows nothing of training, rounds or files.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from mdl.errors import ConfigError, LocalProtocolError
from mdl.learning.tensors import (
    Constants,
    Frozen,
    averaged_tensors,
    check_distinct,
    check_kind,
    plain_name,
    tied_names,
    unwrap,
)
from mdl.protocol.grid import Vector
from mdl.task import rate_step

Schema: TypeAlias = list[tuple[str, tuple[int, ...]]]

_ALL_FROZEN = "every parameter of the model is frozen (requires_grad is False): there is nothing to train"

# The name of a batch norm's variance of its inputs.
_VARIANCE = "running_var"
_Entry = TypeVar("_Entry")


class FlatModel:
    """A module that keeps its trainable parameters and float buffers as views of one float32 vector of shape (size,).

    Tied parameters count once. `schema` lists (name, shape) in the vector's order. `task_schema` adds frozen tensors,
    which must be alike on all devices, and `schema_hash` is its 16 hex digits. All are the same for a module and for
    its wrapped form by torch.compile or DataParallel. For a module on a GPU the vector has two memories, there and
    here, which `load` and `gather` copy; apart: also for one on the CPU. own: tensors that stay on this device (FedBN):
    trained as the others, in the same memory behind the vector, and no part of it. Raises ConfigError that names the
    tensor if one is not float32, not initialised, or shares memory, and if all parameters are frozen.
    """

    def __init__(self, module: nn.Module, apart: bool = False, own: frozenset[str] = frozenset()) -> None:
        self.frozen, self._own = Frozen(module), own
        found = averaged_tensors(module, self.frozen.names)
        tensors = dict(sorted(found.items(), key=lambda each: each[0] in own))
        for name, tensor in tensors.items():
            check_kind(name, tensor)
        check_distinct(tensors)
        self.module = module
        self._constants = Constants(module, {name: tensor for name, tensor in tensors.items() if name not in own})
        self._layout: Schema = [(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
        self.schema: Schema = [each for each in self._layout if each[0] not in own]
        kept = [(f"own {name}", shape) for name, shape in self._layout if name in own]
        self.task_schema = [*self.schema, *kept, *([(f"frozen {self.frozen.digest}", ())] if self.frozen.size else [])]
        self.schema_hash = hash_schema(self.task_schema)
        self.size = sum(math.prod(shape) for _, shape in self.schema)
        if self.frozen.size and not any(isinstance(tensor, nn.Parameter) for tensor in tensors.values()):
            raise ConfigError(_ALL_FROZEN)
        if not self.size:
            raise ConfigError(f"model {type(module).__name__} has no parameters: there is nothing to train")
        self._tied = tied_names(module)
        self._places = _places(self._layout)
        is_variance = {name: _is_variance(name, tensor) for name, tensor in tensors.items()}
        self._variances = _join([self._places[name] for name, _ in self.schema if is_variance[name]], self.size)
        # The vector, and behind it this device's own tensors.
        self._whole: Vector = np.empty(sum(map(len, self._places.values())), np.float32)
        self._values: Vector = self._whole[: self.size]
        device = next(iter(tensors.values())).device
        is_here = device.type == "cpu" and not apart
        self._memory = self._whole if is_here else _take_memory(self._whole.size, device)
        # Two views of the same memory each: share_memory() moves the storage of the one that the module has.
        self._views, self._here = _cut(self._memory, self._layout), _cut(self._whole, self._layout)
        for (name, tensor), view in zip(tensors.items(), _cut(self._memory, self._layout).values(), strict=True):
            self._views[name].copy_(tensor.detach())
            if tensor.device == device:
                tensor.data = view
        self._pull()

    def values(self) -> Vector:
        """Return the live vector, float32, shape (size,): a view, so it changes with the next training step or load.

        For a module on a GPU it holds the values that `load` or `gather` left there.
        """
        return self._values

    def named(self, values: Vector) -> dict[str, Tensor]:
        """Return the module's state_dict with these values, also while it trains; tensors share memory with them.

        values: float32 (size,); read-only ones are copied. A batch norm's variances below 0 count as 0, as in `load`.
        Tensors outside the vector have their present values in the module.
        """
        cut = _cut(values if values.flags.writeable else values.copy(), self.schema)  # torch would warn
        cut |= {name: tensor.clamp(min=0.0) for name, tensor in cut.items() if name.endswith(_VARIANCE)}
        state = {plain_name(name): tensor for name, tensor in unwrap(self.module).state_dict().items()}
        return {name: cut.get(self._tied.get(name, name), tensor) for name, tensor in state.items()}

    def beside(self, values: Vector, own: Mapping[str, Tensor]) -> nn.Module:
        """Return a module that computes with these values, also while this one trains, but does not train itself.

        values: float32 (size,), which a module on the CPU does not copy. own: this device's own tensors, by name.
        """
        device = self.live().device
        tensors = {name: each.to(device) for name, each in (self.named(values) | dict(own)).items()}
        return beside(unwrap(self.module), tensors)

    def live(self) -> Tensor:
        """Return the vector where the module computes, float32, and behind it this device's own tensors.

        Writing to it writes to the module.
        """
        return _as_tensor(self._memory)

    def load(self, vector: Vector) -> None:
        """Copy w into the module, wherever its tensors are by now; a batch norm's variances below 0 become 0.

        A step along the work of several rounds, or along a lie, can make them negative, and then there is no loss.
        Raises LocalProtocolError if it is not float32 of shape (size,), ConfigError if the module's tensors changed
        (see `gather`).
        """
        if vector.shape != (self.size,) or vector.dtype != np.float32:
            raise LocalProtocolError(f"{vector.dtype} {vector.shape} does not fit float32 ({self.size},)")
        moved = self._moved()
        np.copyto(self._values, vector)
        for place in self._variances:
            part = self._values[place.start : place.stop]
            np.copyto(part, 0.0, where=part < 0.0)
        self._push(self.size)
        for name, tensor in moved.items():
            if name in self._own:
                self._views[name].copy_(tensor.detach())
            if not self._come_home(name, tensor):
                with torch.inference_mode():  # else a tensor that was made in inference mode could not be written
                    tensor.copy_(self._views[name])

    def gather(self) -> Vector:
        """Return the live vector after copying the present values of the module's tensors into it, wherever they are.

        Raises ConfigError that names the tensor if one has another shape or dtype, no values, came, went, or shares
        memory with another.
        """
        moved = self._moved()
        found = {name: tensor.detach().to("cpu", copy=True) for name, tensor in moved.items()}
        self._pull()
        for name, values in found.items():
            np.copyto(self._here[name].numpy(), values.resolve_neg().numpy())
        if found:
            self._push(self._whole.size)
        for name in found:
            self._come_home(name, moved[name])
        return self._values

    def check_constants(self, delta: Vector) -> None:
        """Raise ConfigError naming a buffer with other values than the mesh's, if training leaves it as it is.

        delta: float32 (size,), the change of the loaded values by a round of training. It counts the first time that it
        is not 0.
        """
        if self._constants.are_unchecked and delta.any():
            self._constants.check(
                self._here, lambda name: bool(delta[self._places[name].start : self._places[name].stop].any())
            )

    def _push(self, count: int) -> None:
        """Copy the first values from here to the module's memory, if that is another one."""
        if self._memory is not self._whole:
            self.live()[:count].copy_(torch.from_numpy(self._whole[:count]))

    def _pull(self) -> None:
        if self._memory is not self._whole:
            torch.from_numpy(self._whole).copy_(self.live())

    def _moved(self) -> dict[str, Tensor]:
        """Return the tensors that have left their place in the vector."""
        self.frozen.check()
        tensors = averaged_tensors(self.module, self.frozen.names)
        self._check_schema(tensors)
        moved = {name: tensor for name, tensor in tensors.items() if not _is_at(tensor, self._views[name])}
        if moved:
            check_distinct(tensors)
        return moved

    def _check_schema(self, tensors: dict[str, Tensor]) -> None:
        came = [name for name in tensors if name not in self._views]
        for name, shape in self._layout:
            if name not in tensors:
                now = f", {came[0]} is new" if came else ""
                raise ConfigError(f"model tensor {name} {list(shape)} is gone since the model was handed over{now}")
            check_kind(name, tensors[name], " since the model was handed over")
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
        """Move a tensor back that lies elsewhere within the vector, where it would overwrite others; True if it did."""
        is_inside = tensor.untyped_storage().data_ptr() == self._views[name].untyped_storage().data_ptr()
        if is_inside:
            tensor.data = _cut(self._memory, self._layout)[name]
        return is_inside

    def trainable(self) -> list[range]:
        """Return the vector's stretches of trainable parameters, in order, neighbours joined; own ones follow.

        Raises ConfigError if every parameter is frozen.
        """
        trained = [self._places[name] for name, parameter in self._parameters() if parameter.requires_grad]
        if not trained:
            raise ConfigError(_ALL_FROZEN)
        return _join(sorted(trained, key=lambda place: place.start), self.size)

    def buffers(self) -> list[range]:
        """Return the vector's stretches without parameters, such as batch-norm statistics, neighbours joined."""
        parameters = {name for name, _ in self._parameters()}
        return _join([self._places[name] for name, _ in self.schema if name not in parameters], self.size)

    def own_state(self) -> dict[str, Tensor]:
        """Return this device's own tensors, by name: the module's tensors, which change with the next step."""
        tensors = averaged_tensors(self.module, self.frozen.names)
        return {name: tensors[name].detach() for name, _ in self._layout if name in self._own}

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
        """Raise ConfigError naming a parameter that has left the vector, or a gradient that has left these vectors.

        Steps along the vector would then train something else than the module.
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
        """Yield the parameters of the vector. Raises ConfigError if a frozen one is trained now."""
        self.frozen.check()
        for name, parameter in unwrap(self.module).named_parameters():
            if (plain := plain_name(name)) not in self.frozen.names:
                yield plain, parameter

    def _gradient(self, name: str, stretches: list[range], gradients: list[Tensor]) -> Tensor:
        place = self._places[name]
        index = bisect_right(stretches, place.start, key=lambda stretch: stretch.start) - 1
        begin = place.start - stretches[index].start
        return gradients[index][begin : begin + len(place)].view(self._views[name].shape)


def hash_schema(schema: Schema) -> str:
    """Return 16 hex digits that tell two models' names and shapes apart."""
    lines = "\n".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in schema)
    return hashlib.blake2b(lines.encode(), digest_size=8).hexdigest()


def hash_task(
    schema: Schema,
    class_names: Iterable[str],
    channel_names: Iterable[str] = (),
    rate_hz: float | None = None,
    more: Iterable[str] = (),
) -> str:
    """Hash the schema, classes, channels and rate: layers of one size with another meaning must not meet.

    more: further facts, a line each, such as the size of images. Without these, channel names and a rate the hash is
    the one of older versions.
    """
    classes, channels = (f"class {name}" for name in class_names), (f"channel {name!r}" for name in channel_names)
    rate = [] if rate_hz is None else [f"rate {rate_step(rate_hz)}"]
    return hash_schema([*schema, *((name, ()) for name in (*classes, *channels, *rate, *more))])


def units_meaning(channel_units: Iterable[str]) -> tuple[str, ...]:
    """Return the units' lines for `hash_task`; () if no unit is known, as in older versions."""
    return tuple(f"channel {number} in {unit}" for number, unit in enumerate(channel_units) if unit)


def older_hashes(schema: Schema, class_names: Sequence[str], channel_names: Sequence[str]) -> tuple[str, ...]:
    """Return the hashes of the same task by versions that knew no rates, or no names of channels."""
    return hash_task(schema, class_names, channel_names), hash_task(schema, class_names)


def _is_variance(name: str, tensor: Tensor) -> bool:
    """Return True for a batch norm's running variance."""
    return name.endswith(_VARIANCE) and not isinstance(tensor, nn.Parameter)


def _is_at(tensor: Tensor, view: Tensor) -> bool:
    """Return True if the tensor lies where the view does, element by element."""
    return not tensor.numel() or (
        tensor.device == view.device and tensor.data_ptr() == view.data_ptr() and tensor.stride() == view.stride()
    )


def _places(schema: Schema) -> dict[str, range]:
    """Return the place of each tensor in the vector."""
    sizes = [math.prod(shape) for _, shape in schema]
    return {
        name: range(stop - size, stop) for (name, _), size, stop in zip(schema, sizes, accumulate(sizes), strict=True)
    }


def _join(places: Iterable[range], edge: int) -> list[range]:
    """Join neighbours, except those that meet at the edge. places: in order."""
    stretches: list[range] = []
    for place in places:
        if stretches and stretches[-1].stop == place.start and place.start != edge:
            place = range(stretches.pop().start, place.stop)
        stretches.append(place)
    return stretches


def _cut(memory: Vector | Tensor, schema: Schema) -> dict[str, Tensor]:
    """Return views of the vector by name; views of numpy memory have a torch storage of their own."""
    with torch.inference_mode(False):  # else autograd could never use them
        flat = _as_tensor(memory)
        places = _places(schema)
        return {name: flat[places[name].start : places[name].stop].view(shape) for name, shape in schema}


def _as_tensor(memory: Vector | Tensor) -> Tensor:
    return memory if isinstance(memory, Tensor) else torch.from_numpy(memory)


def _take_memory(size: int, device: torch.device) -> Vector | Tensor:
    with torch.inference_mode(False):
        return np.empty(size, np.float32) if device.type == "cpu" else torch.empty(size, device=device)


def beside(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Return another module that computes as this one with these tensors, by their names in its `state_dict`.

    This one may train meanwhile in another thread. Use the returned module for inference alone.
    """
    return _copy(module, "", tensors, {})


def _copy(module: nn.Module, prefix: str, tensors: Mapping[str, Tensor], known: dict[int, nn.Module]) -> nn.Module:
    """Copy a module and its parts. known: existing copies, by the id of the original: a part may have two names."""
    if id(module) in known:
        return known[id(module)]
    copied: nn.Module = object.__new__(type(module))
    known[id(module)] = copied
    copied.__dict__.update(module.__dict__)
    for kind in ("_parameters", "_buffers"):
        copied.__dict__[kind] = _named(getattr(module, kind), prefix, tensors)
    parts = module._modules.items()
    copied.__dict__["_modules"] = {
        name: part and _copy(part, f"{prefix}{name}.", tensors, known) for name, part in parts
    }
    return copied


def _named(entries: Mapping[str, _Entry], prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, _Entry | Tensor]:
    return {name: tensors.get(plain_name(prefix + name), entry) for name, entry in entries.items()}
