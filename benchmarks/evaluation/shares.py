"""One device's local training, by the spec of the data: the same wherever a system is measured, also beside Flower."""

from __future__ import annotations

import msgspec

from mdl.config import TrainingSettings
from mdl.data import default_cache_dir, load_data, split_windows, take_windows
from mdl.learning.flat import FlatModel
from mdl.learning.models import build_model
from mdl.learning.training import LocalTrainer
from mdl.peers.edge.device import device_seed


def make_trainer(
    spec: str, model: str, split: str, size: int, rank: int, seed: int, settings: TrainingSettings
) -> LocalTrainer:
    """Of device `rank` of `size`, from 0. Raises ConfigError, DataError."""
    import torch

    torch.set_num_threads(1)
    data = load_data(spec, default_cache_dir(), seed=0)
    share = take_windows(data.train, split_windows(data.train, split, size, seed)[rank])
    module = FlatModel(build_model(model, data.shape[0], data.shape[1], len(data.classes), seed))
    own = msgspec.structs.replace(settings, seed=device_seed(seed, rank + 1))
    return LocalTrainer(module, share.x, share.y, own)
