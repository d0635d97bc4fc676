"""What a cloud takes to learn from many devices, and a device to learn and to recommend."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.recommend.picture import draw
from mdl.peers.dccl.model.device_step import VectorSettings
from mdl.peers.dccl.model.din import DinSettings, FitSettings
from mdl.peers.dccl.model.interactions import Negatives, group_by_user, keep_users, training_places
from mdl.peers.dccl.model.lesson import RecommenderLesson, learn_vector, suggest
from mdl.peers.dccl.model.momodistill import MoMoDistillSettings, distill_basis, distill_model, make_cloud_model

_SIZES = (100, 300, 1_000, 3_000, 10_000)


def measure_memory() -> list[dict[str, float]]:
    """One pass of both steps over each device's vector, in order of size: what the process has taken at most by then.

    Drawn users of 30 clicks each, a catalogue of 3,000: the work grows with them, the memory of a batch does not.
    """
    found = []
    for users in _SIZES:
        rng = np.random.default_rng(users)
        data = group_by_user(np.repeat(np.arange(users), 30), rng.integers(0, 3000, 30 * users), None)
        torch.manual_seed(0)
        cloud = make_cloud_model(data, DinSettings(has_user=False))
        vectors, how = torch.randn(users, cloud.basis.size), FitSettings(epochs=1, batch=256)
        settings = MoMoDistillSettings(0.01, how, how)
        places, negatives = training_places(data), Negatives.before(data)
        began = time.process_time()
        learned = distill_model(cloud, vectors, data, places, negatives, settings, rng)
        distill_basis(learned, cloud, vectors, data, places, negatives, settings, rng)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found.append({"devices": users, "peak_mb": round(peak, 1), "seconds": round(time.process_time() - began, 2)})
        print(
            f"{users:6} devices: {peak:.1f} MB at most, {found[-1]['seconds']} s for {len(places)} samples", flush=True
        )
    return found


def plot_memory(found: list[dict[str, float]], path: Path | None) -> None:
    if path is None:
        return
    axes, save = draw(path)
    axes.plot([each["devices"] for each in found], [each["peak_mb"] for each in found], "o-")
    axes.set(
        xscale="log", ylim=(0, None), xlabel="devices whose vectors are distilled in one pass", ylabel="MB at most"
    )
    save()


def measure_costs() -> dict[str, Any]:
    """A device with 100 interactions, of a catalogue like MovieLens-1M's; the median of 20 on one core."""
    rng = np.random.default_rng(0)
    data = group_by_user(np.repeat(np.arange(60), 101), rng.integers(0, 3706, 60 * 101), None)
    torch.manual_seed(0)
    lesson = RecommenderLesson(make_cloud_model(data, DinSettings(has_user=False)), data.titles)
    own = keep_users(data, np.array([0]))
    update, shown = [], []
    for _ in range(20):
        began = time.process_time()
        vector = learn_vector(lesson, own, None, VectorSettings(), 0)
        middle = time.process_time()
        suggest(lesson, own, vector, 10)
        update.append(middle - began)
        shown.append(time.process_time() - middle)
    found = {"update_s": float(np.median(update)), "recommendation_ms": 1e3 * float(np.median(shown))}
    print(f"an update of 100 interactions: {found['update_s']:.3f} s; top 10: {found['recommendation_ms']:.1f} ms")
    return found
