"""The paper's DQN as a policy file: the format that `mdl scheduler train --variant paper` writes.

A safetensors file, never a pickle. Arrays, float32: `layer0.weight` (outputs, inputs), `layer0.bias` (outputs,), then
`layer1` and so on; ReLU between layers. Metadata, one JSON object under the key `mdl`:

    kind      "paper-dqn"
    n         devices that it answers for, and no other number of them
    sizes     values of each layer from the observation to the Q-values: [5 n, 64, 64, n].
    counts    false: it sees five states a device; true: also each device's receptions (sizes[0] is then 6 n)
    rules     alpha, beta, rho and so on, from Eq. 7, that it was trained on, under the names of `PaperRules`

The maker may add more (command, seed, steps, evaluation). It sees `observe_paper`, in the caller's order of the
devices. It answers with a Q-value for each of them as the next pick.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from mdl.reading import shorten
from mdl.scheduler.paper.mlp_numpy import MlpQ
from mdl.scheduler.paper.problem import Floats, PaperRules
from mdl.scheduler.policies.qnet_numpy import PolicyFileError, read_policy
from mdl.writing import write_bytes

PAPER_DQN: Literal["paper-dqn"] = "paper-dqn"
# The paper has 9 devices; an MLP for 64 has 5 x 64 x 64 weights in its first layer, which is still a small file.
_MOST_DEVICES = 64
# Layers and their width: the paper does not give them; ours are [64, 64].
_MOST_LAYERS, _WIDEST = 8, 4096
_METADATA_KEY = "mdl"

_Size = Annotated[int, msgspec.Meta(ge=1, le=_WIDEST)]
_Reward = Annotated[float, msgspec.Meta(ge=-1000.0, le=1000.0)]


class _Rules(msgspec.Struct, forbid_unknown_fields=True):
    """`PaperRules` in the form that a file may have: bounded, and nothing else."""

    initial_reward: _Reward
    battery_cost: _Reward
    busy_penalty: _Reward
    goal_reward: _Reward
    illegal_reward: _Reward
    printed_sign: bool
    step_limit: Annotated[int, msgspec.Meta(ge=1, le=2 * _MOST_DEVICES)] | None


class _Kept(msgspec.Struct):
    """A file's description of its network."""

    kind: Literal["paper-dqn"]
    n: Annotated[int, msgspec.Meta(ge=2, le=_MOST_DEVICES)]
    sizes: Annotated[list[_Size], msgspec.Meta(min_length=2, max_length=_MOST_LAYERS + 1)]
    counts: bool
    rules: _Rules


def save_paper_dqn(path: Path, network: MlpQ, metadata: dict[str, object]) -> None:
    """Save a network; metadata: any JSON object (command, seed, evaluation), added to the file's own description."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for number, (weight, bias) in enumerate(network.layers):
        arrays[f"layer{number}.weight"] = np.ascontiguousarray(weight)
        arrays[f"layer{number}.bias"] = np.ascontiguousarray(bias)
    kept = {
        "kind": PAPER_DQN,
        "n": network.n,
        "sizes": [network.layers[0][0].shape[1], *(len(bias) for _, bias in network.layers)],
        "counts": network.counts,
        "rules": asdict(network.rules),
    }
    write_bytes(path, save(arrays, {_METADATA_KEY: json.dumps({**metadata, **kept})}))


def load_paper_dqn(path: Path) -> tuple[MlpQ, dict[str, object]]:
    """Load the network, ready for use, and the file's metadata.

    Raises PolicyFileError (one line: the file, the problem) for anything but finite float32 layers that fit n.
    """
    arrays, metadata = read_policy(path)
    try:
        kept = msgspec.convert(metadata, _Kept)
    except msgspec.ValidationError as error:
        raise PolicyFileError(f"{path}: no policy file of the paper's DQN ({shorten(error)})") from None
    width = 6 * kept.n if kept.counts else 5 * kept.n
    if kept.sizes[0] != width or kept.sizes[-1] != kept.n:
        raise PolicyFileError(
            f"{path}: {kept.sizes[0]} inputs and {kept.sizes[-1]} values; {kept.n} devices have {width} and {kept.n}"
        )
    names = {f"layer{number}.{part}" for number in range(len(kept.sizes) - 1) for part in ("weight", "bias")}
    if set(arrays) != names:
        raise PolicyFileError(
            f"{path}: it has {len(arrays)} arrays; expected weight and bias of {len(names) // 2} layers"
        )
    layers = [_layer(path, arrays, number, kept.sizes) for number in range(len(kept.sizes) - 1)]
    rules = PaperRules(**msgspec.structs.asdict(kept.rules))
    return MlpQ(layers, kept.n, rules, counts=kept.counts), metadata


def is_paper_dqn(path: Path) -> bool:
    """Return True if a policy file claims to be of the paper's DQN. Raises PolicyFileError if it is no policy file."""
    return read_policy(path)[1].get("kind") == PAPER_DQN


def _layer(path: Path, arrays: dict[str, npt.NDArray[Any]], number: int, sizes: list[int]) -> tuple[Floats, Floats]:
    weight, bias = arrays[f"layer{number}.weight"], arrays[f"layer{number}.bias"]
    inputs, outputs = sizes[number], sizes[number + 1]
    fits = weight.shape == (outputs, inputs) and bias.shape == (outputs,)
    if not fits or not weight.dtype == bias.dtype == np.float32:
        raise PolicyFileError(f"{path}: layer {number} is not of float32 numbers, {outputs} times {inputs}")
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        raise PolicyFileError(f"{path}: layer {number} holds numbers that are not finite")
    return weight, bias
