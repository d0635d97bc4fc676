"""Where a device stands: w(round_id) on one lineage of the mesh, and its own work that is not counted there yet.

A device that was suspended, cut off or too late for a round does not lose what it trained: the delta goes into its next
one. If it went on with a group of its own (a fork) and comes back, the results of the rounds that it contributed to
there do so likewise: each contributor brings its share, so that together they count once. Work that had been given away
may have been counted without this device's knowledge: it is kept back until the device stands where that can be known
(`History.counted`). So nothing counts twice, at the price that a fork may have to do without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mdl.delta import Contributor, ModelDelta, Vector, apply_delta, digest_of
from mdl.messages import Counted, History, Lineage
from peers.quorum import has_in_common, shared_forks

# Two agents that have not heard of each other start a mesh each; they meet within so many rounds, or never add up. The
# share in the rounds since then is one more vector in memory, so long.
_START_ROUNDS = 2


@dataclass(frozen=True, eq=False)
class Work:
    """Own work, float32 (P,), that w does not hold.

    rounds: (lineage, round) of each own delta that it was part of: where one of them is counted, it is. fork: it is the
    share in a fork's results up to a round, and part of w there. given: as rounds, where another device has had it.
    trained: of such a share, which own trainings are in it: for which round, and the digest of the w they began at.
    within: of such a share, what this device brought into that fork from others: its shares there.
    """

    values: Vector
    rounds: tuple[tuple[Lineage, int], ...] = ()
    fork: tuple[Lineage, int] | None = None
    given: tuple[tuple[Lineage, int], ...] = ()
    trained: tuple[tuple[int, bytes], ...] = ()
    within: tuple[Work, ...] = ()

    def given_in(self, lineage: Lineage, round_id: int) -> Work:
        """The same after it was part of an own delta that another device has had."""
        here = (lineage, round_id)
        return replace(self, rounds=(*self.rounds, here), given=(*self.given, here))


@dataclass(eq=False)
class _Share:
    """The results since a fork that this device contributed to, as in `Work`, as long as the fork is followed."""

    values: Vector
    trained: tuple[tuple[int, bytes], ...] = ()
    within: tuple[Work, ...] = ()


class Standing:
    """See the module. parameters: float32, shape (P,), never changed in place. uncounted: enters the next own delta.

    votes: this process has followed its lineage since it joined a round of it, so it knows all it ever staged.
    """

    def __init__(self, me: Contributor, parameters: Vector, round_id: int = 0, history: History | None = None) -> None:
        self.parameters = parameters
        self.round_id = round_id
        self.digest = digest_of(parameters)
        self.uncounted: tuple[Work, ...] = ()
        self.votes = False
        self.lineage: Lineage = ()
        self._me = me
        self._since_fork: dict[int, _Share] = {}
        self._empty: set[tuple[Lineage, int]] = set()
        self._take_history(history or History())

    def history(self) -> History:
        return History(self.lineage, self.base, tuple(self._counted[peer_id] for peer_id in sorted(self._counted)))

    def follow(self, lineage: Lineage, base: tuple[str, ...]) -> None:
        """Go on with the mesh; or with a group that starts, or leaves the others behind, at this very w."""
        if lineage != self.lineage:
            self.lineage, self.base, self.votes = lineage, base, True

    def apply(self, result: ModelDelta, eta: float, works: tuple[Work, ...] = ()) -> None:
        """w(t + 1) = w(t) - eta * delta (Algorithm 1). works: earlier work in this device's own delta of the round."""
        trained_at = self.digest
        self.parameters = apply_delta(self.parameters, result.values, eta)
        self.digest = digest_of(self.parameters)
        self.round_id += 1
        self.base = tuple(sorted({contributor.peer_id for contributor in result.contributors}))
        self.votes = True
        for contributor in result.contributors:
            self._counted[contributor.peer_id] = Counted(contributor, self.round_id)
        if self._me in result.contributors:
            self._remember_since_fork(result.values, self.round_id, trained_at, works)
        self._clear()

    def move_to(
        self,
        round_id: int,
        parameters: Vector,
        digest: bytes,
        history: History,
        eta: float,
        works: tuple[Work, ...] = (),
        staged: ModelDelta | None = None,
    ) -> None:
        """Take over another device's w. Shares in a fork that is left behind are uncounted from here on.

        A round that this device has contributed to, and whose result it never had, is what this w has changed by; or
        what it has staged, if this w is further. works: earlier work in its own delta of that round.
        """
        before, before_round, before_parameters = self.lineage, self.round_id, self.parameters
        trained_at, missed = self.digest, self.round_id + 1
        if history.lineage != before:
            self.votes = False
        self.round_id, self.parameters, self.digest = round_id, parameters, digest
        self._take_history(history)
        if history.lineage == before and self._counted.get(self._me.peer_id) == Counted(self._me, missed):
            if round_id == missed:
                values = (before_parameters - parameters) / np.float32(eta)
                self._remember_since_fork(values, missed, trained_at, works)
            elif staged and self._me in staged.contributors:
                self._remember_since_fork(staged.values, missed, trained_at, works)
        for level in _left_levels(before, history.lineage):
            if (share := self._since_fork.pop(level, None)) is not None:
                until = before[level + 1].round_id if level + 1 < len(before) else before_round
                fork = before[: level + 1], until
                self.uncounted += (Work(share.values, fork=fork, trained=share.trained, within=share.within),)
        self._clear()

    def add(self, work: Work) -> None:
        """Own work that a round has not counted, unless it turns out that it has."""
        if not self.holds(work):
            self.uncounted = (*self.uncounted, self._without_held(work))

    def take(self) -> tuple[Work, ...]:
        """What can enter the next own delta: all that cannot be counted anywhere else."""
        here = (self.lineage, self.round_id + 1)
        taken = tuple(work for work in self.uncounted if not self.is_uncertain(work, here))
        self.uncounted = tuple(work for work in self.uncounted if work not in taken)
        return taken

    def find(self, round_id: int) -> Work | None:
        """What this device has trained for a round from this very w, if no round has counted it."""
        for work in self.uncounted:
            if work.fork is not None or work.rounds[0][1] != round_id:
                continue
            if has_in_common(work.rounds[0][0], self.lineage, round_id - 1):
                return work
        return None

    def is_shared(self, round_id: int) -> bool:
        """Whether what this device has trained for a round from this very w comes with its share in a fork.

        The same w, whatever the lineage: a fork's only share may be all that a round here consists of.
        """
        return any((round_id, self.digest) in work.trained for work in self.uncounted)

    def hold_nothing(self, round_id: int) -> None:
        """This device's delta of that round is empty here: that it is counted says nothing of its work elsewhere."""
        self._empty.add((self.lineage, round_id))

    def drop(self, work: Work) -> None:
        self.uncounted = tuple(other for other in self.uncounted if other is not work)

    def is_uncertain(self, work: Work, here: tuple[Lineage, int] | None = None) -> bool:
        """Whether another device has had it in a round of which nothing is known here.

        here: the round that it may enter. Of one round one attempt counts, and a device in it once: what was given in
        an earlier attempt is in the delta of this one again, or it would pass for counted with it.
        """
        if self._is_on_the_way(work):
            return True
        return not all(given == here or self._knows(*given) for given in work.given)

    def _is_on_the_way(self, work: Work) -> bool:
        """Whether this device follows the very fork that this is a share in, or holds one in, and is not so far yet."""
        if work.fork is not None and self._follows(work.fork[0]) and self.round_id < work.fork[1]:
            return True
        return any(self._is_on_the_way(inner) for inner in work.within)

    def _knows(self, lineage: Lineage, round_id: int) -> bool:
        """Whether this w comes after that round on its lineage, so that the counts tell who was in it."""
        beyond = self.lineage[len(lineage) :]
        follows = self.lineage[: len(lineage)] == lineage and all(fork.round_id >= round_id for fork in beyond)
        return follows and self.round_id >= round_id

    def holds(self, work: Work) -> bool:
        """Whether this work is part of w, here and now."""
        if work.fork is not None:
            fork, until = work.fork
            if self._follows(fork) and self.round_id >= until:
                return True
        return self._is_counted_with(work)

    def _is_counted_with(self, work: Work) -> bool:
        """Whether an own delta that it was part of is."""
        return any(self.is_counted(lineage, round_id) for lineage, round_id in work.rounds)

    def _follows(self, fork: Lineage) -> bool:
        """Whether this device stands on that fork, or on one of its own, and not on one that left it at its start."""
        beyond = self.lineage[len(fork) :]
        return self.lineage[: len(fork)] == fork and all(later.round_id > fork[-1].round_id for later in beyond)

    def _clear(self) -> None:
        """Forget what w holds by now."""
        self.uncounted = tuple(self._without_held(work) for work in self.uncounted if not self.holds(work))

    def _without_held(self, work: Work) -> Work:
        """A share in a fork without what came into it from the fork that goes on now, where it counts already.

        The others who contributed bring their shares with it, so it is taken off as a whole from this one.
        """
        values, within = work.values, []
        for inner in work.within:
            if self.holds(inner):
                values = values - inner.values
                continue
            less = self._without_held(inner)
            if less is not inner:
                values = values - (inner.values - less.values)
            within.append(less)
        return work if values is work.values else replace(work, values=values, within=tuple(within))

    def is_counted(self, lineage: Lineage, round_id: int) -> bool:
        """Whether this process's own delta of a round on a lineage is part of w, here and now.

        The last round it was counted in tells: before it contributed to a later one, it stood here and knew of this.
        """
        counted = self._counted.get(self._me.peer_id) == Counted(self._me, round_id)
        for fork, first in self._empty:
            if fork != lineage and first == round_id and self.lineage[: len(fork)] == fork:
                return False
        return counted and has_in_common(lineage, self.lineage, round_id - 1)

    def _take_history(self, history: History) -> None:
        self.lineage, self.base = history.lineage, history.base
        self._counted = {entry.contributor.peer_id: entry for entry in history.counted}

    def _remember_since_fork(self, values: Vector, round_id: int, trained_at: bytes, works: tuple[Work, ...]) -> None:
        """What may be given up: a true fork; and the start of a mesh, as long as another start may still turn up."""
        level = len(self.lineage) - 1
        if level < 0:
            return
        if level == 0 and self.round_id > _START_ROUNDS:
            self._since_fork.pop(0, None)
            return
        share = self._since_fork.get(level)
        if share is None:
            share = self._since_fork[level] = _Share(values.copy())
        else:
            np.add(share.values, values, out=share.values)
        counted = [work for work in self.uncounted if self._is_counted_with(work)]
        share.within += tuple(work for work in (*works, *counted) if work.fork is not None)
        if (self.lineage, round_id) not in self._empty:
            share.trained += ((round_id, trained_at),)


def _left_levels(before: Lineage, after: Lineage) -> range:
    """Which forks' rounds are left behind; also those of the one that both follow, if it is left at its very start."""
    common = shared_forks(before, after)
    is_left = 0 < common < len(after) and after[common].round_id == before[common - 1].round_id
    return range(common - is_left, len(before))


def total(works: tuple[Work, ...]) -> Vector | None:
    """All of it together; None if there is none."""
    return None if not works else sum((work.values for work in works[1:]), start=works[0].values.copy())
