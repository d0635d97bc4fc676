"""The built-in networks for windows: convolutional ones by their sizes (MDLdroid's stage 1), FCN, and CNN with LSTM.

`cnn?channels=32,64&kernel=5&pool=2&hidden=128&dropout=0.5` is a batch norm over the input, and for each number of
channels a convolution over time with a batch norm, ReLU and pooling. Each number of hidden units adds dropout and a
dense layer with ReLU; a dense layer to the outputs follows. kernel, pool: one for all convolutions, or one for each.
LeNet and AlexNet here are two such networks. Recurrent layers run under autocast to bfloat16 (`run_recurrent`), on
processors with libraries that cannot run them in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from mdl.data.sources import split_options
from mdl.data.spec import describe_choices
from mdl.errors import ConfigError

# Limits of one layer and of the network: models that train on a phone have a thousandth of it.
_MOST_CHANNELS, _MOST_HIDDEN, _LONGEST_KERNEL, _MOST_POOL = 1024, 4096, 63, 16
_MOST_CONVOLUTIONS, _MOST_DENSE = 12, 6
MOST_PARAMETERS = 100_000_000
_Steps = TypeVar("_Steps", Tensor, PackedSequence)


@dataclass(frozen=True)
class CnnSizes:
    """kernels, pools: of each convolution; pool 1 is none. dropout: before each dense layer, or the outputs."""

    channels: tuple[int, ...] = (32, 64)
    kernels: tuple[int, ...] = (5, 5)
    pools: tuple[int, ...] = (2, 2)
    hidden: tuple[int, ...] = (64,)
    dropout: float = 0.5

    def time_left(self, time: int) -> int:
        """Return the samples of a window that are left after all pooling."""
        for pool in self.pools:
            time //= pool
        return time

    def count(self, channels: int, time: int, outputs: int) -> int:
        """Return the number of parameters, without taking memory for them."""
        total, before = 2 * channels, channels
        for filters, kernel in zip(self.channels, self.kernels, strict=True):
            total, before = total + filters * (before * kernel + 3), filters
        before *= self.time_left(time)
        for units in (*self.hidden, outputs):
            total, before = total + units * (before + 1), units
        return total


LENET = CnnSizes()
ALEXNET = CnnSizes((64, 128, 192, 192, 128), (7, 5, 3, 3, 3), (2, 2, 1, 1, 2), (512, 256))


def is_configured(name: str) -> bool:
    """Return True for `cnn` with or without sizes."""
    return name.partition("?")[0] == "cnn"


def plain_sizes(name: str) -> tuple[str, ...]:
    """Return the sizes of a `cnn`, on which devices must agree beside its parameters' shapes; () for other models."""
    return (f"model {parse_sizes(name)}",) if is_configured(name) else ()


def parse_sizes(name: str) -> CnnSizes:
    """Parse the sizes that `cnn?...` names. Raises ConfigError naming the option, its value and what would be valid."""
    given = split_options(name, "model")[1]
    options = ("channels", "kernel", "pool", "hidden", "dropout")
    for option in given:
        if option not in options:
            raise ConfigError(f"model {name!r}: unknown option {option!r}; {describe_choices(option, options)}")

    def numbers(option: str, default: str, least: int, most: int, longest: int) -> tuple[int, ...]:
        text = given.get(option, default)
        found = [int(part) for part in text.split(",") if part.isascii() and part.isdigit() and len(part) < 6]
        if (
            len(found) != text.count(",") + 1
            or len(found) > longest
            or not all(least <= each <= most for each in found)
        ):
            raise _wrong(name, option, text, f"1 to {longest} whole numbers from {least} to {most}, as {default}")
        return tuple(found)

    channels = numbers("channels", "32,64", 1, _MOST_CHANNELS, _MOST_CONVOLUTIONS)
    hidden = () if given.get("hidden") in ("", "0") else numbers("hidden", "64", 1, _MOST_HIDDEN, _MOST_DENSE)
    each = []
    for option, default, most in (("kernel", "5", _LONGEST_KERNEL), ("pool", "2", _MOST_POOL)):
        found = numbers(option, default, 1, most, _MOST_CONVOLUTIONS)
        if len(found) not in (1, len(channels)):
            raise _wrong(name, option, given[option], f"one number, or {len(channels)}: one for each of channels=")
        each.append(found * len(channels) if len(found) == 1 else found)
    if even := [kernel for kernel in each[0] if kernel % 2 == 0]:
        raise _wrong(name, "kernel", str(even[0]), f"an odd number, as {even[0] + 1}: its middle is a sample")
    try:
        dropout = float(given.get("dropout", "0.5"))
    except ValueError:
        dropout = -1.0
    if not 0 <= dropout < 1:
        raise _wrong(name, "dropout", given["dropout"], "a number from 0 to below 1, as 0.5")
    return CnnSizes(channels, each[0], each[1], hidden, dropout)


def check_sizes(name: str, sizes: CnnSizes, channels: int, time: int, outputs: int) -> None:
    """Check before any memory is taken. Raises ConfigError for windows that are too short, and too many parameters."""
    if not sizes.time_left(time):
        pooled = math.prod(sizes.pools)
        raise ConfigError(
            f"model {name!r}: its pooling leaves nothing of {time} samples; take windows of {pooled}, or less pool="
        )
    if (count := sizes.count(channels, time, outputs)) > MOST_PARAMETERS:
        raise ConfigError(f"model {name!r}: {count:,} parameters; at most {MOST_PARAMETERS:,}")


def build_cnn(sizes: CnnSizes, channels: int, time: int, outputs: int) -> nn.Module:
    """Build the network of these sizes; it maps (batch, channels, time) to (batch, outputs)."""
    layers: list[nn.Module] = [nn.BatchNorm1d(channels)]
    before = channels
    for filters, kernel, pool in zip(sizes.channels, sizes.kernels, sizes.pools, strict=True):
        layers += convolve(before, filters, kernel, pool)
        before = filters
    layers.append(nn.Flatten())
    before *= sizes.time_left(time)
    for units in sizes.hidden:
        layers += [nn.Dropout(sizes.dropout), nn.Linear(before, units), nn.ReLU()]
        before = units
    if not sizes.hidden:
        layers.append(nn.Dropout(sizes.dropout))
    return nn.Sequential(*layers, nn.Linear(before, outputs))


def convolve(channels: int, filters: int, kernel: int, pool: int = 2) -> list[nn.Module]:
    """Return one convolution over time with its batch norm, ReLU and pooling; only the pooling changes the length."""
    layers = [nn.Conv1d(channels, filters, kernel, padding=kernel // 2), nn.BatchNorm1d(filters), nn.ReLU()]
    return [*layers, nn.MaxPool1d(pool)] if pool > 1 else layers


def _wrong(name: str, option: str, given: str, expected: str) -> ConfigError:
    return ConfigError(f"model {name[:200]!r}: option {option}={given[:40]}: expected {expected}")


def build_fcn(channels: int, time: int, classes: int) -> nn.Module:
    """Build a network of convolutions, then the mean over time: as many parameters for windows of any length.

    The shape is that of Wang et al. 2017 (arXiv 1611.06455), with pooling between and a third of the filters: 43,000
    parameters for 9 channels and 6 classes.
    """
    return nn.Sequential(
        nn.BatchNorm1d(channels),
        *convolve(channels, 32, kernel=9),
        *convolve(32, 64, kernel=9),
        *convolve(64, 64, kernel=5),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64, classes),
    )


class CnnLstm(nn.Module):
    """The paper's hybrid: convolutions find motifs, a two-layer LSTM reads their order.

    11.6 M parameters, 46.4 MB, for 9 x 128 windows and 6 classes: the size MDLdroid measures its traffic with.
    """

    def __init__(self, channels: int, time: int, classes: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.BatchNorm1d(channels), *convolve(channels, 64, kernel=5), *convolve(64, 128, kernel=5)
        )
        self.lstm = nn.LSTM(128, 922, num_layers=2, batch_first=True)
        self.dropout = nn.Dropout(0.5)
        self.dense = nn.Linear(922, 922)
        self.classify = nn.Linear(922, classes)

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = run_recurrent(self.lstm, self.convolutions(x).transpose(1, 2))
        logits: Tensor = self.classify(self.dropout(torch.relu(self.dense(steps[:, -1]))))
        return logits


def run_recurrent(layer: nn.RNNBase, steps: _Steps, state: Any = None) -> Any:
    """Return the result of `layer(steps, state)`, in single precision where the processor has no bfloat16.

    There oneDNN raises RuntimeError for recurrent layers in bfloat16; it computes all other layers in some way.
    """
    values = steps.data if isinstance(steps, PackedSequence) else steps
    if values.device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return layer(steps, state)
    with torch.autocast("cpu", enabled=False):
        return layer(steps.float() if values.dtype is torch.bfloat16 else steps, state)
