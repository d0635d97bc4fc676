"""Models for windows of shape (channels, time): a built-in one (`mdl.learning.built_in`), or the user's own factory.

Each starts with a batch norm over the input channels: the mesh averages its statistics like everything else, so no
device has to know the mean of all data. The same name, shape and seed give the same parameters on every device.

The losses of training are here, too, and the scale of a model's outputs where they are numbers. The network gives
numbers around 0; its outputs are those times the spread of the targets, plus their mean. Both are buffers of the
module, so the mesh averages them like a batch norm's statistics. Each device brings the mean of its own targets and
their spread around the mesh's mean; nothing else of its targets leaves it. An exported model gives numbers in their
unit. Learning from another model's probabilities has a loss of its own (Colla, Eq. 2). Knows nothing of rounds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mdl.data.windows import targets_of
from mdl.errors import ConfigError, did_you_mean
from mdl.learning.built_in import MODELS, SHORTEST_TIME
from mdl.learning.flat import unwrap
from mdl.learning.networks import build_cnn, check_sizes, is_configured, parse_sizes
from mdl.own import Own
from mdl.task import Targets

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Numbers(nn.Module):
    """A network of numbers with the scale of its targets. forward: (batch, k), in their units.

    target_mean, target_deviation: float32 (k,); a deviation of 0 means that no device has brought one yet.
    """

    target_mean: Tensor
    target_deviation: Tensor

    def __init__(self, network: nn.Module, count: int) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("target_mean", torch.zeros(count))
        self.register_buffer("target_deviation", torch.zeros(count))

    def forward(self, x: Tensor) -> Tensor:
        numbers: Tensor = self.network(x)
        return numbers * self.scale() + self.target_mean

    def scale(self) -> Tensor:
        """Return the spread, (k,); 1 where it is not known."""
        return torch.where(self.target_deviation > 0, self.target_deviation, 1.0)

    def take(self, mean: NDArray[Any], deviation: NDArray[Any]) -> None:
        """Set mean and deviation in place, on any device."""
        self.target_mean.copy_(torch.from_numpy(mean.astype(np.float32)))
        self.target_deviation.copy_(torch.from_numpy(deviation.astype(np.float32)))


class TargetScale:
    """One device's part in the scale of numbers, before and after it trains; for other targets it does nothing.

    y: its targets, as in `Windows`.
    """

    def __init__(self, module: nn.Module, y: NDArray[Any]) -> None:
        inner = unwrap(module)
        self._numbers = inner if isinstance(inner, Numbers) else None
        self._y = y

    def begin(self) -> None:
        """Keep the mesh's scale; in the first round, where there is none, take the device's own."""
        if self._numbers is not None and not bool(self._numbers.target_deviation.any()):
            self._numbers.take(self._y.mean(axis=0, dtype=np.float64), self._y.std(axis=0, dtype=np.float64))

    def end(self) -> None:
        """Set the device's own mean, and the spread of its targets around the mean it trained by.

        So the mesh's spread includes the differences between devices.
        """
        if self._numbers is not None:
            around = self._numbers.target_mean.detach().to("cpu", torch.float64).numpy()
            spread = np.sqrt(np.square(self._y - around).mean(axis=0, dtype=np.float64))
            self._numbers.take(self._y.mean(axis=0, dtype=np.float64), spread)


def loss_of(module: nn.Module, y: NDArray[Any], label_smoothing: float = 0.0) -> Loss:
    """Return the loss to minimise: cross-entropy of classes; for labels binary cross-entropy, in nats a label.

    For numbers it is the squared error in units of their spread, by the module's scale if it is `Numbers`.
    """
    targets = targets_of(y)
    if targets == "classes":
        return nn.CrossEntropyLoss(label_smoothing=label_smoothing)
    if targets == "labels":
        return nn.BCEWithLogitsLoss()
    inner = unwrap(module)
    scale = inner.scale if isinstance(inner, Numbers) else lambda: 1.0
    return lambda numbers, wanted: ((numbers - wanted) / scale()).square().mean()


def to_tensor(y: NDArray[Any]) -> Tensor:
    """Return a batch's targets in their loss's type: int64 classes, else float32."""
    return torch.from_numpy(np.array(y, np.int64 if targets_of(y) == "classes" else np.float32))


def soft_cross_entropy(logits: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return Eq. 2: -T^2 mean_n sum_k q_nk log softmax(z_n / T)_k, a scalar. No gradient reaches the teacher.

    logits: (n, K) of the student; teacher: q, (n, K), softened with the same T. T^2 keeps the gradient's size.
    """
    log_p = torch.log_softmax(logits / temperature, dim=-1)
    return -(temperature**2) * (teacher.detach() * log_p).sum(dim=-1).mean()


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
