"""Models for windows of shape (channels, time): a built-in one (`mdl.learning.built_in`), or the user's own factory.

Each starts with a batch norm over the input channels: the mesh averages its statistics like everything else, so no
device has to know the mean of all data. The same name, shape and seed give the same parameters on every device.
"""

from __future__ import annotations

import inspect

import torch
from torch import Tensor, nn

from mdl.errors import ConfigError, did_you_mean
from mdl.learning.built_in import MODELS, SHORTEST_TIME
from mdl.learning.networks import build_cnn, check_sizes, is_configured, parse_sizes
from mdl.learning.targets import Numbers
from mdl.own import Own
from mdl.task import Targets


def build_model(
    name: str | Own,
    channels: int,
    time: int,
    classes: int,
    seed: int,
    height: int | None = None,
    targets: Targets = "classes",
) -> nn.Module:
    """Build a module that maps (batch, channels, time) to logits (batch, classes), its parameters fixed by `seed`.

    name: one of MODELS, cnn with its sizes (`mdl.learning.networks`), or a function of the user's (`mdl.own`), called
    with those of channels, time, classes that it accepts. A text is never imported. height: of images (batch, channels,
    height, time), where `time` is the width; they need a function, which is called with height and width. targets: the
    meaning of `classes`; numbers come out in the data's scale (`Numbers`), and a function's own module gives them
    around 0. The global random state stays as it was. Raises ConfigError in one line that names the problem.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(name, Own):
            sizes = {"time": time} if height is None else {"height": height, "width": time}
            module = _call_own(name, {"channels": channels, **sizes, "classes": classes, "outputs": classes})
            _check_output(name.text, module, (2, channels, *sizes.values()), classes)
        elif height is not None:
            raise ConfigError(
                f"model {name!r} takes windows (channels, samples), and these are images: bring your own, --model "
                "package.module:factory with factory(channels, height, width, classes)"
            )
        else:
            module = _build(name, channels, time, classes, targets)
    return (Numbers(module, classes) if targets == "numbers" else module).train()


def built_in_shapes(
    name: str, channels: int, time: int, classes: int, targets: Targets = "classes"
) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a built-in model, without memory. Raises ConfigError as `build_model`."""
    with torch.device("meta"):
        module = _build(name, channels, time, classes, targets)
        module = Numbers(module, classes) if targets == "numbers" else module
        return {key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}


def _build(name: str, channels: int, time: int, classes: int, targets: Targets) -> nn.Module:
    if ":" in name:
        raise ConfigError(f"model {name!r} names a function: nothing is imported unless you say so with --model")
    if name not in MODELS and not is_configured(name):
        base = name.partition("?")[0]
        if base in MODELS:
            raise ConfigError(f"model {name!r}: {base} takes no options; {MODELS['cnn'].form} does")
        hint = did_you_mean(base, MODELS, "did you mean {!r}? ")
        raise ConfigError(f"unknown model {name!r}: {hint}valid are {', '.join(MODELS)} or package.module:factory")
    fewest = 2 if targets == "classes" else 1
    if channels < 1 or classes < fewest or time < SHORTEST_TIME:
        raise ConfigError(
            f"model {name!r} needs windows of at least 1 channel and {SHORTEST_TIME} samples, and {fewest} {targets}: "
            f"these have {channels}, {time} and {classes}"
        )
    if not is_configured(name):
        return MODELS[name].load()(channels, time, classes)
    sizes = parse_sizes(name)
    check_sizes(name, sizes, channels, time, classes)
    return build_cnn(sizes, channels, time, classes)


def _call_own(own: Own, offered: dict[str, int]) -> nn.Module:
    accepted = inspect.signature(own.function).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values()):
        offered = {key: value for key, value in offered.items() if key in accepted}
    try:
        module = own.function(**offered)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"model {own.text!r}: its factory failed with {_one_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model {own.text!r} returned {type(module).__name__}, not a torch.nn.Module")
    return module


def _check_output(name: str, module: nn.Module, shape: tuple[int, ...], classes: int) -> None:
    """Check the output for two windows of zeros, in evaluation mode so that no statistic moves. Raises ConfigError."""
    module.eval()
    try:
        with torch.no_grad():
            logits = module(torch.zeros(shape))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ConfigError(f"model {name!r} does not take windows of shape {shape}: {_one_line(error)}") from error
    found = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if found != (shape[0], classes):
        raise ConfigError(f"model {name!r} returns {found} for {shape[0]} windows, not ({shape[0]}, {classes}) logits")


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
