"""A second module with other values, beside the one that trains: tests need neither a turn nor a second model.

It is the same tree of modules with its own tensors, which are views of given values: a few kilobytes. Tensors outside
the vector (frozen parameters, counts) are shared. Importing this module never changes the one that trains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor, nn

from mdl.learning.tensors import plain_name

_Entry = TypeVar("_Entry")


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
