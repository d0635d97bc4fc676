"""The paper's cut of everybody's record (Colla 4.1, 5.1): the first part is the cloud's, four more are the cycles'.

A device trains on one part and is tested on the next one. All parts are cut at the same days for everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from mdl.data.readers.places import PlaceLog
from mdl.data.readers.visits import Stays, make_sequences, take_stays
from mdl.errors import DataError

Examples = tuple[Tensor, Tensor]

PARTS = 4
# Month 1 of 4 is the cloud's.
CLOUD_SHARE = 0.25
# 4.1: a day is active with more than 5 places, and a device with at least 10 such days in a month.
_MOST_QUIET_PLACES, _FEWEST_ACTIVE_DAYS, _DAYS_A_MONTH = 5, 10, 30
# Fewer sequences than that in a part tell nothing.
_FEWEST_SEQUENCES = 10


@dataclass(frozen=True)
class Device:
    """donated: what the cloud has of this device. parts: one a cycle, and the last test."""

    name: str
    donated: Examples
    parts: list[Examples]

    def train(self, cycle: int) -> Examples:
        """The part of this cycle, from 1."""
        return self.parts[cycle - 1]

    def test(self, cycle: int) -> Examples:
        return self.parts[cycle]

    def so_far(self, cycle: int) -> Examples:
        """All days since the record began, the donated ones among them."""
        return join([self.donated, *self.parts[:cycle]])


def join(examples: list[Examples]) -> Examples:
    return torch.cat([x for x, _ in examples]), torch.cat([y for _, y in examples])


def cut_record(log: PlaceLog, steps: int, tune: bool, most: int = 1000) -> list[Device]:
    """The active devices, the most active ones first, at most `most`.

    tune: the days of the last test are out of sight, and the days before them are cut the same way.
    Raises DataError if there are fewer than two.
    """
    days = np.concatenate([stays.day for stays in log.stays.values()])
    first, last = int(days.min()), int(days.max()) + 1
    if tune:
        last = _edges(first, last)[-2]
    edges = _edges(first, last)
    active = {name: _count_active_days(stays, first, last) for name, stays in log.stays.items()}
    fewest = _FEWEST_ACTIVE_DAYS * (last - first) / _DAYS_A_MONTH
    names = sorted((name for name in active if active[name] >= fewest), key=lambda name: (-active[name], name))
    devices = [device for name in names if (device := _cut(name, log.stays[name], edges, steps))]
    if len(devices) < 2:
        raise DataError(f"{len(devices)} of {len(log.stays)} people have enough active days; expected at least 2")
    return devices[:most]


def _edges(first: int, last: int) -> list[int]:
    start = first + (last - first) * CLOUD_SHARE
    return [first, *(round(start + (last - start) * part / PARTS) for part in range(PARTS + 1))]


def _count_active_days(stays: Stays, first: int, last: int) -> int:
    pairs = np.unique(np.stack([stays.day, stays.place]), axis=1)
    days, places = np.unique(pairs[0], return_counts=True)
    return int(((places > _MOST_QUIET_PLACES) & (days >= first) & (days < last)).sum())


def _cut(name: str, stays: Stays, edges: list[int], steps: int) -> Device | None:
    """None for whoever has too few sequences in a part."""
    parts = []
    for start, end in pairwise(edges):
        x, y = make_sequences(take_stays(stays, (stays.day >= start) & (stays.day < end)), steps)
        if len(y) < _FEWEST_SEQUENCES:
            return None
        parts.append((torch.from_numpy(x), torch.from_numpy(y)))
    return Device(name, parts[0], parts[1:])


def split_donors(devices: list[Device], donors: int, seed: int) -> tuple[list[Examples], list[Device]]:
    """All days of `donors` drawn people, and the other devices, of which the cloud has nothing.

    0: none, and the cloud has the first part of everybody's.

    Raises DataError if nobody would be left.
    """
    if not donors:
        return [], devices
    if donors >= len(devices):
        raise DataError(f"{donors} donors of {len(devices)} devices leave no device: expected fewer")
    order = np.random.default_rng([seed, 1]).permutation(len(devices))
    given = [join([devices[at].donated, *devices[at].parts]) for at in order[:donors]]
    left = [devices[at] for at in sorted(order[donors:])]
    nothing = left[0].donated[0][:0], left[0].donated[1][:0]
    return given, [Device(it.name, nothing, it.parts) for it in left]
