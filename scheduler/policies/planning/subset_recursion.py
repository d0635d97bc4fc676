"""The subset recursion that reduces n loads to one holder at the earliest moment. Pure, NumPy, for many cases at once.

f(j, S) = the moment at which j alone holds exactly the loads of S and is idle. f(j, {j}) is given.

The last hop into (j, S) comes from an i that held T, a part of S without j. It starts when both sides are ready:
f(j, S) = min over i, T of end(i, j, max(f(j, S without T), f(i, T))).
An end never falls when its start rises, so min over T comes first and `end` is asked once for each i.
n (n - 1) 3^(n - 2) maxima in all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Times: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.intp]
# starts (pairs, unions, cases) -> ends, the same shape; the pairs are those of `Tables`.
EndOf: TypeAlias = Callable[[Times], Times]


@dataclass(frozen=True)
class _Layer:
    """Unions of m other devices. part, rest: (unions, 2^m) into the compressed sets. target: states (j, S) of this
    size; source: (states, m + 1) into the flat (pairs, unions)."""

    part: Indices
    rest: Indices
    target: Indices
    source: Indices


@dataclass(frozen=True)
class Tables:
    """Tables for one n. receivers, senders: of each ordered pair. held: state (receiver, itself and the others of a
    compressed set) of each pair and set; mirrored: the pair with the roles exchanged."""

    n: int
    receivers: Indices
    senders: Indices
    mirrored: Indices
    held: Indices
    layers: tuple[_Layer, ...]


def earliest_ends(ready_s: Times, end_of: EndOf, tables: Tables | None = None) -> Times:
    """Return f as an array (n, 2^n, cases), infinite where j is not in S. ready_s: (n, cases)."""
    n, cases = ready_s.shape
    tables = tables or subset_tables(n)
    found = np.full((n << n, cases), np.inf)
    found[(np.arange(n) << n) + (1 << np.arange(n))] = ready_s
    for layer in tables.layers:
        mine = found[tables.held]
        theirs = mine[tables.mirrored]
        starts = np.maximum(mine[:, layer.rest], theirs[:, layer.part]).min(axis=2)
        ends = end_of(starts).reshape(-1, cases)
        found[layer.target] = ends[layer.source].min(axis=1)
    return found.reshape(n, 1 << n, cases)


@cache
def subset_tables(n: int) -> Tables:
    """Compute the tables once for each n; n = 12 takes about 1 MB."""
    receivers, senders = (np.array(side, dtype=np.intp) for side in zip(*_pairs(n), strict=True))
    place = {pair: index for index, pair in enumerate(_pairs(n))}
    mirrored = np.array([place[i, j] for j, i in _pairs(n)], dtype=np.intp)
    sets = np.arange(1 << (n - 2), dtype=np.intp)
    others = np.stack([_expand(sets, j, i) for j, i in _pairs(n)])
    held = (receivers[:, None] << n) + others + (1 << receivers[:, None])
    layers = tuple(_layer(n, members, others, receivers, senders) for members in range(n - 1))
    return Tables(n, receivers, senders, mirrored, held, layers)


def _pairs(n: int) -> list[tuple[int, int]]:
    return [(j, i) for j in range(n) for i in range(n) if i != j]


def _expand(sets: Indices, first: int, second: int) -> Indices:
    """Turn sets over the n - 2 others into sets over all n: a gap opens at each of the two."""
    for gap in sorted((first, second)):
        low = sets & ((1 << gap) - 1)
        sets = ((sets - low) << 1) | low
    return sets


def _layer(n: int, members: int, others: Indices, receivers: Indices, senders: Indices) -> _Layer:
    unions = [union for union in range(1 << (n - 2)) if union.bit_count() == members]
    part = np.array([_subsets(union) for union in unions], dtype=np.intp)
    rest = np.array(unions, dtype=np.intp)[:, None] ^ part
    whole = others[:, unions] | (1 << receivers[:, None]) | (1 << senders[:, None])
    states = ((receivers[:, None] << n) + whole).ravel()
    order = np.argsort(states, kind="stable").reshape(-1, members + 1)
    return _Layer(part, rest, states[order[:, 0]], order)


def _subsets(union: int) -> list[int]:
    found, subset = [], union
    while subset:
        found.append(subset)
        subset = (subset - 1) & union
    return [*found, 0]
