"""The contribution of a device to a round: trained for it, trained before and never counted, or recalled.

The own delta is trained once for a round, however often that is opened. It is merged away during aggregation, so that
memory stays flat. If a round goes on without it, it is computed again from the trained model (`RecallDelta`), and
enters the next own delta (`peers/roles/trainer/model_state.py`).

A device trains one thing at a time, and goes on training if its round closes without it. It gives that work to the next
round at once, and trains nothing for that one. So a slow device gives, trains, and gives again.

A device that overlaps (communication under the next local steps, one round late) goes on training at w - own delta, as
soon as its own delta of a round is there. That gives its own delta of the next round. Its model holds other values
then, so it keeps the own delta itself: two vectors more, and the one that it trains from.

A device gives its delta to a round on the round's grid, times its weight (`mdl/protocol/grid.py`). A part that its
share of the sum cut off, or coding rounded off, is own work of that round, and comes with the next delta.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from mdl.bounds import MAX_LENGTH, MAX_LOSS, within
from mdl.peers.roles.trainer.model_state import AHEAD_OF, ModelState, Round, TrainedWork, total
from mdl.peers.roles.trainer.round_state import RoundState
from mdl.protocol.delta import Contributor, ModelDelta, PartialSum, weight_of
from mdl.protocol.grid import Vector, change_room
from mdl.protocol.machine import (
    MAX_VECTORS,
    DeltaRecalled,
    Effect,
    KeepDelta,
    LocalDeltaReady,
    RecallDelta,
    TrainLocally,
)
from mdl.protocol.vector_work import ChecksumsCounted, CountChecksums, Held, hold_own
from mdl.protocol.vocabulary import Lineage, TrainingReport

logger = logging.getLogger(__name__)


# The values of work that is still being computed.
_NOTHING = np.empty(0, np.float32)


class _Made(NamedTuple):
    """The integers that the training's worker has made, and the vectors that are in them."""

    held: Held
    fresh: Vector
    earlier: tuple[Vector, ...]

    def find(self, fresh: Vector, earlier: Sequence[Vector], theta: float, room: int) -> Held | None:
        """Return the integers of this very work and nothing else, with this weight on the grid of this room."""
        is_its = self.fresh is fresh and list(map(id, self.earlier)) == list(map(id, earlier))
        return self.held if is_its and (self.held.sum.theta, self.held.sum.room) == (theta, room) else None


class OwnWork:
    """See the module. training: the report on the open round's. keeps: write each own delta (`--verify`).

    is_paused: the device may not train now: training waits for `resume`. overlaps: see the module.
    """

    def __init__(
        self, me: Contributor, model_state: ModelState, keeps: bool, overlaps: bool = False, theta: float = 1.0
    ) -> None:
        self.training: TrainingReport | None = None
        self.is_paused = False
        self._me = me
        self._model_state = model_state
        self._keeps = keeps
        self._overlaps = overlaps
        self._theta = weight_of(theta)
        self._ahead: tuple[TrainedWork, TrainingReport] | None = None  # trained for the round after the open one
        self._doing: dict[int, TrainedWork] = {}
        self._earlier: dict[int, tuple[Vector, ...]] = {}  # round -> earlier work that its training's worker adds
        self._trains: set[int] = set()  # the rounds of these that are trained, not recalled
        self._is_late = False  # its last round has closed without it
        self._overwritten: set[int] = set()  # rounds that lose their trained model to a test

    @property
    def theta(self) -> float:
        """The weight of its deltas."""
        return self._theta

    @property
    def ahead(self) -> Vector | None:
        return self._ahead[0].values if self._ahead else None

    def note_test(self) -> None:
        """Note that a test is due: it takes the trained model's place as soon as the training under way is done."""
        self._overwritten = set(self._doing)

    def begin(self, part: RoundState, before: RoundState | None, lineage: Lineage, goal: int) -> list[Effect]:
        """Train; or, if the same round was open as another attempt, use the own delta of that.

        lineage: of that attempt. Work given away there may be counted on the other side of a cut: the place where this
        device stands later will tell. goal: the run's last round.
        """
        model_state, effects = self._model_state, []
        if before and before.hold:
            if (own := before.own_hold(self._me)) and self._is_of(before, (model_state.lineage, part.round_id)):
                values = change_room(own.values, own.room, part.room)
                part.hold = own = replace(own, values=values, room=part.room)
                part.grid = replace(before.grid, room=part.room) if before.grid else None
                part.checksums = before.checksums if part.room == before.room else ()
                part.is_empty, part.rest, here = before.is_empty, before.rest, (lineage, before.round_id)
                part.works = tuple(work.given_in(here) for work in before.works)
                part.fresh = before.fresh.given_in(here) if before.fresh else None
                return self._count(part, own)  # no result takes its place (`trained_from`): it may be on its way still
            effects = self.give_back(before, model_state.parameters, lineage)
            if before.is_empty:
                return effects + self._hold_nothing(part)
        return effects + self._go_on(part, goal)

    def _is_of(self, before: RoundState, here: Round) -> bool:
        """Return True if another attempt's own delta can be this round's: it was, or there was none here."""
        works = [*before.works, before.fresh] if before.fresh else before.works
        was_in = [here in work.rounds or work.has_counted(here) for work in works]
        return all(was_in) or not (any(was_in) or self._model_state.was_given_in(here))

    def take_trained(
        self, ready: LocalDeltaReady, part: RoundState | None, missed: RoundState | None, goal: int
    ) -> list[Effect]:
        """Take a finished training: for the open round, for the next, for one that went on meanwhile, or for none."""
        work, earlier = self._done(ready.round_id, ready.delta.values), self._earlier.pop(ready.round_id, ())
        made = None if ready.held is None else _Made(ready.held, work.values, earlier)
        self._trains.discard(ready.round_id)
        self._set_weight(ready.delta.theta)
        loss = within(ready.training.loss, -MAX_LOSS, MAX_LOSS)  # nobody would read it if it diverged
        length = within(ready.training.length, 0.0, MAX_LENGTH)
        training = replace(ready.training, theta=self._theta, loss=loss, length=length)
        if part and part.round_id == ready.round_id and not part.hold:
            self.training = training
            work = self._as_trained(work, part.round_id)
            effects = self._hold(part, work, made) + self._train_ahead(part, goal)
            is_there = part.fresh is work and ready.round_id not in self._overwritten and not self._overlaps
            if is_there and work.trained == ((part.round_id, self._model_state.digest),):
                part.fresh = replace(work, values=_NOTHING)  # the trained model has them until the round is over
                if not part.works:
                    part.trained_from = self._model_state.parameters
            return effects
        was_given = self._model_state.was_given_in((self._model_state.lineage, ready.round_id))
        if missed and missed.round_id == ready.round_id and not (missed.hold or was_given):
            missed.fresh = work  # the model to come will tell whether it was counted
            self._put_on_grid(missed, work.values, [], made and made.find(work.values, [], self._theta, missed.room))
        elif work.is_ahead:
            self._put_back_ahead()
            self._ahead = work, training
            return self._go_on(part, goal)
        else:
            self._model_state.add(work)
            self._is_late = True
            return self._go_on(part, goal)
        return []

    def give_up(self, round_id: int) -> None:
        """Drop a training that a pause cut off: nothing of it is known."""
        self._doing.pop(round_id, None)
        self._earlier.pop(round_id, None)
        self._trains.discard(round_id)

    def resume(self, part: RoundState | None, goal: int) -> list[Effect]:
        """Train for the open round, if a pause has kept that back."""
        return [] if part is None or part.broadcast.staged else self._go_on(part, goal)

    def take_again(self, part: RoundState, recalled: DeltaRecalled) -> None:
        """Take back the own delta after a result had taken its place; without values it cannot be had again."""
        part.is_recalling = part.is_spent = False
        if recalled.held is not None and recalled.held.sum.room == part.room:
            part.hold = recalled.held.sum
            return
        if recalled.values is not None:
            self._put_on_grid(part, recalled.values, [])
            return
        logger.warning("round %d: its own delta is not known any longer", part.round_id)
        part.hold = part.fresh = part.broadcast.exchange = None

    def take_recalled(self, recalled: DeltaRecalled, part: RoundState | None, goal: int) -> list[Effect]:
        """Take work that was merged away, and is computed again."""
        wanted = part is not None and part.round_id == recalled.round_id and not part.hold
        if recalled.round_id not in self._doing:
            return []  # the round has come to its end meanwhile, with what was asked for in it
        if recalled.values is None:
            self._doing.pop(recalled.round_id, None)
            logger.warning("round %d: its own delta is not known any longer", recalled.round_id)
            return self._go_on(part, goal)
        work = self._done(recalled.round_id, recalled.values)
        if part is not None and wanted:
            return self._hold(part, work)
        self._model_state.add(work)
        return self._go_on(part, goal)

    def give_back(self, part: RoundState, parameters: Vector, lineage: Lineage, is_free: bool = False) -> list[Effect]:
        """Keep own work of a round that is over for the next own delta, if the round did not count it.

        The round began at `parameters` on `lineage`. Work that it counted is remembered where others may go on without
        that round. is_free: nobody needs the parameters.
        """
        model_state, here = self._model_state, (lineage, part.round_id)
        # It was not late if a hop took its work, or was refused: refused work is no better for coming again at once.
        is_over, is_taken = part.round_id <= model_state.round_id, bool(part.given or part.released or part.decisions)
        if is_over and not (is_taken or model_state.is_counted(*here)) and (part.fresh or part.is_empty):
            self._is_late = True
        model_state.add(*(work.given_in(here) for work in part.works))
        if part.fresh is None:
            return []  # there was none, or it is still being trained
        fresh = part.fresh.given_in(here)
        if fresh.rounds == (here,) and not fresh.counted and model_state.holds_for_good(here):
            return []
        own = part.own_hold(self._me)
        if fresh.values.size:
            model_state.add(fresh)
        elif (
            own and part.grid and (model_state.is_small or not part.works)
        ):  # a large one takes too long to subtract here
            whole, earlier = part.grid.to_mean(own.values, own.theta), total(part.works)
            if part.rest is not None:
                whole += part.rest
            model_state.add(replace(fresh, values=whole if earlier is None else whole - earlier))
        elif not model_state.holds_for_good(here):
            self._doing[part.round_id] = model_state.marked(fresh)
            return [] if part.is_recalling else [RecallDelta(part.round_id, parameters, is_free)]
        return []

    def _set_weight(self, theta: float) -> None:
        """Take the weight of this training: at most twice the told one, since the round's grid has room for so much."""
        self._theta = min(weight_of(theta), 2.0 * self._theta)

    def _done(self, round_id: int, values: Vector) -> TrainedWork:
        return replace(self._doing.pop(round_id, TrainedWork(_NOTHING)), values=values)

    def _go_on(self, part: RoundState | None, goal: int) -> list[Effect]:
        """Give the open round work that is there, or else train for it, once no other training is under way."""
        if part is None or not part.attempt or part.hold or part.fresh or part.is_empty:
            return []
        if part.round_id in self._doing:
            return []
        model_state = self._model_state
        if work := self._take_ahead(part.round_id):
            return self._hold(part, work) + self._train_ahead(part, goal)
        if work := model_state.find(part.round_id):
            model_state.drop(work)
            return self._hold(part, work) + self._train_ahead(part, goal)
        if model_state.is_in_a_sum(part.round_id):
            return self._hold_nothing(part)
        if self._trains or (self._is_late and self._doing):
            return []
        if self._is_late and model_state.has_training():
            return self._hold_nothing(part)
        return self._train(part, goal)

    def _train(self, part: RoundState, goal: int) -> list[Effect]:
        if self.is_paused:
            return []
        round_id = part.round_id
        self._doing[round_id] = TrainedWork(_NOTHING, ((round_id, self._model_state.digest),))
        self._trains.add(round_id)
        self.training = None
        able = self._model_state.able()
        earlier = tuple(work.values for work in able) if len(able) <= MAX_VECTORS else ()
        self._earlier[round_id] = earlier
        return [TrainLocally(round_id, self._model_state.parameters, goal, None, earlier, part.room)]

    def _train_ahead(self, part: RoundState, goal: int) -> list[Effect]:
        """Train for the next round, while the own delta of this one travels."""
        round_id, fresh = part.round_id + 1, part.fresh
        if not self._overlaps or self.is_paused or 0 < goal < round_id:
            return []
        if fresh is None or not fresh.values.size or round_id in self._doing or self._ahead:
            return []
        training = round_id, AHEAD_OF + self._model_state.digest
        if any(training in work.trained for work in (*part.works, *self._model_state.uncounted)):
            return []  # it was done before, on a fork
        self._doing[round_id] = TrainedWork(_NOTHING, (training,))
        self._trains.add(round_id)
        return [TrainLocally(round_id, self._model_state.parameters, goal, fresh.values)]

    def _take_ahead(self, round_id: int) -> TrainedWork | None:
        """Return the work trained ahead for this round; that of a round that never came becomes earlier work."""
        ahead_for = self._ahead[0].trained[0][0] if self._ahead else 0
        if self._ahead and ahead_for == round_id:
            (work, self.training), self._ahead = self._ahead, None
            return self._as_trained(work, round_id)
        if ahead_for != round_id + 1:
            self._put_back_ahead()
        return None

    def _put_back_ahead(self) -> None:
        if self._ahead:
            self._model_state.add(self._ahead[0])
            self._ahead = None

    def _as_trained(self, work: TrainedWork, round_id: int) -> TrainedWork:
        """Return work that was trained ahead for this round as this round's training."""
        is_its = work.is_ahead and work.trained[0][0] == round_id
        return replace(work, trained=((round_id, self._model_state.digest), *work.trained)) if is_its else work

    def _hold_nothing(self, part: RoundState) -> list[Effect]:
        """Hold zeros: the training for this round comes in a sum, as earlier work."""
        part.is_empty = True
        return self._hold(part, TrainedWork(np.zeros(self._model_state.parameters.size, np.float32)))

    def _hold(self, part: RoundState, fresh: TrainedWork, made: _Made | None = None) -> list[Effect]:
        """Hold the own delta of this round, with work that earlier rounds did not count. made: it may be the sum.

        If there was one before, leave out work trained since: the round's result may hold that one.
        """
        model_state, here = self._model_state, (self._model_state.lineage, part.round_id)
        self._is_late = False
        is_again = here in fresh.rounds or fresh.has_counted(here) or model_state.was_given_in(here)
        if is_again and here not in fresh.rounds:
            model_state.add(*([fresh] if fresh.trained else []))
            part.is_empty, fresh = True, TrainedWork(np.zeros(model_state.parameters.size, np.float32))
        part.works = model_state.take(is_again)
        earlier = [work.values for work in part.works]
        if not part.is_empty:
            part.fresh = fresh
        found = made.find(fresh.values, earlier, self._theta, part.room) if made else None
        held = self._put_on_grid(part, fresh.values, earlier, found)
        # A story has no values, so what is told of them comes by events alone.
        part.checksums = found.checksums if found else ()
        if found and self.training:
            self.training = replace(self.training, clipped=found.clipped_values)
        effects: list[Effect] = [*self._count(part, held.sum)]
        if self._keeps:
            effects.append(KeepDelta(part.round_id, "own", replace(held.sum, values=held.sum.values.copy())))
        return effects

    def _count(self, part: RoundState, own: PartialSum) -> list[Effect]:
        """Ask for the checksums of the own delta, if they are not there: until then it is not ready to be given."""
        part.is_counting = not part.checksums
        return [CountChecksums(part.round_id, part.attempt, own.values)] if part.is_counting else []

    def take_counted(self, counted: ChecksumsCounted, part: RoundState | None) -> bool:
        """Take the checksums of the own delta; return True if it is ready now."""
        if part is None or not part.is_counting or (part.round_id, part.attempt) != (counted.round_id, counted.attempt):
            return False
        part.checksums, part.is_counting = counted.checksums, False
        return True

    def _put_on_grid(
        self, part: RoundState, fresh: Vector, earlier: Sequence[Vector], held: Held | None = None
    ) -> Held:
        """Hold this work as integers of the round's grid, and return them. held: these integers, if they are there."""
        if held is None:
            delta = ModelDelta(fresh, self._theta, frozenset([self._me]))
            held = hold_own(self._model_state.parameters, delta, part.room, earlier)
        part.hold, part.grid, part.rest = held.sum, held.grid, held.rest
        if held.clipped_values:
            told = "round %d: %d of %d values are beyond their share of the sum; the rest comes with the next delta"
            logger.info(told, part.round_id, held.clipped_values, held.sum.values.size)
        return held
