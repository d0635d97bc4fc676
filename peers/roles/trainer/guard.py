"""The knowledge of a device about others' deltas, and its suspicions (MDLdroid 5: a poisoning check at each device).

The measuring is work on vectors (`mdl/protocol/vector_work.py`), the limits are `mdl/defence/judge.py`; this module
remembers from one round to the next. It decides nothing about a round: a refused delta is a hop that is aborted. A new
suspicion is news for the next report: `Voice` has the times at which a device repeats requests and reports news.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from math import log

import msgspec
import numpy as np

from mdl.bounds import MAX_LOSS, printable, within
from mdl.defence.judge import ALONE, Marks, PieceJudge, draw_places, length
from mdl.defence.limits import Accusation, Limits, OwnDeltaSeen, Suspects
from mdl.peers.roles.trainer.model_state import ModelState
from mdl.protocol.delta import Contributor, PartialSum
from mdl.protocol.grid import Vector
from mdl.protocol.vector_work import Check, DeltasMerged
from mdl.protocol.vocabulary import Transfer

logger = logging.getLogger(__name__)


@dataclass
class Voice:
    """The clock of one device's words. report_s, retry_s: longest time between two reports, and between two requests.

    ask_at: time of the next request, None while it wants nothing. transfer: progress of the values that it waits for.
    link_mb_s: speed of this device's link as the last exchange has shown it, in MB/s; 0.0: not known.
    has_changed: there is something to report at once. report_at: time at which the last report is old.
    """

    report_s: float
    retry_s: float
    link_mb_s: float = 0.0
    ask_at: float | None = None
    transfer: Transfer | None = None
    has_changed: bool = True
    report_at: float = 0.0

    def want(self, now: float) -> None:
        """Ask for something else at once: the transfer of what was wanted before goes no further."""
        self.ask_at, self.transfer = now, None

    def stop_asking(self) -> None:
        self.ask_at = None

    def deadline(self) -> float:
        ask_at = self.ask_at
        return self.report_at if ask_at is None or ask_at > self.report_at else ask_at

    def has_news(self, now: float) -> bool:
        """Return True if a report is due: something has changed, or the last one is old."""
        return self.has_changed or now >= self.report_at

    def is_due(self, now: float) -> bool:
        """Return True if the last report is old."""
        return now >= self.report_at

    def say_again(self) -> None:
        """Report at once: the agent asks, or is a new one."""
        self.has_changed = True


class Defence(msgspec.Struct, frozen=True):
    """Settings of the judging. is_on: partial sums are judged. tests: with windows of this device, too.

    seed: draws the places where angles are measured. clips: as in `Check`.
    """

    is_on: bool = False
    tests: bool = False
    seed: int = 0
    clips: bool = True


class DeltaGuard:
    """See the module. suspects: of this device. told: the reason why rounds leave it out itself, "" if none does."""

    def __init__(self, settings: Defence, model_state: ModelState, voice: Voice) -> None:
        self.suspects = Suspects()
        self.told = ""
        self._settings = settings
        self._model_state = model_state
        self._voice = voice
        self._places = draw_places(model_state.parameters.size, np.random.default_rng(settings.seed))
        self._last: Vector | None = None
        self._own_norm: tuple[int, float] = (0, 0.0)  # round, and the length of the own delta in it

    @property
    def judges(self) -> bool:
        """True if it judges what comes, for which it needs the own delta."""
        return self._settings.is_on

    def check(
        self, room: int, contributors: frozenset[Contributor], is_own: bool, limits: Limits, is_look: bool = False
    ) -> Check | None:
        """Return the criteria that judge a partial sum of these contributors; None: it is not judged.

        room: of the round's grid. is_own: this device holds its own delta alone. limits: as the agent tells them.
        is_look: with own windows, too.
        """
        model_state, round_id = self._model_state, self._model_state.round_id + 1
        own_norm = self._own_norm[1] if self._own_norm[0] == round_id else None
        if not self._settings.is_on or (own_norm is None and not is_own):
            return None
        rounds = max(model_state.rounds_since_counted(each.peer_id) for each in contributors)
        grid, parameters = model_state.grid(room), model_state.parameters if is_look and self._settings.tests else None
        return Check(grid, limits, rounds, own_norm, self._places, self._last, parameters, self._settings.clips)

    def note(self, contributors: frozenset[Contributor], done: DeltasMerged) -> None:
        """Note the outcome of a merge: suspicion falls on its contributors, or ends."""
        if done.marks is None:
            return
        peer_ids = [each.peer_id for each in contributors]
        if done.marks.own_norm is not None:
            self._own_norm = done.round_id, done.marks.own_norm
        if done.verdict.is_refused:
            self.suspects.accuse(peer_ids, done.round_id, done.verdict.reason, done.verdict.blame)
        elif done.merged is not None and done.verdict.scale == 1.0 and len(peer_ids) == 1:
            self.suspects.clear(peer_ids, done.round_id)

    def accuse(self, peers: Iterable[Contributor], reason: str) -> None:
        """Hold against each of these what it did in this round, even where deltas are not judged; reports tell."""
        for peer in peers:
            logger.warning("round %d: %s: %s", self._model_state.round_id + 1, peer.peer_id, reason)
            self.suspects.accuse([peer.peer_id], self._model_state.round_id + 1, reason)
            self._voice.has_changed = True

    def tell(self, contributors: frozenset[Contributor], marks: Marks | None) -> OwnDeltaSeen | None:
        """Return the measurements for the agent, of an own delta that came alone, refused or not; else None."""
        if marks is None or len(contributors) != 1:
            return None
        rise = None if marks.rise is None else marks.rise / log(max(marks.classes, 2))
        return OwnDeltaSeen(_bounded(rise), _bounded(marks.cosine_global))

    def judge_pieces(self, own: Vector, owned: list[slice], limits: Limits) -> PieceJudge:
        """Return the judge of the pieces of these segments, which this device merges. own: its delta."""
        norm = length(own)
        times = max(ALONE, limits.length / norm) if norm else ALONE  # a slice differs more than a whole delta
        return PieceJudge(own, owned, self._places, self._last, times)

    def admits(self, judge: PieceJudge, sender: Contributor, bounds: slice, values: Vector) -> bool:
        """Return True if a device's piece may be merged. If not, suspect the device, and tell the agent."""
        peer_id, model_state = sender.peer_id, self._model_state
        is_known = peer_id in judge.refused
        reason = judge.look(peer_id, model_state.rounds_since_counted(peer_id), bounds, values)
        if reason and not is_known:
            self.suspects.accuse([peer_id], model_state.round_id + 1, reason)
            self._voice.has_changed = True
        return not reason

    def note_global(self, result: PartialSum) -> None:
        """Keep marks of the result that is about to be applied: the next one is compared with it."""
        if self._settings.is_on:
            grid = self._model_state.grid(result.room)
            self._last = grid.mean_at(result.values, result.theta, self._places)

    def accusations(self) -> tuple[Accusation, ...]:
        return tuple(
            Accusation(peer_id, within(each.weight, 0.0, 1.0), each.round_id, printable(each.reason))
            for peer_id, each in self.suspects.known.items()
        )


def _bounded(value: float | None) -> float | None:
    """Return the value within bounds; NaN becomes the greatest."""
    return None if value is None else within(value, -MAX_LOSS, MAX_LOSS)
