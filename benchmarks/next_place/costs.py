"""What an update costs on a device (Colla 5.4, Fig. 11 to 13): three ways to learn, four sizes, one device.

The device is the one at the 23rd percentile of sequences, as the paper's was. Times are CPU seconds of one thread here,
not a phone's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.next_place.methods import Recipe, draw
from benchmarks.next_place.record import Device
from mdl.data.readers.visits import FEATURES
from mdl.peers.colla.model.classroom import update_client
from mdl.peers.colla.model.model_kinds import UPDATE_MODES, RecurrentKind
from mdl.peers.colla.model.recurrent import SIZES, RecurrentModel

_PERCENTILE = 0.23
# Table 2 and 5.4.
_PAPER = {"samples": 293, "update_minutes": 2.42, "prediction_ms": 133.5, "upload_bytes_100_devices": 520_000}


def count_parameters(model: nn.Module) -> int:
    """Return the number of all parameters, frozen ones too."""
    return sum(parameter.numel() for parameter in model.parameters())


def measure_costs(places: Sequence[str], devices: Sequence[Device], recipe: Recipe) -> dict[str, Any]:
    ranked = sorted(devices, key=lambda device: len(device.train(1)[1]))
    device = ranked[int(_PERCENTILE * len(ranked))]
    x, y = device.train(1)
    rows = []
    for size in SIZES:
        kind = RecurrentKind(places, size, recipe.large)
        start = kind.build_small(0)
        for name in ("same-whole", "same-fc", "customisation"):
            started = time.process_time()
            made = update_client(kind, start, None, x, y, recipe.client, UPDATE_MODES[name], draw(0, 1, 0))
            seconds = time.process_time() - started
            model = made.model
            assert isinstance(model, RecurrentModel)
            rows.append(
                {
                    "size": size,
                    "update": name,
                    "parameters": count_parameters(model),
                    "upload_bytes": len(kind.encode_update(model, start)),
                    "flops_a_prediction": count_flops(model, recipe.steps),
                    "update_cpu_s": round(seconds, 3),
                    "epochs": made.training.epochs,
                    "prediction_ms": round(_time_prediction(model, x[:1]), 3),
                }
            )
    return {"samples": len(y), "places_seen": len(set(y.tolist())), "rows": rows, "paper": _PAPER}


def count_flops(model: RecurrentModel, steps: int) -> int:
    """Multiplications and additions of a sequence of `steps`: the LSTM's four gates, and the last layer."""
    width, hidden = len(FEATURES) * model.size.embedding + 1, model.size.hidden
    return 2 * (steps * 4 * hidden * (width + hidden) + hidden * len(model.class_ids))


def _time_prediction(model: RecurrentModel, x: torch.Tensor, times: int = 50) -> float:
    """Milliseconds of CPU."""
    with torch.no_grad():
        model(x)
        started = time.process_time()
        for _ in range(times):
            model(x)
    return (time.process_time() - started) / times * 1e3
