"""The Q-network in plain NumPy, its weights on disk, and its rule in two picks: a peer needs no torch.

One set of weights serves every number of devices, whatever their order.

Each device is encoded by the same layers. Means and maxima over the devices tell each of them about the others, twice
(Zaheer et al., Deep Sets, 2017). Then every device has an advantage and so has waiting, around one value of the state
(dueling, Wang et al., 2016). `mdl.scheduler.training.qnet_torch` is the same network in torch, for training.

`Picks` is a rule for many rows at once: the sender first, and then the receiver.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from mdl.errors import DataError, StorageError
from mdl.files.checkpoint import read_safetensors
from mdl.reading import decode_json
from mdl.scheduler.policies.chain import Bools, Floats, Integers, Stand
from mdl.scheduler.policies.features import (
    COLUMN,
    FEATURES,
    UNVARIED,
    Look,
    look_at,
    observe_receivers,
    observe_senders,
)
from mdl.scheduler.policies.layout import lay_out, picks_now, prospects
from mdl.scheduler.policies.trained_under import describe_difference, stamp
from mdl.writing import write_bytes

INVALID_Q = -1e9
HIDDEN = 48
_MAY_PICK = COLUMN["may_pick"]
# Pools of a layer: mean and maximum over all, and over those that may be picked.
_POOLS = 4
_HEADS = ("advantage", "state2")
_METADATA_KEY = "mdl"
_STAMP_KEY = "trained_under"

Weights = dict[str, npt.NDArray[np.float32]]


class PolicyFileError(DataError):
    """A file cannot be read as a policy: names the file and the problem."""

    hint = "mdl scheduler train makes a policy for this version; without a file the shipped one decides"


class UnfitPolicyError(PolicyFileError):
    """A readable file holds no policy that this version can use; reading it again will not help."""


def layer_shapes(features: int = len(FEATURES), hidden: int = HIDDEN) -> dict[str, tuple[int, int]]:
    """Return (outputs, inputs) of every linear layer, in order."""
    return {
        "encode1": (hidden, features),
        "encode2": (hidden, hidden),
        "around1": (hidden, _POOLS * hidden),
        "own1": (hidden, hidden),
        "around2": (hidden, _POOLS * hidden),
        "own2": (hidden, hidden),
        "advantage": (1, hidden),
        "state1": (hidden, _POOLS * hidden),
        "state2": (2, hidden),
    }


class NumpyQ:
    """The network as plain arrays: decides without torch, and rolls out batches in worker processes."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self._linear = {
            name: (np.ascontiguousarray(weights[f"{name}.weight"].T), weights[f"{name}.bias"])
            for name in layer_shapes()
        }

    def __call__(self, features: Floats, exists: Bools, valid: Bools) -> Floats:
        """Return Q (B, M + 1) of features (B, M, F); picks that are not valid have INVALID_Q."""
        if len(features) == 1 and exists.all():
            return self._decide_one(features[0], valid)
        rows, count, _ = features.shape
        may_pick = features[:, :, _MAY_PICK] > 0
        counts = (
            np.maximum(1, exists.sum(axis=1, keepdims=True)).astype(np.float32),
            np.maximum(1, may_pick.sum(axis=1, keepdims=True)).astype(np.float32),
        )
        masks = (exists[:, :, None].astype(np.float32), may_pick[:, :, None].astype(np.float32))

        def apply(name: str, values: Floats) -> Floats:
            weight, bias = self._linear[name]
            out: Floats = values @ weight
            out += bias
            return out

        def pool(values: Floats) -> Floats:
            # After a ReLU nothing is below 0, so a masked device can never be the maximum.
            parts = []
            for mask, number in zip(masks, counts, strict=True):
                masked = values * mask
                parts += [masked.sum(axis=1) / number, masked.max(axis=1)]
            return np.concatenate(parts, axis=1)

        flat = np.maximum(apply("encode1", features.reshape(rows * count, features.shape[2])), 0.0)
        flat = np.maximum(apply("encode2", flat), 0.0)
        for around, own in (("around1", "own1"), ("around2", "own2")):
            context = apply(around, pool(flat.reshape(rows, count, HIDDEN)))
            mixed = apply(own, flat).reshape(rows, count, HIDDEN)
            mixed += context[:, None, :]
            flat = np.maximum(mixed, 0.0).reshape(rows * count, HIDDEN)
        advantage = apply("advantage", flat).reshape(rows, count)
        state = apply("state2", np.maximum(apply("state1", pool(flat.reshape(rows, count, HIDDEN))), 0.0))
        q = np.concatenate([advantage, state[:, 1:]], axis=1) + state[:, :1]
        return np.where(valid, q, np.float32(INVALID_Q))

    def _decide_one(self, features: Floats, valid: Bools) -> Floats:
        """Return the same for one chain in which all devices exist, in fewer, smaller steps: it must be quick."""
        linear, count = self._linear, len(features)
        may_pick = np.flatnonzero(features[:, _MAY_PICK])
        means = np.empty((2, count), dtype=np.float32)
        means[0], means[1] = 1.0 / count, features[:, _MAY_PICK] / max(1, len(may_pick))
        pooled = np.zeros(_POOLS * HIDDEN, dtype=np.float32)

        def pool(values: Floats) -> Floats:
            pooled.reshape(2, 2, HIDDEN)[:, 0] = means @ values
            values.max(axis=0, out=pooled[HIDDEN : 2 * HIDDEN])
            if len(may_pick):
                values[may_pick].max(axis=0, out=pooled[3 * HIDDEN :])
            return pooled

        hidden = features
        for name in ("encode1", "encode2"):
            weight, bias = linear[name]
            hidden = hidden @ weight
            hidden += bias
            np.maximum(hidden, 0.0, out=hidden)
        for around, own in (("around1", "own1"), ("around2", "own2")):
            (around_weight, around_bias), (weight, bias) = linear[around], linear[own]
            context = pool(hidden) @ around_weight
            context += around_bias
            context += bias
            hidden = hidden @ weight
            hidden += context
            np.maximum(hidden, 0.0, out=hidden)
        (weight, bias), (last, last_bias) = linear["state1"], linear["state2"]
        state = np.maximum(pool(hidden) @ weight + bias, 0.0) @ last + last_bias
        q = np.empty((1, count + 1), dtype=np.float32)
        weight, bias = linear["advantage"]
        q[0, :count] = (hidden @ weight)[:, 0] + bias
        q[0, count] = state[1]
        q += state[0]
        q[~valid] = INVALID_Q
        return q


def load_weights(path: Path) -> tuple[Weights, dict[str, object]]:
    """Return weights and metadata of a policy file.

    Raises PolicyFileError if it cannot be read. Raises UnfitPolicyError if it holds no finite network of our shape, if
    its observation has other columns than this version's, or if it was trained under other constants
    (`mdl.scheduler.policies.trained_under`). A file without that stamp is from before there was one.
    """
    weights, metadata = read_policy(path)
    if "features" not in metadata:
        raise UnfitPolicyError(f"{path}: no policy file: it does not say what its network sees")
    if metadata.get("features") != list(FEATURES):
        raise UnfitPolicyError(f"{path}: made for another observation than this version's; train it again")
    if difference := describe_difference(metadata.get(_STAMP_KEY)):
        raise UnfitPolicyError(
            f"{path}: trained under other constants than this version's ({difference}); train it again"
        )
    for name, shape in layer_shapes().items():
        weight, bias = weights.get(f"{name}.weight"), weights.get(f"{name}.bias")
        if weight is None or bias is None or weight.shape != shape or bias.shape != shape[:1]:
            raise UnfitPolicyError(f"{path}: layer {name} is missing or not of shape {shape}")
        if weight.dtype != np.float32 or bias.dtype != np.float32:
            raise UnfitPolicyError(f"{path}: layer {name} is {weight.dtype}; expected float32")
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise UnfitPolicyError(f"{path}: layer {name} holds numbers that are not finite")
    return weights, metadata


def read_policy(path: Path) -> tuple[dict[str, npt.NDArray[Any]], dict[str, object]]:
    """Return a policy file's arrays, of any kind, unchecked, and its JSON object. Raises PolicyFileError."""
    try:
        arrays, kept = read_safetensors(path)
        return arrays, decode_json(kept.get(_METADATA_KEY, "{}"), dict[str, object], "its metadata")
    except DataError as error:
        raise PolicyFileError(f"{path}: no policy file ({error})") from None


def set_aside(path: Path) -> Path:
    """Rename a policy file that this version cannot use, so that it blocks nothing and is not lost.

    Return its new path. Only the last such file is kept. Raises StorageError.
    """
    aside = path.with_name(f"{path.name}.set-aside")
    try:
        path.replace(aside)
    except OSError as error:
        raise StorageError(aside, error) from None
    return aside


def save_weights(path: Path, weights: Weights, metadata: dict[str, object]) -> None:
    """Write one safetensors file; metadata is any JSON object (command, seed, evaluation).

    Columns of the observation and the constants that the network was trained under are added. Raises MdlError if the
    disk refuses.
    """
    text = json.dumps({**metadata, "features": list(FEATURES), _STAMP_KEY: stamp()})
    arrays = {name: np.ascontiguousarray(values) for name, values in weights.items()}
    write_bytes(path, save(arrays, {_METADATA_KEY: text}))


def draw_weights(rng: np.random.Generator) -> Weights:
    """Draw a fresh network (He initialisation) that values all picks alike, so that it leaves them to the layout.

    Columns that the simulated mesh never varies start without effect.
    """
    weights: Weights = {}
    for name, (outputs, inputs) in layer_shapes().items():
        scale = 0.0 if name in _HEADS else np.sqrt(2.0 / inputs)
        weights[f"{name}.weight"] = (rng.standard_normal((outputs, inputs)) * scale).astype(np.float32)
        weights[f"{name}.bias"] = np.zeros(outputs, dtype=np.float32)
    weights["encode1.weight"][:, [COLUMN[name] for name in UNVARIED]] = 0.0
    return weights


Rule = Callable[[Stand], tuple[Integers, Integers]]
# A pick differs from that of the layout only if its value is this much better, in transfers of the median link.
MARGIN = 0.3


def layout_rule(stand: Stand) -> tuple[Integers, Integers]:
    """Return senders and receivers (B,) of the hops that the layout starts now; -1, -1: wait.

    The layout is that of `mdl.scheduler.policies.layout`.
    """
    expected = prospects(stand)
    return picks_now(lay_out(expected), expected.keep, stand.free(), stand.may_wait())


@dataclass(frozen=True)
class Picked:
    """Positions (B,), N for waiting. values: the network's (B, N + 1), zeros without a network. planned: the positions
    that have the margin in their favour."""

    positions: Integers
    values: Floats
    planned: Integers


class Picks:
    """A rule in two picks, the sender and then the receiver: the network's, or without a network those of the layout.

    The best value is picked; the pick of the layout has `margin` in its favour.
    """

    def __init__(self, q: NumpyQ | None, margin: float = MARGIN) -> None:
        self._q, self.margin = q, margin

    def __call__(self, stand: Stand) -> tuple[Integers, Integers]:
        if self._q is None:
            return layout_rule(stand)
        look = look_at(stand)
        senders = self.pick_senders(look).positions
        waits = senders == stand.state.shape[1]
        pairing = np.flatnonzero(~waits)
        receivers = np.full(len(senders), -1)
        if len(pairing):
            receivers[pairing] = self.pick_receivers(look.take(pairing), senders[pairing]).positions
        return np.where(waits, -1, senders), receivers

    def pick_senders(self, look: Look) -> Picked:
        """Make the first pick: a sender, or to wait."""
        return self._choose(look, *observe_senders(look))

    def pick_receivers(self, look: Look, senders: Integers) -> Picked:
        """Make the second pick. senders: positions (B,), none of them waiting."""
        return self._choose(look, *observe_receivers(look, senders))

    def _choose(self, look: Look, features: Floats, valid: Bools, planned: Integers) -> Picked:
        if self._q is None:
            return Picked(planned, np.zeros(valid.shape, dtype=np.float32), planned)
        values = self._q(features, look.stand.exists, valid)
        scores = values.copy()
        scores[np.arange(len(values)), planned] += self.margin
        return Picked(scores.argmax(axis=1), values, planned)
