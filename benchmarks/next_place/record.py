"""The paper's cut of everybody's record (Colla 4.1, 5.1): the first part is the cloud's, four more are the cycles'.

A device trains on one part and is tested on the next one. All parts are cut at the same days for everybody.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor

from mdl.data.readers.places import PlaceLog, PlaceOptions, find_clusters, read_fixes, read_stays, write_clusters
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
# As `mdl data cluster` has it.
_REACH_M = 50.0


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
    edges = _cut_days(log, tune)
    fewest = _FEWEST_ACTIVE_DAYS * (edges[-1] - edges[0]) / _DAYS_A_MONTH
    names = [name for name, days in _rank(log, edges) if days >= fewest]
    devices = [device for name in names if (device := _cut(name, log.stays[name], edges, steps))]
    if len(devices) < 2:
        raise DataError(f"{len(devices)} of {len(log.stays)} people have enough active days; expected at least 2")
    return devices[:most]


def read_clustered(data: str, log: PlaceLog, places: PlaceOptions, smallest: int, people: int, tune: bool) -> PlaceLog:
    """The record by clusters of the first part's fixes, which is what the cloud has and tells. log: by the grid."""
    fixes, subjects, days = read_fixes(data, places)
    given = days < _cut_days(log, tune)[1]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "clusters.csv"
        write_clusters(file, find_clusters(fixes[given], subjects[given], smallest, _REACH_M, people))
        return read_stays(data, msgspec.structs.replace(places, clusters=str(file)))


def first_parts(log: PlaceLog, steps: int, tune: bool) -> list[Examples]:
    """What a cloud may begin with (5.2.2): the first part of everybody's record, the most active people first.

    Also of those who are too seldom active to be a device; not of those without a sequence.
    """
    edges = _cut_days(log, tune)
    parts = [_sequences(log.stays[name], edges[0], edges[1], steps) for name, _ in _rank(log, edges)]
    return [part for part in parts if len(part[1])]


def _cut_days(log: PlaceLog, tune: bool) -> list[int]:
    days = np.concatenate([stays.day for stays in log.stays.values()])
    first, last = int(days.min()), int(days.max()) + 1
    return _edges(first, _edges(first, last)[-2] if tune else last)


def _rank(log: PlaceLog, edges: list[int]) -> list[tuple[str, int]]:
    """Everybody and their active days, the most active first."""
    active = {name: _count_active_days(stays, edges[0], edges[-1]) for name, stays in log.stays.items()}
    return sorted(active.items(), key=lambda item: (-item[1], item[0]))


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
        parts.append(_sequences(stays, start, end, steps))
        if len(parts[-1][1]) < _FEWEST_SEQUENCES:
            return None
    return Device(name, parts[0], parts[1:])


def _sequences(stays: Stays, start: int, end: int, steps: int) -> Examples:
    x, y = make_sequences(take_stays(stays, (stays.day >= start) & (stays.day < end)), steps)
    return torch.from_numpy(x), torch.from_numpy(y)


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
