"""This device's share of the data. Importing it never imports torch."""

from __future__ import annotations

from mdl.config import Config
from mdl.data import (
    DataSet,
    Shard,
    Windows,
    default_cache_dir,
    load_data,
    parse_shard,
    private_part,
    split_windows,
    take_windows,
)
from mdl.own import own_data


def load_share(config: Config) -> tuple[DataSet, Windows, Shard]:
    """Return the data without the part given to a cloud, this device's training windows, and its shard."""
    data = load_data(own_data(config.data.spec), default_cache_dir(), config.seed)
    data = private_part(data, config.cloud.people, config.seed)
    shard = parse_shard(config.data.shard)
    rows = split_windows(data.train, config.data.split, shard.count, config.seed)[shard.index - 1]
    return data, take_windows(data.train, rows), shard
