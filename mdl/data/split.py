"""The split of a data set: training windows shared out to devices, test windows dealt out for evaluation.

Everything here is a pure function of the windows, the number of devices and a seed. Every peer computes the same split
and takes its own share, and no part of it needs to be sent.
"""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import numpy as np

from mdl.config import MEMBERS
from mdl.data.windows import DataSet, Integers, Windows, take_windows, targets_of
from mdl.errors import ConfigError

# Beyond these, shares are all but equal, or cannot be drawn.
_LEAST_ALPHA, _MOST_ALPHA = 1e-3, 1e6
_FORMS = f"subject, iid, dirichlet:ALPHA (ALPHA from {_LEAST_ALPHA:g} to {_MOST_ALPHA:g})"
_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})")


class Shard(msgspec.Struct, frozen=True):
    """Share `index` of `count`, counted from 1."""

    index: int
    count: int


def parse_shard(text: str) -> Shard:
    """Parse "2/6" as Shard(2, 6). Raises ConfigError."""
    if (match := _SHARD.fullmatch(text)) and 1 <= int(match[1]) <= int(match[2]) <= MEMBERS:
        return Shard(int(match[1]), int(match[2]))
    raise ConfigError(f"shard {text[:40]!r}: expected I/N with 1 <= I <= N <= {MEMBERS}, as in 2/6")


def split_windows(windows: Windows, how: str, count: int, seed: int) -> list[Integers]:
    """Return row numbers of each of `count` devices: int64, ascending, disjoint, together all rows; groups stay whole
    (a group belongs to one subject: `check_data`).

    "subject": whole people, as many to each as possible. "iid": groups at random, as many windows to each as possible.
    "dirichlet:ALPHA": each class in shares drawn from Dir(ALPHA); the smaller ALPHA, the more one-sided the devices.
    Raises ConfigError if `how` is none of these or a device would hold nothing.
    """
    if count < 1:
        raise ConfigError(f"peers {count}: expected at least 1")
    rng = np.random.default_rng([seed, count])
    if how == "subject":
        keys, owner = _deal_subjects(windows, count, rng)
    elif how == "iid":
        keys, owner = _deal_groups(windows, count, rng)
    else:
        keys, owner = _deal_classes(windows, count, _parse_alpha(how), rng)
    device = owner[np.searchsorted(np.unique(keys), keys)]
    shares = [np.flatnonzero(device == index).astype(np.int64) for index in range(count)]
    if empty := [str(index + 1) for index, rows in enumerate(shares) if not len(rows)]:
        raise ConfigError(
            f"split {how!r}: device {', '.join(empty)} of {count} would hold no windows; "
            f"take fewer peers{', a larger ALPHA or another seed' if how.startswith('dirichlet') else ''}"
        )
    return shares


def private_part(data: DataSet, people: int, seed: int) -> DataSet:
    """Return the data without the training windows of `people` drawn people, given to a cloud. Raises ConfigError."""
    return _take_people(data, people, seed, given=False) if people else data


def donated_part(data: DataSet, people: int, seed: int) -> DataSet:
    """Return the windows that `private_part` leaves out; all data if people is 0: a public set. Raises ConfigError."""
    return _take_people(data, people, seed, given=True) if people else data


def shard_test(count: int, shard: Shard) -> Integers:
    """Return the rows of `count` test windows that this peer evaluates: over all N shards each row once, evenly."""
    return np.arange(shard.index - 1, count, shard.count, dtype=np.int64)


def _take_people(data: DataSet, people: int, seed: int, *, given: bool) -> DataSet:
    subjects = np.unique(data.train.subject)
    if people >= len(subjects):
        raise ConfigError(f"cloud.people {people}: the data has {len(subjects)} training people; leave at least one")
    drawn = np.random.default_rng([seed, len(subjects)]).permutation(subjects)[:people]
    return replace(data, train=take_windows(data.train, np.isin(data.train.subject, drawn) == given))


def _deal_subjects(windows: Windows, count: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
    subjects = np.unique(windows.subject)
    if len(subjects) < count:
        raise ConfigError(
            f"split 'subject': {count} peers but {len(subjects)} training subjects; take at most {len(subjects)}, "
            f"or split iid"
        )
    owner = np.empty(len(subjects), dtype=np.int64)
    owner[rng.permutation(len(subjects))] = np.arange(len(subjects)) % count
    return windows.subject, owner


def _deal_groups(windows: Windows, count: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
    groups, sizes = np.unique(windows.group, return_counts=True)
    if len(groups) < count:
        raise ConfigError(
            f"split 'iid': {count} peers but {len(groups)} stretches of windows; overlapping windows stay together: "
            f"take at most {len(groups)} peers"
        )
    owner = np.empty(len(groups), dtype=np.int64)
    held = np.zeros(count, dtype=np.int64)
    # Largest first, each to the device that holds least: shares end within one group of each other.
    shuffled = rng.permutation(len(groups))
    for index in shuffled[np.argsort(-sizes[shuffled], kind="stable")]:
        poorest = int(np.argmin(held))
        owner[index] = poorest
        held[poorest] += sizes[index]
    return windows.group, owner


def _deal_classes(windows: Windows, count: int, alpha: float, rng: np.random.Generator) -> tuple[Integers, Integers]:
    if (targets := targets_of(windows.y)) != "classes":
        raise ConfigError(f"split 'dirichlet': it deals out classes, and these windows have {targets}; subject, or iid")
    groups, first, sizes = np.unique(windows.group, return_index=True, return_counts=True)
    owner = np.empty(len(groups), dtype=np.int64)
    labels = windows.y[first]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        borders = np.cumsum(rng.dirichlet(np.full(count, alpha)))[:-1]
        done = np.cumsum(sizes[members])
        middles = (done - sizes[members] / 2) / done[-1]
        owner[members] = np.searchsorted(borders, middles)
    return windows.group, owner


def _parse_alpha(how: str) -> float:
    name, _, text = how.partition(":")
    if name == "dirichlet":
        try:
            alpha = float(text)
        except ValueError:
            alpha = 0.0
        if _LEAST_ALPHA <= alpha <= _MOST_ALPHA:
            return alpha
    raise ConfigError(f"split {how!r}: valid: {_FORMS}")
