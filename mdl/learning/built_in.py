"""The built-in models by name, a row each: help, errors and checks derive from it. Loads torch when one is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import nn

Factory: TypeAlias = "Callable[[int, int, int], nn.Module]"

# Windows below this leave the pooling layers nothing to pool.
SHORTEST_TIME = 16


@dataclass(frozen=True)
class BuiltInModel:
    """One model. about: in a few words. load: returns its factory, called with channels, time and classes.

    form: an example of --model with options; "": it takes none.
    """

    about: str
    load: Callable[[], Factory]
    form: str = ""


def _lenet() -> Factory:
    from mdl.learning.networks import LENET, build_cnn

    return partial(build_cnn, LENET)


def _fcn() -> Factory:
    from mdl.learning.networks import build_fcn

    return build_fcn


def _alexnet() -> Factory:
    from mdl.learning.networks import ALEXNET, build_cnn

    return partial(build_cnn, ALEXNET)


def _cnn_lstm() -> Factory:
    from mdl.learning.networks import CnnLstm

    return CnnLstm


# MDLdroid trains lenet, alexnet and cnn-lstm.
MODELS = {
    "lenet": BuiltInModel("LeNet over time: two convolutions with pooling, two dense layers", _lenet),
    "fcn": BuiltInModel("convolutions, then the mean over time: as many parameters for windows of any length", _fcn),
    "alexnet": BuiltInModel("AlexNet over time: five convolutions, three dense layers, dropout", _alexnet),
    "cnn-lstm": BuiltInModel("convolutions find motifs, a two-layer LSTM reads their order", _cnn_lstm),
    "cnn": BuiltInModel("as lenet, or by its sizes", _lenet, "cnn?channels=32,64&kernel=5&hidden=128"),
}


def model_forms() -> list[str]:
    """Return what --model may name: each model, with an example of its options, and a function of the user's."""
    return [*(known.form or name for name, known in MODELS.items()), "package.module:factory"]
