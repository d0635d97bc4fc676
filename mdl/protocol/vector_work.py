"""Work on whole vectors that a machine asks for: of an 800 MB model it takes a second, and heartbeats must not wait.

Digests and parameters come into a machine as events alone, so that it can be stepped through a story that keeps no
values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from mdl.errors import RemoteProtocolError
from mdl.protocol.delta import ModelDelta, Vector, apply_delta, check_values, digest_of, pair_aggregate

Merge: TypeAlias = Callable[[ModelDelta, ModelDelta, Vector], ModelDelta]


class HashDelta(msgspec.Struct, frozen=True):
    """Name a result by its digest, so that it can be voted for; answers DeltaHashed.

    round_id: that the result is of.
    term: of the order under which it is named.
    version: of that order.
    values: float32 (P,), not changed before the answer.
    """

    round_id: int
    term: int
    version: int
    values: Vector

    @property
    def size_bytes(self) -> int:
        return self.values.nbytes


class DeltaHashed(msgspec.Struct, frozen=True):
    """A result has its name.

    round_id: of the HashDelta that it answers.
    term: likewise.
    version: likewise.
    digest: of its values.
    """

    round_id: int
    term: int
    version: int
    digest: bytes


class ApplyDelta(msgspec.Struct, frozen=True):
    """w(t + 1) = w(t) - eta * delta (Algorithm 1), and its digest; answers DeltaApplied.

    round_id: t + 1.
    parameters: w(t), float32 (P,).
    values: the global delta, float32 (P,).
    eta: step along it.
    """

    round_id: int
    parameters: Vector
    values: Vector
    eta: float

    @property
    def size_bytes(self) -> int:
        return self.values.nbytes


class DeltaApplied(msgspec.Struct, frozen=True):
    """A round's result is in the model.

    round_id: of the ApplyDelta that it answers.
    parameters: w(t + 1), float32 (P,).
    digest: of w(t + 1).
    """

    round_id: int
    parameters: Vector
    digest: bytes


class MergeDeltas(msgspec.Struct, frozen=True):
    """Merge two partial means in the memory of the second (3.2.2); answers DeltasMerged.

    round_id: that they are of.
    segment: of the model.
    hop_id: by which the second came.
    mine: not changed.
    theirs: as it came, not looked at yet.
    """

    round_id: int
    segment: int
    hop_id: int
    mine: ModelDelta
    theirs: ModelDelta

    @property
    def size_bytes(self) -> int:
        return self.mine.values.nbytes


class DeltasMerged(msgspec.Struct, frozen=True):
    """Two partial means are one.

    round_id: of the MergeDeltas that it answers.
    segment: likewise.
    hop_id: likewise.
    merged: None if the values that came would poison a mean.
    problem: what is wrong with them, in words.
    """

    round_id: int
    segment: int
    hop_id: int
    merged: ModelDelta | None
    problem: str = ""


def hash_delta(effect: HashDelta) -> DeltaHashed:
    return DeltaHashed(effect.round_id, effect.term, effect.version, digest_of(effect.values))


def apply_result(effect: ApplyDelta) -> DeltaApplied:
    parameters = apply_delta(effect.parameters, effect.values, effect.eta)
    return DeltaApplied(effect.round_id, parameters, digest_of(parameters))


def merge_deltas(effect: MergeDeltas, merge: Merge = pair_aggregate) -> DeltasMerged:
    """merge: `pair_aggregate`, or the same on a clock."""
    hop = effect.round_id, effect.segment, effect.hop_id
    mine, theirs = effect.mine, effect.theirs
    try:
        check_values(theirs.values, mine.values.size)
    except RemoteProtocolError as error:
        return DeltasMerged(*hop, None, str(error))
    return DeltasMerged(*hop, merge(mine, theirs, theirs.values))


VectorWork: TypeAlias = HashDelta | ApplyDelta | MergeDeltas
VectorWorkDone: TypeAlias = DeltaHashed | DeltaApplied | DeltasMerged
# What any driver does for each of them; it may take as long as it takes.
VECTOR_WORK: Mapping[type[Any], Callable[[Any], VectorWorkDone]] = {
    HashDelta: hash_delta,
    ApplyDelta: apply_result,
    MergeDeltas: merge_deltas,
}
