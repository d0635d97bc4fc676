"""Drawn devices and a cloud that begins with ever more people's data (Colla 5.2.2, Fig. 6 and 7)."""

from __future__ import annotations

from statistics import mean, median
from typing import Any

import msgspec
import numpy as np

from benchmarks.next_place.methods import Outcome, Recipe, run_alone, run_central, run_colla
from benchmarks.next_place.record import Device, Examples, join
from benchmarks.next_place.table import COLLA, EXTENDED, pair
from mdl.peers.colla.model.classroom import Classroom
from mdl.peers.colla.model.model_kinds import RecurrentKind


def draw_devices(devices: list[Device], count: int, seed: int) -> list[Device]:
    """`count` of them, in their order. What the cloud has of them is what it has of anybody as active."""
    order = np.random.default_rng([seed, 2]).permutation(len(devices))[:count]
    nothing = devices[0].donated[0][:0], devices[0].donated[1][:0]
    return [Device(devices[at].name, nothing, devices[at].parts) for at in sorted(order)]


def measure_initial(
    places: tuple[str, ...], devices: list[Device], given: list[Examples], recipe: Recipe, seed: int
) -> dict[str, Any]:
    """Scores of these devices by cycle where the cloud begins with `given`, and how many sequences that is."""
    kind = RecurrentKind(places, recipe.small, recipe.large)
    x, y = join(given)
    # All of it: what more people give is the question.
    room = Classroom(kind, x, y, msgspec.structs.replace(recipe.teaching, rows=len(y)), seed)
    base = room.bootstrap()
    taught = run_colla(kind, room, base, devices, recipe, seed, {COLLA: 0.0, EXTENDED: recipe.prior})
    methods: dict[str, Outcome] = {
        **taught,
        **run_alone(kind, base.small, devices, recipe, seed, {"DT-ws": 0.0}),
        **run_alone(kind, None, devices, recipe, seed, {"DT": 0.0}),
        "CT": run_central(kind, devices, given, recipe, seed),
    }
    accuracies = {
        name: [[score.accuracy for score in after] for after in outcome.scores] for name, outcome in methods.items()
    }
    return {"sequences": len(y), "accuracies": accuracies}


def describe_initial(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """By people in the cloud and method, after the last cycle: mean, median, and the gain over the fewest people.

    found: by seed, then by people. A device drawn in two seeds counts twice.
    """
    sizes = sorted({size for by_size in found.values() for size in by_size}, key=int)
    seeds = [by_size for by_size in found.values() if all(size in by_size for size in sizes)]
    if not seeds:
        return {}

    def last(size: str, name: str) -> list[float]:
        return [value for seed in seeds for value in seed[size]["accuracies"][name][-1]]

    return {
        size: {
            name: {
                "mean": round(mean(last(size, name)), 4),
                "median": round(median(last(size, name)), 4),
                "over the fewest": pair([last(size, name)], [last(sizes[0], name)]),
            }
            for name in seeds[0][size]["accuracies"]
        }
        for size in sizes
    }
