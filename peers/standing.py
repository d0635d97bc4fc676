"""Where a device stands: w(round_id) on one lineage of the mesh, and its own work that no round has counted yet.

A device that was suspended, cut off or too late for a round does not lose what it trained: the delta is carried into
its next one. If it went on with a group of its own (a fork) and comes back, the results of the rounds that it
contributed to there are carried likewise: each contributor brings its share, so that together they count once. What it
had given away just before the fork, and contributed to the fork's first round too, is left out of that if the others
have counted it.
"""

from __future__ import annotations

import numpy as np

from mdl.delta import Contributor, ModelDelta, Vector, apply_delta, digest_of
from mdl.messages import Counted, History, Lineage
from peers.quorum import shared_forks


class Standing:
    """See the module. parameters: float32, shape (P,), never changed in place. carry: (P,), or None.

    votes: this process has followed its lineage since it joined a round of it, so it knows all it ever staged.
    """

    def __init__(self, me: Contributor, parameters: Vector, round_id: int = 0, history: History | None = None) -> None:
        self.parameters = parameters
        self.round_id = round_id
        self.digest = digest_of(parameters)
        self.carry: Vector | None = None
        self.votes = False
        self.lineage: Lineage = ()
        self._me = me
        self._since_fork: dict[int, Vector] = {}
        self._at_risk: dict[int, Vector] = {}
        self._take_history(history or History())

    def history(self) -> History:
        counted = tuple(Counted(Contributor(*who), round_id) for who, round_id in sorted(self._counted_items()))
        return History(self.lineage, self.base, counted)

    def is_counted(self, round_id: int) -> bool:
        """Whether this process's work of that round is part of w, here and now."""
        incarnation, last = self._counted.get(self._me.peer_id, (0, 0))
        return incarnation == self._me.incarnation and last >= round_id

    def follow(self, lineage: Lineage, base: tuple[str, ...]) -> None:
        """Go on with the mesh; or with a group that starts, or leaves the others behind, at this very w."""
        if lineage != self.lineage:
            self.lineage, self.base, self.votes = lineage, base, True

    def put_at_risk(self, values: Vector) -> None:
        """Own work of the fork's first round that had been given away before: the others may have counted it."""
        self._at_risk[len(self.lineage) - 1] = values

    def apply(self, result: ModelDelta, eta: float) -> None:
        """w(t + 1) = w(t) - eta * delta (Algorithm 1)."""
        self.parameters = apply_delta(self.parameters, result.values, eta)
        self.digest = digest_of(self.parameters)
        self.round_id += 1
        self.base = tuple(sorted({contributor.peer_id for contributor in result.contributors}))
        self.votes = True
        for contributor in result.contributors:
            self._counted[contributor.peer_id] = (contributor.incarnation, self.round_id)
        if self._me in result.contributors:
            self._remember_since_fork(result.values)

    def move_to(self, round_id: int, parameters: Vector, digest: bytes, history: History) -> None:
        """Take over another device's w. Rounds of a fork that is left behind are carried from here on."""
        left = range(shared_forks(self.lineage, history.lineage), len(self.lineage))
        # Before its first round was over, the work at risk is in that round's open part, and not in what follows.
        first_rounds = {
            level: self.lineage[level].round_id + 1 for level in left if self.round_id > self.lineage[level].round_id
        }
        if history.lineage != self.lineage:
            self.votes = False
        self.round_id, self.parameters, self.digest = round_id, parameters, digest
        self._take_history(history)
        for level in left:
            at_risk, since = self._at_risk.pop(level, None), self._since_fork.pop(level, None)
            if since is not None:
                self.add_carry(since)
            if at_risk is not None and level in first_rounds and self.is_counted(first_rounds[level]):
                self.add_carry(-at_risk)

    def add_carry(self, values: Vector) -> None:
        """Own work that was not counted: it enters the next own delta."""
        self.carry = values if self.carry is None else self.carry + values

    def _take_history(self, history: History) -> None:
        self.lineage, self.base = history.lineage, history.base
        self._counted = {
            entry.contributor.peer_id: (entry.contributor.incarnation, entry.round_id) for entry in history.counted
        }

    def _counted_items(self) -> list[tuple[tuple[str, int], int]]:
        return [((peer_id, incarnation), last) for peer_id, (incarnation, last) in self._counted.items()]

    def _remember_since_fork(self, values: Vector) -> None:
        """Only a true fork can be given up; the first entry of a lineage is the start of the mesh."""
        level = len(self.lineage) - 1
        if level < 1:
            return
        if level in self._since_fork:
            np.add(self._since_fork[level], values, out=self._since_fork[level])
        else:
            self._since_fork[level] = values.copy()
