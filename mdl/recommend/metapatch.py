"""MetaPatch: small patches in a frozen model, all of their parameters from one vector a device (Eq. 1 to 3).

A patch stands behind a layer: out = f_l(x) + h_l(f_l(x)), h_l a bottleneck (Eq. 1). The parameters of all patches of a
device are theta_l = Theta_l * vector (Eq. 2): the basis Theta is the same on all devices, the vector is a device's own.
Samples of many devices go through in one pass: each brings its vector as it brings its features. Without vectors there
is no patch at all, and the model answers as if it had never been patched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import torch
from torch import Tensor, nn

from mdl.errors import ConfigError

# Scale of the up-projections that a vector of ones would generate: a new patch changes little at first.
_UP_SCALE = 0.3


class Junction(msgspec.Struct, frozen=True):
    """A place for a patch: behind the module `name` of a model, an output with `width` entries along `dim`."""

    name: str
    width: int
    dim: int = -1


class Basis(nn.Module):
    """Theta of all junctions, (sum of K_l, vector size): frozen on devices and learned on the cloud.

    bottleneck: units of a patch. K_l = 2 width bottleneck + bottleneck + width. Starts from torch's generator.
    """

    def __init__(self, junctions: Sequence[Junction], size: int, bottleneck: int = 16) -> None:
        super().__init__()
        self.junctions = tuple(junctions)
        self.size, self.bottleneck = size, bottleneck
        self.counts = [2 * each.width * bottleneck + bottleneck + each.width for each in self.junctions]
        self.theta = nn.Parameter(torch.cat([self._start(each.width) for each in self.junctions]))

    def generate(self, vectors: Tensor) -> list[Tensor]:
        """Return Eq. 2: the parameters (..., K_l) of each junction's patch, for vectors (..., size)."""
        return list(torch.split(vectors @ self.theta.T, self.counts, dim=-1))

    def _start(self, width: int) -> Tensor:
        hidden, size = self.bottleneck, self.size
        parts = (
            torch.randn(width * hidden, size) / (width * size) ** 0.5,
            torch.zeros(hidden, size),
            _UP_SCALE * torch.randn(width * hidden, size) / (hidden * size) ** 0.5,
            torch.zeros(width, size),
        )
        return torch.cat(parts)


def patch(outputs: Tensor, parameters: Tensor, bottleneck: int) -> Tensor:
    """Return h_l of outputs (B, n, width), each of the B with parameters of its own, (B, K_l)."""
    width, hidden = outputs.shape[-1], bottleneck
    down, down_bias, up, up_bias = torch.split(parameters, [hidden * width, hidden, hidden * width, width], dim=-1)
    narrow = torch.baddbmm(down_bias[:, None], outputs, down.view(-1, width, hidden))
    return torch.baddbmm(up_bias[:, None], torch.relu(narrow), up.view(-1, hidden, width))


@contextmanager
def patched(model: nn.Module, basis: Basis, vectors: Tensor | None) -> Iterator[None]:
    """Patch the model within: row b of its input is answered with the patches of vectors[b], (B, size).

    vectors of shape (size,) are for all rows; None is the gate: the model is as it was. One thread at a time. Raises
    ConfigError if the model has no such junction, or one of another width.
    """
    if vectors is None:
        yield
        return
    generated = basis.generate(vectors if vectors.dim() == 2 else vectors[None])
    handles = []
    try:
        for junction, parameters in zip(basis.junctions, generated, strict=True):
            module = _find(model, junction.name)
            handles.append(module.register_forward_hook(_make_hook(junction, parameters, basis.bottleneck)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _make_hook(junction: Junction, parameters: Tensor, bottleneck: int):  # type: ignore[no-untyped-def]
    def add_patch(_: nn.Module, __: object, outputs: Tensor) -> Tensor:
        moved = outputs.movedim(junction.dim, -1)
        if moved.shape[-1] != junction.width:
            raise ConfigError(f"junction {junction.name!r} has {moved.shape[-1]} outputs, not {junction.width}")
        flat = moved.reshape(moved.shape[0], -1, junction.width)
        each = parameters if len(parameters) == len(flat) else parameters.expand(len(flat), -1)
        return outputs + patch(flat, each, bottleneck).view(moved.shape).movedim(-1, junction.dim)

    return add_patch


def _find(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        names = ", ".join(each for each, _ in model.named_modules() if each)
        raise ConfigError(f"the model has no layer {name!r} to patch; it has {names}") from None
