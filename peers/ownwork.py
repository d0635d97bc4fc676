"""What a device contributes to a round: trained for it, trained before and never counted, or recalled from its model.

The own delta is trained once for a round, however often that is opened. It is merged away during aggregation, so that
memory stays flat; where a round goes on without it, it is computed again from the trained model (`RecallDelta`), and
enters the next own delta, unless it may be counted somewhere (`peers/standing.py`).
"""

from __future__ import annotations

import logging

import msgspec
import numpy as np

from mdl.delta import Contributor, ModelDelta, Vector, check_values
from mdl.machine import DeltaRecalled, Effect, KeepDelta, LocalDeltaReady, RecallDelta, TrainLocally
from mdl.messages import Lineage, TrainingReport
from peers.part import Part
from peers.standing import Standing, Work, total

logger = logging.getLogger(__name__)


class Doing(msgspec.Struct, frozen=True):
    """What the worker trains, or recalls, for a round: where the device stood, and whether another one has had it."""

    lineage: Lineage
    was_given: bool = False


class OwnWork:
    """See the module. training: how the open round's went. keeps: write each own delta (`--verify`)."""

    def __init__(self, me: Contributor, standing: Standing, keeps: bool) -> None:
        self.training: TrainingReport | None = None
        self._me = me
        self._standing = standing
        self._keeps = keeps
        self._theta = 1.0
        self._doing: dict[int, Doing] = {}

    def begin(self, part: Part, before: Part | None, lineage: Lineage, goal: int) -> list[Effect]:
        """Train; or, if the same round was open as another attempt, use what that gave.

        lineage: of that attempt. If this one begins a fork, what was given away there may be counted on the other side:
        it is kept back, and this device contributes nothing to the fork's first round. goal: the run's last round.
        """
        standing = self._standing
        if before and before.holds:
            part.was_given_before = before.was_given()
            if part.was_given_before and lineage != standing.lineage:
                return self.give_back(before, standing.parameters, lineage) + self._hold_nothing(part)
            if own := before.own_hold(self._me):
                part.holds, part.works, part.is_empty = {0: own}, before.works, before.is_empty
                return []
            effects = self.give_back(before, standing.parameters, lineage)
            return effects + self._hold_nothing(part) if before.is_empty else effects
        if part.round_id in self._doing:
            return []  # it is being trained or recalled at this moment
        if work := standing.find(part.round_id):
            return self._hold_again(part, work)
        if standing.is_shared(part.round_id):
            return self._hold_nothing(part)
        return self._train(part.round_id, goal)

    def take_trained(self, ready: LocalDeltaReady, part: Part | None, missed: Part | None) -> list[Effect]:
        """Local training is done: for the open round, for one that went on meanwhile, or for none any more.

        Raises RemoteProtocolError if it has diverged.
        """
        doing = self._doing.pop(ready.round_id, Doing(self._standing.lineage))
        check_values(ready.delta.values, self._standing.parameters.size)
        if part and part.round_id == ready.round_id and not part.holds:
            self.training = msgspec.structs.replace(ready.training, theta=ready.delta.theta)
            self._theta = ready.delta.theta
            return self._hold(part, ready.delta)
        if missed and missed.round_id == ready.round_id and not missed.holds:
            missed.holds = {0: ready.delta}  # whether it was counted, the model to come will tell
        else:
            self._standing.add(Work(ready.delta.values, ((doing.lineage, ready.round_id),)))
        return []

    def take_recalled(self, recalled: DeltaRecalled, part: Part | None, goal: int) -> list[Effect]:
        """What was merged away is here again."""
        doing = self._doing.pop(recalled.round_id, Doing(self._standing.lineage))
        wanted = part is not None and part.round_id == recalled.round_id and not part.holds
        if recalled.values is None:
            logger.warning("round %d: its own delta is not known any longer", recalled.round_id)
            return self._train(recalled.round_id, goal) if wanted else []
        here = ((doing.lineage, recalled.round_id),)
        work = Work(recalled.values, here, given=here if doing.was_given else ())
        self._standing.add(work)
        return self._hold_again(part, work) if part is not None and wanted else []

    def give_back(self, part: Part, parameters: Vector, lineage: Lineage) -> list[Effect]:
        """A round went on without this device's work from `parameters` on `lineage`: it goes into the next one."""
        given, here = part.was_given(), (lineage, part.round_id)
        own = part.own_hold(self._me)
        for work in part.works:
            self._standing.add(work.given_in(*here) if given else work)
        if part.is_empty:
            return []
        if own:
            earlier = total(part.works)
            fresh = own.values if earlier is None else own.values - earlier
            self._standing.add(Work(fresh, (here,), given=(here,) if given else ()))
        if own or not part.holds:  # it is here, or still being trained
            return []
        self._doing[part.round_id] = Doing(lineage, given)
        return [RecallDelta(part.round_id, parameters)]

    def _train(self, round_id: int, goal: int) -> list[Effect]:
        self._doing[round_id] = Doing(self._standing.lineage)
        self.training = None
        return [TrainLocally(round_id, self._standing.parameters, goal)]

    def _hold_again(self, part: Part, work: Work) -> list[Effect]:
        """What was trained for this round before is its own delta, unless it may be counted elsewhere."""
        if self._standing.is_uncertain(work) and work.rounds[0][0] != self._standing.lineage:
            return self._hold_nothing(part)
        self._standing.drop(work)
        return self._hold(part, ModelDelta(work.values, self._theta, frozenset([self._me])))

    def _hold_nothing(self, part: Part) -> list[Effect]:
        self._standing.hold_nothing(part.round_id)
        part.is_empty = True
        nothing = np.zeros_like(self._standing.parameters)
        return self._hold(part, ModelDelta(nothing, self._theta, frozenset([self._me])))

    def _hold(self, part: Part, fresh: ModelDelta) -> list[Effect]:
        """The own delta of this round, with what earlier rounds did not count."""
        part.works = self._standing.take()
        earlier = total(part.works)
        values = fresh.values if earlier is None else fresh.values + earlier
        own = ModelDelta(values, fresh.theta, fresh.contributors)
        part.holds = {0: own}
        return [KeepDelta(part.round_id, "own", own)] if self._keeps else []
