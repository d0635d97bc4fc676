"""One flat float32 vector that a torch module lives in; and a module with other values beside the one that trains.

The mesh averages all trainable parameters and the float buffers of the state_dict. They become views of one buffer.
Reading w is free, loading w(t) is one copy, and the mesh averages exactly the values that the module computes with.
Integer buffers are counters of one device and stay in place. So do buffers that the module leaves out of its
state_dict.

A parameter that is frozen (requires_grad is False) when the module is handed over stays as it is. It is neither sent
nor merged, and may be of any type and on any device. It must be the same everywhere, which its digest tells. The same
holds for a buffer with infinite values or NaN, such as a causal mask: it has no mean. The first round alone shows if
training changes a finite buffer (`Constants`).

Tensors on a GPU are copied. Much of torch moves a tensor elsewhere without a word (`.to()`, `p.data = ...`,
`share_memory()`, a buffer that is assigned anew). It stays there, and its values are copied, out by `load` and in by
`gather`.

The module beside is the same tree of modules with its own tensors, which are views of given values: a few kilobytes. So
tests need neither a turn nor a second model. Tensors outside the vector (frozen parameters, counts) are shared.
Knows nothing of training, rounds or files.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from mdl.errors import ConfigError, LocalProtocolError
from mdl.protocol.delta import new_hash
from mdl.protocol.grid import Vector
from mdl.task import rate_step

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
