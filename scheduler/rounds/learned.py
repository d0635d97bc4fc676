"""A participation rule learned on `mdl/Rounds-v0`: a network of dense layers in plain NumPy, and its file. Pure.

A safetensors file, never a pickle. Arrays, float32: `layer0.weight` (outputs, inputs), `layer0.bias` (outputs,), then
`layer1` and so on; ReLU between layers. Metadata, one JSON object under the key `mdl`: `kind` "rounds-dqn", `max_n`
devices at most, and `columns`, those of `mdl.scheduler.rounds.observation`. The maker may add more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from mdl.reading import shorten
from mdl.scheduler.policies.qnet_numpy import PolicyFileError, read_policy
from mdl.scheduler.rounds.observation import COLUMNS, observe
from mdl.scheduler.rounds.participation import Decision, RoundSeen, Wait, tell_wait
from mdl.scheduler.rounds.shipped import Bounds, CloseAfter, close_with
from mdl.writing import write_bytes

Layer = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
ROUNDS_DQN: Literal["rounds-dqn"] = "rounds-dqn"
# A wait of the environment lasts this long at most, so that a policy may close because of the time alone.
LONGEST_WAIT_S = 2.0
_MOST_DEVICES, _MOST_LAYERS = 256, 8
_METADATA_KEY = "mdl"


class _Kept(msgspec.Struct):
    """A file's description of its network."""

    kind: Literal["rounds-dqn"]
    max_n: Annotated[int, msgspec.Meta(ge=2, le=_MOST_DEVICES)]
    columns: list[str]


class LearnedRule:
    """Make the choice that a network values most, among those that are possible.

    A mesh of more devices than the network has learned on follows the rule `third`.
    """

    def __init__(self, name: str, layers: Sequence[Layer], max_n: int, bounds: Bounds) -> None:
        self.name, self.layers, self.max_n, self.bounds = name, tuple(layers), max_n, bounds
        self._beyond = CloseAfter(name, bounds)

    def decide(self, seen: RoundSeen) -> Decision:
        if len(seen.devices) > self.max_n:
            return self._beyond.decide(seen)
        choices = observe(seen, self.bounds, self.max_n)
        missing = [each for each in seen.devices if not each.can_give]
        valid = choices.valid
        if not missing and valid[1:].any():  # nothing is left to wait for
            valid[0] = False
        choice = int(np.where(valid, self.values(choices.observation), -np.inf).argmax())
        if members := choices.members(choice):
            return close_with(seen, members, self.bounds)
        told = tell_wait(seen, missing, "the network values a wait more than any close")
        return Wait(seen.open_s + LONGEST_WAIT_S, tuple(each.device_id for each in missing), told)

    def values(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return the value of each choice."""
        values = observation
        for number, (weight, bias) in enumerate(self.layers):
            values = weight @ values + bias
            if number + 1 < len(self.layers):
                values = np.maximum(values, 0.0)
        return values


def save_rounds_policy(path: Path, layers: Sequence[Layer], max_n: int, metadata: dict[str, object]) -> None:
    """Save a network; metadata: any JSON object (command, seed, evaluation). Raises MdlError if the disk refuses."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for number, (weight, bias) in enumerate(layers):
        arrays[f"layer{number}.weight"] = np.ascontiguousarray(weight)
        arrays[f"layer{number}.bias"] = np.ascontiguousarray(bias)
    kept = {"kind": ROUNDS_DQN, "max_n": max_n, "columns": list(COLUMNS)}
    write_bytes(path, save(arrays, {_METADATA_KEY: json.dumps({**metadata, **kept})}))


def load_rounds_policy(path: Path, bounds: Bounds) -> LearnedRule:
    """Load a rule. Raises PolicyFileError (one line: the file, the problem) for anything but finite fitting layers."""
    arrays, metadata = read_policy(path)
    try:
        kept = msgspec.convert(metadata, _Kept)
    except msgspec.ValidationError as error:
        raise PolicyFileError(f"{path}: no policy of rounds ({shorten(error)}); expected kind {ROUNDS_DQN}") from None
    if kept.columns != list(COLUMNS):
        raise PolicyFileError(f"{path}: its network sees other columns than this version; train it again")
    count = len(arrays) // 2
    names = [(f"layer{number}.weight", f"layer{number}.bias") for number in range(count)]
    if not 1 <= count <= _MOST_LAYERS or set(arrays) != {name for pair in names for name in pair}:
        raise PolicyFileError(f"{path}: {len(arrays)} arrays; expected weight and bias of 1 to {_MOST_LAYERS} layers")
    layers = [(arrays[weight], arrays[bias]) for weight, bias in names]
    inputs = kept.max_n * len(COLUMNS)
    for number, (weight, bias) in enumerate(layers):
        fits = weight.ndim == 2 and weight.shape[1] == inputs and bias.shape == weight.shape[:1]
        if not fits or not weight.dtype == bias.dtype == np.float32:
            raise PolicyFileError(f"{path}: layer {number} is not of float32 numbers with {inputs} inputs")
        if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise PolicyFileError(f"{path}: layer {number} holds numbers that are not finite")
        inputs = len(bias)
    if inputs != kept.max_n + 2:
        raise PolicyFileError(f"{path}: {inputs} values; expected {kept.max_n + 2}, one for each choice")
    return LearnedRule(str(path), layers, kept.max_n, bounds)
