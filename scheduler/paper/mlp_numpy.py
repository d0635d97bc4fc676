"""The paper's network (an MLP on five states a device) in plain NumPy, on disk, and as a policy on the mesh. Pure.

It answers for one N only, and nothing keeps it from picks that cannot be: both are the paper's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from mdl.reading import shorten
from mdl.writing import write_bytes
from scheduler.paper.optimum import Order
from scheduler.paper.problem import Floats, PaperChain, PaperRules, observe_paper
from scheduler.policies.qnet_numpy import PolicyFileError, read_policy

_METADATA_KEY = "mdl"


class _Kept(msgspec.Struct):
    """What a file of this variant says of its network."""

    n: Annotated[int, msgspec.Meta(ge=2, le=64)]
    counts: bool
    rules: PaperRules


class MlpQ:
    """layers: (weight (outputs, inputs), bias) from first to last, float32; ReLU between. n: devices."""

    def __init__(self, layers: Sequence[tuple[Floats, Floats]], n: int, rules: PaperRules, *, counts: bool) -> None:
        self.layers, self.n, self.rules, self.counts = tuple(layers), n, rules, counts

    def __call__(self, seen: Floats) -> Floats:
        """Q (B, n) of observations (B, width)."""
        values = seen
        for number, (weight, bias) in enumerate(self.layers):
            values = values @ weight.T + bias
            if number + 1 < len(self.layers):
                values = np.maximum(values, 0.0)
        return values

    def order(self, busy: Sequence[int]) -> Order | None:
        """The pairs it would order from this start, or None where it makes a pick that cannot be (it quits)."""
        return self.play(busy)[1]

    def play(self, busy: Sequence[int]) -> tuple[float, Order | None]:
        """The return (sum of Eq. 7) of its picks, and the pairs."""
        chain = PaperChain(tuple(busy), self.rules)
        total, order, sender = 0.0, [], -1
        while not chain.ended:
            n_agg = np.array([chain.n_agg], np.int64) if self.counts else None
            seen = observe_paper(np.array([chain.state], np.int8), np.array([chain.pick % 2]), n_agg)
            pick = int(self(seen)[0].argmax())
            if chain.pick % 2:
                order.append((sender, pick))
            sender = pick
            total += chain.step(pick)
        return total, None if chain.illegal else order


def save_mlp(path: Path, network: MlpQ, metadata: dict[str, object]) -> None:
    """Safetensors with metadata (any JSON object: command, seed, evaluation)."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for number, (weight, bias) in enumerate(network.layers):
        arrays[f"layer{number}.weight"] = np.ascontiguousarray(weight)
        arrays[f"layer{number}.bias"] = np.ascontiguousarray(bias)
    kept = {"variant": "paper", "n": network.n, "counts": network.counts, "rules": asdict(network.rules)}
    write_bytes(path, save(arrays, {_METADATA_KEY: json.dumps({**metadata, **kept})}))


def load_mlp(path: Path) -> tuple[MlpQ, dict[str, object]]:
    """Raises PolicyFileError if the file holds no policy of the paper's variant."""
    arrays, metadata = read_policy(path)
    try:
        kept = msgspec.convert(metadata, _Kept)
        layers = [
            (arrays[f"layer{number}.weight"], arrays[f"layer{number}.bias"]) for number in range(len(arrays) // 2)
        ]
    except (msgspec.ValidationError, KeyError) as error:
        raise PolicyFileError(f"{path}: no policy of the paper's variant ({shorten(error)})") from None
    n_agg = np.zeros((1, kept.n), np.int64) if kept.counts else None
    width = observe_paper(np.zeros((1, kept.n), np.int8), np.zeros(1, np.int64), n_agg).shape[1]
    for number, (weight, bias) in enumerate(layers):
        fits = bias.ndim == 1 and weight.shape == (len(bias), width) and weight.dtype == bias.dtype == np.float32
        if not fits or not (np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise PolicyFileError(f"{path}: layer {number} is not of finite float32 numbers for {width} inputs")
        width = len(bias)
    if not layers or width != kept.n:
        raise PolicyFileError(f"{path}: its last layer does not answer for {kept.n} devices")
    return MlpQ(layers, kept.n, kept.rules, counts=kept.counts), metadata


def variant_of(path: Path) -> str:
    """ "paper" or "chain". Raises PolicyFileError if the file is no policy."""
    _, metadata = read_policy(path)
    return "paper" if metadata.get("variant") == "paper" else "chain"
