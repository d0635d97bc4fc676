"""The place of a device: w(round_id) on one lineage of the mesh, and its own work that is not part of that w. Pure.

A device that was suspended, cut off or too late for a round does not lose what it trained: the delta goes into its next
one. If it went on with a group of its own (a fork) and comes back, what it contributed to the fork's rounds does so
likewise. Each device brings in its own work and nobody else's, and it alone knows whether w holds that: its lineage and
`History.counted` tell. So nothing counts twice, wherever else it was given, and nothing is lost but with its owner. If
only some segments of a round have counted a work, each part of it goes its own way.

Works with the same fate are added up, so that memory does not grow with rounds and forks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from mdl.bounds import MAX_MEMBERS
from mdl.protocol.delta import Contributor, PartialSum, digest_of
from mdl.protocol.grid import Grid, Vector, grid_of
from mdl.protocol.segments import split_values
from mdl.protocol.vector_work import Outer
from mdl.protocol.vocabulary import (
    MAX_REACHED,
    MAX_STARTS,
    Accepted,
    Ballot,
    Counted,
    History,
    Lineage,
    LineagePoint,
    Staged,
)

# Bounds of memory, however often a mesh falls apart: trainings known of a sum, works kept apart since another fork has
# or may have counted them too, and sums of rounds.
_TRAININGS_KNOWN, _MOST_APART, _MOST_SUMS = 16, 12, 24
# The last so many rounds of a small model are remembered separately.
_ROUNDS_APART = 4

# In place of a digest in `TrainedWork.trained`: training went on from where the round before had left off. The digest
# that follows is of the w at which that round began (`OwnWork`, "overlaps").
AHEAD_OF = b"ahead of "

Round: TypeAlias = tuple[Lineage, int]


class TrainedWork(Struct, frozen=True, eq=False):
    """Own work, float32 (P,): one training, or the sum of several that rounds of a fork have counted.

    trained: the round of each training, and the digest of the w at which it began. rounds: rounds with it in their
    own delta. counted: rounds known to have counted it; in a sum, the first entry is the last round, and `since` the
    first. partly: a round that has counted some of its segments; the work is split once its values are here.
    rounded_in: set if this is what clipping and coding have left of this round's own delta: work only where w holds
    that round.
    """

    values: Vector
    trained: tuple[tuple[int, bytes], ...] = ()
    rounds: tuple[Round, ...] = ()
    counted: tuple[Round, ...] = ()
    since: int = 0
    partly: tuple[Round, Counted] | None = None
    rounded_in: Round | None = None

    @property
    def is_ahead(self) -> bool:
        """True for one training that was done for a round before its w was known."""
        return len(self.trained) == 1 and self.trained[0][1].startswith(AHEAD_OF)

    def is_training(self, round_id: int, digest: bytes) -> bool:
        """Return True for one training for this round that began at, or was counted from, this w."""
        begun = [each for each in self.trained if not each[1].startswith(AHEAD_OF)]
        return begun == [(round_id, digest)]

    def has_counted(self, here: Round) -> bool:
        """Return True if this round has counted it, or part of it if it is a sum."""
        of_sum = bool(self.since) and self.counted[0][0] == here[0] and self.since <= here[1] <= self.counted[0][1]
        return of_sum or here in self.counted

    def given_in(self, here: Round) -> TrainedWork:
        """Return the work, marked as part of this round's own delta."""
        return self if here in self.rounds else replace(self, rounds=(*self.rounds, here))

    def counted_in(self, here: Round) -> TrainedWork:
        return self if here in self.counted else replace(self, counted=(*self.counted, here))


def total(works: Sequence[TrainedWork]) -> Vector | None:
    """Return the sum of the values; None if there are no works. The values of a single work are not copied."""
    return sum((work.values for work in works[1:]), start=works[0].values) if works else None


def add_up_plain(works: Sequence[TrainedWork]) -> tuple[TrainedWork, ...]:
    """Add up all works that were never given away: they stay together from here on."""
    plain = [work for work in works if not (work.rounds or work.counted or work.rounded_in)]
    values = total(plain) if len(plain) > 1 else None
    if values is None:
        return tuple(works)
    return (TrainedWork(values, _known(plain)), *(work for work in works if work not in plain))


def add_up_counted(works: Sequence[TrainedWork], round_id: int, is_small: bool) -> tuple[TrainedWork, ...]:
    """Add up the works that a fork has counted, seen from round `round_id`. is_small: there is room for several sums.

    A fork may be left in its middle: then the sum that contains this point is lost. So the last rounds of a small model
    stay apart. The rounds before are in sums of 1, 2, 4 ... rounds, none longer than the rounds that came since.
    Work that another fork has counted too, or may count, stays apart. If there is too much of it, works counted by the
    same other forks become one.
    """
    alone: list[TrainedWork] = []
    apart: list[TrainedWork] = []
    for work in works:
        lineage, last = work.counted[0]
        is_elsewhere = any(other != lineage for other, _ in (*work.counted, *work.rounds))
        (apart if last >= round_id or is_elsewhere else alone).append(work)
    sums = _grouped(alone, lambda work: (work.counted[0][0], _block(work.counted[0][1], round_id - _ROUNDS_APART)))
    if not is_small or len(sums) > _MOST_SUMS:
        sums = _grouped(alone, lambda work: work.counted[0][0])
    if len(apart) > _MOST_APART:
        alike = _grouped(apart, lambda work: (work.counted[0][0], work.counted[1:], work.rounds))
        apart = [_sum(group) if len(group) > 1 else group[0] for group in alike]
    return (*map(_sum, sums), *apart[-_MOST_APART:])


def _block(round_id: int, before: int) -> int:
    """Return the last round of the sum that this one is in: 2^n rounds, ended at least so many before `before`."""
    size, end = 1, round_id
    while (longer := round_id | (2 * size - 1)) + 2 * size <= before:
        size, end = 2 * size, longer
    return end


def _grouped(works: Sequence[TrainedWork], by: Callable[[TrainedWork], object]) -> list[list[TrainedWork]]:
    groups: dict[object, list[TrainedWork]] = {}
    for work in works:
        groups.setdefault(by(work), []).append(work)
    return list(groups.values())


def _sum(works: Sequence[TrainedWork]) -> TrainedWork:
    """Return the sum of works that rounds of one fork, and the same other forks, have counted."""
    first, values = works[0], works[0].values if len(works) == 1 else total(works)
    assert values is not None
    lineage, last = first.counted[0][0], max(work.counted[0][1] for work in works)
    since = min(work.since or work.counted[0][1] for work in works)
    elsewhere = tuple(given for given in first.rounds if given[0] != lineage)
    return TrainedWork(values, _known(works), elsewhere, ((lineage, last), *first.counted[1:]), since)


def _known(works: Sequence[TrainedWork]) -> tuple[tuple[int, bytes], ...]:
    """Return the first and the last trainings of a sum: a fork is nearly always left at one of its ends."""
    trained, some = tuple(training for work in works for training in work.trained), _TRAININGS_KNOWN // 2
    return trained if len(trained) <= 2 * some else (*trained[:some], *trained[-some:])


# Two agents that have not heard of each other start a mesh each; they meet within so many rounds, or never add up.
_START_ROUNDS = 2
# For a model up to this size, the work that each of the last rounds has counted is remembered. A fork may have begun at
# any of them, by a device that had that model from another one and was never in a round.
_SMALL_BYTES, _SMALL_ROUNDS = 4 << 20, 16


class ModelState:
    """See the module. parameters: float32, shape (P,), never changed in place. uncounted: enters the next own delta.

    state: the parameters, and the outer optimizer's momentum if it has one; the digest is of it, and others get it.
    is_given: another device gets it, and may not have all of it yet. is_small: work of several rounds is remembered.
    ballot: the promises of an earlier start, None if they are not known. digest: of the state, if known.
    """

    def __init__(
        self,
        me: Contributor,
        state: Vector,
        round_id: int = 0,
        history: History | None = None,
        ballot: Ballot | None = None,
        digest: bytes = b"",
        outer: Outer | None = None,
    ) -> None:
        self.outer = outer or Outer()
        self.round_id = round_id
        self._grid: Grid | None = None  # the one at this w, once something needed it
        self._take_state(state, digest or digest_of(state))
        self.uncounted: tuple[TrainedWork, ...] = ()
        before = [each for each in ballot.starts if each != me.incarnation] if ballot else []
        self.starts = (*before, me.incarnation)[-MAX_STARTS:]
        self.begun = ballot.begun if ballot else ""
        self.accepted = ballot.accepted if ballot else None
        self._staged_after: tuple[str, int] | None = None  # `reached` before the next round's result was staged
        self.lineage: Lineage = ()
        self._me = me
        self._in_w: tuple[TrainedWork, ...] = ()
        self.reached = {entry.fork: entry.round_id for entry in ballot.reached} if ballot else {}
        self._shared_round = round_id
        self._counted: dict[str, Counted] = {}
        self._take_history(history or History())
        self.note_further(round_id)

    def history(self) -> History:
        return History(self.lineage, self.base, tuple(self._counted[peer_id] for peer_id in sorted(self._counted)))

    def count_workers(self) -> int:
        """Return how many devices' work is in w."""
        return len(self._counted)

    def rounds_since_counted(self, peer_id: str) -> int:
        """Return the number of rounds of which a device's next delta may bring work: since w counted it, or all."""
        counted = self._counted.get(peer_id)
        return self.round_id + 1 - (counted.round_id if counted else 0)

    def follow(self, lineage: Lineage, base: tuple[str, ...]) -> None:
        """Go on with the mesh; or with a group that starts, or leaves the others behind, at this very w."""
        if lineage != self.lineage:
            self.lineage, self.base = lineage, base  # nobody has promised anything on it before
            self._staged_after = None
            if lineage[-1].name not in self.reached:  # else it comes back to it
                self.begun = lineage[-1].name

    def apply(self, result: PartialSum, state: Vector, digest: bytes) -> None:
        """Take w(t + 1) = w(t) - eta * result (Algorithm 1), or as the outer optimizer has it, from `state`."""
        self._take_state(state, digest)
        self.round_id += 1
        self._staged_after = None
        self.base = base_of(result)
        counted = [Counted(contributor, self.round_id) for contributor in result.contributors]
        counted += [
            Counted(each.contributor, self.round_id, each.segment_values if each.lacks else 0, each.lacks)
            for each in result.partial
        ]
        for entry in sorted(counted, key=lambda entry: entry.contributor):
            self._counted[entry.contributor.peer_id] = entry  # if two starts of a process are in it, the later one's
        if len(self._counted) > MAX_MEMBERS:  # all devices that stand here forget the same
            latest = sorted(self._counted.values(), key=lambda entry: (entry.round_id, entry.contributor))
            self._counted = {entry.contributor.peer_id: entry for entry in latest[-MAX_MEMBERS:]}
        self.note_further(self.round_id)
        self._settle()

    def move_to(self, round_id: int, state: Vector, digest: bytes, history: History) -> None:
        """Take over another device's state. Own work in rounds that are left behind is uncounted from here on."""
        self._take_state(state, digest)
        self.round_id, self._staged_after = round_id, None
        self._take_history(history)
        self._shared_round = min(self._shared_round, round_id)
        self.note_further(round_id)
        self._settle()

    def note_further(self, round_id: int) -> None:
        """Note that a round's result on this lineage was here: it may be closed, and must not be decided on again."""
        ends = [fork.round_id for fork in self.lineage[1:]] + [round_id]
        for fork, end in zip(self.lineage, ends, strict=False):
            self.reached[fork.name] = max(end, self.reached.pop(fork.name, 0))
        while len(self.reached) > MAX_REACHED:
            del self.reached[next(iter(self.reached))]

    def note_staged(self, staged: Staged) -> None:
        """Note the staged result of the round after this one, until another proposal replaces it."""
        fork = self.lineage[-1].name if self.lineage else ""
        self.accepted = Accepted(fork, self.round_id + 1, staged.digest, staged.term, staged.version)
        if self._staged_after is None and self.lineage:
            self._staged_after = self.lineage[-1].name, self.reached.get(self.lineage[-1].name, 0)
        self.note_further(self.round_id + 1)

    def note_replaced(self) -> None:
        """Forget the staged result: another value was proposed for its round under a later ballot.

        So it was not decided, and will not be: the proposer has asked a quorum. It counts as never staged.
        """
        before, self._staged_after = self._staged_after, None
        if before and self.lineage and before[0] == self.lineage[-1].name:
            self.reached[before[0]] = before[1]

    def was_further(self) -> bool:
        """Return True if this device has had a later result on this very lineage, and has lost it."""
        return bool(self.lineage) and self.reached.get(self.lineage[-1].name, 0) > self.round_id

    def recall(self) -> Accepted | None:
        """Return the result of the round after this one that it has staged last, if it has had no later one here."""
        accepted, round_id = self.accepted, self.round_id + 1
        if accepted is None or not self.lineage or accepted.fork != self.lineage[-1].name:
            return None
        return accepted if accepted.round_id == round_id == self.reached.get(accepted.fork) else None

    def forgotten(self) -> tuple[LineagePoint, ...]:
        """Return how far it was without having that model now: on this lineage, or on any if it stands on none."""
        if self.lineage and not self.was_further():
            return ()
        here = self.lineage[-1].name if self.lineage else ""
        return tuple(LineagePoint(fork, round_id) for fork, round_id in self.reached.items() if here in ("", fork))

    def votes(self, has_staged: bool) -> bool:
        """Return True if it may help to decide on the round after this one. has_staged: it has that one's result.

        It knows then what it has promised before: nothing, this very result, or the name of one.
        """
        return self.knows_ballot() and (has_staged or not self.was_further() or self.recall() is not None)

    def knows_ballot(self) -> bool:
        """Return True if it knows all that it has promised on the rounds after this w.

        It does if w holds a delta of a start of which nothing is forgotten: what was forgotten is of rounds before. No
        order tells these starts, since the clock may have been behind at one of them. It does, too, where it saw the
        fork begin, unless a round of that fork holds another start: then its disk is an older one, or has a copy.
        """
        counted = self._counted.get(self._me.peer_id)
        if counted is not None and counted.contributor.incarnation in self.starts:
            return True
        if not self.lineage or self.lineage[-1].name != self.begun:
            return False
        return counted is None or counted.round_id <= self.lineage[-1].round_id

    def ballot(self, term: int, agent: str = "") -> Ballot:
        """Return the ballot that must be on the disk before any device hears of it."""
        return Ballot(
            term,
            tuple(LineagePoint(*each) for each in self.reached.items()),
            agent,
            self.starts,
            self.begun,
            self.accepted,
        )

    def add(self, *works: TrainedWork) -> None:
        """Add own work; the place where this device stands tells if w holds it."""
        self.uncounted += works
        self._settle()

    def take(self, is_again: bool = False) -> tuple[TrainedWork, ...]:
        """Take the works for the next own delta, beside fresh work. is_again: only those that were in it before."""
        here = self.lineage, self.round_id + 1
        taken = tuple(work for work in self.able() if here in work.rounds or not is_again)
        self.uncounted = tuple(work for work in self.uncounted if work not in taken)
        return taken

    def able(self) -> list[TrainedWork]:
        """Return the works that may enter an own delta."""
        return [work for work in self.uncounted if not (self.is_under_way(work) or self.is_split(work))]

    def has_training(self) -> bool:
        """Return True if the next own delta has a training of an earlier round in it."""
        return any(work.trained for work in self.able())

    def was_given_in(self, here: Round) -> bool:
        """Return True if uncounted works show an own delta of this round: then there is no other one."""
        return any(here in work.rounds or work.has_counted(here) for work in self.uncounted)

    def carry(self) -> Vector | None:
        """Return the sum of the uncounted work that is not lost; None if there is none."""
        return total(tuple(work for work in self.uncounted if not self.is_split(work)))

    def kept_back(self) -> Vector | None:
        """Return the sum of the work that rounds to come of this lineage have counted; None if there is none."""
        return total(tuple(work for work in self.uncounted if self.is_under_way(work)))

    def find(self, round_id: int) -> TrainedWork | None:
        """Return the work that this device trained for a round from this very w, if w does not hold it."""
        return next((work for work in self.uncounted if work.is_training(round_id, self.digest)), None)

    def is_in_a_sum(self, round_id: int) -> bool:
        """Return True if the training for a round from this very w is in a work: it comes with the rest of a fork."""
        return any((round_id, self.digest) in work.trained for work in self.uncounted)

    def drop(self, work: TrainedWork) -> None:
        self.uncounted = tuple(other for other in self.uncounted if other is not work)

    def is_under_way(self, work: TrainedWork) -> bool:
        """Return True if this device follows the very rounds that have counted it, and is not at their end yet."""
        return any(lineage == self.lineage and self.round_id < round_id for lineage, round_id in work.counted)

    def is_split(self, work: TrainedWork) -> bool:
        """Return True if w holds a part of this sum, since the others left the fork in its middle: it is lost."""
        return bool(work.since) and work.since <= self._reach(work.counted[0][0]) < work.counted[0][1]

    def is_counted(self, lineage: Lineage, round_id: int) -> bool:
        """Return True if w holds all of this process's own delta of a round on a lineage, here and now."""
        entry = self._entry(lineage, round_id)
        return not entry.lacks if entry else self._may_be_forgotten(lineage, round_id)

    def _may_be_forgotten(self, lineage: Lineage, round_id: int) -> bool:
        """Return True if its entry may have made room for others: the work is lost then, and never counted twice."""
        if len(self._counted) < MAX_MEMBERS or self._me.peer_id in self._counted:
            return False
        return self._reach(lineage) >= round_id and round_id <= min(each.round_id for each in self._counted.values())

    def _entry(self, lineage: Lineage, round_id: int) -> Counted | None:
        """Return the entry by which w holds this process's own delta of a round on a lineage; None if it does not.

        The last round that counted this process tells: before it contributed to a later one, it stood here and knew
        this.
        """
        entry = self._counted.get(self._me.peer_id)
        is_it = entry is not None and (entry.contributor, entry.round_id) == (self._me, round_id)
        return entry if is_it and self._reach(lineage) >= round_id else None

    def marked(self, work: TrainedWork) -> TrainedWork:
        """Return the work, with a note how w has counted it while this device knows; its values may come later."""
        for here in work.rounds:
            if entry := self._entry(*here):
                return replace(work, partly=(here, entry)) if entry.lacks else work.counted_in(here)
        return work

    def may_be_left(self, here: Round) -> bool:
        """Return True if others may go on without this round.

        They may on a fork; in the first rounds of a mesh, as long as another start may still turn up; and without a
        last round that they may not have heard of.
        """
        (lineage, round_id), is_start = here, self.round_id <= _START_ROUNDS
        return len(lineage) > 1 or (bool(lineage) and (is_start or round_id > self._shared_round))

    def holds_for_good(self, here: Round) -> bool:
        """Return True if w holds this process's own delta of this round, and nobody goes on without it."""
        return self.is_counted(*here) and not self.may_be_left(here)

    def is_settled(self) -> bool:
        """Return True if the next round will be one of a mesh that is neither a fork nor in its first rounds."""
        return len(self.lineage) <= 1 and self.round_id >= _START_ROUNDS

    def share(self) -> None:
        """Note that others stand at this w, too: it stays a part of theirs."""
        self._shared_round = self.round_id - _SMALL_ROUNDS * self.is_small
        self._settle()

    def grid(self, room: int) -> Grid:
        """Return the grid of the round that begins at this w, with this room."""
        if self._grid is None:
            self._grid = grid_of(self.parameters, room)
        return self._grid if self._grid.room == room else replace(self._grid, room=room)

    def _reach(self, lineage: Lineage) -> int:
        """Return the last round on this lineage that w holds; -1 if it holds none."""
        if self.lineage[: len(lineage)] != lineage:
            return -1
        return min((fork.round_id for fork in self.lineage[len(lineage) :]), default=self.round_id)

    def _settle(self) -> None:
        """Decide which own work w holds, by where this device stands now. Forget work that w holds for ever."""
        uncounted, in_w = [], []
        for work in [part for whole in (*self._in_w, *self.uncounted) for part in self._split(whole)]:
            here = self._counts_in(work)
            if work.rounded_in and (here or self._reach(work.rounded_in[0]) < work.rounded_in[1]):
                continue  # brought in; or w does not hold the round, and all that was in it comes again, unrounded
            if here is None:
                uncounted.append(replace(work, rounds=self._open_rounds(work)))
            elif self.may_be_left(here):
                in_w.append(work.counted_in(here))
        self.uncounted, self._in_w = add_up_plain(uncounted), add_up_counted(in_w, self.round_id, self.is_small)

    def _open_rounds(self, work: TrainedWork) -> tuple[Round, ...]:
        """Return the rounds that may still count it; history has told that the others did not."""
        return tuple(here for here in work.rounds if self._reach(here[0]) < here[1])

    def _counts_in(self, work: TrainedWork) -> Round | None:
        """Return the round by which w holds this work; None if it does not."""
        known = (here for here in work.counted if self._reach(here[0]) >= here[1])
        return next(known, None) or next((here for here in work.rounds if self.is_counted(*here)), None)

    def _split(self, work: TrainedWork) -> tuple[TrainedWork, ...]:
        """Return the counted and the uncounted part, if a round has counted only some segments; else the whole."""
        work = work if self._counts_in(work) else self.marked(work)
        if not work.partly:
            return (work,)
        here, entry = work.partly
        lacking, counted = split_values(work.values, entry.lacks, entry.segment_values)
        rest = replace(work, rounds=tuple(other for other in work.rounds if other != here), partly=None)
        return replace(rest, values=counted).counted_in(here), replace(rest, values=lacking)

    def _take_state(self, state: Vector, digest: bytes) -> None:
        self.state, self.digest, self.is_given = state, digest, False
        self._grid = None
        self.parameters, self.momentum = self.outer.split(state)
        self.is_small = self.parameters.nbytes <= _SMALL_BYTES

    def _take_history(self, history: History) -> None:
        self.lineage, self.base = history.lineage, history.base
        self._counted = {entry.contributor.peer_id: entry for entry in history.counted}


def base_of(result: PartialSum) -> tuple[str, ...]:
    """Return the ids of the devices that decide on the round after the one with this result."""
    return tuple(sorted({contributor.peer_id for contributor in result.contributors}))
