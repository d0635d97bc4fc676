"""Fine-tuning (DeepType 5.4): only the last layer learns, the layers before it are a fixed feature extractor."""

from __future__ import annotations

from torch import nn


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
