"""Fine-tuning (DeepType 5.4): only the last layer learns, the layers before it are a fixed feature extractor.

For any module with a linear or factored last layer (`compression`). The features of a sample stay the same while only
the last layer learns: `cache_features` computes them once for all epochs (an extra: the paper does not).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from mdl.errors import ConfigError
from mdl.personal.compression import FactoredLinear


def find_output_layer(module: nn.Module) -> str:
    """Return the name of the linear layer that was registered last. Raises ConfigError if there is none."""
    factored = tuple(f"{name}." for name, layer in module.named_modules() if isinstance(layer, FactoredLinear))
    found = [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear | FactoredLinear) and not name.startswith(factored)
    ]
    if not found or found == [""]:
        raise ConfigError(f"{type(module).__name__} has no linear layer behind others: nothing to tune by itself")
    return str(found[-1])


def tune_only(module: nn.Module, name: str) -> dict[str, nn.Parameter]:
    """Freeze all but one layer; return the parameters that still learn, by name."""
    layer = {id(parameter) for parameter in module.get_submodule(name).parameters()}
    for parameter in module.parameters():
        parameter.requires_grad_(id(parameter) in layer)
    return trainable(module)


def tune_all(module: nn.Module) -> dict[str, nn.Parameter]:
    """Let every parameter learn (again); return them by name."""
    module.requires_grad_(True)
    return trainable(module)


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


def cache_features(module: nn.Module, name: str, inputs: Iterable[Tensor]) -> Tensor:
    """Return the inputs of a layer for these batches, one after the other: (n, features); in evaluation mode.

    The layer's own result is not computed twice: `module.get_submodule(name)(features)` is the module's answer.
    """
    kept: list[Tensor] = []
    hook = module.get_submodule(name).register_forward_pre_hook(lambda _, given: kept.append(given[0].detach()))
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            for batch in inputs:
                module(batch)
    finally:
        hook.remove()
        module.train(was_training)
    return torch.cat(kept)
