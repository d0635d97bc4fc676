"""Small logs for tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mdl.peers.dccl.model.interactions import Feature, Interactions, group_by_user


def small_log(users: int = 6, items: int = 200, length: int = 12, seed: int = 0) -> Interactions:
    """Each user walks on from item to item; every second user backwards. Two kinds of profile tell which."""
    rng = np.random.default_rng(seed)
    begin = rng.integers(0, items, users)
    steps = np.arange(length) * np.where(np.arange(users) % 2, -1, 1)[:, None]
    met = (begin[:, None] + steps) % items
    everything = np.arange(items)
    log = group_by_user(
        np.concatenate((np.repeat(np.arange(users), length), np.full(items, users))),
        np.concatenate((met.ravel(), everything)),
        None,
    )
    # The last user only makes sure that all items are there: it is cut off again.
    kept = users * length
    return replace(
        log,
        users=log.users[:users],
        items=log.items[:kept],
        starts=log.starts[: users + 1],
        profiles=(1 + np.arange(users) % 2)[:, None].astype(np.int64),
        features=(Feature("walks", ("forwards", "backwards")),),
    )
