"""Work on whole vectors that a machine asks for: of an 800 MB model it takes a second, and heartbeats must not wait.

Digests and parameters come into a machine as events alone, so that it can be stepped through a story that keeps no
values. A round's result moves the model by a step along it, or by Nesterov momentum over rounds (DiLoCo). With momentum
a device's state is two vectors, w and v, in one: it follows from the results of the rounds and from nothing else. So it
is told apart by one digest, kept in one file and given to a newcomer in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Protocol, TypeAlias

import msgspec
import numpy as np

from mdl.bounds import MAX_SEGMENTS, Checksum
from mdl.defence.judge import Marks, Places, Verdict, cosine, judge, rounds_allowed, without_clipping
from mdl.defence.limits import ALTERED, Limits
from mdl.errors import RemoteProtocolError
from mdl.protocol.checksum import checksum_of, checksums_by_piece
from mdl.protocol.coding import coarsen
from mdl.protocol.delta import ModelDelta, PartialSum, apply_delta, check_size, digest_of, own_sum, pair_aggregate
from mdl.protocol.grid import Grid, Sums, Vector, check_sums, coding_in, grid_of, scale_sums, share_of
from mdl.protocol.segments import theta_by_value

Merge: TypeAlias = Callable[[PartialSum, PartialSum, Sums], PartialSum]


class Outer(msgspec.Struct, frozen=True, omit_defaults=True):
    """eta: the step along the global delta. momentum: of all deltas before; 0.0: none, and the state is w alone.

    averaged: (start, stop) of values without momentum, such as the variances of a batch norm: they could fall below 0.
    """

    eta: float = 1.0
    momentum: float = 0.0
    averaged: tuple[tuple[int, int], ...] = ()

    def state_size(self, size: int) -> int:
        """Return the number of values in the state of a model of `size` values."""
        return 2 * size if self.momentum else size

    def split(self, state: Vector) -> tuple[Vector, Vector | None]:
        """Return w, and v if there is one: views."""
        if not self.momentum:
            return state, None
        return state[: state.size // 2], state[state.size // 2 :]

    def begin(self, parameters: Vector, momentum: Vector | None = None) -> Vector:
        """Return the state of a model; without a known momentum, as if no round had changed it."""
        if not self.momentum:
            return parameters
        return np.concatenate([parameters, np.zeros_like(parameters) if momentum is None else momentum])

    def step(self, state: Vector, delta: Vector, in_place: bool = False) -> Vector:
        """Return the state after a round with this global delta, float32 (P,); a new vector.

        v(t+1) = momentum v(t) + delta; w(t+1) = w(t) - eta (delta + momentum v(t+1)). in_place: w(t+1) takes the memory
        of the delta; with momentum there is no room for both.
        """
        if not self.momentum:
            return apply_delta(state, delta, self.eta, delta if in_place else None)
        after = np.empty_like(state)
        w, v = after[: delta.size], after[delta.size :]
        np.multiply(state[delta.size :], np.float32(self.momentum), out=v)
        v += delta
        for start, stop in self.averaged:
            v[start:stop] = 0.0
        np.multiply(v, np.float32(self.momentum), out=w)
        w += delta
        w *= np.float32(-self.eta)
        w += state[: delta.size]
        return after


class HashDelta(msgspec.Struct, frozen=True):
    """Name a result by its digest, so that it can be voted for; answers DeltaHashed.

    round_id: that the result is of.
    term: of the order under which it is named.
    version: of that order.
    values: of its sum, int32 (P,), not changed before the answer.
    checksum: that it must have; None: it is not checked.
    """

    round_id: int
    term: int
    version: int
    values: Sums
    checksum: int | None = None

    @property
    def size_bytes(self) -> int:
        return self.values.nbytes


class DeltaHashed(msgspec.Struct, frozen=True):
    """A result has its name.

    round_id: of the HashDelta that it answers.
    term: likewise.
    version: likewise.
    digest: of its values.
    is_altered: they have another checksum.
    """

    round_id: int
    term: int
    version: int
    digest: bytes
    is_altered: bool = False


class ApplyDelta(msgspec.Struct, frozen=True):
    """w(t + 1) = w(t) - eta * delta (Algorithm 1), or by the outer optimizer, and its digest; answers DeltaApplied.

    round_id: t + 1.
    state: w(t), and the outer optimizer's momentum if it has one, float32 (P,) or (2 P,).
    result: the sum of all deltas, on the grid of w(t). The global delta is its mean.
    outer: the optimizer that makes the step.
    in_place: nobody needs the sum any more, here or on its way: w(t + 1) may take its memory.
    """

    round_id: int
    state: Vector
    result: PartialSum
    outer: Outer
    in_place: bool = False

    @property
    def size_bytes(self) -> int:
        return self.result.values.nbytes


class DeltaApplied(msgspec.Struct, frozen=True):
    """A round's result is in the model.

    round_id: of the ApplyDelta that it answers.
    state: w(t + 1), and the momentum behind it.
    digest: of the state.
    """

    round_id: int
    state: Vector
    digest: bytes


class Check(msgspec.Struct, frozen=True):
    """The criteria by which a receiver judges a partial sum (MDLdroid 5: a poisoning check at each device).

    grid: of the round.
    limits: those of the mesh.
    rounds: number of rounds of work that a contributor may have brought at once, by the mesh's history.
    own_norm: length of its own delta of this round; None: not known yet, and it holds nothing else.
    places: where angles are measured; None: everywhere.
    last: the last global delta at these places; None: not known.
    parameters: w(t), to test windows of its own with; None: it does not.
    clips: a delta that is a little too long is merged in part; else whole, if of several rounds, or not at all.
    """

    grid: Grid
    limits: Limits = Limits()
    rounds: int = 1
    own_norm: float | None = None
    places: Places | None = None
    last: Vector | None = None
    parameters: Vector | None = None
    clips: bool = True


class Losses(Protocol):
    """The loss of a few windows of this device, in nats a window. classes: of these windows.

    keep: these parameters are asked for again, and not changed meanwhile.
    """

    classes: int

    def __call__(self, parameters: Vector, keep: bool = False) -> float: ...


class MergeDeltas(msgspec.Struct, frozen=True):
    """Merge two partial sums in the memory of the second (3.2.2); answers DeltasMerged.

    round_id: that they are of.
    hop_id: by which the second came.
    mine: not changed.
    theirs: as it came, not looked at yet.
    check: the criteria that judge it; None: it is not judged.
    is_look: nothing is merged, measurements are told.
    checksum: that of the sum of its contributors' deltas; None: not known.
    """

    round_id: int
    hop_id: int
    mine: PartialSum
    theirs: PartialSum
    check: Check | None = None
    is_look: bool = False
    checksum: int | None = None

    @property
    def size_bytes(self) -> int:
        return self.mine.values.nbytes

    @property
    def is_tested(self) -> bool:
        """True if it takes a forward pass, however small the model is."""
        return self.check is not None and self.check.parameters is not None


class DeltasMerged(msgspec.Struct, frozen=True):
    """Two partial sums are one.

    round_id: of the MergeDeltas that it answers.
    hop_id: likewise.
    merged: None if the values that came would poison a mean, or were only looked at.
    problem: the fault of these values, in words.
    marks: measurements of them; None: they were not judged.
    verdict: the judgement by the marks.
    is_altered: it is not the sum of its contributors' deltas.
    """

    round_id: int
    hop_id: int
    merged: PartialSum | None
    problem: str = ""
    marks: Marks | None = None
    verdict: Verdict = Verdict()
    is_altered: bool = False


class CountChecksums(msgspec.Struct, frozen=True):
    """Count the checksums of an own delta that no training's worker has counted; answers ChecksumsCounted.

    round_id: that it is given to.
    attempt: at that round.
    values: int32 (P,), not changed before the answer.
    """

    round_id: int
    attempt: int
    values: Sums

    @property
    def size_bytes(self) -> int:
        return self.values.nbytes


class ChecksumsCounted(msgspec.Struct, frozen=True):
    """An own delta has its checksums.

    round_id: of the CountChecksums that it answers.
    attempt: likewise.
    checksums: of its pieces (`mdl/protocol/checksum.py`).
    """

    round_id: int
    attempt: int
    checksums: Annotated[tuple[Checksum, ...], msgspec.Meta(max_length=MAX_SEGMENTS)]


def count_checksums(effect: CountChecksums) -> ChecksumsCounted:
    return ChecksumsCounted(effect.round_id, effect.attempt, checksums_by_piece(effect.values))


def hash_delta(effect: HashDelta) -> DeltaHashed:
    is_altered = _is_altered(effect.checksum, effect.values)
    return DeltaHashed(effect.round_id, effect.term, effect.version, digest_of(effect.values), is_altered)


def apply_result(effect: ApplyDelta) -> DeltaApplied:
    delta = global_delta(effect.result, effect.outer.split(effect.state)[0], effect.in_place)
    state = effect.outer.step(effect.state, delta, in_place=True)
    return DeltaApplied(effect.round_id, state, digest_of(state))


def global_delta(result: PartialSum, parameters: Vector, in_place: bool = False) -> Vector:
    """Return the mean of a round's deltas, sum / theta, float32 (P,): the same bytes on every device.

    parameters: w(t), with the grid of the round. in_place: it takes the memory of the sum.
    """
    theta = theta_by_value(result) if result.partial else result.theta
    out = result.values.view(np.float32) if in_place else None
    return grid_of(parameters, result.room).to_mean(result.values, theta, out=out)


class Held(msgspec.Struct, frozen=True):
    """The own delta of a round as it goes into sums.

    sum: on the round's grid.
    grid: of the round.
    rest: the part that its share of int32 has cut off, and coding rounded off, float32 (P,), in the measure of a delta;
        None: nothing.
    clipped_values: number of values that are cut off.
    checksums: of the sum's pieces (`mdl/protocol/checksum.py`); (): not counted.
    """

    sum: PartialSum
    grid: Grid
    rest: Vector | None = None
    clipped_values: int = 0
    checksums: Annotated[tuple[Checksum, ...], msgspec.Meta(max_length=MAX_SEGMENTS)] = ()


def hold_own(parameters: Vector, delta: ModelDelta, room: int, earlier: Sequence[Vector] = ()) -> Held:
    """Round a device's own delta and its earlier work to the grid of w(t) = `parameters`, as this room has it."""
    whole = msgspec.structs.replace(delta, values=sum_up(delta.values, earlier))
    grid = grid_of(parameters, room)
    own = own_sum(whole, grid)
    rest = grid.clipped(whole.values, own.values, own.theta)
    count = 0 if rest is None else int(np.count_nonzero(rest))
    if (coding := coding_in(room)) != "none":
        coarsen(own.values, coding, share_of(own.theta, room))
        rest = whole.values - grid.to_mean(own.values, own.theta)
    return Held(own, grid, rest, count)


def merge_deltas(effect: MergeDeltas, merge: Merge = pair_aggregate, losses: Losses | None = None) -> DeltasMerged:
    """Merge two partial sums, or refuse or only look at the second, as the effect says.

    merge: `pair_aggregate`, or the same on a clock. losses: None where this device has no windows to test with.
    """
    hop = effect.round_id, effect.hop_id
    mine, theirs = effect.mine, effect.theirs
    try:
        check_size(theirs.values, mine.values.size)
        if _is_altered(effect.checksum, theirs.values):
            return DeltasMerged(*hop, None, f"{ALTERED}its partial sum", is_altered=True)
        if effect.is_look:
            return DeltasMerged(*hop, None, "", look_at_incoming(mine, theirs, effect.check, losses))
        marks, verdict = judge_incoming(mine, theirs, effect.check) if effect.check else (None, Verdict())
        if verdict.is_refused:
            return DeltasMerged(*hop, None, verdict.reason, marks, verdict)
        check_sums(theirs.values, theirs.theta, theirs.room)
    except RemoteProtocolError as error:
        return DeltasMerged(*hop, None, str(error))
    return DeltasMerged(*hop, merge(mine, theirs, theirs.values), "", marks, verdict)


def _is_altered(checksum: int | None, sums: Sums) -> bool:
    """Return True if these are not the values with this checksum; None: any are."""
    return checksum is not None and checksum != checksum_of(sums)


def look_at_incoming(
    mine: PartialSum, theirs: PartialSum, check: Check | None, losses: Losses | None = None
) -> Marks | None:
    """Return measurements of a device's own delta, with own windows if there are any; nothing is changed."""
    if check is None:
        return None
    marks = _measure(mine, theirs, check)
    if losses is None or check.parameters is None:
        return marks
    return _test(marks, check.grid.to_mean(theirs.values, theirs.theta), check.parameters, losses)


def judge_incoming(mine: PartialSum, theirs: PartialSum, check: Check) -> tuple[Marks, Verdict]:
    """Return measurements of a partial sum, and the verdict. A delta that is too long is clipped where it lies."""
    marks = _measure(mine, theirs, check)
    verdict = judge(marks, check.limits)
    if not check.clips:
        verdict = without_clipping(verdict, marks.rounds)
    if not verdict.is_refused and verdict.scale < 1.0:
        scale_sums(theirs.values, verdict.scale)
    return marks, verdict


def _measure(mine: PartialSum, theirs: PartialSum, check: Check) -> Marks:
    grid = check.grid
    here, there = (grid.mean_at(each.values, each.theta, check.places) for each in (mine, theirs))
    return Marks(
        grid.length(theirs.values, theirs.theta),
        check.own_norm if check.own_norm is not None else grid.length(mine.values, mine.theta),
        len(theirs.contributors),
        cosine(here, there),
        None if check.last is None else cosine(check.last, there),
        check.rounds,
    )


def _test(marks: Marks, after: Vector, parameters: Vector, losses: Losses) -> Marks:
    """Add losses to the marks. Work of several rounds counts as one of them: variances could fall below 0 else.

    after: the mean that came; its memory is used up.
    """
    after *= np.float32(-1.0 / rounds_allowed(marks.rounds))
    after += parameters
    loss = losses(parameters, keep=True)
    return msgspec.structs.replace(marks, loss=loss, loss_theirs=losses(after), classes=losses.classes)


def where_it_begins(parameters: Vector, ahead: Vector | None) -> Vector:
    """Return the vector at which training begins, float32 (P,). See `TrainLocally`."""
    return parameters if ahead is None else parameters - ahead


def sum_up(values: Vector, earlier: Sequence[Vector]) -> Vector:
    """Return the sum of values and all the others, float32 (P,); the values themselves if there are none."""
    return values + sum(earlier[1:], start=earlier[0]) if earlier else values


VectorWork: TypeAlias = HashDelta | CountChecksums | ApplyDelta | MergeDeltas
VectorWorkDone: TypeAlias = DeltaHashed | ChecksumsCounted | DeltaApplied | DeltasMerged
# The function by which any driver does each of them; it may take as long as it takes.
VECTOR_WORK: Mapping[type[Any], Callable[[Any], VectorWorkDone]] = {
    HashDelta: hash_delta,
    CountChecksums: count_checksums,
    ApplyDelta: apply_result,
    MergeDeltas: merge_deltas,
}
