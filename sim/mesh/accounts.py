"""The books of a simulated mesh: every local training has its own dimension, so that a count can be read off.

A local delta is one-hot, amount 1 at weight 1. In a closed round, the sum of all deltas is 1 where a training was
counted, to the bit: it is a sum of integers. It adds up over the rounds of a model's history: above 1 the training was
counted twice. If own deltas are coded, amounts differ, or all would fall on steps; a count is in amounts of its
training. Knows no roles.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from mdl.protocol.coding import Coding
from mdl.protocol.delta import Contributor, ModelDelta, PartialSum, digest_of
from mdl.protocol.grid import Grid, Vector, grid_of
from mdl.protocol.segments import mask_of
from mdl.protocol.vector_work import Outer
from mdl.protocol.vocabulary import Lineage

# Trainings of one run that can be told apart: about four times the need of a hard plan of six peers and three rounds.
DIMENSIONS = 256
# A longer run allows, for each peer and round, its training and three of attempts that were opened afresh.
_TRAININGS = 4
# The most that the rounding of the counts themselves may take from a count of 1.
ROUNDING = 1e-3
# The most that coding may take: a step of int4 is a seventh of the largest value, there are as many pieces as devices,
# and the error that a lost device had still to feed back is lost. Half a count tells nothing, but 1 and 2 stay apart.
_CODED: dict[Coding, float] = {"none": ROUNDING, "int8": 0.1, "int4": 0.5}
# Amounts of coded trainings are between this and 1, spread by the golden ratio.
_LEAST_AMOUNT, _GOLDEN = 0.7, 0.6180339887


class InvariantError(AssertionError):
    """The mesh did what must never happen. kind: one word for it, the same for every seed that shows it."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


def dimensions_of(peers: int, rounds: int) -> int:
    """Return the number of trainings that a run of this size may take."""
    return max(DIMENSIONS, _TRAININGS * peers * rounds)


Attempt: TypeAlias = tuple[int, int]  # round, the term that opened it
Model: TypeAlias = tuple[bytes, Lineage]  # its digest, and the forks on the way to it


def model_at(digest: bytes, lineage: Lineage, round_id: int) -> Model:
    """Return the model of a device at this round of a lineage: a fork shares w(r) up to its own round."""
    beyond = next((level for level, fork in enumerate(lineage) if fork.round_id >= round_id), len(lineage))
    return digest, lineage[:beyond]


class CountedTraining(msgspec.Struct, frozen=True):
    """One local training: its owner, its round, and the digest of the parameters that it began from."""

    owner: Contributor
    round_id: int
    digest: bytes


class ClosedRound(msgspec.Struct, frozen=True):
    """A closed round in the history of a model: the model before it, and the counts up to here."""

    before: Model
    round_id: int
    contributors: frozenset[Contributor]
    counts: NDArray[np.float64]


class Accounts:
    """See the module. closed: a model -> the round that made it; the start has an entry, which is no round.

    A model is a digest and the line of history that led to it. A round of the mesh may consist only of what one device
    brings along from a fork: then it has the same result as there, and yet another history.
    size: values of the model. rounding: the allowed error of a count. amounts: of each training, shape (size,).
    """

    def __init__(self, start: Vector, coding: Coding = "none", outer: Outer | None = None) -> None:
        self.size = start.size
        self.rounding = _CODED[coding]
        spread = np.arange(start.size) * _GOLDEN % 1.0 if coding != "none" else np.zeros(start.size)
        self.amounts = (1.0 - (1.0 - _LEAST_AMOUNT) * spread).astype(np.float32)
        self.works: dict[CountedTraining, int] = {}
        self.held: set[int] = set()
        self.under_way: set[int] = set()
        self.start = digest_of((outer or Outer()).begin(start))
        self.closed: dict[Model, ClosedRound] = {
            (self.start, ()): ClosedRound((b"", ()), 0, frozenset(), np.zeros(start.size))
        }
        self._known = {self.start}
        self.size = start.size
        self._own: dict[tuple[Attempt, bytes, Contributor], PartialSum] = {}
        self._grids: dict[bytes, Grid] = {}
        self.note_model(self.start, start)
        self._attempts: dict[bytes, dict[Attempt, None]] = {}

    def note_model(self, digest: bytes, parameters: Vector) -> None:
        """Note the parameters behind a model's digest: the grid of the next round is theirs."""
        if digest not in self._grids:
            self._grids[digest] = grid_of(parameters, 0)

    def train(self, owner: Contributor, round_id: int, parameters: Vector, theta: float) -> ModelDelta:
        """Return this training's delta: the same for the same round and parameters, another dimension for any other."""
        work = CountedTraining(owner, round_id, digest_of(parameters))
        dimension = self.works.setdefault(work, len(self.works))
        if dimension >= self.size:
            raise InvariantError("endless", f"more than {self.size} trainings: rounds are opened again and again")
        return ModelDelta(self._trained(dimension), theta, frozenset([owner]))

    def recall(self, owner: Contributor, round_id: int, parameters: Vector) -> Vector | None:
        """Return the delta of a training that this process has done; None if it never has."""
        dimension = self.works.get(CountedTraining(owner, round_id, digest_of(parameters)))
        if dimension is None:
            return None
        return self._trained(dimension)

    def deliver(self, values: Vector) -> None:
        """Note that a training's or a recall's result has reached its machine: from here on it must be counted, once.

        This holds even if its round went on meanwhile and the device never held it in an own delta.
        """
        dimension = int(values.argmax())
        self.under_way.discard(dimension)
        self.held.add(dimension)

    def hold_own(self, attempt: Attempt, digest: bytes, owner: Contributor, own: PartialSum) -> bool:
        """Note that a trainer holds its own delta: from here on it must be counted, once. False if already noted."""
        key = (attempt, digest, owner)
        if key in self._own:
            return False
        if own.theta != 1.0:
            raise InvariantError("theta", f"{owner.peer_id} begins with theta {own.theta}")
        self._own[key] = msgspec.structs.replace(own, values=own.values.copy())
        self._attempts.setdefault(digest, {})[attempt] = None
        self.held.update(own.values.nonzero()[0].tolist())
        return True

    def check_mean(self, attempt: Attempt, digest: bytes, mean: PartialSum, holder: str) -> None:
        """Check that theta sums the contributors' weights and the values their deltas (Eq. 1, 3); weights are 1."""
        if abs(mean.theta - len(mean.contributors)) > 1e-9 * mean.theta:
            raise InvariantError("theta", f"{holder} has theta {mean.theta} of {_names(mean.contributors)}")
        if not self._is_mean(attempt, digest, mean):
            raise InvariantError("mean", f"{holder} has no mean of {_names(mean.contributors)}")

    def check_result(self, digest: bytes, result: PartialSum, name: str) -> None:
        """Check the same of a global delta; a device that took it late does not know the attempt that gave it."""
        if abs(result.theta - len(result.contributors)) > 1e-9 * result.theta:
            raise InvariantError("theta", f"{name} has theta {result.theta} of {_names(result.contributors)}")
        if not any(self._is_mean(attempt, digest, result) for attempt in self._attempts.get(digest, ())):
            raise InvariantError("mean", f"{name} has no mean of {_names(result.contributors)}")

    def check_segment(
        self, attempt: Attempt, digest: bytes, who: Collection[Contributor], part: slice, given: Vector, name: str
    ) -> None:
        """Check that the values given out for a part of the model are of these own deltas, each once.

        given: the integers of their sum, seen as float32.
        """
        off = -given.view(np.int32).astype(np.int64)
        for contributor in who:
            own = self._own.get((attempt, digest, contributor))
            if own is None:
                raise InvariantError("mean", f"{name} is of {contributor.peer_id}, which holds nothing")
            off += own.values[part]
        if off.any():
            raise InvariantError("segment", f"{name} is no mean of {_names(frozenset(who))}")

    def _is_mean(self, attempt: Attempt, digest: bytes, mean: PartialSum) -> bool:
        off = -mean.values.astype(np.int64)
        for contributor in (*mean.contributors, *(each.contributor for each in mean.partial)):
            own = self._own.get((attempt, digest, contributor))
            if own is None or own.room != mean.room:
                return False
            off += own.values
        for each in mean.partial:
            own = self._own[attempt, digest, each.contributor]
            off -= np.where(mask_of(each.lacks, each.segment_values, off.size), own.values, 0)
        return not off.any()

    def _trained(self, dimension: int) -> Vector:
        values = np.zeros(self.size, np.float32)
        values[dimension] = self.amounts[dimension]
        self.under_way.add(dimension)
        return values

    def close(self, before: Model, after: Model, round_id: int, result: PartialSum, who: str) -> bool:
        """Note an applied global delta; True if no device had applied it. Raises if a training counts twice now."""
        if after in self.closed:
            return False
        if before not in self.closed:
            raise InvariantError("model", f"{who} applied round {round_id} to a model that no round gave")
        grid = msgspec.structs.replace(self._grids[before[0]], room=result.room)
        counts = self.closed[before].counts + grid.to_mean(result.values, 1.0) / self.amounts
        self._known.add(after[0])
        self.closed[after] = ClosedRound(before, round_id, result.contributors, counts)
        most = int(counts.argmax())
        if counts[most] > 1 + self.rounding:
            work, amount = self.work(most), counts[most]
            what = f"{work.owner.peer_id}/{work.owner.incarnation}'s training of round {work.round_id}"
            raise InvariantError("double", f"{what} counts {amount:.3g} times in round {round_id} of {who}")
        return True

    def work(self, dimension: int) -> CountedTraining:
        return next(work for work, number in self.works.items() if number == dimension)

    def is_known(self, digest: bytes) -> bool:
        return digest in self._known

    def rounds_closed(self) -> int:
        return len(self.closed) - 1

    def own(self, attempt: Attempt, digest: bytes, owner: Contributor) -> Vector | None:
        """Return the own delta that a device held in this attempt, before anything was merged into it."""
        own = self._own.get((attempt, digest, owner))
        if own is None:
            return None
        return msgspec.structs.replace(self._grids[digest], room=own.room).to_mean(own.values, own.theta)

    def held_works(self, model: Model) -> list[tuple[CountedTraining, int, float]]:
        """List the trainings done so far, with the dimension of each and its count in this model."""
        counts = self.closed[model].counts
        return [
            (work, dimension, float(counts[dimension]))
            for work, dimension in self.works.items()
            if dimension in self.held
        ]


def _names(contributors: frozenset[Contributor]) -> str:
    return ", ".join(f"{contributor.peer_id}/{contributor.incarnation}" for contributor in sorted(contributors))
