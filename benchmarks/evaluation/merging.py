"""The means of a round's deltas that MDLdroid compares (3.2.2), of vectors that weigh the same.

`central`: Eq. 1, what a server makes of all. `chain`: Eq. 3, pair by pair with theta, as the product does it.
`neighbour`: Eq. 2 as it is written, with each device's m neighbours in a directed graph. `pairs`: two at a time in the
order of a chain, as Eq. 2 with m = 1 where only two copies fit into memory (2, "sequential model aggregation"): what
was merged first counts half as much with each further one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np

from mdl.protocol.delta import Contributor, ModelDelta, central_mean, pair_aggregate
from mdl.protocol.grid import Vector, room_for
from mdl.protocol.vector_work import global_delta, hold_own

Merge: TypeAlias = Callable[[Sequence[Vector]], Vector]


def central(deltas: Sequence[Vector]) -> Vector:
    return central_mean(_wrap(deltas)).astype(np.float32)


def chain(deltas: Sequence[Vector]) -> Vector:
    largest = np.maximum.reduce([np.abs(delta) for delta in deltas])
    return mean_by_chain(largest, _wrap(deltas), float(len(deltas)))


def mean_by_chain(parameters: Vector, deltas: Iterable[ModelDelta], theta: float) -> Vector:
    """Return the global delta of a round by a chain, float32 (P,). theta: weight of all. parameters: w before it."""
    sums = (hold_own(parameters, delta, room_for(theta)).sum for delta in deltas)
    return global_delta(reduce(pair_aggregate, sums), parameters)


def neighbour(deltas: Sequence[Vector], into: Mapping[int, Sequence[int]] | None = None) -> Vector:
    """Mean over the n devices j that take in something of (sum of their m neighbours' + m their own) / 2m.

    into: by receiver j the senders i; by default a directed line, so that the first takes in nothing.
    """
    graph = into if into is not None else {j: (j - 1,) for j in range(1, len(deltas))}
    if not graph:  # one device has no neighbour
        return deltas[0]
    means = [
        (sum((deltas[i].astype(np.float64) for i in senders), np.zeros(deltas[j].shape)) + len(senders) * deltas[j])
        / (2 * len(senders))
        for j, senders in graph.items()
    ]
    return np.asarray(np.mean(means, axis=0), np.float32)


def pairs(deltas: Sequence[Vector]) -> Vector:
    return reduce(lambda mine, theirs: ((mine + theirs) / 2).astype(np.float32), deltas)


MERGES: dict[str, Merge] = {"central": central, "chain": chain, "neighbour": neighbour, "pairs": pairs}


def _wrap(deltas: Sequence[Vector]) -> list[ModelDelta]:
    return [ModelDelta(values, 1.0, frozenset([Contributor(str(i), 1)])) for i, values in enumerate(deltas)]
